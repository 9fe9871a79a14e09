"""Claims that must wait although they appear while Draco is reading: claims of reservations, and claims that take them over."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from draco.controller.allocation.allocations import KEY
from draco.controller.view import ClusterView
from draco.controller.workers.messages import claims_of
from draco.kube.connect.client import Client
from draco.kube.watch.collection import Collection
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import PodStatus
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec
from draco.resources.kinds import DEVICE_RESERVATIONS
from draco.resources.names import LABEL_ALLOCATOR, LABEL_RESERVATION
from tests.builders import a_claim, a_device_class, a_pod, a_slice
from tests.doubles.allocating import permissive_allocations
from tests.doubles.clock import ManualClock
from tests.doubles.workers import PromptWorkers

RESERVATION = ObjectMeta(name="evening", namespace="default", uid="evening")


class Workers(PromptWorkers):
    """Workers whose tenants always have budget left."""

    def may_ask(self, namespace: str) -> bool:
        return True


class Lab:
    """A waiting pod, and an allocation of a device that is gone; `meanwhile` is called while that is given back."""

    def __init__(self, meanwhile: Callable[["Lab"], None]) -> None:
        clock = ManualClock()
        self.meanwhile = meanwhile
        self.view = ClusterView(cast("Client", None), None, clock=clock)
        self.workers = Workers(self.view)
        self.allocations = permissive_allocations(self.view, self.workers, self)
        plain = a_device_class("gpu.draco.dev")
        meta = msgspec.structs.replace(plain.metadata, labels={LABEL_ALLOCATOR: "operator"})
        self.put(self.view.classes, msgspec.structs.replace(plain, metadata=meta))
        self.put(self.view.slices, a_slice("node-0", ["gpu-0", "gpu-1"]))
        self.wait("worker")
        self.put(self.view.pods, a_pod("worker", claims=["worker"], status=PodStatus(phase="Pending")))
        self.wait("lost", on=["node-0/gpu-7"])
        self.gave_back = 0

    def put(self, collection: Collection[Any], obj: Any) -> None:
        collection._publish(collection.store.put(obj))

    def wait(self, name: str, **fields: Any) -> None:
        self.put(self.view.claims, a_claim(name, device_class="gpu.draco.dev", **fields))

    def reserve(self, name: str, **fields: Any) -> None:
        """Add a claim of the reservation."""
        claim = a_claim(name, device_class="gpu.draco.dev", **fields)
        meta = msgspec.structs.replace(claim.metadata, owner_references=[DEVICE_RESERVATIONS.owner(RESERVATION)])
        self.put(self.view.claims, msgspec.structs.replace(claim, metadata=meta))

    async def patch(self, _: Any, key: ObjectKey, *__: Any, **___: Any) -> ResourceClaim:
        if key.name == "lost":
            self.gave_back += 1
            self.meanwhile(self)
        return a_claim("written")


def reserve_in_part(lab: Lab) -> None:
    """Add the first of the two claims that a reservation asks for."""
    lab.put(lab.view.reservations, DeviceReservation(metadata=RESERVATION, spec=DeviceReservationSpec(count=2)))
    lab.reserve("evening-0")


def take_over(lab: Lab) -> None:
    """Add a pod that takes over reserved devices."""
    lab.put(lab.view.reservations, DeviceReservation(metadata=RESERVATION, spec=DeviceReservationSpec(count=1)))
    lab.reserve("evening-0", on=["node-0/gpu-1"])
    lab.wait("pod-gpu-x7", made_for=("pod", "gpu"))
    lab.put(lab.view.pods, a_pod("pod", templates=["gpu"], labels={LABEL_RESERVATION: RESERVATION.name}))


@pytest.mark.parametrize("comes", [reserve_in_part, take_over])
async def test_what_comes_while_a_claim_is_given_back_and_is_to_wait_yet_is_not_asked_about(
    comes: Callable[[Lab], None],
) -> None:
    lab = Lab(comes)
    await lab.allocations.reconcile(KEY)
    assert lab.gave_back == 1
    asked = [[each.metadata.name for each in claims_of(question)] for question in lab.workers.asked]
    assert asked == [["worker"]]
