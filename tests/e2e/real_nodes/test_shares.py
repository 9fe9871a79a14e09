"""Shares on a real node: claims of one GPU in containers at the same time, and the one that has to wait."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import draco
from tests.e2e.kubectl import eventually
from tests.e2e.real_nodes.pods import Bench, pod
from tests.e2e.test_shares import POLICY, a_claim, results, share

pytestmark = [pytest.mark.real_node, pytest.mark.since(36)]

SEVEN = tuple(f"share-{number}" for number in range(1, 8))
"""Claims of 10 GiB that fit on a GPU of 79.6 GiB."""


@pytest.fixture
def shared(bench: Bench) -> Iterator[Bench]:
    """A bench whose first GPU is shared by memory."""
    share(bench.kube, [uuid_of(bench)], mode="Memory", step="1Gi")
    eventually(lambda: first(bench).get("allowMultipleAllocations"), what="gpu-0 is shared")
    yield bench
    bench.kube.run("delete", "pods,resourceclaims", "--all", "--grace-period=1", "--wait=true")
    bench.kube.run("delete", "sharingpolicy", POLICY)
    eventually(lambda: not first(bench).get("allowMultipleAllocations"), what="gpu-0 is published for one claim")


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
