"""What a claim that waits is told, on a real API server without a scheduler: the test allocates when it wants to."""

import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.cluster.controlplane import ControlPlane
from draco.kube.client import Client
from draco.kube.errors import NotFound
from draco.kube.events import Notes
from draco.resources.events import Event, ObjectReference
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, EVENTS, NODES, PODS, SLICES, Kind
from draco.resources.meta import ObjectKey
from tests.builders import a_claim, a_slice
from tests.component.controller.replicas import an_operator, settings_for_test, until
from tests.doubles.clock import ManualClock

pytestmark = pytest.mark.usefixtures("crds")


class Lab:
    """One node with two devices of a driver that only this test knows, and pods that wait for claims."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        name = uuid.uuid4().hex[:8]
        self.driver = f"{name}.example.com"
        self.node = f"node-{name}"
        self.device_class = f"class-{name}"
        self.made: list[tuple[Kind[Any], ObjectKey]] = []

    async def set_up(self) -> None:
        await self._create(NODES, self.node, {})
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await self.client.patch(NODES, ObjectKey("", self.node), ready, subresource="status")
        selector = {"cel": {"expression": f"device.driver == '{self.driver}'"}}
        await self._create(DEVICE_CLASSES, self.device_class, {"selectors": [selector]})
        spec = as_json(a_slice(self.node, driver=self.driver).spec)
        await self._create(SLICES, self.node, spec)

    async def _create(self, kind: Kind[Any], name: str, spec: dict[str, Any]) -> None:
        await self.client.create(kind, {"metadata": {"name": name}, "spec": spec})
        self.made.append((kind, ObjectKey("", name)))

    async def claim(self, name: str, *, device_class: str = "") -> ObjectKey:
        claim = a_claim(name, device_class=device_class or self.device_class)
        meta = {"name": name, "namespace": self.namespace}
        await self.client.create(CLAIMS, {"metadata": meta, "spec": as_json(claim.spec)})
        return ObjectKey(self.namespace, name)

    async def allocate(self, claim: ObjectKey, device: str) -> None:
        status = as_json(a_claim(on=[f"{self.driver}/{self.node}/{device}"]).status)
        await self.client.patch(CLAIMS, claim, {"status": status}, subresource="status")

    async def pod(self, name: str, claim: str) -> None:
        spec = {
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        }
        await self.client.create(PODS, {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec})

    async def events(self, claim: ObjectKey) -> list[Event]:
        events = await self.client.list(EVENTS, namespace=self.namespace)
        return [e for e in events if e.involved_object and e.involved_object.name == claim.name]

    async def said(self, claim: ObjectKey, text: str) -> Event:
        async def look() -> Event | None:
            return next((event for event in await self.events(claim) if text in event.message), None)

        return await until(look, what=f"an Event on {claim} with {text!r}")

    async def silence(self, claim: ObjectKey) -> None:
        async def look() -> bool:
            return not await self.events(claim)

        await until(look, what=f"the withdrawal of the Event on {claim}")

    async def clean(self) -> None:
        for kind, key in self.made:
            with suppress(NotFound):
                await self.client.delete(kind, key)
        for pod in await self.client.list(PODS, namespace=self.namespace):
            await self.client.delete(PODS, pod.metadata.key, grace_period_s=0)


def times(event: Event) -> int:
    return event.series.count if event.series else 1


def as_json(struct: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(struct))


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[Lab]:
    made = Lab(client, namespace)
    await client.apply(
        Kind("", "v1", "serviceaccounts", "ServiceAccount", True, dict),
        ObjectKey(namespace, "default"),
        {},
        manager="tests",
    )
    await made.set_up()
    yield made
    await made.clean()


async def test_a_waiting_claim_gets_one_event_with_counted_causes_until_it_is_allocated(
    served: ControlPlane, lab: Lab
) -> None:
    for number in range(2):
        await lab.allocate(await lab.claim(f"job-{number}"), f"gpu-{number}")
    waiting = await lab.claim("waiting")
    await lab.pod("train", "waiting")
    async with an_operator(served):
        event = await lab.said(waiting, "Cannot be allocated")
        assert event.message == (
            f"Cannot be allocated: none of the 2 devices of {lab.driver} is free: 2 in use by other claims "
            f"({lab.namespace}/job-0, {lab.namespace}/job-1). No scheduler has looked at pod train yet."
        )
        assert (event.type, event.reason, event.series) == ("Warning", "ClaimPending", None)
        assert len(await lab.events(waiting)) == 1
        await lab.client.delete(CLAIMS, ObjectKey(lab.namespace, "job-1"))
        await lab.allocate(waiting, "gpu-1")
        await lab.silence(waiting)


async def test_a_missing_class_is_said_in_one_clear_sentence(served: ControlPlane, lab: Lab) -> None:
    waiting = await lab.claim("waiting", device_class=f"{lab.device_class}x")
    await lab.pod("train", "waiting")
    async with an_operator(served):
        event = await lab.said(waiting, "does not exist")
        assert event.message.startswith(
            f'Cannot be allocated: DeviceClass "{lab.device_class}x" does not exist; '
            f'the closest there is is "{lab.device_class}".'
        )


async def test_a_new_leader_goes_on_with_the_event_of_the_one_before(served: ControlPlane, lab: Lab) -> None:
    waiting = await lab.claim("waiting")
    await lab.pod("train", "waiting")
    async with an_operator(served):
        first = await lab.said(waiting, "2 free")
    await lab.allocate(await lab.claim("job"), "gpu-0")
    async with an_operator(served):
        second = await lab.said(waiting, "1 in use")
        assert second.metadata.uid == first.metadata.uid
        assert len(await lab.events(waiting)) == 1


async def test_a_claim_that_no_pod_waits_for_is_left_alone(served: ControlPlane, lab: Lab) -> None:
    idle, waiting = await lab.claim("idle"), await lab.claim("waiting")
    await lab.pod("train", "waiting")
    async with an_operator(served):
        await lab.said(waiting, "Cannot be allocated")
        assert await lab.events(idle) == []
        await lab.client.delete(PODS, ObjectKey(lab.namespace, "train"), grace_period_s=0)
        await lab.silence(waiting)


async def test_nothing_is_said_before_the_claim_has_waited_long_enough(served: ControlPlane, lab: Lab) -> None:
    waiting = await lab.claim("waiting")
    await lab.pod("train", "waiting")
    async with an_operator(served, settings_for_test(pending_after_s=3600.0)) as (operator, _):

        async def looked_at() -> bool:
            return operator.election.leading and operator.pending.queue.delayed > 0

        await until(looked_at)
        assert await lab.events(waiting) == []
        assert operator.metrics.registry.get_sample_value("draco_claims", {"state": "Pending"})


async def test_metrics_count_claims_devices_and_causes(served: ControlPlane, lab: Lab) -> None:
    await lab.allocate(await lab.claim("job"), "gpu-0")
    waiting = await lab.claim("waiting")
    await lab.pod("train", "waiting")
    async with an_operator(served, settings_for_test(survey_every_s=0.0)) as (operator, _):
        await lab.said(waiting, "1 in use")
        sample = operator.metrics.registry.get_sample_value
        assert sample("draco_devices", {"driver": lab.driver, "state": "Free"}) == 1
        assert sample("draco_devices", {"driver": lab.driver, "state": "InUse"}) == 1
        claims = await lab.client.list(CLAIMS)
        pending = sum(claim.status.allocation is None for claim in claims)
        assert sample("draco_claims", {"state": "Pending"}) == pending
        assert sample("draco_claims", {"state": "Allocated"}) == len(claims) - pending
        assert sample("draco_claim_pending", {"reason": "NotMatching"}) == 1
        assert sample("draco_leader") == 1


async def test_a_text_that_changes_all_the_time_is_written_with_growing_pauses(lab: Lab) -> None:
    clock = ManualClock()
    notes = Notes(lab.client, controller="tests", clock=clock, instance="test", reason="Test", action="Testing")
    about = ObjectReference(api_version="v1", kind="Pod", name="any", namespace=lab.namespace, uid="some-uid")
    key = ObjectKey(lab.namespace, "any")

    async def writes_within(seconds: int) -> int:
        before = sum(times(event) for event in await lab.events(key))
        for second in range(seconds):
            await notes.say(about, f"it is second {second} of {seconds}")
            await clock.advance(1)
        return sum(times(event) for event in await lab.events(key)) - before

    assert await writes_within(600) == 5  # at 0, 30, 90, 210, 510
    assert len(await lab.events(key)) == 1
    await notes.withdraw(about)
    assert await lab.events(key) == []


async def test_an_event_that_the_server_refuses_is_said_in_the_log_and_does_not_fail_the_claim(lab: Lab) -> None:
    notes = Notes(lab.client, controller="tests", clock=ManualClock(), instance="test", reason="Test", action="Testing")
    nowhere = ObjectReference(api_version="v1", kind="Pod", name="any", namespace="no-such-namespace", uid="some-uid")
    with capture_logs() as logs:
        assert await notes.say(nowhere, "anything") == 300.0
        assert await notes.say(nowhere, "anything else") == 300.0
    (said,) = logs
    assert (said["event"], said["log_level"]) == ("events.refused", "warning")
    await notes.withdraw(nowhere)
