"""Which of a reservation's devices a pod may take over: those that any new claim may have."""

from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from draco.controller.mig.decisions import MigDecisions
from draco.controller.reservations.reconciler import ReservationReconciler
from draco.controller.reservations.takeovers import about_to_take_over, begun, due, own_claims
from draco.controller.reservations.waiting import WaitingReasons
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec
from draco.resources.api.slices import DeviceCapacity, ResourceSlice
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule, DeviceToleration
from draco.resources.kinds import DEVICE_RESERVATIONS, TAINT_RULES
from draco.resources.names import LABEL_RESERVATION, TAINT_OPERATOR_ALLOCATED
from tests.builders import a_claim, a_device, a_pod, a_rule, a_slice, as_shares
from tests.doubles.clock import ManualClock
from tests.doubles.workers import UnaskedWorkers

KEY = ObjectKey("default", "evening")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MAINTENANCE = "draco.dev/maintenance"
GPU = {"driver": "gpu.nvidia.com", "pool": "node-0", "device": "gpu-0"}


class World:
    """An unused reservation of `gpu-0` and `gpu-1`, and a pod whose claim may take one of them over."""

    def __init__(self, *, tolerates: str = "") -> None:
        clock = ManualClock()
        self.view = ClusterView(cast("Client", self), TAINT_RULES[0], clock=clock)
        reasons = WaitingReasons(UnaskedWorkers(), clock=clock, minor=None)
        client = cast("Client", self)
        self.woken: list[ObjectKey] = []
        ReservationReconciler(
            client, self.view, reasons, MigDecisions(self.view), cast("EventRecorder", None), permitted=True
        ).subscribe(self.woken.append)
        meta = ObjectMeta(name=KEY.name, namespace=KEY.namespace, uid="evening")
        self.reservation = DeviceReservation(metadata=meta, spec=DeviceReservationSpec(count=2))
        tolerations = [DeviceToleration(key=tolerates, operator="Exists")] if tolerates else []
        self.put(self.view.reservations, self.reservation)
        for number in range(2):
            reserved = a_claim(f"evening-{number}", on=[f"node-0/gpu-{number}"], tolerations=tolerations)
            self.put(self.view.claims, _with(reserved, owner_references=[DEVICE_RESERVATIONS.owner(meta)]))
        self.taker = a_claim("pod-gpu-x7", made_for=("pod", "gpu"), tolerations=tolerations)
        self.put(self.view.claims, self.taker)
        self.put(self.view.pods, a_pod("pod", templates=["gpu"], labels={LABEL_RESERVATION: KEY.name}))
        self.publish(a_slice("node-0", ["gpu-0", "gpu-1"]))

    def put(self, collection: Any, obj: Any) -> None:
        collection._publish(collection.store.put(obj))

    def publish(self, published: ResourceSlice) -> None:
        self.put(self.view.slices, published)

    def taint(self, rule: DeviceTaintRule) -> None:
        self.put(self.view.rules, rule)

    def lift(self, rule: DeviceTaintRule) -> None:
        self.view.rules._publish(self.view.rules.store.remove(rule.metadata.key))

    def yield_first(self) -> None:
        """`evening-0` is recorded as yielding, and has been deleted."""
        [found] = begun(self.view, self.reservation, own_claims(self.view, self.reservation), NOW)
        status = msgspec.structs.replace(self.reservation.status, takeovers=[found])
        self.put(self.view.reservations, msgspec.structs.replace(self.reservation, status=status))
        self.view.claims._publish(self.view.claims.store.remove(ObjectKey(KEY.namespace, found.reserved)))

    @property
    def due(self) -> list[str]:
        """The claims that are due to take over."""
        return [claim.metadata.name for claim, _ in due(self.view, lambda _: True)]

    @property
    def yields(self) -> list[str]:
        """The reserved claims that yield to the pod's claim."""
        found = begun(self.view, self.reservation, own_claims(self.view, self.reservation), NOW)
        assert bool(about_to_take_over(self.view, [self.taker], NOW)) is bool(found), (
            "all others are allocated as usual"
        )
        return [each.reserved for each in found]


def _with(claim: ResourceClaim, **meta: Any) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, **meta))


def test_the_first_that_nobody_uses_is_taken_over() -> None:
    assert World().yields == ["evening-0"]


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
@pytest.mark.parametrize(
    ("selector", "left"), [(GPU, ["evening-1"]), ({"pool": "node-0"}, []), ({}, []), ({"pool": "other"}, ["evening-0"])]
)
def test_what_is_in_maintenance_is_not(effect: str, selector: dict[str, str], left: list[str]) -> None:
    world = World()
    world.taint(a_rule("draco-maintenance-gpu-0", taint=MAINTENANCE, effect=effect, **selector))
    assert world.yields == left


def test_what_is_sick_or_not_published_is_not() -> None:
    world = World()
    sick = a_device("gpu-0", taints=[DeviceTaint(key="draco.dev/xid", value="Xid79", effect="NoSchedule")])
    world.publish(a_slice("node-0", [sick, "gpu-1"]))
    assert world.yields == ["evening-1"]
    world.publish(a_slice("node-0", ["gpu-2"]))
    assert world.yields == []


