"""Idle claims that block pods: which pods are considered, when notes are withdrawn, and when the claims are released."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from draco.controller.metrics import OperatorMetrics
from draco.controller.mig import repair
from draco.controller.mig.decisions import MigDecisions
from draco.controller.mig.release import ClaimReleases, MovableClaims
from draco.controller.mig.repair import RepairReconciler
from draco.controller.view import ClusterView
from draco.controller.workers.messages import Answer, FindRelease, OverBudget, Question
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Conflict, Forbidden, ServerError, TooManyRequests, Unreachable
from draco.kube.events.events import EventRecorder
from draco.kube.events.notes import Notes
from draco.kube.events.shares import EventReason
from draco.mig_policy import release_policy
from draco.mig_policy.release_policy import ReleaseDelays
from draco.mig_policy.releases import ClaimRelease
from draco.resources.api.claims import ResourceClaim, ResourceClaimStatus
from draco.resources.api.core import Event, ObjectReference, PodStatus
from draco.resources.api.draco import GpuMig, GpuNode, IdleClaims, InstanceStatus, InstanceUse, MigRepair
from draco.resources.api.meta import Condition, ObjectKey, micro_time
from draco.resources.kinds import Kind
from tests.builders import a_gpu_uuid, a_mig_instance, a_mig_node, a_mig_policy, a_node, a_pod
from tests.doubles.clock import ManualClock
from tests.doubles.workers import PromptWorkers
from tests.mig_claims import H100, MIG_CLASS, a_mig_claim, a_mig_pool
from tests.unit.controller.watching import tell

REFUSED = PodStatus(conditions=[Condition(type="PodScheduled", status="False", reason="Unschedulable")])


class Said:
    """Notes that are only recorded."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def adopt(self) -> list[ObjectReference]:
        return []

    async def say(self, regarding: ObjectReference, note: str, *, type: str) -> float:  # noqa: A002 - the field's name
        self.texts[regarding.name] = note
        return 1200.0

    async def withdraw(self, regarding: ObjectReference) -> None:
        self.texts.pop(regarding.name, None)


