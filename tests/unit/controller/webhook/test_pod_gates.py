"""Which new pods the webhook gives Draco's scheduling gate; in doubt, a pod gets none."""

import asyncio
import base64
from typing import Any, cast

import msgspec
import pytest

from draco.controller.view import ClusterView
from draco.controller.webhook import pod_gates
from draco.controller.webhook.admission_review import NotAReview, ReviewOutcome
from draco.controller.webhook.pod_gates import PodGates
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, NotFound, Unreachable
from draco.resources.api.claims import DeviceClass, ResourceClaimTemplate, ResourceClaimTemplateSpec
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import CLAIM_TEMPLATES, Kind
from draco.resources.names import SCHEDULING_GATE
from tests.builders import a_claim, a_device_class, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import tell

GATE = {"name": SCHEDULING_GATE}
ADDED = [{"op": "add", "path": "/spec/schedulingGates", "value": [GATE]}]


def a_class(name: str, allocator: str) -> DeviceClass:
    made = a_device_class(name)
    labels = {"draco.dev/allocator": allocator}
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels))


class World:
    """Claim templates `ours` and `theirs`, of classes of these names. Draco allocates the first; reads are counted."""

    def __init__(self, *, ready: bool = True, autoscaled: bool = False) -> None:
        self.clock = ManualClock()
        self.view = ClusterView(cast("Client", self), None, clock=self.clock)
        tell(self.view, a_class("ours", "operator"), a_class("theirs", ""))
        self.gates = PodGates(cast("Client", self), self.view, ready=lambda: ready, autoscaled=autoscaled)
        self.templates = {name: a_claim(name, device_class=name) for name in ("ours", "theirs")}
        self.reads = self.under_way = self.most_under_way = 0
        self.failure: ApiError | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def get(self, kind: Kind[Any], key: ObjectKey, *, timeout_s: float) -> ResourceClaimTemplate:
        assert (kind, key.namespace, timeout_s) == (CLAIM_TEMPLATES, "default", pod_gates.WITHIN_S)
        self.reads += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.answers.wait()
        finally:
            self.under_way -= 1
        if self.failure is not None:
            raise self.failure
        if key.name not in self.templates:
            raise NotFound(404, "NotFound", f"{key.name} is not there")
        return ResourceClaimTemplate(spec=ResourceClaimTemplateSpec(spec=self.templates[key.name].spec))

    async def patch(self, pod: Pod) -> list[dict[str, Any]]:
        """The patch for the pod."""
        answer, outcome = await self.gates.review(a_review(pod))
        response = msgspec.json.decode(answer)["response"]
        assert response["allowed"]
        assert (outcome is ReviewOutcome.GATED) == ("patch" in response)
        if "patch" not in response:
            return []
        assert response["patchType"] == "JSONPatch"
        return cast("list[dict[str, Any]]", msgspec.json.decode(base64.b64decode(response["patch"])))


def a_review(pod: Pod) -> bytes:
    """The API server's review of a new pod, whose namespace may be only in the request."""
    new = msgspec.structs.replace(pod, metadata=ObjectMeta(name=pod.metadata.name))
    request = {"uid": "1", "kind": {"kind": "Pod"}, "name": "", "namespace": "default", "operation": "CREATE"}
    return msgspec.json.encode({"request": request | {"object": new}})


async def test_a_pod_gets_the_gate_where_draco_is_to_allocate_the_claim_that_a_template_makes() -> None:
    world = World()
    assert await world.patch(a_pod(templates=["theirs", "ours"])) == ADDED
    assert await world.patch(a_pod(templates=["theirs"])) == []
    assert await world.patch(a_pod()) == []


async def test_gates_of_others_stay() -> None:
    found = await World().patch(a_pod(templates=["ours"], gates=["kueue.x-k8s.io/admission"]))
    assert found == [{"op": "add", "path": "/spec/schedulingGates/-", "value": GATE}]


async def test_a_claim_by_name_counts_until_it_is_allocated() -> None:
    world = World()
    pod = a_pod(claims=["named"])
    assert await world.patch(pod) == []
    tell(world.view, a_claim("named", device_class="ours"))
    assert await world.patch(pod) == ADDED
    tell(world.view, a_claim("named", device_class="ours", on=["node-0/gpu-0"]))
    assert await world.patch(pod) == []
    assert world.reads == 0


async def test_administrative_access_takes_nothing_and_waits_for_nothing() -> None:
    world = World()
    world.templates["ours"] = a_claim("ours", device_class="ours", admin_access=True)
    assert await world.patch(a_pod(templates=["ours"])) == []


@pytest.mark.parametrize(
    "pod", [a_pod(templates=["ours"], node="node-0"), a_pod(templates=["ours"], gates=[SCHEDULING_GATE])]
)
async def test_a_pod_that_has_the_gate_or_may_not_have_it_is_left_as_it_is(pod: Pod) -> None:
    assert await World().patch(pod) == []


@pytest.mark.parametrize("how", [{"autoscaled": True}, {"ready": False}])
async def test_no_pod_gets_it_beside_an_autoscaler_or_before_all_is_known(how: dict[str, bool]) -> None:
    world = World(**how)
    assert await world.patch(a_pod(templates=["ours"])) == []
    assert (await world.gates.review(a_review(a_pod())))[1] is ReviewOutcome.UNSEEN


async def test_a_template_that_cannot_be_read_costs_the_pod_its_gate_and_no_more() -> None:
    world = World()
    world.failure = Unreachable("the API server does not answer")
    assert await world.patch(a_pod(templates=["ours"])) == []
    world.failure = None
    assert await world.patch(a_pod(templates=["gone"])) == []
    assert await world.patch(a_pod(templates=["ours"])) == ADDED


async def test_an_answer_is_there_before_the_api_server_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_gates, "WITHIN_S", 0.01)
    world = World()
    world.answers.clear()
    assert await world.patch(a_pod(templates=["ours"])) == []


async def test_a_template_is_read_once_until_it_may_be_another_or_its_class_is() -> None:
    world = World()
    pod = a_pod(templates=["ours"])
    assert [await world.patch(pod) for _ in range(3)] == [ADDED] * 3
    assert world.reads == 1
    world.templates["ours"] = a_claim("ours", device_class="theirs")
    await world.clock.advance(60)
    assert await world.patch(pod) == []
    tell(world.view, a_class("theirs", "operator"))
    assert await world.patch(pod) == ADDED
    assert world.reads == 3


async def test_however_many_pods_come_few_templates_are_read_at_a_time() -> None:
    world = World()
    world.answers.clear()
    reviews = [asyncio.create_task(world.patch(a_pod(templates=[f"template-{each}"]))) for each in range(100)]
    await world.clock.advance(0)
    assert world.reads == 16
    world.answers.set()
    await asyncio.gather(*reviews)
    assert (world.reads, world.most_under_way) == (100, 16)


async def test_what_is_no_review_is_refused_and_a_pod_that_cannot_be_read_goes_through() -> None:
    world = World()
    with pytest.raises(NotAReview):
        await world.gates.review(b"{}")
    request = {"uid": "1", "namespace": "default", "object": {"spec": {"resourceClaims": 3}}}
    assert (await world.gates.review(msgspec.json.encode({"request": request})))[1] is ReviewOutcome.UNSEEN
