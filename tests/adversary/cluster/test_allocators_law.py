"""The laws of two allocators: what counts as a violation by Draco, by kube-scheduler, and as a leftover."""

from typing import Any

import pytest

from tests.adversary.cluster.observer.allocators import TAINT, WEIGHED_AFTER_S, Allocators, kept_for_nobody
from tests.adversary.cluster.observer.tainted import IN_FLIGHT_S, GivenWhileTainted
from tests.adversary.cluster.observer.tainted import WEIGHED_AFTER_S as TAINTS_WEIGHED_AFTER_S
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.test_observer import GPU, a_claim, a_slice, a_world, whole

Document = dict[str, Any]
OWN = [{"key": TAINT, "effect": "NoSchedule"}]


def published(revision: int, **more: Any) -> Document:
    one = a_slice(whole(**more), generation=revision)
    one["metadata"]["resourceVersion"] = str(revision)
    return one


def given(by: str, *, device_class: str = "gpu.draco.dev", revision: int = 5) -> Document:
    claim = a_claim(1, "gpu-0", revision=revision)
    claim["spec"] = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}}
    fields: Document = {"f:status": {"f:allocation": {}}}
    claim["metadata"]["managedFields"] = [{"manager": by, "subresource": "status", "fieldsV1": fields}]
    return claim


def judged(claim: Document, *slices: Document) -> list[str]:
    world = a_world()
    law = Allocators(world)
    for one in slices:
        learn(world, "slice", one)
        law.slice_changed(one)
    law.allocated(claim, 10.0)
    return [each.law for each in law.weighed(10.0 + WEIGHED_AFTER_S)]


def test_draco_gives_what_is_published_as_its_own_to_its_own_claims() -> None:
    assert judged(given("draco-operator"), published(3, taints=OWN)) == []


def test_draco_allocates_no_claim_of_another_class() -> None:
    assert judged(given("draco-operator", device_class="gpu.nvidia.com"), published(3, taints=OWN)) == ["not its claim"]


@pytest.mark.parametrize(
    "slices", [(published(3),), (published(2, taints=OWN), published(4)), (published(3), published(9, taints=OWN))]
)
def test_draco_gives_nothing_that_is_not_its_own_then(slices: tuple[Document, ...]) -> None:
    assert judged(given("draco-operator"), *slices) == ["not its device"]


def test_what_becomes_the_schedulers_after_the_claim_was_served_is_no_harm() -> None:
    assert judged(given("draco-operator"), published(3, taints=OWN), published(7)) == []


def test_the_scheduler_gives_nothing_of_dracos_to_anybody() -> None:
    world = a_world()
    law, one = GivenWhileTainted(world), published(3, taints=OWN)
    learn(world, "slice", one)
    law.slice_changed(None, one, 0.0)
    for who, wrong in (("kube-scheduler", ["given while tainted"]), ("draco-operator", [])):
        law.allocated(given(who), IN_FLIGHT_S + 1, grace_s=0.0)
        assert [each.law for each in law.weighed(IN_FLIGHT_S + 1 + TAINTS_WEIGHED_AFTER_S)] == wrong


def test_nothing_is_kept_from_the_scheduler_for_nobody() -> None:
    node = {"matchLabels": {"kubernetes.io/hostname": "node"}}
    policy: Document = {"metadata": {"name": "p", "uid": "p"}, "spec": {"allocator": "Operator", "nodeSelector": node}}
    other: Document = {"metadata": {"name": "o", "uid": "o"}, "spec": {"allocator": "Scheduler", "nodeSelector": node}}
    assert list(kept_for_nobody(a_world(("slice", published(3, taints=OWN)), ("policy", policy)))) == []
    (wrong,) = kept_for_nobody(a_world(("slice", published(3, taints=OWN)), ("policy", other)))
    assert wrong.law == "kept for nobody"
    assert list(kept_for_nobody(a_world(("slice", published(3))))) == []


def traded(*slices: Document, more: tuple[tuple[str, Document], ...] = ()) -> list[tuple[str, bool]]:
    world = a_world(*more)
    law = Allocators(world)
    for one in slices:
        learn(world, "slice", one)
        law.slice_changed(one)
    return [(one.uuid, one.is_dracos) for one in law.traded()]


def test_a_gpu_that_changed_hands_is_tried_out_while_it_is_free_and_well() -> None:
    over, back = published(3, taints=OWN), published(4)
    assert traded(over) == traded(back) == []
    assert traded(back, published(5, taints=OWN)) == [(GPU, True)]
    assert traded(over, back) == [(GPU, False)]
    assert traded(over, published(4, taints=[{"key": "k", "effect": "NoSchedule"}])) == []
    assert traded(over, published(4, taints=[{"key": "k", "effect": "None"}])) == [(GPU, False)]
    assert traded(over, back, more=(("claim", given("kube-scheduler")),)) == []
