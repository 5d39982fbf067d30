"""The machines of a search: a Ray started for it on this host, or a running cluster that it joins."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.tune import PlacementGroupFactory
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import autotune
from autotune.engine.environment import vllm_versions
from autotune.engine.gpus import all_gpus, visible
from autotune.errors import EnvironmentProblem, UserError
from autotune.run.options import SearchOptions

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 128 * 2**20
"""Only tasks and outcomes travel through Ray; request rows and logs do so once, a few MiB at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`nodes`: devices per Ray node id. On a CPU a device is one engine rank, and `cpus` is split between the ranks."""

    nodes: Mapping[str, int]
    cpus: Mapping[str, int]
    on_gpus: bool
    driver_node: str

    def resources(self, size: int) -> PlacementGroupFactory:
        """One bundle: with two 1-GPU bundles a trial sees one device; with GPUs in another process's bundle,
        CUDA_VISIBLE_DEVICES stays unset and every engine sees every GPU (Ray 2.60)."""
        if self.on_gpus:
            return PlacementGroupFactory([{"CPU": 1, "GPU": size}])
        shares = [self.cpus[node] * size // ranks for node, ranks in self.nodes.items() if ranks >= size]
        return PlacementGroupFactory([{"CPU": max(1, min(shares, default=1))}])


@contextmanager
def cluster(options: SearchOptions, *, largest_engine: int) -> Iterator[Cluster]:
    """Starts or joins Ray, and leaves it at the end. `largest_engine`: ranks of the largest candidate (CPU engines).

    Raises EnvironmentProblem when GPUs are asked for and there are none, or when a node lacks what a trial needs.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)  # what it warns of is about Ray clusters, not about this search
    on_gpus = options.simulate or options.platform != "cpu"
    if options.address is None:
        gpus = options.simulated_gpus if options.simulate else (len(visible(all_gpus())) if on_gpus else 0)
        if on_gpus and not gpus:
            raise EnvironmentProblem(
                "no GPU found on this machine. Run vtune where the GPUs are, join a cluster with --address, "
                "or install the CPU build of vLLM (make search)"
            )
        # The recorder and Ray's own bookkeeping need no cores of their own; each trial needs one.
        ray.init(
            address="local",  # else Ray would join whatever other cluster runs on this host
            num_cpus=max(os.cpu_count() or 1, gpus),
            num_gpus=gpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=OBJECT_STORE_BYTES,
            configure_logging=False,
        )
    else:
        _reach(options.address)
        try:
            ray.init(address=options.address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ray.exceptions.RpcError) as error:
            raise EnvironmentProblem(f"no Ray cluster answers at {options.address}: {error}") from None
    try:
        yield _survey(options, on_gpus=on_gpus, largest_engine=largest_engine)
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raises at once where nothing listens: Ray itself tries for three minutes."""
    if "://" in address:
        raise UserError(
            "Ray client addresses can't be used: the driver must be a member of the cluster",
            key="--address",
            value=address,
            remedy="run vtune on a node of the cluster with --address auto, or give HOST:PORT of its head (6379)",
        )
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return  # "auto": Ray looks for the cluster of this host
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise EnvironmentProblem(f"no Ray cluster answers at {address}: {error}") from None


def _survey(options: SearchOptions, *, on_gpus: bool, largest_engine: int) -> Cluster:
    alive = [node for node in ray.nodes() if node["Alive"]]
    cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in alive}
    if on_gpus:
        nodes = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in alive}
    else:
        nodes = {node: largest_engine for node, cores in cpus.items() if cores}
    nodes = {node: devices for node, devices in nodes.items() if devices}
    if not nodes:
        raise EnvironmentProblem(f"no node of the Ray cluster at {options.address} has a GPU to offer")
    if options.address is not None and not options.simulate:
        _check_nodes(nodes, options.vllm_python)
    return Cluster(nodes=nodes, cpus=cpus, on_gpus=on_gpus, driver_node=ray.get_runtime_context().get_node_id())


def _check_nodes(nodes: Mapping[str, int], vllm_python: Path | None) -> None:
    """Every node must have this vtune and the same vLLM; said of the node that differs, before a trial starts there."""
    look = ray.remote(num_cpus=0)(_look)
    asked = {
        node: look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(vllm_python)
        for node in nodes
    }
    found: dict[str, tuple[str, str, str]] = {}
    for node, answer in asked.items():
        try:
            found[node] = ray.get(answer, timeout=120)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise EnvironmentProblem(
                f"node {node[:8]} can't run trials: {reason}. Install vllm-autotune {autotune.__version__} beside vLLM "
                "on every node"
            ) from None
    for node, (host, version, vllm) in found.items():
        if version != autotune.__version__:
            raise EnvironmentProblem(
                f"node {host} has vtune {version}, this one {autotune.__version__}: install the same"
            )
        if not vllm:
            raise EnvironmentProblem(f"node {host} ({node[:8]}) has no vLLM in {vllm_python or 'its Python'}")
    versions = {vllm for _, _, vllm in found.values()}
    if len(versions) > 1:
        listed = ", ".join(f"{host}: {vllm}" for host, _, vllm in found.values())
        raise EnvironmentProblem(f"the nodes have different vLLM versions ({listed}): results couldn't be compared")


def _look(vllm_python: Path | None) -> tuple[str, str, str]:
    """Runs on a node: its host name, its vtune, its vLLM (empty: none there)."""
    from autotune import __version__

    try:
        vllm = vllm_versions(vllm_python or Path(sys.executable))["vllm"]
    except EnvironmentProblem:
        vllm = ""
    return os.uname().nodename, __version__, vllm
