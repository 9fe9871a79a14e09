"""The law of budgets: how the observer counts GPUs rule by rule, and when a request takes one too many."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.adversary.cluster.observer.budgets import CLIQUE_LABEL, WEIGHED_AFTER_S, BudgetLaw, OutOfService
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.observer.world import World
from tests.adversary.cluster.test_observer import DRIVER, OTHER, a_slice, a_world, partition, whole

Document = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
THIRD = "GPU-33333333-3333-3333-3333-333333333333"
FOURTH = "GPU-44444444-4444-4444-4444-444444444444"


def a_world_of_three() -> World:
    one = a_slice(whole(), partition("part", 0, 3), whole("gpu-1", OTHER))
    return a_world(("slice", one), ("slice", a_slice(whole("gpu-0", THIRD), pool="other")))


def isolates(device: str, request: str, *, pool: str = "node", effect: str = "NoSchedule") -> Document:
    selector = {"driver": DRIVER, "pool": pool, "device": device}
    metadata = {"name": f"{request}-{pool}-{device}", "uid": f"{request}-{pool}-{device}", "resourceVersion": "3"}
    owner = {"kind": "DeviceMaintenance", "name": request, "uid": request}
    spec = {"deviceSelector": selector, "taint": {"key": "draco.dev/maintenance", "effect": effect}}
    return {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": spec}


def a_budget(**spec: Any) -> Document:
    return {"metadata": {"name": "b", "uid": "b", "resourceVersion": "2"}, "spec": spec}


def a_request(uid: str, isolated_at: datetime, **selector: str) -> Document:
    status = {"isolatedAt": isolated_at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    metadata = {"name": uid, "uid": uid, "resourceVersion": "4"}
    return {"metadata": metadata, "spec": {"deviceSelector": selector}, "status": status}


class Judged:
    """A budget, and maintenance rules that are created and deleted under it."""

    def __init__(self, **spec: Any) -> None:
        self.world = a_world_of_three()
        self.law = BudgetLaw(self.world)
        self.law.slices_changed(0.0, NOW)
        self.set(NOW, **spec)

    def set(self, clock: datetime, **spec: Any) -> None:
        budget = a_budget(**spec)
        self.law.budget_changed(learn(self.world, "budget", budget), budget, clock)

    def takes(self, rule: Document, *, at: datetime = NOW + timedelta(seconds=10), **selector: Any) -> list[str]:
        uid = rule["metadata"]["ownerReferences"][0]["uid"]
        learn(self.world, "request", a_request(uid, at, **selector))
        self.law.rule_changed(None, rule, 10.0)
        return [text for _, text in self.law.weighed(10.0 + WEIGHED_AFTER_S)]

    def returns(self, rule: Document) -> None:
        self.law.rule_changed(rule, None, 10.0)


@pytest.mark.parametrize("changes", [True, False])
def test_a_budget_that_is_seen_to_change_just_then_may_have_permitted_it(changes: bool) -> None:
    judged = Judged(paused=True)
    learn(judged.world, "request", a_request("a", NOW + timedelta(seconds=10)))
    judged.law.rule_changed(None, isolates("gpu-0", "a"), 10.0)
    if changes:
        judged.set(NOW + timedelta(seconds=11), paused=False)
    assert bool(list(judged.law.weighed(10.0 + WEIGHED_AFTER_S))) is not changes


def test_a_gpu_that_comes_to_a_pool_in_maintenance_is_taken_without_asking() -> None:
    def taking(late: bool, **selector: Any) -> list[str]:
        judged = Judged(maxDevices=1)
        judged.takes(isolates("gpu-0", "a"), **selector)
        comes = NOW + timedelta(seconds=20 if late else 5)
        learn(judged.world, "slice", a_slice(whole("gpu-2", FOURTH), number=2))
        judged.law.slices_changed(20.0, comes)
        return judged.takes(isolates("gpu-2", "a"), **selector)

    assert taking(late=True, pool="node") == taking(late=True, nodeName="node") == []
    assert taking(late=False, pool="node"), "it was there when the request began"
    assert taking(late=True, pool="node", device="gpu-2"), "it was named"
    assert taking(late=True, pool="node", deviceClassName="gpu")


def test_a_gpu_is_out_of_service_until_its_last_rule_is_gone() -> None:
    out = OutOfService(a_world_of_three())
    whole_gpu, part = isolates("gpu-0", "a"), isolates("part", "a")
    assert out.changed(None, whole_gpu)
    assert not out.changed(None, part), "it is the same GPU"
    assert not out.changed(whole_gpu, whole_gpu)
    out.changed(whole_gpu, None)
    assert out.gpus == 1
    out.changed(part, None)
    assert out.gpus == 0
    assert out.most == 1


def test_what_announces_only_or_is_nobodys_maintenance_takes_nothing_out_of_service() -> None:
    out = OutOfService(a_world_of_three())
    someone_elses = isolates("gpu-0", "a")
    del someone_elses["metadata"]["ownerReferences"]
    assert out.changed(None, isolates("gpu-0", "a", effect="None")) is None
    assert out.changed(None, someone_elses) is None
    assert out.gpus == 0


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({"maxDevices": 1}, True),
        ({"maxDevices": 2}, False),
        ({"maxPercent": 50}, True),
        ({"maxPercent": 67}, False),
        ({"maxPercent": 1}, True),
        ({"maxDevices": 1, "per": "Node"}, True),
        ({"maxPercent": 99, "per": "Node"}, True),
        ({}, False),
    ],
)
def test_one_gpu_more_than_a_budget_permits_is_too_many(spec: Document, wrong: bool) -> None:
    judged = Judged(**spec)
    assert not judged.takes(isolates("gpu-0", "a"))
    assert bool(judged.takes(isolates("gpu-1", "b"))) is wrong


def test_a_budget_of_each_node_leaves_other_nodes_alone() -> None:
    judged = Judged(maxDevices=1, per="Node")
    assert not judged.takes(isolates("gpu-0", "a"))
    assert not judged.takes(isolates("gpu-0", "b", pool="other"))


def test_a_budget_of_each_nvlink_domain_counts_its_nodes_together() -> None:
    judged = Judged(maxDevices=1, per="NVLinkDomain")
    for node, labels in (("node", {CLIQUE_LABEL: "c.1"}), ("other", {CLIQUE_LABEL: "c.1"}), ("lone", {})):
        metadata = {"name": node, "uid": f"uid-{node}", "resourceVersion": "5", "labels": labels}
        learn(judged.world, "node", {"metadata": metadata})
    assert not judged.takes(isolates("gpu-0", "a"))
    assert not judged.takes(isolates("gpu-0", "b", pool="lone"))
    assert judged.takes(isolates("gpu-0", "c", pool="other"))


def test_a_moment_between_two_looks_is_not_missed() -> None:
    judged = Judged(maxDevices=1)
    judged.takes(isolates("gpu-0", "a"))
    judged.law.rule_changed(None, isolates("gpu-1", "b"), 10.0)
    judged.returns(isolates("gpu-1", "b"))
    learn(judged.world, "request", a_request("b", NOW + timedelta(seconds=10)))
    assert list(judged.law.weighed(20.0))


def test_what_was_started_before_the_budget_is_not_held_against_it() -> None:
    judged = Judged()
    judged.takes(isolates("gpu-0", "a"))
    judged.set(NOW + timedelta(seconds=10), maxDevices=1)
    assert not judged.takes(isolates("gpu-1", "b"), at=NOW + timedelta(seconds=11)), "nobody had seen it yet"
    assert judged.takes(isolates("gpu-0", "c", pool="other"), at=NOW + timedelta(seconds=13))


def test_nothing_starts_while_a_budget_is_paused() -> None:
    judged = Judged(paused=True)
    assert judged.takes(isolates("gpu-0", "a"))
    judged.set(NOW + timedelta(seconds=11), paused=False)
    assert not judged.takes(isolates("gpu-1", "b"), at=NOW + timedelta(seconds=14))


def test_a_rule_that_comes_back_after_somebody_deleted_it_starts_nothing() -> None:
    judged = Judged(maxDevices=1)
    first = isolates("gpu-0", "a")
    judged.takes(first)
    judged.returns(first)
    assert not judged.takes(isolates("gpu-1", "b")), "its rule was away"
    assert not judged.takes(first)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_request_that_goes_back_to_announcing_asks_the_budgets_again(in_place: bool) -> None:
    judged = Judged(maxDevices=1)
    first = isolates("gpu-0", "a")
    judged.takes(first)
    if not in_place:
        judged.returns(first)
    judged.law.rule_changed(first if in_place else None, isolates("gpu-0", "a", effect="None"), 10.0)
    assert not judged.takes(isolates("gpu-1", "b")), "the first is in service again"
    assert judged.takes(first)
