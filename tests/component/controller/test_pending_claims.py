"""Explanations for waiting pods and claims, on a real API server without a scheduler: the test refuses and allocates."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from draco.controller.app import Operator
from draco.controller.taints.reports import EVENT_REASON as TAINT_REPORTS
from draco.explanation.explain import explain
from draco.kube.connect.client import Client
from draco.maintenance.taint_rules import is_draco_own
from draco.resources.api.core import Event
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, EVENTS, NODES, PODS, SLICES, TAINT_RULES, Kind
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_claim, a_slice
from tests.component.controller.replicas import Died, an_operator, settings_for_test, until
from tests.doubles.workers import fleet_of

pytestmark = pytest.mark.usefixtures("crds")


class Lab:
    """One node with two devices of this test's own driver, and pods that wait for claims."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        name = uuid.uuid4().hex[:8]
        self.driver = f"{name}.example.com"
        self.node = f"node-{name}"
        self.device_class = f"class-{name}"

    async def set_up(self) -> None:
        await self.add_node(self.node)
        await self.add_class(self.device_class)
        await self.add_slice(self.node)

    async def without_rules(self) -> None:
        """Delete other tests' leftover taint rules and the Events on them."""
        (kind,) = [each for each in TAINT_RULES if each.version == "v1beta2"]
        for rule in await self.client.list(kind):
            if not is_draco_own(rule):  # Draco would write those again
                await self.client.delete(kind, rule.metadata.key)
        for event in await self.client.list(EVENTS, field_selector=f"reason={TAINT_REPORTS.name}"):
            await self.client.delete(EVENTS, event.metadata.key)

    async def add_node(self, name: str) -> None:
        await self.create(NODES, name, {})
        # The API server taints a new node, and no controller here would remove the taint.
        await self.client.patch(NODES, ObjectKey("", name), {"spec": {"taints": None}})
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await self.client.patch(NODES, ObjectKey("", name), ready, subresource="status")

    async def add_class(self, name: str) -> None:
        selector = {"cel": {"expression": f"device.driver == '{self.driver}'"}}
        await self.create(DEVICE_CLASSES, name, {"selectors": [selector]})

    async def add_slice(self, node: str) -> None:
        await self.create(SLICES, node, as_json(a_slice(node, driver=self.driver).spec))

    async def create(self, kind: Kind[Any], name: str, spec: dict[str, Any]) -> None:
        await self.client.create(kind, {"metadata": {"name": name}, "spec": spec})

    async def claim(self, name: str, *, device_class: str = "", count: int = 1) -> ObjectKey:
        claim = a_claim(name, device_class=device_class or self.device_class)
        meta = {"name": name, "namespace": self.namespace}
        spec = as_json(claim.spec)
        spec["devices"]["requests"][0]["exactly"]["count"] = count
        await self.client.create(CLAIMS, {"metadata": meta, "spec": spec})
        return ObjectKey(self.namespace, name)

    async def allocate(self, claim: ObjectKey, device: str) -> None:
        status = as_json(a_claim(on=[f"{self.driver}/{self.node}/{device}"]).status)
        await self.client.patch(CLAIMS, claim, {"status": status}, subresource="status")

    async def pod(self, name: str, *claims: str, **spec: Any) -> ObjectKey:
        whole = {
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            **spec,
        }
        await self.client.create(PODS, {"metadata": {"name": name, "namespace": self.namespace}, "spec": whole})
        return ObjectKey(self.namespace, name)

    async def refuse(self, pod: ObjectKey, reason: str = "Unschedulable", message: str = "0/1 nodes will do") -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        await self.client.patch(PODS, pod, {"status": {"conditions": [condition]}}, subresource="status")

    async def events(self, about: ObjectKey) -> list[Event]:
        events = await self.client.list(EVENTS, namespace=self.namespace)
        return [e for e in events if e.involved_object and e.involved_object.name == about.name]

    async def said(self, about: ObjectKey, text: str = "", *, but: str = "", within_s: float = 60.0) -> Event:
        """The only Event about the object, once it has this text and differs from `but`."""

        async def look() -> Event | None:
            events = await self.events(about)
            assert len(events) <= 1
            return next((event for event in events if text in event.message and event.message != but), None)

        return await until(look, within_s=within_s, what=f"an Event on {about} with {text!r}")

    async def silence(self, about: ObjectKey) -> None:
        async def look() -> bool:
            return not await self.events(about)

        await until(look, what=f"the withdrawal of the Event on {about}")

    async def clean(self) -> None:
        for pod in await self.client.list(PODS, namespace=self.namespace):
            await self.client.delete(PODS, pod.metadata.key, grace_period_s=0)
        for event in await self.client.list(EVENTS, namespace=self.namespace):
            await self.client.delete(EVENTS, event.metadata.key)


