"""What is remembered of the deleted claims of reservations, without an API server."""

from typing import Any, cast

import msgspec
import pytest

from draco.controller.mig.decisions import MigDecisions
from draco.controller.reservations.reconciler import ReservationReconciler
from draco.controller.reservations.waiting import WaitingReasons
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import Forbidden
from draco.kube.events.events import EventRecorder
from draco.kube.watch.collection import Collection
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.reservations import (
    DeviceReservation,
    DeviceReservationSpec,
    DeviceReservationStatus,
    ReservationTemplate,
)
from draco.resources.kinds import DEVICE_RESERVATIONS
from draco.resources.names import LABEL_ALLOCATOR
from tests.builders import a_claim, a_device_class
from tests.doubles.clock import ManualClock
from tests.doubles.workers import UnaskedWorkers

KEY = ObjectKey("default", "evening")
PLAIN = a_device_class("gpu.draco.dev")
DRACOS = msgspec.structs.replace(
    PLAIN, metadata=msgspec.structs.replace(PLAIN.metadata, labels={LABEL_ALLOCATOR: "operator"})
)


class World:
    """An ended reservation with an unused claim. The watch reports the deletion before or after the API server answers."""

    def __init__(self, *, told_first: bool) -> None:
        clock = ManualClock()
        self.told_first = told_first
        self.view = ClusterView(cast("Client", self), None, clock=clock)
        reasons = WaitingReasons(UnaskedWorkers(), clock=clock, minor=None)
        self.reconciler = ReservationReconciler(
            cast("Client", self),
            self.view,
            reasons,
            MigDecisions(self.view),
            cast("EventRecorder", None),
            permitted=True,
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
    assert world.reconciler._statuses.superseded
    world.gone(world.view.reservations, world.reservation)
    assert not world.reconciler._statuses.superseded


class RefusingWorld(World):
    """A reservation of one claim, which the API server refuses to create."""

    def __init__(self) -> None:
        super().__init__(told_first=True)
        self.clock = self.view.clock
        self.made = 0
        self.gone(self.view.claims, self.claim)
        self.view.classes._publish(self.view.classes.store.put(DRACOS))
        self.ask(1)

    def ask(self, count: int) -> None:
        """Set how many claims the reservation asks for."""
        template = ReservationTemplate(spec=a_claim(device_class="gpu.draco.dev").spec)
        spec = DeviceReservationSpec(count=count, template=template)
        self.reservation = msgspec.structs.replace(self.reservation, spec=spec)
        self.view.reservations._publish(self.view.reservations.store.put(self.reservation))

    async def create(self, *_: Any) -> None:
        self.made += 1
        raise Forbidden(403, "Forbidden", "exceeded quota")

    async def apply(self, *_: Any, **__: Any) -> DeviceReservation:
        return self.reservation

    async def wait(self, seconds: int) -> None:
        """Reconcile each second, whatever wakes it."""
        for _ in range(seconds):
            again_s = await self.reconciler.reconcile(KEY)
            assert again_s is not None
            await cast("ManualClock", self.clock).advance(1)


async def test_a_reservation_whose_claims_are_refused_is_left_alone_ever_longer_until_it_asks_for_something_else() -> (
    None
):
    world = RefusingWorld()
    await world.wait(400)
    assert world.made == 6
    world.ask(2)
    await world.wait(1)
    assert world.made == 7
    world.gone(world.view.reservations, world.reservation)
    assert not world.reconciler._refused.by_key