class Happenings:
    """Events that are only recorded."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str, str]] = []

    def record(self, regarding: ObjectReference, reason: EventReason, note: str) -> None:
        self.texts.append((reason.name, regarding.name, note))


class Server:
    """Releases allocations as asked, or gives the prepared answers. The watch reports its changes on `arrive`."""

    def __init__(self) -> None:
        self.patches: list[str] = []
        self.answers: list[ApiError | None] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.happened: list[Event] = []

    async def list(self, kind: Kind[Any], *, field_selector: str) -> list[Event]:
        return self.happened

    async def patch(self, kind: Kind[Any], key: ObjectKey, body: Mapping[str, Any], *, subresource: str) -> None:
        self.patches.append(key.name)
        self.meanwhile()
        if self.answers and (answer := self.answers.pop(0)) is not None:
            raise answer


class World:
    """A node with two divided H100s, without an API server."""

    def __init__(self, max_moves: int = 2, idle_claims: IdleClaims = IdleClaims.KEEP) -> None:
        self.clock = ManualClock()
        self.said = Said()
        self.view = ClusterView(cast("Client", None), None, clock=self.clock)
        decisions = MigDecisions(self.view)
        self.workers = PromptWorkers(self.view)
        self.server = Server()
        self.happenings = Happenings()
        self.releases = ClaimReleases(
            cast("Client", self.server),
            self.view,
            cast("EventRecorder", self.happenings),
            count=OperatorMetrics().claims_released,
            patience=ReleaseDelays(),
        )
        self.reconciler = RepairReconciler(
            self.view, MovableClaims(self.view, decisions), cast("Notes", self.said), self.releases, self.workers
        )
        on = GpuMig(capable=True, enabled=True)
        policy = a_mig_policy(repair=MigRepair(max_moves=max_moves, idle_claims=idle_claims))
        self.put(a_node(), MIG_CLASS, *a_mig_pool("node-0", 2), a_mig_node(gpus=[on, on], board=H100), policy)

    def put(self, *objects: Any) -> None:
        """As if the watch had reported them."""
        tell(self.view, *objects)

    def wait_for(self, name: str, profile: str) -> None:
        """Add a pod that was refused, and its claim."""
        self.put(a_mig_claim(name, profile), a_pod(f"pod-{name}", claims=[name], status=REFUSED))

    async def look(self, after_s: float = 3600.0) -> float | None:
        await self.clock.advance(after_s)
        return await self.reconciler.reconcile("idle-claims")

    def idle(self, name: str) -> ResourceClaim | None:
        """The claim, if it is still allocated according to the watch."""
        claim = self.view.claims.store.get(ObjectKey("default", name))
        return claim if claim is not None and claim.status.allocation is not None else None

    def arrive(self) -> None:
        """The watch reports everything that was released."""
        for name in self.server.patches:
            if (claim := self.idle(name)) is not None:
                self.put(a_version(msgspec.structs.replace(claim, status=ResourceClaimStatus()), "2"))


def a_version(claim: ResourceClaim, version: str) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, resource_version=version))


async def test_nothing_is_looked_at_without_idle_claims() -> None:
    world = World()
    world.wait_for("large", "7g.80gb")
    assert await world.look() is None
    assert world.said.texts == {}


async def test_what_was_said_is_taken_back_when_the_pod_is_scheduled() -> None:
    world = World()
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True))
    world.wait_for("large", "7g.80gb")
    await world.look()
    assert world.said.texts.keys() == {"idle", "large"}
    assert world.reconciler.advice("policy") == "Claim default/large would fit without idle claim default/idle."
    told: list[bool] = []
    world.reconciler.on_advice.add(lambda: told.append(True))
    world.put(a_pod("pod-large", claims=["large"], node="node-0"))
    assert await world.look() is None
    assert (world.said.texts, world.reconciler.advice("policy"), told) == ({}, "", [True])


async def test_a_pod_for_which_no_answer_came_is_looked_at_again_although_nothing_happens() -> None:
    world = World()
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True))
    world.wait_for("large", "7g.80gb")
    world.workers.is_late = True
    again_s = await world.look()
    assert again_s == repair._ASK_AGAIN_S
    assert world.said.texts == {}
    world.workers.is_late = False
    assert await world.look(after_s=again_s)
    assert world.said.texts.keys() == {"idle", "large"}


async def test_what_was_said_stays_when_no_answer_comes() -> None:
    world = World()
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True))
    world.wait_for("large", "7g.80gb")
    await world.look()
    world.workers.is_late = True
    assert await world.look() == repair._ASK_AGAIN_S
    assert world.said.texts.keys() == {"idle", "large"}


async def test_a_claim_that_is_used_again_is_no_longer_advised_on() -> None:
    world = World()
    used = a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True)
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), used)
    world.wait_for("large", "7g.80gb")
    await world.look()
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0", used=True))
    await world.look()
    assert world.said.texts == {}


async def test_a_policy_that_permits_no_moves_is_not_advised() -> None:
    world = World(max_moves=0)
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("other", "1g.10gb", "1:1g.10gb@0", used=True))
    world.wait_for("large", "7g.80gb")
    await world.look()
    assert world.said.texts == {}


async def test_a_pod_behind_scheduling_gates_moves_nobody() -> None:
    world = World()
    world.put(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True))
    (refused,) = REFUSED.conditions
    gated = PodStatus(conditions=[msgspec.structs.replace(refused, reason="SchedulingGated")])
    world.put(a_mig_claim("large", "7g.80gb"), a_pod("train", claims=["large"], status=gated))
    await world.look()
    assert world.said.texts == {}


IDLE = a_version(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0"), "1")
"""It blocks a pod that needs a whole GPU, since the other GPU is in use."""
USED = a_mig_claim("used", "3g.40gb", "1:3g.40gb@4", used=True)


@pytest.fixture
def blocked() -> World:
    """An idle claim that may be released blocks a pod."""
    world = World(idle_claims=IdleClaims.RELEASE)
    world.put(IDLE, USED)
    world.wait_for("large", "7g.80gb")
    return world


async def test_an_idle_claim_is_released_where_its_policy_permits_it(blocked: World) -> None:
    await blocked.look()
    assert blocked.server.patches == ["idle"]
    assert blocked.said.texts == {}
    assert [(reason, name) for reason, name, _ in blocked.happenings.texts] == [
        ("ClaimReleased", "idle"),
        ("PlaceReleased", "large"),
    ]
    assert blocked.reconciler.advice("policy") == "Idle claim default/idle was released for pod default/pod-large."


async def test_an_idle_claim_is_kept_unless_its_policy_says_otherwise() -> None:
    world = World()
    world.put(IDLE, USED)
    world.wait_for("large", "7g.80gb")
    await world.look()
    assert world.server.patches == []
    kept = "To let Draco release it, set spec.repair.idleClaims: Release in MigPolicy policy."
    assert all(text.endswith(kept) for text in world.said.texts.values())


async def test_a_claim_is_idle_for_a_while_before_it_is_released(blocked: World) -> None:
    again_s = await blocked.look(after_s=59)
    assert blocked.server.patches == []
    held = "Draco releases it as soon as possible; not yet, because it has been idle for less than 60 s."
    assert blocked.said.texts["idle"].endswith(held)
    assert again_s == 1.0
    await blocked.look(after_s=2)
    assert blocked.server.patches == ["idle"]


async def test_a_claim_that_was_used_in_between_is_idle_from_then_on(blocked: World) -> None:
    blocked.put(a_version(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0", used=True), "2"))
    await blocked.clock.advance(3600)
    blocked.put(a_version(IDLE, "3"))
    await blocked.look(after_s=30)
    assert blocked.server.patches == []


async def test_nothing_more_is_released_before_the_own_write_is_seen(blocked: World) -> None:
    blocked.put(a_version(a_mig_claim("other", "1g.10gb", "0:1g.10gb@1"), "1"))
    await blocked.look()
    assert blocked.server.patches == ["idle", "other"]
    await blocked.look()
    await blocked.look()
    assert blocked.server.patches == ["idle", "other"]
    assert blocked.said.texts == {}


async def test_a_claim_that_went_elsewhere_is_idle_from_then_on(blocked: World) -> None:
    await blocked.clock.advance(3600)
    blocked.put(a_version(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@1"), "2"))
    await blocked.look(after_s=30)
    assert blocked.server.patches == []
    await blocked.look(after_s=31)
    assert blocked.server.patches == ["idle"]


async def test_a_pod_is_given_time_to_take_what_was_released_for_it(blocked: World) -> None:
    """The other pod needs that room too, and one more claim's."""
    blocked.put(a_version(a_mig_claim("second", "1g.10gb", "1:1g.10gb@0"), "1"))
    blocked.put(a_mig_claim("left", "4g.40gb"), a_mig_claim("right", "4g.40gb"))
    blocked.put(a_pod("pod-of-two", claims=["left", "right"], status=REFUSED))
    await blocked.look()
    assert blocked.server.patches == ["idle"]
    blocked.arrive()
    await blocked.look(after_s=29)
    assert blocked.server.patches == ["idle"]
    await blocked.look(after_s=2)
    assert blocked.server.patches == ["idle", "second"]