def times(event: Event) -> int:
    return event.series.count if event.series else 1


def as_json(struct: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(struct))


def explained(operator: Operator, pod: ObjectKey, *claims: ObjectKey, scheduler: str = "") -> str:
    """The explanation from the operator's current view."""
    fleet = fleet_of(operator.view)
    known = [fleet.claims[key] for key in claims]
    return str(explain(fleet, known, pod=operator.view.pods.store.get(pod), scheduler=scheduler))


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


async def test_a_claim_and_the_pod_that_waits_get_one_event_each_until_it_is_allocated(
    served: ControlPlane, lab: Lab
) -> None:
    for number in range(2):
        await lab.allocate(await lab.claim(f"job-{number}"), f"gpu-{number}")
    waiting = await lab.claim("waiting")
    pod = await lab.pod("train", "waiting")
    async with an_operator(served) as (operator, _):
        event, on_pod = await lab.said(waiting), await lab.said(pod)
        assert event.message == on_pod.message == explained(operator, pod, waiting)
        assert "in use" in event.message
        for each in (event, on_pod):
            assert (each.type, each.reason, each.series) == ("Warning", "ClaimPending", None)
        assert on_pod.involved_object is not None
        assert (on_pod.involved_object.kind, on_pod.involved_object.api_version) == ("Pod", "v1")
        await lab.client.delete(CLAIMS, ObjectKey(lab.namespace, "job-1"))
        await lab.allocate(waiting, "gpu-1")
        await lab.silence(waiting)
        await lab.silence(pod)


async def test_all_claims_of_a_pod_are_explained_together(served: ControlPlane, lab: Lab) -> None:
    claims = [await lab.claim("one"), await lab.claim("two"), await lab.claim("three")]
    pod = await lab.pod("train", "one", "two", "three")
    async with an_operator(served) as (operator, _):
        events = [await lab.said(each) for each in (*claims, pod)]
        assert {event.message for event in events} == {explained(operator, pod, *claims)}
        sample = operator.metrics.registry.get_sample_value
        assert sample("draco_claim_pending", {"reason": "NotTogether"}) == 3


async def test_a_pod_that_names_its_node_is_told_that_nobody_allocates_its_claim(
    served: ControlPlane, lab: Lab
) -> None:
    claim = await lab.claim("mine")
    pod = await lab.pod("pinned", "mine", nodeName=lab.node)
    async with an_operator(served) as (operator, _):
        event = await lab.said(pod, "nodeName")
        assert event.message == (await lab.said(claim)).message == explained(operator, pod, claim)
        await lab.allocate(claim, "gpu-0")
        await lab.silence(pod)
        await lab.silence(claim)


async def test_a_pod_that_waits_for_an_extended_resource_is_explained_from_when_a_class_stands_for_it(
    served: ControlPlane, lab: Lab
) -> None:
    resource = f"{lab.driver}/gpu"
    container = {"name": "main", "image": "none", "resources": {"limits": {resource: "3"}}}
    pod = await lab.pod("train", containers=[container])
    await lab.refuse(pod)
    other = await lab.pod("plain")
    async with an_operator(served):
        await lab.client.patch(
            DEVICE_CLASSES, ObjectKey("", lab.device_class), {"spec": {"extendedResourceName": resource}}
        )
        assert "wants 3 devices on one node" in (await lab.said(pod)).message
        await lab.client.patch(
            DEVICE_CLASSES, ObjectKey("", lab.device_class), {"spec": {"extendedResourceName": None}}
        )
        await lab.silence(pod)
        assert not await lab.events(other)


Change = Callable[[Lab], Awaitable[None]]


async def another_slice(lab: Lab) -> None:
    await lab.add_slice(f"{lab.node}-more")


