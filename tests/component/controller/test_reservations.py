"""Reservations on a real API server where only the operator acts: the test allocates and reserves claims."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS, DEVICE_CLASSES, DEVICE_RESERVATIONS, Kind
from draco.resources.names import ANNOTATION_TOPOLOGY, LABEL_RESERVATION
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import an_operator, settings_for_test, until

pytestmark = pytest.mark.usefixtures("crds")

CLASS, PLAIN = "gpu.draco.dev", "plain.example.com"
QUOTAS: Kind[Any] = Kind("", "v1", "resourcequotas", "ResourceQuota", True, dict)
DEVICES = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]}}
ALLOCATING = msgspec.structs.replace(settings_for_test(), allocate=True)
LEAST_WRITES, MOST_WRITES = 4, 7
"""Three claims, and the status of the reservation: once at least, and usually once for each claim that is seen at most."""


class LateClock(SystemClock):
    """The system's clock, ahead by a settable time."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


class Lab:
    """A namespace with reservations, and a stand-in for the allocator and for pods."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    def key(self, name: str = "train") -> ObjectKey:
        return ObjectKey(self.namespace, name)

    async def reserve(self, name: str = "train", *, device_class: str = CLASS, **spec: Any) -> None:
        if "templateName" not in spec:
            request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
            spec["template"] = {"spec": {"devices": {"requests": [request]}}}
        meta = {"name": name, "namespace": self.namespace}
        await self.client.create(DEVICE_RESERVATIONS, {"metadata": meta, "spec": spec})

    async def change(self, **spec: Any) -> None:
        await self.client.patch(DEVICE_RESERVATIONS, self.key(), {"spec": spec})

    async def claims(self) -> dict[str, ResourceClaim]:
        return {each.metadata.name: each for each in await self.client.list(CLAIMS, namespace=self.namespace)}

    async def until_claims(self, *names: str) -> dict[str, ResourceClaim]:
        async def look() -> bool:
            return set(await self.claims()) == set(names)

        await until(look, what=f"exactly the claims {names}")
        return await self.claims()

    async def give(self, *names: str) -> None:
        """Allocate as the allocator would."""
        for name in names:
            result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node", "device": f"of-{name}"}
            status = {"allocation": {"devices": {"results": [result]}}}
            await self.client.patch(CLAIMS, self.key(name), {"status": status}, subresource="status")

    async def use(self, *names: str) -> None:
        """Reserve for a pod."""
        for name in names:
            pod = {"resource": "pods", "name": f"pod-of-{name}", "uid": f"uid-of-{name}"}
            await self.client.patch(CLAIMS, self.key(name), {"status": {"reservedFor": [pod]}}, subresource="status")

    async def leave(self, *names: str) -> None:
        """The pod is gone, and kube-controller-manager has taken the devices back."""
        for name in names:
            status = {"reservedFor": None, "allocation": None}
            await self.client.patch(CLAIMS, self.key(name), {"status": status}, subresource="status")

    async def says(
        self, test: Callable[[DeviceReservation], object], what: str, name: str = "train"
    ) -> DeviceReservation:
        async def look() -> DeviceReservation | None:
            found = await self.client.get(DEVICE_RESERVATIONS, self.key(name))
            is_current = found.status.observed_generation == found.metadata.generation
            return found if is_current and test(found) else None

        return await until(look, what=what)

    async def ready(self, name: str = "train") -> DeviceReservation:
        return await self.says(lambda each: conditions(each)["Ready"][0] == "True", "Ready", name)

    async def not_ready(self, reason: str, name: str = "train") -> DeviceReservation:
        return await self.says(lambda each: conditions(each)["Ready"] == ("False", reason), reason, name)


def conditions(reservation: DeviceReservation) -> Mapping[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in reservation.status.conditions}


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[Lab]:
    labels = {"draco.dev/allocator": "operator"}
    await client.apply(DEVICE_CLASSES, ObjectKey("", CLASS), {"metadata": {"labels": labels}}, manager="tests")
    yield Lab(client, namespace)
    for each in await client.list(DEVICE_RESERVATIONS, namespace=namespace):
        await client.delete(DEVICE_RESERVATIONS, each.metadata.key)
    for claim in await client.list(CLAIMS, namespace=namespace):
        await client.delete(CLAIMS, claim.metadata.key)
    for name in (CLASS, PLAIN):  # these would also select other tests' devices
        with contextlib.suppress(NotFound):
            await client.delete(DEVICE_CLASSES, ObjectKey("", name))


async def test_a_reservation_makes_its_claims_and_is_ready_when_all_have_devices(
    served: ControlPlane, lab: Lab
) -> None:
    async with an_operator(served, ALLOCATING):
        await lab.reserve(count=3, topology="sameNode")
        claims = await lab.until_claims("train-0", "train-1", "train-2")
        for claim in claims.values():
            assert claim.metadata.labels == {LABEL_RESERVATION: "train"}
            assert claim.metadata.annotations == {ANNOTATION_TOPOLOGY: "sameNode"}
            assert [(each.kind, each.name, each.controller) for each in claim.metadata.owner_references] == [
                ("DeviceReservation", "train", True)
            ]
        await lab.give("train-0", "train-2")
        waits = await lab.says(lambda each: each.status.reserved == 2, "2 reserved")
        assert conditions(waits) == {"Ready": ("False", "WaitingForDevices"), "Expired": ("False", "NoEnd")}
        await lab.give("train-1")
        await lab.use("train-1")
        ready = await lab.says(lambda each: each.status.in_use == 1, "1 in use")
        assert conditions(ready)["Ready"] == ("True", "Reserved")
        assert ready.status.message == "3 claims have devices; 1 is in use."


async def test_claims_are_made_of_a_template_of_the_namespace(served: ControlPlane, lab: Lab) -> None:
    async with an_operator(served, ALLOCATING):
        await lab.reserve(templateName="one-gpu")
        said = await lab.not_ready("NoTemplate")
        assert said.status.message.startswith("There is no ResourceClaimTemplate one-gpu in this namespace: create it")
        meta = {"name": "one-gpu", "namespace": lab.namespace}
        await lab.client.create(CLAIM_TEMPLATES, {"metadata": meta, "spec": {"spec": DEVICES}})
        claims = await lab.until_claims("train-0")
        (request,) = claims["train-0"].spec.devices.requests
        assert request.exactly is not None
        assert request.exactly.device_class_name == CLASS


async def test_with_a_smaller_count_unused_claims_go_and_one_in_use_goes_with_its_pod(
    served: ControlPlane, lab: Lab
) -> None:
    async with an_operator(served, ALLOCATING):
        await lab.reserve(count=4)
        every = [f"train-{index}" for index in range(4)]
        await lab.until_claims(*every)
        await lab.give(*every)
        await lab.use("train-2", "train-3")
        await lab.says(lambda each: each.status.in_use == 2, "2 in use")
        await lab.change(count=1)
        await lab.until_claims("train-2", "train-3")
        said = await lab.says(lambda each: each.status.reserved == 2, "2 left")
        assert (
            said.status.message
            == "2 claims have devices; 2 are in use. 1 more than requested is deleted when its pods end."
        )
        await lab.leave("train-3")
        await lab.until_claims("train-2")
        await lab.change(count=3)
        await lab.until_claims("train-0", "train-1", "train-2")


async def test_what_is_in_use_when_a_reservation_ends_is_left_to_its_pod(served: ControlPlane, lab: Lab) -> None:
    """The operator's clock decides the end."""
    clock = LateClock()
    async with an_operator(served, ALLOCATING, clock=clock):
        await lab.reserve(count=2, duration="1h")
        await lab.until_claims("train-0", "train-1")
        await lab.give("train-0", "train-1")
        await lab.use("train-1")
        lasts = await lab.says(lambda each: each.status.in_use == 1, "1 in use")
        assert conditions(lasts)["Expired"] == ("False", "Lasts")
        created = lasts.metadata.creation_timestamp
        assert created is not None
        assert lasts.status.expires_at == created + timedelta(hours=1)
        clock.ahead = timedelta(hours=2)
        await lab.change(duration="1h0m")  # so that it is reconciled again
        await lab.until_claims("train-1")
        over = await lab.says(lambda each: each.status.reserved == 1, "1 left")
        assert conditions(over) == {"Ready": ("False", "Expired"), "Expired": ("True", "Ended")}
        assert "1 claim in use is deleted when its pods end. To reserve again, set a later end." in over.status.message
        await lab.leave("train-1")
        await lab.until_claims()
        await lab.change(duration="9h")
        await lab.until_claims("train-0", "train-1")


