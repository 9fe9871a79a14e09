"""Partitions of a real node's first GPU: claims, the policy that permits them, and changes by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from draco_local.cluster.realnode.agent import gpu_state_file
from draco_local.cluster.realnode.nodes import disk_of
from draco_local.simulator.gpus.state import load
from tests.e2e.conftest import draco
from tests.e2e.kubectl import eventually
from tests.e2e.real_nodes.machines import REAL_CLUSTER
from tests.e2e.real_nodes.pods import WHOLE_GPUS, Bench

MAKES_THE_COMPUTE_INSTANCE = "nvmlGpuInstanceCreateComputeInstance"


def part_of_a_gpu(name: str, profile: str) -> dict[str, Any]:
    """A claim of one partition."""
    selector = {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"}}
    request = {"name": "gpu", "exactly": {"deviceClassName": "mig.nvidia.com", "selectors": [selector]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def gpus_by_hand(bench: Bench, command: str, *arguments: str) -> None:
    """Change the node's GPUs by hand, without Draco."""
    done = draco("cluster", "gpu", command, bench.node, *arguments, "--name", REAL_CLUSTER)
    assert done.returncode == 0, done.stderr


def made(bench: Bench) -> list[dict[str, Any]]:
    """The GPU instances of the node's first GPU."""
    state = load(gpu_state_file(disk_of(bench.nodes.folder, bench.node)))
    found: list[dict[str, Any]] = msgspec.to_builtins(state.gpus[0].instances)
    return found


def the_instance(bench: Bench) -> str:
    """The MIG UUID of the only instance; "" while there is no usable one."""
    found = [compute["uuid"] for one in made(bench) for compute in one["compute"]]
    return str(found[0]) if len(found) == 1 else ""


def started_again(bench: Bench, name: str, old_container: str, uuid: str) -> bool:
    """Whether the pod runs in another container that got this instance."""
    return bench.returned(name, old_container) and uuid in bench.environment(name).values()


@contextmanager
def divided_by_claims(bench: Bench) -> Iterator[None]:
    """Within the block, the node's first GPU is in mode Dynamic."""
    (first, *_) = bench.kube.get("gpunode", bench.node)["status"]["gpus"]
    policy = {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "MigPolicy",
        "metadata": {"name": "by-claims"},
        "spec": {
            "mode": "Dynamic",
            "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": bench.node}},
            "deviceSelectors": [
                {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].uuid == '{first['uuid']}'"}}
            ],
        },
    }
    bench.apply([policy])
    eventually(lambda: bench.published() > WHOLE_GPUS, what="partitions are published")
    try:
        yield
    finally:
        bench.kube.run("delete", "pods", "--all", "--grace-period=1")
        gpus_by_hand(bench, "latency", "0", "--function", MAKES_THE_COMPUTE_INSTANCE)
        bench.kube.run("delete", "migpolicy", "by-claims")
        eventually(lambda: bench.published() == WHOLE_GPUS, what="no partition is published any more")