async def a_slice_gone(lab: Lab) -> None:
    await lab.client.delete(SLICES, ObjectKey("", lab.node))


async def a_rule(lab: Lab) -> None:
    spec = {
        "taint": {"key": "example.com/broken", "effect": "NoSchedule"},
        "deviceSelector": {"driver": lab.driver, "pool": lab.node},
    }
    await lab.create(TAINT_RULES[1], f"rule-{lab.node}", spec)


async def a_cordoned_node(lab: Lab) -> None:
    await lab.client.patch(NODES, ObjectKey("", lab.node), {"spec": {"unschedulable": True}})


async def another_selector_in_the_class(lab: Lab) -> None:
    selector = {"cel": {"expression": "device.driver == 'other.example.com'"}}
    await lab.client.patch(DEVICE_CLASSES, ObjectKey("", lab.device_class), {"spec": {"selectors": [selector]}})


async def a_claim_gone(lab: Lab) -> None:
    await lab.client.delete(CLAIMS, ObjectKey(lab.namespace, "job-0"))


async def an_idle_claim_taken_up(lab: Lab) -> None:
    consumer = {"resource": "pods", "name": "user", "uid": "some-uid"}
    for number in range(2):
        key = ObjectKey(lab.namespace, f"job-{number}")
        await lab.client.patch(CLAIMS, key, {"status": {"reservedFor": [consumer]}}, subresource="status")


@pytest.mark.parametrize(
    ("jobs", "change"),
    [
        (2, another_slice),
        (2, a_slice_gone),
        (0, a_rule),
        (2, a_cordoned_node),
        (2, another_selector_in_the_class),
        (2, a_claim_gone),
        (2, an_idle_claim_taken_up),
    ],
)
async def test_what_is_said_follows_every_change_by_itself(
    served: ControlPlane, lab: Lab, jobs: int, change: Change, record_property: Callable[[str, object], None]
) -> None:
    for number in range(jobs):
        await lab.allocate(await lab.claim(f"job-{number}"), f"gpu-{number}")
    waiting = await lab.claim("waiting")
    pod = await lab.pod("train", "waiting")
    await lab.refuse(pod)
    async with an_operator(served):
        before, on_pod = await lab.said(waiting), await lab.said(pod)
        started = time.monotonic()
        await change(lab)
        for about in (waiting, pod):
            after = await lab.said(about, but=before.message)
            assert after.metadata.uid in {before.metadata.uid, on_pod.metadata.uid}, "updated, not repeated"
        record_property("seconds", time.monotonic() - started)


async def test_what_a_new_node_would_have_to_have_is_counted_until_it_is_no_longer_wanted(
    served: ControlPlane, lab: Lab
) -> None:
    claims = [await lab.claim(f"waiting-{each}", count=each) for each in (4, 9)]
    for each in (4, 9):
        await lab.refuse(await lab.pod(f"train-{each}", f"waiting-{each}"))
    wanted = {"class": lab.device_class, "product": "NVIDIA H100 80GB HBM3", "profile": ""}
    async with an_operator(served) as (operator, _):
        for claim in claims:
            await lab.said(claim, "or add a node with")
        sample = operator.metrics.registry.get_sample_value
        assert sample("draco_claim_unmet_devices", wanted) == 13
        assert sample("draco_claim_unmet_devices_on_one_node", wanted) == 9
        await lab.client.delete(PODS, ObjectKey(lab.namespace, "train-9"), grace_period_s=0)

        async def one_left() -> bool:
            return sample("draco_claim_unmet_devices", wanted) == 4

        await until(one_left)


async def test_a_class_that_is_missing_is_said_until_it_is_there(served: ControlPlane, lab: Lab) -> None:
    waiting = await lab.claim("waiting", device_class=f"{lab.device_class}x")
    await lab.pod("train", "waiting")
    async with an_operator(served) as (operator, _):
        event = await lab.said(waiting, f"{lab.device_class}x")
        sample = operator.metrics.registry.get_sample_value
        assert sample("draco_claim_pending", {"reason": "ClassMissing"}) == 1
        await lab.add_class(f"{lab.device_class}x")
        await lab.said(waiting, but=event.message)
        assert sample("draco_claim_pending", {"reason": "ClassMissing"}) is None
        assert sample("draco_claim_pending", {"reason": "Fits"}) == 1


