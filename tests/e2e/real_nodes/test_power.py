"""A node loses power and comes back with everything it had. All tests examine the same outage."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.real_nodes.conftest import a_bench
from tests.e2e.real_nodes.machines import Machines
from tests.e2e.real_nodes.partitions import divided_by_claims, part_of_a_gpu, started_again, the_instance
from tests.e2e.real_nodes.pods import RETURNS_WITHIN_S, STARTS_WITHIN_S, WHOLE_GPUS, Bench, pod

BOOT_ID = "/proc/sys/kernel/random/boot_id"

pytestmark = pytest.mark.real_node


@dataclass(frozen=True)
class Held:
    """What a pod had before the outage."""

    container: str
    device: str
    uuids: list[str]


@dataclass(frozen=True)
class Outage:
    """A node with its power back, and what was on it before."""

    bench: Bench
    boot_id: str
    whole: dict[str, Held]
    part: Held


def held(bench: Bench, name: str) -> Held:
    return Held(bench.container(name), bench.device(name), bench.gpu_uuids(name))


@pytest.fixture(scope="module")
def outage(real_cluster: tuple[Kubectl, Machines], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """Pods with whole GPUs, one with a part of a GPU, and one that is deleted while the node is off."""
    with a_bench(*real_cluster, tmp_path_factory.mktemp("outage")) as bench, divided_by_claims(bench):
        bench.apply([part_of_a_gpu("part", "3g.40gb"), pod("part", node=bench.node, claims="part")])
        bench.wait("part")  # from now on no pod gets its GPU whole
        bench.start("one", "two", "deleted")
        before = Outage(
            bench,
            boot_id=bench.on_node("cat", BOOT_ID),
            whole={name: held(bench, name) for name in ("one", "two")},
            part=held(bench, "part"),
        )
        bench.nodes.power_off(bench.node)
        assert not bench.nodes.powered(bench.node)
        bench.kube.run("delete", "pod", "deleted", "--wait=false")
        bench.nodes.power_on(bench.node)
        yield before


def test_a_node_that_loses_its_power_comes_back_with_its_pods_claims_and_gpus(outage: Outage) -> None:
    bench = outage.bench
    for name, before in outage.whole.items():
        eventually(
            functools.partial(bench.returned, name, before.container),
            within_s=RETURNS_WITHIN_S,
            what=f"pod {name} runs in a new container",
        )
        assert bench.device(name) == before.device
        assert bench.prepared(name)
        assert bench.gpu_uuids(name) == before.uuids
        assert bench.gpu_nodes(name) == {before.device.replace("gpu-", "nvidia")}
    eventually(lambda: bench.published() > WHOLE_GPUS, within_s=STARTS_WITHIN_S, what="all GPUs are published")
    assert bench.on_node("cat", BOOT_ID) != outage.boot_id


def test_a_pod_deleted_while_its_node_is_off_is_released_when_it_is_back(outage: Outage) -> None:
    bench = outage.bench
    eventually(lambda: not bench.exists("pod", "deleted"), within_s=RETURNS_WITHIN_S, what="the pod is gone")
    eventually(lambda: bench.released("deleted"), within_s=STARTS_WITHIN_S, what="the claim is released")


def test_a_pod_has_its_partition_again_after_its_node_lost_its_power(outage: Outage) -> None:
    bench, before = outage.bench, outage.part
    eventually(  # no instance survives that
        lambda: (uuid := the_instance(bench)) and started_again(bench, "part", before.container, uuid),
        within_s=RETURNS_WITHIN_S,
        what="the pod runs on an instance that was made again",
    )
    assert bench.device("part") == before.device
    assert len(bench.inside("part", "ls", "/dev/nvidia-caps").split()) == 2
