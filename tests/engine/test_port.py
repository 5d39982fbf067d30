"""A held port belongs to one engine."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from autotune.engine.port import held_port, listening


def server_on(port: int, *, reuse_port: bool) -> socket.socket:
    """Bound as vLLM does it: 0.32 sets SO_REUSEADDR alone, 0.24 SO_REUSEPORT too."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def test_no_two_engines_hold_one_port() -> None:
    with ExitStack() as stack:
        ports = [stack.enter_context(held_port()) for _ in range(500)]
    assert len(set(ports)) == len(ports)


def test_the_kernels_own_choice_never_falls_on_a_held_port() -> None:
    with ExitStack() as stack, held_port() as port:
        chosen = set()
        for _ in range(500):
            other = stack.enter_context(socket.socket())
            other.bind(("127.0.0.1", 0))
            chosen.add(other.getsockname()[1])
    assert port not in chosen


def test_vllm_can_take_the_port_while_it_is_held() -> None:
    for reuse_port in (False, True):
        with held_port() as port, server_on(port, reuse_port=reuse_port):
            assert listening(port)


def test_connections_reach_the_engine_not_the_holder() -> None:
    with held_port() as port, server_on(port, reuse_port=True) as server:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                server.settimeout(1)
                server.accept()[0].close()


def test_a_held_port_accepts_nothing_by_itself() -> None:
    with held_port() as port:
        assert not listening(port)
