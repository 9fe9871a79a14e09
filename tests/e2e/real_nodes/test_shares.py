"""Shares on a real node: claims of one GPU in containers at the same time, and the one that has to wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco_local.cluster import gpus
from draco_local.cluster.realnode.agent import gpu_state_file
from draco_local.cluster.realnode.config import LIMIT_LIBRARY
from draco_local.cluster.realnode.nodes import disk_of
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.state import GpuProcess
from tests.e2e.conftest import draco
from tests.e2e.kubectl import eventually
from tests.e2e.real_nodes.pods import Bench, pod
from tests.e2e.test_shares import POLICY, a_claim, results, says, share
from tests.unit.agent.driver_on_disk import A_LIBRARY

# On kind, claims of other workers' tests could take shares of the GPU.
pytestmark = [pytest.mark.real_node, pytest.mark.since(36), pytest.mark.local_provider]

SEVEN = tuple(f"share-{number}" for number in range(1, 8))
"""Claims of 10 GiB that fit on a GPU of 79.6 GiB."""


@contextmanager
def sharing(bench: Bench, enforcement: str) -> Iterator[None]:
    """Within the block, the node's first GPU is shared by memory."""
    share(bench.kube, [uuid_of(bench)], mode="Memory", step="1Gi", enforcement=enforcement)
    eventually(lambda: first(bench).get("allowMultipleAllocations"), what="gpu-0 is shared")
    try:
        yield
    finally:
        bench.kube.run("delete", "pods,resourceclaims", "--all", "--grace-period=1", "--wait=true")
        bench.kube.run("delete", "sharingpolicy", POLICY)
        eventually(lambda: not first(bench).get("allowMultipleAllocations"), what="gpu-0 is published for one claim")


@pytest.fixture
def shared(bench: Bench) -> Iterator[Bench]:
    """A bench whose first GPU is shared by memory."""
    with sharing(bench, "None"):
        yield bench


def first(bench: Bench) -> dict[str, Any]:
    """The node's first GPU as it is published."""
    slices = [
        each["spec"] for each in bench.kube.objects("resourceslices") if each["spec"]["pool"]["name"] == bench.node
    ]
    return next((device for each in slices for device in each.get("devices", []) if device["name"] == "gpu-0"), {})


def uuid_of(bench: Bench) -> str:
    return str(first(bench)["attributes"]["uuid"]["string"])


def ask(bench: Bench, *names: str) -> None:
    """Apply claims of 10 GiB, with a pod each."""
    bench.apply([made for name in names for made in (a_claim(name, "10Gi"), pod(name, node=bench.node, claims=name))])


def test_claims_run_on_one_gpu_at_the_same_time_and_the_one_above_its_memory_waits(shared: Bench) -> None:
    bench, uuid = shared, uuid_of(shared)
    ask(bench, *SEVEN)
    bench.wait(*SEVEN)
    containers = {name: bench.container(name) for name in SEVEN}
    for name in SEVEN[:2]:
        environment = bench.environment(name)
        assert {key: environment[key] for key in environment if key.startswith("DRACO_DEVICE_")} == {
            "DRACO_DEVICE_GPU_0": uuid
        }
        claims = [value for key, value in environment.items() if key.startswith("DRACO_CLAIM_")]
        assert claims == [bench.uid(name)], "a container sees no claim of its neighbours"
        assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert not {"CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_GPU_MEMORY_LIMIT"} & environment.keys()
        assert bench.gpu_nodes(name) == {"nvidia0"}
        [result] = results(bench.kube, name)
        assert f"gpu-0-{bench.uid(name)}-{result['shareID']}" in bench.on_node("cat", *bench.spec_files())

    ask(bench, "one-more")
    explained = eventually(lambda: why(bench, "one-more"), what="draco explain says what the claim waits for")
    assert "short of memory: 10Gi needed, 9879Mi of 81559Mi left" in explained
    assert not bench.ready("one-more")
    bench.delete(SEVEN[0])
    bench.wait("one-more")
    assert {name: bench.container(name) for name in SEVEN[1:]} == {name: containers[name] for name in SEVEN[1:]}


def why(bench: Bench, claim: str) -> str:
    """What `draco explain` says of a claim, once it says what is short."""
    said = draco("explain", f"claim/{claim}", kubeconfig=bench.kube.kubeconfig).stdout
    return said if "short of" in said else ""


def test_a_share_outlives_agent_and_kubelet_and_is_given_back_alone(shared: Bench) -> None:
    bench = shared
    ask(bench, "one", "two")
    bench.wait("one", "two")
    containers = {name: bench.container(name) for name in ("one", "two")}
    for service in ("agent", "kubelet"):
        bench.restarted(service, before=bench.kill(service))
    bench.delete("one")
    eventually(lambda: bench.released("one"), what="the share is given back")
    assert bench.prepared("two")
    assert bench.container("two") == containers["two"]
    ask(bench, "three")
    bench.wait("three")
    assert results(bench.kube, "three")[0]["device"] == "gpu-0"