async def test_what_happens_to_instances_wakes_who_waits_for_it(blocked: World) -> None:
    woken: list[str] = []
    blocked.reconciler.subscribe(woken.append)
    on = GpuMig(capable=True, enabled=True)
    taken = a_mig_instance("1g.10gb@0", use=InstanceUse.CLAIM, claim="default/idle")
    blocked.put(a_mig_node(gpus=[msgspec.structs.replace(on, instances=[taken]), on], board=H100))
    await blocked.look()
    woken.clear()
    blocked.put(a_mig_node(gpus=[on, on], board=H100))
    assert woken


async def test_a_claim_still_prepared_on_its_node_is_not_released(blocked: World) -> None:
    def a_node_with(*instances: InstanceStatus) -> GpuNode:
        on = GpuMig(capable=True, enabled=True)
        return a_mig_node(gpus=[msgspec.structs.replace(on, instances=list(instances)), on], board=H100)

    blocked.put(a_node_with(a_mig_instance("1g.10gb@0", use=InstanceUse.CLAIM, claim="default/idle")))
    await blocked.look()
    assert blocked.server.patches == []
    assert blocked.said.texts["large"].endswith("because it is still prepared on node node-0.")
    blocked.put(a_node_with())
    await blocked.look()
    assert blocked.server.patches == ["idle"]