async def test_a_new_leader_goes_on_with_the_events_of_the_one_before(served: ControlPlane, lab: Lab) -> None:
    waiting = await lab.claim("waiting", device_class=f"{lab.device_class}x")
    pod = await lab.pod("train", "waiting")
    async with an_operator(served):
        first, on_pod = await lab.said(waiting), await lab.said(pod)
    await lab.add_class(f"{lab.device_class}x")
    async with an_operator(served):
        second = await lab.said(waiting, but=first.message)
        assert second.metadata.uid == first.metadata.uid
        assert times(second) == 2
        assert (await lab.said(pod, but=on_pod.message)).metadata.uid == on_pod.metadata.uid


async def test_a_new_leader_takes_back_what_ceased_to_be_so_while_nobody_led(served: ControlPlane, lab: Lab) -> None:
    waiting, other = await lab.claim("waiting"), await lab.claim("other")
    pod, gone = await lab.pod("train", "waiting"), await lab.pod("gone", "other")
    subjects = (waiting, other, pod, gone)
    async with an_operator(served):
        for about in subjects:
            await lab.said(about)
    await lab.allocate(waiting, "gpu-0")
    await lab.client.delete(PODS, gone, grace_period_s=0)
    assert [len(await lab.events(about)) for about in subjects] == [1] * 4
    async with an_operator(served):
        for about in subjects:
            await lab.silence(about)