async def test_a_reservation_ends_by_itself(served: ControlPlane, lab: Lab) -> None:
    async with an_operator(served, ALLOCATING):
        await lab.reserve()
        await lab.until_claims("train-0")
        end = datetime.now(UTC) + timedelta(seconds=2)
        await lab.change(expiresAt=f"{end:%Y-%m-%dT%H:%M:%SZ}")
        await lab.until_claims()
        assert conditions(await lab.not_ready("Expired"))["Expired"] == ("True", "Ended")


async def test_an_end_that_is_past_is_said_at_once(served: ControlPlane, lab: Lab) -> None:
    async with an_operator(served, ALLOCATING):
        await lab.reserve(expiresAt="2020-01-01T00:00:00+01:00")
        said = await lab.not_ready("Expired")
        assert said.status.message == (
            "It ended at 2019-12-31T23:00:00Z, before it was created, so nothing is reserved: set a later spec.expiresAt."
        )
        assert await lab.claims() == {}


async def test_somebody_elses_claim_of_the_same_name_is_not_touched(served: ControlPlane, lab: Lab) -> None:
    meta = {"name": "train-1", "namespace": lab.namespace, "labels": {LABEL_RESERVATION: "train"}}
    theirs = await lab.client.create(CLAIMS, {"metadata": meta, "spec": DEVICES})
    async with an_operator(served, ALLOCATING):
        await lab.reserve(count=3)
        said = await lab.not_ready("NameTaken")
        assert said.status.message == (
            "ResourceClaim train-1 does not belong to this reservation: delete it, or give the reservation another name."
        )
        claims = await lab.until_claims("train-0", "train-1", "train-2")
        assert claims["train-1"] == theirs
        await lab.client.delete(DEVICE_RESERVATIONS, lab.key())
        assert (await lab.claims())["train-1"] == theirs


