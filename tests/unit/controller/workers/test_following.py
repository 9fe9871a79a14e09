"""The fleet in another process follows the informers: change by change, across relists, and past unreadable objects."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.allocation.fleet.fleet import Fleet
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.watch.collection import Collection
from draco.kube.watch.watching import ListedCollection
from draco.placing.groups.group import ClaimGroup, GroupMember
from draco.placing.groups.place import place
from draco.resources.api.core import Node
from draco.resources.api.meta import Condition, ObjectKey
from draco.resources.kinds import TAINT_RULES
from tests.builders import MOMENT, a_claim, a_device_class, a_device_key, a_node, a_rule, a_slice
from tests.doubles.clock import ManualClock
from tests.doubles.workers import hand_on, told_fleet
from tests.unit.placing.test_place import ours


@pytest.fixture
def view() -> ClusterView:
    return ClusterView(Client(Connection("http://127.0.0.1:1")), TAINT_RULES[0], clock=ManualClock())


def put(informer: Collection[Any], obj: Any) -> None:
    informer._publish(informer.store.put(obj))


def remove(informer: Collection[Any], *name: str) -> None:
    informer._publish(informer.store.remove(ObjectKey("", *name) if len(name) == 1 else ObjectKey(*name)))


def relist(informer: Collection[Any], objects: Iterable[Any]) -> None:
    informer.take(ListedCollection({obj.metadata.key: obj for obj in objects}, "2", []))


def content(fleet: Fleet) -> dict[str, Any]:
    """Everything that a fleet can be asked, in a comparable form."""
    names = ("node-0", "node-1", "node-2")
    views = {
        name: [
            (view.key, [(each.key, sorted(taint.key for taint in each.taints)) for each in view.candidates])
            for view in fleet.inventory.views(a_node(name))
        ]
        for name in names
    }
    return {
        "views": views,
        "nodes": dict(fleet.nodes),
        "classes": dict(fleet.classes),
        "claims": dict(fleet.claims),
        "in use": sorted(fleet.state.devices()),
    }


def test_every_change_of_every_kind_reaches_the_fleet(view: ClusterView) -> None:
    put(view.slices, a_slice("node-0"))
    put(view.slices, a_slice("node-1"))
    put(view.slices, a_slice("node-1", ["gpu-0"]))
    put(view.rules, a_rule("broken", device="gpu-0"))
    put(view.rules, a_rule("gone"))
    put(view.nodes, a_node("node-0"))
    put(view.nodes, a_node("node-2"))
    put(view.classes, a_device_class())
    put(view.classes, a_device_class("other"))
    put(view.claims, a_claim("train", on=["node-0/gpu-0"]))
    put(view.claims, a_claim("done", on=["node-0/gpu-1"]))
    remove(view.rules, "gone")
    remove(view.nodes, "node-2")
    remove(view.classes, "other")
    remove(view.claims, "default", "done")
    assert content(told_fleet(view.followed).fleet) == content(
        Fleet.of(
            slices=[a_slice("node-0"), a_slice("node-1", ["gpu-0"])],
            rules=[a_rule("broken", device="gpu-0")],
            nodes=[a_node("node-0")],
            classes=[a_device_class()],
            claims=[a_claim("train", on=["node-0/gpu-0"])],
        )
    )


def test_a_claim_is_handed_on_only_as_long_as_it_has_or_had_devices(view: ClusterView) -> None:
    put(view.claims, a_claim("train"))
    assert not view.followed.is_dirty
    put(view.claims, a_claim("train", on=["node-0/gpu-0"]))
    feed = told_fleet(view.followed)
    assert sorted(feed.fleet.state.devices()) == [a_device_key("node-0/gpu-0")]
    put(view.claims, a_claim("train"))
    hand_on(view.followed, feed)
    assert not list(feed.fleet.state.devices())
    remove(view.claims, "default", "train")
    assert not view.followed.is_dirty
    assert not feed.fleet.claims  # otherwise a pod that names it would get no explanation


def test_a_process_that_starts_anew_is_not_told_of_claims_that_have_nothing(view: ClusterView) -> None:
    put(view.claims, a_claim("train"))
    view.followed.resync()
    assert not view.followed.is_dirty


def test_what_vanished_between_two_lists_vanishes_from_the_fleet(view: ClusterView) -> None:
    relist(view.slices, [a_slice("node-0"), a_slice("node-1")])
    relist(view.nodes, [a_node("node-0"), a_node("node-1")])
    relist(view.claims, [a_claim("train", on=["node-0/gpu-0"])])
    feed = told_fleet(view.followed)
    relist(view.slices, [a_slice("node-1")])
    relist(view.nodes, [a_node("node-1")])
    relist(view.claims, [])
    hand_on(view.followed, feed)
    assert content(feed.fleet) == content(Fleet.of(slices=[a_slice("node-1")], nodes=[a_node("node-1")]))


def test_an_object_that_cannot_be_read_is_left_out_and_said_once(view: ClusterView) -> None:
    good = a_claim("train", on=["node-0/gpu-0"])
    allocation = good.status.allocation
    assert allocation is not None
    (result,) = allocation.devices.results
    shared = msgspec.structs.replace(result, share_id="share", consumed_capacity={"memory": "forty"})
    devices = msgspec.structs.replace(allocation.devices, results=[shared])
    status = msgspec.structs.replace(good.status, allocation=msgspec.structs.replace(allocation, devices=devices))
    bad = msgspec.structs.replace(good, status=status)
    put(view.claims, good)
    feed = told_fleet(view.followed)
    with capture_logs() as logs:
        for claim in (bad, msgspec.structs.replace(bad), a_claim("other", on=["node-0/gpu-1"])):
            put(view.claims, claim)
            hand_on(view.followed, feed)
    (said,) = logs
    assert (said["event"], said["kind"], said["key"]) == ("fleet.left_out", "ResourceClaim", "default/train")
    assert "forty" in said["error"]
    assert list(feed.fleet.state.devices()) == [a_device_key("node-0/gpu-1")]
    put(view.claims, good)
    hand_on(view.followed, feed)
    assert sorted(feed.fleet.state.devices()) == [a_device_key("node-0/gpu-0"), a_device_key("node-0/gpu-1")]


def test_only_changes_that_can_alter_an_explanation_count(view: ClusterView) -> None:
    woken: list[int] = []
    view.followed.listeners.add(lambda: woken.append(view.followed.version))

    def counts(informer: Collection[Any], obj: Any) -> bool:
        before = len(woken)
        put(informer, obj)
        return len(woken) > before

    def heartbeat(node: Node) -> Node:
        conditions = [Condition(type=c.type, status=c.status, message="again") for c in node.status.conditions]
        status = msgspec.structs.replace(node.status, conditions=conditions)
        return msgspec.structs.replace(node, status=status)

    node = a_node()
    assert counts(view.nodes, node)
    assert not counts(view.nodes, heartbeat(node))
    assert counts(view.nodes, a_node(ready=False))
    assert counts(view.nodes, a_node(unschedulable=True))
    claim = a_claim("train")
    assert not counts(view.claims, claim), "what it asks for concerns nobody else"
    assert counts(view.claims, a_claim("train", on=["node-0/gpu-0"]))
    assert counts(view.claims, a_claim("train", on=["node-0/gpu-0"], reserved_for=["pod"])), "it is not idle any more"
    assert not counts(view.claims, a_claim("train", on=["node-0/gpu-0"], reserved_for=["pod"], deleting=True))
    assert counts(view.slices, a_slice())
    meta = msgspec.structs.replace(a_slice().metadata, creation_timestamp=MOMENT)
    assert not counts(view.slices, msgspec.structs.replace(a_slice(), metadata=meta))
    assert woken == sorted(set(woken))
    before = len(woken)
    remove(view.claims, "default", "train")
    assert len(woken) == before + 1


def test_a_process_that_starts_anew_is_told_everything_and_no_object_waits_twice(view: ClusterView) -> None:
    put(view.slices, a_slice("node-0"))
    for number in range(3):
        put(view.claims, a_claim("train", on=[f"node-0/gpu-{number}"]))
    put(view.nodes, a_node("node-0"))
    first = view.followed.next_changes(100)
    assert [type(each).__name__ for each in first.changes] == ["PutObject", "PutObject", "PutObject"]
    assert (first.version, view.followed.is_dirty) == (view.followed.version, False)
    view.followed.resync()
    assert content(told_fleet(view.followed).fleet) == content(
        Fleet.of(slices=[a_slice("node-0")], nodes=[a_node("node-0")], claims=[a_claim("train", on=["node-0/gpu-2"])])
    )


def test_devices_are_counted_as_they_come_and_go(view: ClusterView) -> None:
    put(view.slices, a_slice("node-0"))
    put(view.slices, a_slice("node-1"))
    put(view.slices, a_slice("node-1", ["gpu-0"]))
    assert view.followed.devices == 3
    remove(view.slices, a_slice("node-0").metadata.name)
    assert view.followed.devices == 1


def test_what_has_been_said_is_known_while_more_changes(view: ClusterView) -> None:
    for number in range(4):
        put(view.nodes, a_node(f"node-{number}"))
    assert view.followed.next_changes(2).version == 2, "the third change has not been said"
    put(view.nodes, a_node("node-2", ready=False))
    assert view.followed.next_changes(1).version == 3, "its change has, but that of the fourth node has not"
    assert view.followed.next_changes(1).version == view.followed.version == 5


def test_a_question_after_any_change_is_answered_by_what_has_changed(view: ClusterView) -> None:
    """Although facts about nodes are remembered from one question to the next."""
    devices = [ours(name) for name in ("gpu-0", "gpu-1")]
    put(view.classes, a_device_class())
    put(view.nodes, a_node("node-0"))
    put(view.slices, a_slice("node-0", devices))
    feed = told_fleet(view.followed)

    def device() -> str:
        """The device that a claim would get, or ""."""
        hand_on(view.followed, feed)
        (found,) = place(feed.placer, [ClaimGroup([GroupMember([a_claim("asked")])])], [])
        return ", ".join(each.device for results in found.results for one in results for each in one.devices.results)

    assert device() == "gpu-0"
    put(view.claims, a_claim("train", on=["node-0/gpu-0"]))
    assert device() == "gpu-1"
    put(view.rules, a_rule("sick", device="gpu-1"))
    assert device() == ""
    put(view.slices, a_slice("node-0", [*devices, ours("gpu-2")]))
    assert device() == "gpu-2"
    put(view.classes, a_device_class(selector="false"))
    assert device() == ""
    put(view.classes, a_device_class())
    remove(view.nodes, "node-0")
    assert device() == ""
    put(view.nodes, a_node("node-0"))
    remove(view.claims, "default", "train")
    assert device() == "gpu-0"
