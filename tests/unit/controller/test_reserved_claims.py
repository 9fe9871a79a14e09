"""What is remembered of the claims of reservations that were deleted, without an API server."""

from typing import Any, cast

import msgspec
import pytest

from draco.controller.mig.decisions import MigDecisions
from draco.controller.reservations.reconciler import ReservationReconciler
from draco.controller.reservations.waiting import WaitingReasons
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.kube.watch.collection import Collection
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec, DeviceReservationStatus
from draco.resources.kinds import DEVICE_RESERVATIONS
from tests.builders import a_claim
from tests.doubles.clock import ManualClock
from tests.doubles.workers import UnaskedWorkers

KEY = ObjectKey("default", "evening")


class World:
    """A reservation that has ended, with a claim that nobody uses. The watch tells of its end before or after the answer."""

    def __init__(self, *, told_first: bool) -> None:
        clock = ManualClock()
        self.told_first = told_first
        self.view = ClusterView(cast("Client", self), None, clock=clock)
        reasons = WaitingReasons(UnaskedWorkers(), clock=clock, minor=None)
        self.reconciler = ReservationReconciler(
            cast("Client", self),
            self.view,
            reasons,
            MigDecisions(self.view, clock=clock),
            cast("EventRecorder", None),
            permitted=True,
            clock=clock,
        )
        self.reconciler.subscribe(lambda _: None)
        meta = ObjectMeta(name=KEY.name, namespace=KEY.namespace, uid="evening", resource_version="1")
        spec, status = DeviceReservationSpec(expires_at=clock.now()), DeviceReservationStatus(priority=0)
        self.reservation = DeviceReservation(metadata=meta, spec=spec, status=status)
        claim = a_claim("evening-0")
        owned = msgspec.structs.replace(claim.metadata, owner_references=[DEVICE_RESERVATIONS.owner(meta)])
        self.claim = msgspec.structs.replace(claim, metadata=owned)
        self.view.reservations._publish(self.view.reservations.store.put(self.reservation))
        self.view.claims._publish(self.view.claims.store.put(self.claim))

    async def get(self, *_: Any) -> DeviceReservation:
        return self.reservation

    async def list(self, *_: Any) -> list[Any]:
        return []

    async def apply(self, *_: Any, **__: Any) -> DeviceReservation:
        meta = msgspec.structs.replace(self.reservation.metadata, resource_version="2")
        return msgspec.structs.replace(self.reservation, metadata=meta)

    async def delete(self, *_: Any, **__: Any) -> None:
        if self.told_first:
            self.gone(self.view.claims, self.claim)

    def gone(self, collection: Collection[Any], obj: ResourceClaim | DeviceReservation) -> None:
        collection._publish(collection.store.remove(obj.metadata.key))


@pytest.mark.parametrize("told_first", [False, True])
async def test_a_claim_that_was_deleted_and_a_reservation_that_was_written_are_forgotten_once_they_are_gone(
    told_first: bool,
) -> None:
    world = World(told_first=told_first)
    await world.reconciler.reconcile(KEY)
    if not told_first:
        assert world.reconciler._deleted.keys() == {world.claim.metadata.uid}
        world.gone(world.view.claims, world.claim)
    assert not world.reconciler._deleted
    assert world.reconciler._statuses._superseded
    world.gone(world.view.reservations, world.reservation)
    assert not world.reconciler._statuses._superseded