@pytest.mark.parametrize("writes", [1, 2, 3])
async def test_whichever_event_was_written_when_the_leader_died_the_next_one_writes_the_others(
    served: ControlPlane, lab: Lab, writes: int
) -> None:
    subjects = [await lab.claim("one"), await lab.claim("two")]
    subjects.append(await lab.pod("train", "one", "two"))
    await lab.without_rules()  # Events on them, or withdrawn ones, would be counted
    async with an_operator(served, dies_after_writes=writes) as (_, task):
        with suppress(BaseExceptionGroup, Died, TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.shield(task)
        assert task.done()
    assert sum([len(await lab.events(about)) for about in subjects]) >= writes, "more, if another was on its way"
    async with an_operator(served):
        for about in subjects:
            await lab.said(about)


@pytest.mark.parametrize("code", [0, 409, 429, 500, 503])
async def test_events_are_written_and_withdrawn_in_the_end_whatever_the_api_server_answers_at_first(
    served: ControlPlane, lab: Lab, code: int
) -> None:
    waiting = await lab.claim("waiting")
    pod = await lab.pod("train", "waiting")
    codes = [code] * 3
    async with an_operator(served, events_fail_with=codes):
        for about in (waiting, pod):
            await lab.said(about)
        codes += [code] * 3
        await lab.allocate(waiting, "gpu-0")
        for about in (waiting, pod):
            await lab.silence(about)


async def test_of_two_operators_one_speaks(served: ControlPlane, lab: Lab) -> None:
    waiting = await lab.claim("waiting")
    pod = await lab.pod("train", "waiting")
    settings = settings_for_test()
    async with (
        an_operator(served, settings),
        an_operator(served, msgspec.structs.replace(settings, identity="the-other")),
    ):
        events = [await lab.said(about) for about in (waiting, pod)]
        await a_cordoned_node(lab)
        after = [await lab.said(about, but=events[0].message) for about in (waiting, pod)]
        assert [times(event) for event in after] == [2, 2]


async def test_a_claim_that_no_pod_waits_for_is_left_alone(served: ControlPlane, lab: Lab) -> None:
    idle, waiting = await lab.claim("idle"), await lab.claim("waiting")
    pod = await lab.pod("train", "waiting")
    async with an_operator(served):
        await lab.said(waiting)
        assert await lab.events(idle) == []
        await lab.client.delete(PODS, pod, grace_period_s=0)
        await lab.silence(waiting)
        await lab.silence(pod)


async def test_nothing_is_said_before_the_pod_has_waited_long_enough_or_was_refused(
    served: ControlPlane, lab: Lab
) -> None:
    waiting = await lab.claim("waiting", count=99)
    pod = await lab.pod("train", "waiting")
    async with an_operator(served, settings_for_test(pending_after_s=3600.0)) as (operator, _):

        async def looked_at() -> bool:
            return operator.election.leading and len(operator.reconcilers["pending-claims"].queue._due) > 1

        await until(looked_at)
        assert await lab.events(waiting) == await lab.events(pod) == []
        assert operator.metrics.registry.get_sample_value("draco_claims", {"state": "Pending"})
        await lab.refuse(pod)
        for about in (waiting, pod):
            await lab.said(about)


async def test_a_pod_behind_scheduling_gates_does_not_wait_for_devices(served: ControlPlane, lab: Lab) -> None:
    gated, waiting = await lab.claim("gated"), await lab.claim("waiting")
    pod = await lab.pod("behind", "gated", schedulingGates=[{"name": "example.com/quota"}])
    await lab.pod("train", "waiting")
    async with an_operator(served):
        await lab.said(waiting)
        assert await lab.events(gated) == await lab.events(pod) == []
        await lab.client.patch(PODS, pod, {"spec": {"schedulingGates": None}})
        await lab.refuse(pod)
        await lab.said(gated)


async def test_a_pod_whose_claim_does_not_exist_is_told_until_it_does(served: ControlPlane, lab: Lab) -> None:
    pod = await lab.pod("train", "missing")
    await lab.refuse(pod, message='resourceclaim "missing" not found')
    async with an_operator(served) as (operator, _):
        before = await lab.said(pod, "missing")
        missing = await lab.claim("missing")
        after = await lab.said(pod, but=before.message)
        assert (await lab.said(missing)).message == after.message
        assert operator.metrics.registry.get_sample_value("draco_claim_pending", {"reason": "Fits"}) == 1


async def test_a_pod_that_cannot_go_where_its_allocated_claim_is_gets_an_event_and_the_claim_none(
    served: ControlPlane, lab: Lab
) -> None:
    claim = await lab.claim("held")
    fields = [{"key": "metadata.name", "operator": "In", "values": [lab.node]}]
    allocation = as_json(a_claim(on=[f"{lab.driver}/{lab.node}/gpu-0"]).status)["allocation"]
    allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    await lab.client.patch(CLAIMS, claim, {"status": {"allocation": allocation}}, subresource="status")
    pod = await lab.pod("train", "held", nodeSelector={"zone": "elsewhere"})
    await lab.refuse(pod)
    async with an_operator(served):
        await lab.said(pod)
        assert await lab.events(claim) == []
        await lab.client.patch(NODES, ObjectKey("", lab.node), {"metadata": {"labels": {"zone": "elsewhere"}}})
        await lab.silence(pod)


async def test_of_several_pods_that_wait_for_one_claim_each_is_told_and_the_claim_once(
    served: ControlPlane, lab: Lab
) -> None:
    shared = await lab.claim("shared")
    pods = [await lab.pod(name, "shared", nodeSelector={"wanted-by": name}) for name in ("a-first", "b-second")]
    async with an_operator(served):
        first, second = [await lab.said(pod) for pod in pods]
        assert first.message != second.message
        assert (await lab.said(shared)).message == first.message
        await lab.client.delete(PODS, pods[0], grace_period_s=0)
        assert (await lab.said(shared, but=first.message)).message == second.message
        await lab.silence(pods[0])


async def test_metrics_count_claims_devices_and_causes(served: ControlPlane, lab: Lab) -> None:
    for number in range(2):
        await lab.allocate(await lab.claim(f"job-{number}"), f"gpu-{number}")
    waiting = await lab.claim("waiting")
    await lab.pod("train", "waiting")
    async with an_operator(served, settings_for_test(supply_every_s=0.0)) as (operator, _):
        await lab.said(waiting)
        sample = operator.metrics.registry.get_sample_value
        assert sample("draco_devices", {"driver": lab.driver, "state": "Free"}) is None
        assert sample("draco_devices", {"driver": lab.driver, "state": "InUse"}) == 2
        claims = await lab.client.list(CLAIMS)
        pending = sum(claim.status.allocation is None for claim in claims)
        assert sample("draco_claims", {"state": "Pending"}) == pending
        assert (
            sum(sample("draco_claims", {"state": s}) or 0 for s in ("Allocated", "Reserved")) == len(claims) - pending
        )
        assert sample("draco_claim_pending", {"reason": "InUse"}) == 1
        assert sample("draco_leader") == 1
