"""A port that no other trial can take."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A loopback port, kept by a socket that is bound to it but never listens.

    The kernel's automatic choice skips a port that any socket holds, so that neither another trial nor an outgoing
    connection gets it. vLLM can still bind it by number, since both sockets set SO_REUSEADDR and only one listens
    (vLLM 0.32 sets SO_REUSEADDR alone, 0.24 SO_REUSEPORT too: hence both here), and connections reach the one that
    listens. The port isn't free for a moment between choosing it here and vLLM taking it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def listening(port: int) -> bool:
    """Whether anything accepts connections on this loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