async def test_claims_that_draco_does_not_allocate_are_not_reserved(served: ControlPlane, lab: Lab) -> None:
    await lab.client.apply(DEVICE_CLASSES, ObjectKey("", PLAIN), {}, manager="tests")
    async with an_operator(served, ALLOCATING):
        await lab.reserve(device_class=PLAIN)
        said = await lab.not_ready("NotAllocatedByDraco")
        assert said.status.message.startswith(
            "Claims of DeviceClass plain.example.com are allocated by kube-scheduler, which reserves nothing: ask for gpu.draco"
        )
        await lab.reserve("other", device_class="gpu.draco.deb")
        said = await lab.not_ready("NoDeviceClass", "other")
        assert said.status.message.startswith("There is no DeviceClass gpu.draco.deb; did you mean gpu.draco.dev?")
        assert await lab.claims() == {}


async def test_what_a_quota_refuses_is_said(served: ControlPlane, lab: Lab) -> None:
    meta = {"name": "few", "namespace": lab.namespace}
    hard = {f"{CLASS}.deviceclass.resource.k8s.io/devices": "2"}
    await lab.client.create(QUOTAS, {"metadata": meta, "spec": {"hard": hard}})
    # Without the quota controller, the test writes what is used.
    used = dict.fromkeys(hard, "0")
    await lab.client.patch(QUOTAS, lab.key("few"), {"status": {"hard": hard, "used": used}}, subresource="status")
    async with an_operator(served, ALLOCATING):
        await lab.reserve(count=4)
        said = await lab.not_ready("Refused")
        assert said.status.message.startswith(f"ResourceQuota few, requested: {CLASS}.deviceclass")
        assert said.status.message.endswith("claim train-2 would exceed it. Raise the quota, or reserve fewer.")
        assert set(await lab.claims()) == {"train-0", "train-1"}


async def test_where_draco_does_not_allocate_a_reservation_says_so(served: ControlPlane, lab: Lab) -> None:
    async with an_operator(served):
        await lab.reserve()
        said = await lab.not_ready("NotEnabled")
        assert "set the chart's value operator.allocate to true" in said.status.message
        assert await lab.claims() == {}


async def test_why_there_are_no_devices_is_said(served: ControlPlane, lab: Lab) -> None:
    async with an_operator(served, ALLOCATING):
        await lab.reserve(count=2)
        said = await lab.says(lambda each: "devices: " in each.status.message, "the cause")
        assert said.status.message.startswith("0 of 2 claims have devices: ")


@pytest.mark.parametrize("writes", range(1, MOST_WRITES + 2))
async def test_an_operator_that_dies_after_any_write_leaves_nothing_undone(
    served: ControlPlane, lab: Lab, writes: int
) -> None:
    """Three claims are created and one is deleted, by operators of which the first dies; claims in use stay.

    The status is written once or more, depending on how soon the new claims are seen.
    """
    await lab.reserve(count=3)

    async def is_dead_or_done(task: "asyncio.Task[None]") -> bool:
        return task.done() or (set(await lab.claims()) == {"train-0", "train-1", "train-2"} and await settled())

    async def settled() -> bool:
        found = await lab.client.get(DEVICE_RESERVATIONS, lab.key())
        return found.status.message == "0 of 3 claims have devices."

    async with an_operator(served, ALLOCATING, dies_after_writes=writes) as (_, task):
        await until(lambda: is_dead_or_done(task), what="the end of the operator, or of its work")
        assert writes > LEAST_WRITES or task.done()
    second = msgspec.structs.replace(ALLOCATING, lease_name=f"{ALLOCATING.lease_name}-{writes}")
    async with an_operator(served, second):
        await lab.until_claims("train-0", "train-1", "train-2")
        await lab.give("train-0", "train-1", "train-2")
        await lab.use("train-2")
        await lab.ready()
        await lab.change(count=2)
        await lab.until_claims("train-0", "train-2")
        await lab.ready()


async def test_two_operators_make_and_delete_no_claim_too_many(served: ControlPlane, lab: Lab) -> None:
    """Both believe that they lead."""
    other = settings_for_test(allocate=True)
    async with an_operator(served, ALLOCATING), an_operator(served, other):
        await lab.reserve(count=8)
        every = [f"train-{index}" for index in range(8)]
        await lab.until_claims(*every)
        await lab.give(*every)
        await lab.use("train-7")
        await lab.ready()
        await lab.change(count=3)
        await lab.says(lambda each: each.status.reserved == 3, "3 reserved")
        await lab.until_claims("train-0", "train-1", "train-7")
        with pytest.raises(NotFound):
            await lab.client.get(CLAIMS, lab.key("train-2"))