def test_a_share_that_is_exceeded_is_found_by_the_cgroup_of_its_container(shared: Bench) -> None:
    bench, path = shared, gpu_state_file(disk_of(shared.nodes.folder, shared.node))
    ask(bench, "small", "greedy")
    bench.wait("small", "greedy")
    for pid, (name, memory_mib) in enumerate((("small", 4096), ("greedy", 20480)), start=1):
        place = cgroup_of(bench, bench.container(name).rpartition("/")[2])
        faults.hold(path, 0, GpuProcess(pid, cgroup=place, memory_mib=memory_mib))
    try:
        said = eventually(lambda: bench.kube.notes("greedy"), what="the greedy claim is told")
        assert "use more memory than the 10Gi that the claim asked for. Most of it is used in pod greedy" in said[0]
        assert bench.kube.notes("small") == []
    finally:
        for pid in (1, 2):
            faults.release(path, pid)


def test_the_driver_holds_each_container_to_the_memory_of_its_share(bench: Bench) -> None:
    """NVIDIA's own hook sets the limit on the container's cgroup, also where kubelet uses version 1 beside version 2."""
    path = gpu_state_file(disk_of(bench.nodes.folder, bench.node))

    def limits() -> dict[str, int]:
        """Hard limits in GiB by the name of the cgroup, which is the container's."""
        found = state.load(path).gpus[0].memory_limits
        return {
            Path(name).name: each.hard >> 30
            for name, each in found.items()
            if each.hard != pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
        }

    gpus.reload_driver(path, version="615")
    try:
        with sharing(bench, "DriverLimit"):
            assert first(bench)["attributes"]["draco.dev/memoryLimit"] == {"string": "driver"}
            ask(bench, "one", "two")
            bench.wait("one", "two")
            containers = [bench.container(name).rpartition("/")[2] for name in ("one", "two")]
            assert limits() == dict.fromkeys(containers, 10)
            assert bench.environment("one")["NVIDIA_GPU_MEMORY_LIMIT"] == "10240"

            gpus.reload_driver(path, version=None)
            assert limits() == {}
            faults.hold(path, 0, GpuProcess(1, cgroup=cgroup_of(bench, containers[0]), memory_mib=1024))
            eventually(lambda: limits() == {containers[0]: 10}, what="a limit that the driver forgot is set again")
    finally:
        gpus.reload_driver(path, version="580.95.05")
        eventually(lambda: first(bench), what="gpu-0 is published again")


def test_the_shares_of_a_gpu_are_clients_of_its_mps_daemon(bench: Bench) -> None:
    def mode() -> int:
        return state.load(gpu_state_file(disk_of(bench.nodes.folder, bench.node))).gpus[0].compute_mode

    with sharing(bench, "MPS"):
        assert first(bench)["attributes"]["draco.dev/memoryLimit"] == {"string": "mps"}
        ask(bench, "one", "two")
        bench.wait("one", "two")
        for name in ("one", "two"):
            assert bench.environment(name)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
            asked = "echo get_default_active_thread_percentage | nvidia-cuda-mps-control"
            assert bench.inside(name, "sh", "-c", asked).strip() == "100.0"
        assert mode() == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        bench.restarted("agent", before=bench.kill("agent"))
        bench.delete("one")
        eventually(lambda: bench.released("one"), what="the share is given back")
        assert mode() == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    eventually(lambda: mode() == pynvml.NVML_COMPUTEMODE_DEFAULT, what="the last share has taken the daemon with it")


def test_a_library_on_the_node_is_in_the_containers_of_its_shares(bench: Bench) -> None:
    share(bench.kube, [uuid_of(bench)], mode="Memory", step="1Gi", enforcement="Library")
    eventually(lambda: f"there is no file {LIMIT_LIBRARY} on the node" in says(bench.kube), what="the policy says why")
    content = "".join(f"\\{byte:03o}" for byte in A_LIBRARY)
    bench.on_node("sh", "-c", f"mkdir -p {Path(LIMIT_LIBRARY).parent} && printf '{content}' > {LIMIT_LIBRARY}")
    try:
        with sharing(bench, "Library"):
            assert first(bench)["attributes"]["draco.dev/memoryLimit"] == {"string": "library"}
            ask(bench, "one", "two")
            bench.wait("one", "two")
            for name in ("one", "two"):
                assert bench.environment(name)["CUDA_DEVICE_MEMORY_LIMIT"] == "10240m"
                [preloaded] = bench.inside(name, "cat", "/etc/ld.so.preload").split()
                assert bench.inside(name, "ls", preloaded).strip() == preloaded
    finally:
        bench.on_node("rm", LIMIT_LIBRARY)


def cgroup_of(bench: Bench, container: str) -> str:
    """The path of a container's cgroup of version 2, as its processes have it in /proc."""
    lines = bench.on_node("sh", "-c", f"cat /proc/[0-9]*/cgroup | grep {container}").splitlines()
    return next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