async def test_a_claim_that_a_pod_is_about_to_use_is_not_released(blocked: World) -> None:
    blocked.put(a_pod("soon", claims=["idle"]))
    await blocked.look()
    assert blocked.server.patches == []
    assert blocked.said.texts["idle"].endswith("because pod default/soon is about to use it.")


async def test_a_claim_that_was_released_is_let_be_for_a_while(blocked: World) -> None:
    await blocked.look()
    blocked.arrive()
    await blocked.look(after_s=31)
    blocked.put(a_version(IDLE, "3"))  # allocated again in the same place, and still idle
    await blocked.look(after_s=500)
    assert blocked.server.patches == ["idle"]
    assert blocked.said.texts["idle"].endswith("because it was released less than 10 min ago.")
    await blocked.look(after_s=100)
    assert blocked.server.patches == ["idle", "idle"]


async def test_a_new_leader_lets_be_what_the_one_before_released(blocked: World) -> None:
    await blocked.clock.advance(100)
    regarding = ObjectReference(
        api_version="resource.k8s.io/v1", kind="ResourceClaim", name="idle", namespace="default", uid=IDLE.metadata.uid
    )
    lately = micro_time(blocked.clock.now())
    blocked.server.happened = [Event(involved_object=regarding, type="Normal", event_time=lately)]
    await blocked.look(after_s=599)
    assert blocked.server.patches == []
    await blocked.look(after_s=3)
    assert blocked.server.patches == ["idle"]


async def test_a_claim_that_somebody_reserves_at_that_moment_stays_theirs(blocked: World) -> None:
    blocked.server.answers = [Conflict(409, "Conflict", "the object has been modified")]
    await blocked.look()
    assert blocked.happenings.texts == []
    blocked.put(a_version(a_mig_claim("idle", "1g.10gb", "0:1g.10gb@0", used=True), "2"))
    await blocked.look()
    assert (blocked.server.patches, blocked.said.texts) == (["idle"], {})


async def test_a_missing_right_is_named_and_not_asked_for_again_at_once(blocked: World) -> None:
    blocked.server.answers = [Forbidden(403, "Forbidden", "cannot patch resourceclaims/status")]
    await blocked.look()
    await blocked.look(after_s=4)
    assert blocked.server.patches == ["idle"]
    said = (
        "The API server does not let Draco release claim default/idle: set the chart's value operator.releaseIdleClaims to "
        "true, or operator.allocate for GPUs that Draco allocates, which gives the operator patch on resourceclaims/status "
        "and resourceclaims/binding (cannot patch resourceclaims/status)."
    )
    assert all(text.endswith(said) for text in blocked.said.texts.values())
    assert blocked.reconciler.advice("policy").endswith(said)
    await blocked.look(after_s=2)
    assert blocked.server.patches == ["idle", "idle"]


@pytest.mark.parametrize("error", [TooManyRequests(429, "TooManyRequests", "slow"), ServerError(500, "Oops", "down")])
async def test_what_may_pass_by_itself_is_tried_again_and_the_advice_is_given_all_the_same(
    blocked: World, error: ApiError
) -> None:
    blocked.server.answers = [error]
    with pytest.raises(type(error)):
        await blocked.look()
    assert blocked.said.texts.keys() == {"idle", "large"}
    await blocked.look(after_s=20)
    assert blocked.server.patches == ["idle", "idle"]


async def test_a_release_whose_answer_was_lost_is_told_of_when_it_is_seen(blocked: World) -> None:
    blocked.server.answers = [Unreachable("cut")]
    with pytest.raises(Unreachable):
        await blocked.look()
    assert blocked.happenings.texts == []
    blocked.arrive()
    await blocked.look()
    assert [reason for reason, _, _ in blocked.happenings.texts] == ["ClaimReleased", "PlaceReleased"]
    assert blocked.server.patches == ["idle"]


async def test_what_is_left_of_a_plan_is_released_by_the_next_look(blocked: World) -> None:
    blocked.put(a_version(a_mig_claim("other", "1g.10gb", "0:1g.10gb@1"), "1"))
    blocked.server.answers = [None, Conflict(409, "Conflict", "the object has been modified")]
    await blocked.look()
    assert blocked.server.patches == ["idle", "other"]
    blocked.put(a_version(msgspec.structs.replace(IDLE, status=ResourceClaimStatus()), "2"))
    await blocked.look(after_s=3)
    assert blocked.server.patches == ["idle", "other", "other"]


