"""MPS on a real node: clients in containers, and what is restarted beneath them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from draco.allocation.configurations import TimeSlice
from draco_local.cluster.realnode.agent import gpu_state_file
from draco_local.cluster.realnode.nodes import disk_of
from draco_local.simulator.gpus import state
from tests.e2e.kubectl import eventually
from tests.e2e.real_nodes.machines import service_pid
from tests.e2e.real_nodes.partitions import divided_by_claims, made, part_of_a_gpu, the_instance
from tests.e2e.real_nodes.pods import DRIVER, STARTS_WITHIN_S, Bench, claim, pod

pytestmark = [pytest.mark.real_node, pytest.mark.local_provider]

EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"
EXCLUSIVE_PROCESS = 3
CONTROL = "nvidia-cuda-mps-control"


def asking(name: str) -> dict[str, Any]:
    """A claim for half of a GPU's threads for each client."""
    made = claim(name)
    sharing = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    made["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    return made


def example(bench: Bench, name: str) -> list[dict[str, Any]]:
    """Apply an example, its pods on the bench's node; returns the pods."""
    documents = [each for file in (EXAMPLES / name).iterdir() for each in yaml.safe_load_all(file.read_text())]
    pods = [each for each in documents if each["kind"] == "Pod"]
    for each in pods:
        each["spec"]["nodeSelector"] = {"kubernetes.io/hostname": bench.node}
    bench.apply(documents)
    bench.wait(*(each["metadata"]["name"] for each in pods))
    return pods


def modes(bench: Bench) -> list[int]:
    return [gpu.compute_mode for gpu in state.load(gpu_state_file(disk_of(bench.nodes.folder, bench.node))).gpus]


def said(bench: Bench, name: str, command: str) -> str:
    """What the daemon answers to a pod's container."""
    return bench.inside(name, "sh", "-c", f"echo {command} | {CONTROL} || true").strip()


def daemon(bench: Bench) -> str:
    """The daemon's process on the node; "" while there is none."""
    return bench.on_node("sh", "-c", "pgrep -f 'mps-contro[l] -d' || true").strip()


def test_two_pods_are_clients_of_a_daemon_that_outlives_agent_and_keeper(bench: Bench) -> None:
    bench.apply([asking("one"), *(pod(name, node=bench.node, claims="one") for name in ("first", "second"))])
    bench.wait("first", "second")
    for name in ("first", "second"):
        assert bench.environment(name)["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
        assert said(bench, name, "get_default_active_thread_percentage") == "50.0"
    assert sum(modes(bench)) == EXCLUSIVE_PROCESS, "one GPU is exclusive"
    before = daemon(bench)
    for service in ("agent", "mps"):
        pid = service_pid(bench.nodes, bench.node, service)
        assert pid is not None
        bench.on_node("kill", "-9", str(pid))
        eventually(
            lambda service=service, pid=pid: service_pid(bench.nodes, bench.node, service) not in (None, pid),
            within_s=STARTS_WITHIN_S,
            what=f"{service} is started again",
        )
    assert daemon(bench) == before
    assert said(bench, "first", "get_default_active_thread_percentage") == "50.0"

    bench.on_node("kill", "-9", before)
    eventually(
        lambda: said(bench, "second", "get_default_active_thread_percentage") == "50.0",
        within_s=STARTS_WITHIN_S,
        what="the daemon is started again for the same containers",
    )
    bench.delete("first")
    assert daemon(bench)
    bench.delete("second")
    eventually(lambda: not daemon(bench) and sum(modes(bench)) == 0, within_s=STARTS_WITHIN_S, what="all is given back")


def test_the_example_lets_two_pods_compute_at_the_same_time(bench: Bench) -> None:
    pods = [each["metadata"]["name"] for each in example(bench, "mps")]
    [uuid] = bench.gpu_uuids(pods[0])
    for name in pods:
        assert said(bench, name, "get_default_active_thread_percentage") == "50.0"
        assert said(bench, name, f"get_default_device_pinned_mem_limit {uuid}") == "10240M"


def test_one_claim_has_a_gpu_with_time_slices_and_one_with_mps(bench: Bench) -> None:
    example(bench, "time-slices-beside-mps")
    gpus = state.load(gpu_state_file(disk_of(bench.nodes.folder, bench.node))).gpus
    assert sorted((gpu.time_slice, gpu.compute_mode) for gpu in gpus if gpu.time_slice or gpu.compute_mode) == [
        (TimeSlice.DEFAULT, EXCLUSIVE_PROCESS),
        (TimeSlice.LONG, 0),
    ]


def test_a_mig_device_has_a_daemon_of_its_own_until_its_instance_is_destroyed(bench: Bench) -> None:
    asked = part_of_a_gpu("part", "3g.40gb")
    sharing = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 25}}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig", "sharing": sharing}
    asked["spec"]["devices"]["config"] = [{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": parameters}}]
    with divided_by_claims(bench):
        bench.apply([asked, *(pod(name, node=bench.node, claims="part") for name in ("first", "second"))])
        bench.wait("first", "second")
        for name in ("first", "second"):
            assert said(bench, name, "get_default_active_thread_percentage") == "25.0"
        assert f"CUDA_VISIBLE_DEVICES={the_instance(bench)}" in bench.on_node(
            "sh", "-c", f"tr '\\0' '\\n' </proc/{daemon(bench)}/environ"
        )
        assert sum(modes(bench)) == 0
        before = bench.kill("agent")
        bench.restarted("agent", before=before)
        assert said(bench, "first", "get_default_active_thread_percentage") == "25.0"
        for name in ("first", "second"):
            bench.delete(name)
        eventually(lambda: not daemon(bench) and not made(bench), within_s=STARTS_WITHIN_S, what="all is destroyed")
