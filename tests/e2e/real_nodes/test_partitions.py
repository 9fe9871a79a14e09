"""Partitions for containers of a real kubelet and container runtime."""

import re
from collections.abc import Iterator

import pytest

from tests.e2e.kubectl import eventually
from tests.e2e.real_nodes.partitions import (
    MAKES_THE_COMPUTE_INSTANCE,
    divided_by_claims,
    gpus_by_hand,
    made,
    part_of_a_gpu,
    started_again,
    the_instance,
)
from tests.e2e.real_nodes.pods import RETURNS_WITHIN_S, STARTS_WITHIN_S, Bench, pod

pytestmark = pytest.mark.real_node


@pytest.fixture
def divided(bench: Bench) -> Iterator[Bench]:
    """The node's first GPU is in mode Dynamic."""
    with divided_by_claims(bench):
        yield bench


def test_a_container_sees_its_instance_and_no_other(divided: Bench) -> None:
    bench = divided
    names = ("one", "two")
    bench.apply([part_of_a_gpu(name, "1g.10gb") for name in names])
    bench.apply([pod(name, node=bench.node, claims=name) for name in names])
    bench.wait(*names)
    instances = {compute["uuid"]: one["id"] for one in made(bench) for compute in one["compute"]}
    assert len(instances) == 2
    opened = {}
    for name in names:
        variable = "DRACO_DEVICE_" + re.sub(r"\W", "_", bench.device(name)).upper()
        uuid = bench.environment(name)[variable]
        assert uuid in instances
        assert bench.gpu_nodes(name) == {"nvidia0"}
        opened[uuid] = set(bench.inside(name, "ls", "/dev/nvidia-caps").split())
    (one, other) = opened.values()
    assert len(one) == len(other) == 2  # a GPU instance and a compute instance
    assert not one & other
    for name in names:
        bench.delete(name)
    eventually(lambda: not made(bench), within_s=STARTS_WITHIN_S, what="the instances are destroyed")


def test_a_container_gets_its_instance_though_the_agent_is_killed_while_making_it(divided: Bench) -> None:
    bench = divided
    gpus_by_hand(bench, "latency", "30", "--function", MAKES_THE_COMPUTE_INSTANCE)
    bench.apply([part_of_a_gpu("one", "3g.40gb"), pod("one", node=bench.node, claims="one")])
    (half,) = eventually(lambda: made(bench), within_s=STARTS_WITHIN_S, what="half of it is made")
    assert half["compute"] == []
    before = bench.kill("agent")
    gpus_by_hand(bench, "latency", "0", "--function", MAKES_THE_COMPUTE_INSTANCE)
    bench.restarted("agent", before=before)
    bench.wait("one")
    (whole,) = made(bench)
    (compute,) = whole["compute"]
    assert compute["uuid"] in bench.environment("one").values()
    (reported, *_) = (gpu["mig"] for gpu in bench.kube.get("gpunode", bench.node)["status"]["gpus"])
    assert [(each["uuid"], each["use"]) for each in reported["instances"]] == [(compute["uuid"], "Claim")]
    assert reported["state"] == "Ready"


def of_its_claim(bench: Bench) -> str:
    """The same instance, once the agent reports it as the claim's."""
    (gpu, *_) = (gpu["mig"] for gpu in bench.kube.get("gpunode", bench.node)["status"]["gpus"])
    found = [each["uuid"] for each in gpu.get("instances", []) if each["use"] == "Claim"]
    return found[0] if found == [the_instance(bench)] else ""


def test_a_reload_of_the_driver_gives_a_pod_its_partition_again(divided: Bench) -> None:
    bench = divided
    bench.apply([part_of_a_gpu("one", "3g.40gb"), pod("one", node=bench.node, claims="one")])
    bench.wait("one")
    device, old, before = bench.device("one"), bench.container("one"), the_instance(bench)
    gpus_by_hand(bench, "reload-driver")
    eventually(
        lambda: of_its_claim(bench) not in {"", before},
        within_s=STARTS_WITHIN_S,
        what="the instance was made anew, for the same claim",
    )
    assert bench.container("one") == old
    bench.inside("one", "sh", "-c", "kill -TERM 1")
    eventually(
        lambda: started_again(bench, "one", old, the_instance(bench)),
        within_s=RETURNS_WITHIN_S,
        what="the container that is started again has it",
    )
    assert bench.device("one") == device