def test_what_goes_into_maintenance_after_a_take_over_has_begun_is_not_given_as_long_as_it_is() -> None:
    world = World()
    world.yield_first()
    assert world.due == ["pod-gpu-x7"]
    rule = a_rule("draco-maintenance-gpu-0", taint=MAINTENANCE, **GPU)
    world.taint(rule)
    assert world.due == []
    world.lift(rule)
    assert world.due == ["pod-gpu-x7"]
    world.publish(a_slice("node-0", ["gpu-1"]))
    assert world.due == []


def test_a_taint_that_keeps_off_nobody_like_it_does_not_matter() -> None:
    world = World(tolerates=MAINTENANCE)
    world.taint(a_rule("draco-maintenance-gpu-0", taint=MAINTENANCE, **GPU))
    assert world.yields == ["evening-0"]
    world.taint(a_rule("announced", effect="None", **GPU))
    dracos = a_device("gpu-0", taints=[DeviceTaint(key=TAINT_OPERATOR_ALLOCATED, effect="NoSchedule")])
    world.publish(a_slice("node-0", [dracos, "gpu-1"]))
    assert world.yields == ["evening-0"]


def test_a_reservation_with_a_pod_that_waits_is_looked_at_again_when_taints_and_devices_come_and_go() -> None:
    world = World()
    world.woken.clear()
    rule = a_rule("draco-maintenance-gpu-0", taint=MAINTENANCE, **GPU)
    world.taint(rule)
    world.lift(rule)
    world.publish(a_slice("node-0", ["gpu-1"]))
    assert world.woken == [KEY] * 3
    world.view.pods._publish(world.view.pods.store.remove(ObjectKey("default", "pod")))
    world.woken.clear()
    world.taint(rule)
    assert world.woken == []


# --- shares ---


def a_share(claim: ResourceClaim, share_id: str, amount: str) -> ResourceClaim:
    return as_shares(claim, share_id, memory=amount)


class OfShares(World):
    """The same, but the reserved claims have shares of one GPU, 30Gi and 10Gi of its 80Gi."""

    def __init__(self) -> None:
        super().__init__()
        gpu = msgspec.structs.replace(a_device("gpu-0"), capacity={"memory": DeviceCapacity(value="80Gi")})
        self.publish(a_slice("node-0", [msgspec.structs.replace(gpu, allow_multiple_allocations=True)]))
        for number, amount in enumerate(("30Gi", "10Gi")):
            reserved = a_share(a_claim(f"evening-{number}", on=["node-0/gpu-0"]), f"reserved-{number}", amount)
            owner = DEVICE_RESERVATIONS.owner(self.reservation.metadata)
            self.put(self.view.claims, _with(reserved, owner_references=[owner]))

    def hold(self, name: str, amount: str, share_id: str = "") -> None:
        self.put(self.view.claims, a_share(a_claim(name, on=["node-0/gpu-0"]), share_id or name, amount))


def test_a_share_is_taken_over_beside_other_shares_of_the_gpu() -> None:
    world = OfShares()
    world.hold("other", "40Gi")
    world.yield_first()
    assert world.due == ["pod-gpu-x7"]
    ((_, allocation),) = due(world.view, lambda _: True)
    (share,) = allocation.devices.results
    assert (share.share_id, share.consumed_capacity) == ("reserved-0", {"memory": "30Gi"})


@pytest.mark.parametrize("other", ["41Gi", ""])
def test_a_share_is_not_taken_over_while_another_claim_has_too_much_or_all_of_the_gpu(other: str) -> None:
    world = OfShares()
    if other:
        world.hold("other", other)
    else:
        world.put(world.view.claims, a_claim("other", on=["node-0/gpu-0"]))
    world.yield_first()
    assert world.due == []
    world.view.claims._publish(world.view.claims.store.remove(ObjectKey(KEY.namespace, "other")))
    assert world.due == ["pod-gpu-x7"]


def test_a_share_whose_claim_exists_still_or_has_passed_it_on_is_not_given() -> None:
    world = OfShares()
    world.yield_first()
    world.hold("evening-0", "30Gi", "reserved-0")
    assert world.due == []
    world.view.claims._publish(world.view.claims.store.remove(ObjectKey(KEY.namespace, "evening-0")))
    written = a_share(a_claim("other", on=["node-0/gpu-0"]), "reserved-0", "30Gi")
    assert not list(due(world.view, lambda _: True, [written]))
    beside = a_share(a_claim("other", on=["node-0/gpu-0"]), "its-own", "30Gi")
    assert list(due(world.view, lambda _: True, [beside]))


def test_a_share_is_not_taken_over_of_a_gpu_that_is_shared_otherwise_now() -> None:
    world = OfShares()
    world.yield_first()
    world.hold("other", "1Gi")
    more = {"memory": DeviceCapacity(value="80Gi"), "shares": DeviceCapacity(value="4")}
    gpu = msgspec.structs.replace(a_device("gpu-0"), capacity=more, allow_multiple_allocations=True)
    world.publish(a_slice("node-0", [gpu]))
    assert world.due == []  # what it takes of a new capacity is unknown