async def test_no_more_is_released_than_needed_when_things_change_between_two_writes(blocked: World) -> None:
    blocked.put(a_version(a_mig_claim("other", "1g.10gb", "0:1g.10gb@1"), "1"))

    def scheduled() -> None:
        blocked.put(a_pod("pod-large", claims=["large"], node="node-0"))

    blocked.server.meanwhile = scheduled
    await blocked.look()
    assert blocked.server.patches == ["idle"]


async def test_claims_of_which_one_is_kept_are_only_named() -> None:
    world = World(idle_claims=IdleClaims.RELEASE)
    world.put(a_mig_policy("keeping", created=datetime(2020, 1, 1, tzinfo=UTC), exclude=[a_gpu_uuid("node-0", 0)]))
    for gpu, name in enumerate(("first", "second")):
        world.put(a_version(a_mig_claim(name, "1g.10gb", f"{gpu}:1g.10gb@0"), "1"))
    world.put(a_mig_claim("left", "4g.40gb"), a_mig_claim("right", "4g.40gb"))
    world.put(a_pod("train", claims=["left", "right"], status=REFUSED))
    await world.look()
    assert world.server.patches == []
    assert world.said.texts.keys() == {"first", "second", "left", "right"}
    kept = "To let Draco release them, set spec.repair.idleClaims: Release in MigPolicy keeping."
    assert all(text.endswith(kept) for text in world.said.texts.values())


def test_every_policy_that_does_not_permit_it_is_named_once() -> None:
    release = ClaimRelease(
        pod=ObjectKey("a", "pod"), waiting=(), node="node-0", claims=(ObjectKey("a", "idle"),), devices={}
    )
    assert "Release in MigPolicy a." in release_policy.kept(release, ["a", "a"])
    assert "Release in MigPolicies a and b." in release_policy.kept(release, ["b", "a"])


async def test_a_claim_that_may_be_released_goes_before_one_that_may_not() -> None:
    world = World(idle_claims=IdleClaims.RELEASE)
    world.put(a_mig_policy("keeping", created=datetime(2020, 1, 1, tzinfo=UTC), exclude=[a_gpu_uuid("node-0", 1)]))
    for gpu, name in enumerate(("first", "second")):
        world.put(a_version(a_mig_claim(name, "1g.10gb", f"{gpu}:1g.10gb@0"), "1"))
    world.wait_for("large", "4g.40gb")
    await world.look()
    assert world.server.patches == ["second"]


async def test_a_look_is_followed_by_a_rest_that_is_bounded_however_much_it_took(blocked: World) -> None:
    blocked.workers.cpu_s = 60.0
    for name in ("a", "b"):
        blocked.wait_for(name, "7g.80gb")
    again_s = await blocked.reconciler.reconcile("idle-claims")
    assert again_s is not None
    assert again_s <= repair._REST * repair._GO_S


async def test_a_pod_whose_search_is_too_costly_keeps_no_other_from_being_helped(blocked: World) -> None:
    def instead(question: Question) -> Answer | None:
        assert isinstance(question, FindRelease)
        return OverBudget(None, 8) if question.pod.metadata.name == "pod-a" else None

    blocked.workers.instead = instead
    blocked.put(a_mig_policy(repair=MigRepair(idle_claims=IdleClaims.KEEP)))
    blocked.wait_for("a", "7g.80gb")
    await blocked.look()
    assert blocked.said.texts.keys() == {"idle", "large"}


async def test_a_look_that_takes_long_goes_on_where_it_stopped(blocked: World) -> None:
    blocked.workers.cpu_s = repair._GO_S
    for name in ("a", "b"):
        blocked.wait_for(name, "7g.80gb")
    blocked.put(a_mig_policy(repair=MigRepair(idle_claims=IdleClaims.KEEP)))
    looked_at = []
    for _ in range(3):
        await blocked.look()
        looked_at.append(set(blocked.said.texts) - {"idle"})
    assert looked_at == [{"a"}, {"a", "b"}, {"a", "b", "large"}]
