"""Releasing idle claims: which claims may be released, how the one write is made, and what is known about it."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from draco.controller.mig.decisions import MigDecisions
from draco.controller.mig.release import MovableClaims
from draco.kube.errors import Forbidden, Invalid, Unreachable
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Event, EventSeries, ObjectReference
from draco.resources.api.draco import IdleClaims, MigMode, MigRepair
from draco.resources.api.meta import ObjectKey, micro_time
from tests.builders import a_claim, a_gpu_uuid, a_mig_policy, a_pod, a_static_policy
from tests.mig_claims import a_mig_claim, a_partition
from tests.unit.controller.mig.test_repair import IDLE, USED, World, a_version

KEY = IDLE.metadata.key


@pytest.fixture
def blocked() -> World:
    """An idle claim that may be released blocks a pod."""
    world = World(idle_claims=IdleClaims.RELEASE)
    world.put(IDLE, USED)
    world.wait_for("large", "7g.80gb")
    return world


def movable(world: World, *claims: ResourceClaim) -> set[str]:
    """Those of the claims that may be moved."""
    world.put(*claims)
    asked = MovableClaims(world.view, MigDecisions(world.view))
    return {key.name for key in asked.among([each.metadata.key for each in claims])}


def test_only_idle_claims_may_be_moved() -> None:
    assert movable(World(), IDLE, USED) == {"idle"}


def test_a_claim_on_gpus_of_two_policies_is_nobody_s_to_move() -> None:
    world = World()
    world.put(a_mig_policy("a", exclude=[a_gpu_uuid("node-0", 1)], repair=MigRepair(max_moves=2)))
    both = a_claim("both", on=[a_partition("0:1g.10gb@0"), a_partition("1:1g.10gb@0")])
    same = a_claim("same", on=[a_partition("0:1g.10gb@1"), a_partition("0:1g.10gb@2")])
    assert movable(world, both, same) == {"same"}


def test_a_claim_of_a_static_layout_or_of_a_whole_gpu_stays() -> None:
    world = World()
    assert movable(world, a_claim("whole", on=["node-0/gpu-1"])) == set()
    static = a_static_policy("policy", "7x1g.10gb", repair=MigRepair(max_moves=2))
    world.put(static)
    assert static.spec.mode is MigMode.STATIC
    assert movable(world, IDLE) == set()


async def test_only_the_very_claim_that_was_seen_is_released(blocked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[tuple[Mapping[str, Any], str]] = []

    async def patch(_kind: Any, _key: ObjectKey, body: Mapping[str, Any], *, subresource: str) -> None:
        bodies.append((body, subresource))

    monkeypatch.setattr(blocked.server, "patch", patch)
    await blocked.look()
    seen = {"uid": IDLE.metadata.uid, "resourceVersion": IDLE.metadata.resource_version}
    assert bodies == [({"metadata": seen, "status": {"allocation": None}}, "status")]


async def test_a_write_that_was_not_made_is_not_told_of(blocked: World) -> None:
    blocked.server.answers = [Unreachable("cut")]
    with pytest.raises(Unreachable):
        await blocked.look()
    assert blocked.releases.in_flight
    blocked.put(a_version(IDLE, "2"))
    assert not blocked.releases.in_flight
    assert (blocked.happenings.texts, blocked.releases.pause_s()) == ([], 0)


async def test_the_pod_is_given_time_also_if_the_answer_was_lost(blocked: World) -> None:
    blocked.server.answers = [Unreachable("cut")]
    with pytest.raises(Unreachable):
        await blocked.look()
    blocked.arrive()
    assert not blocked.releases.in_flight
    assert blocked.releases.pause_s() == 30
    blocked.put(a_pod("pod-large", claims=["large"], node="node-0"))
    assert blocked.releases.pause_s() == 0


async def test_what_else_is_written_to_a_claim_does_not_make_it_less_idle(blocked: World) -> None:
    await blocked.clock.advance(50)
    labelled = msgspec.structs.replace(IDLE.metadata, labels={"seen": "true"}, resource_version="2")
    blocked.put(msgspec.structs.replace(IDLE, metadata=labelled))
    await blocked.look(after_s=11)
    assert blocked.server.patches == ["idle"]


async def test_a_new_leader_goes_by_the_last_of_many_events(blocked: World) -> None:
    await blocked.clock.advance(3600)
    regarding = ObjectReference(
        api_version="resource.k8s.io/v1", kind="ResourceClaim", name="idle", namespace="default", uid=IDLE.metadata.uid
    )
    then = micro_time(blocked.clock.now())
    await blocked.clock.advance(3600)
    series = EventSeries(count=2, last_observed_time=micro_time(blocked.clock.now()))
    blocked.server.happened = [Event(involved_object=regarding, type="Normal", event_time=then, series=series)]
    await blocked.look(after_s=100)
    assert blocked.server.patches == []


async def test_a_right_that_is_missed_by_validation_only_is_named_too(blocked: World) -> None:
    blocked.server.answers = [Invalid(422, "Invalid", "status.allocation: Forbidden")]
    await blocked.look()
    assert blocked.releases.refusal(KEY).startswith("The API server does not let Draco release claim default/idle")


REFUSED = Forbidden(403, "Forbidden", "a policy of this namespace says no")


async def test_where_one_claim_is_refused_another_gives_way() -> None:
    world = World(idle_claims=IdleClaims.RELEASE)
    world.put(IDLE, a_mig_claim("other", "1g.10gb", "1:1g.10gb@0"))
    world.wait_for("large", "7g.80gb")
    world.server.answers = [REFUSED]
    await world.look()
    (refused,) = world.server.patches
    await world.look(after_s=4)
    assert [{*world.server.patches}, world.server.patches[0]] == [{"idle", "other"}, refused]


async def test_a_claim_that_is_refused_again_and_again_is_tried_ever_more_rarely(blocked: World) -> None:
    blocked.server.answers = [REFUSED] * 1000
    for _ in range(720):
        await blocked.look(after_s=5)
    assert 12 <= len(blocked.server.patches) <= 22  # seven in the first ten minutes, then one every five


async def test_what_was_refused_is_forgotten_once_it_is_done_or_needless(blocked: World) -> None:
    blocked.server.answers = [REFUSED]
    await blocked.look()
    await blocked.look()
    assert (blocked.server.patches, blocked.releases.refusal(KEY)) == (["idle", "idle"], "")
    blocked.server.answers = [REFUSED]
    await blocked.look()
    blocked.arrive()
    assert blocked.releases.refusal(KEY) == ""


async def test_a_claim_that_is_used_between_two_writes_stays(blocked: World) -> None:
    blocked.put(a_version(a_mig_claim("other", "1g.10gb", "0:1g.10gb@1"), "1"))
    used = a_version(a_mig_claim("other", "1g.10gb", "0:1g.10gb@1", used=True), "2")
    blocked.server.meanwhile = lambda: blocked.put(used)
    await blocked.look()
    assert blocked.server.patches == ["idle"]


async def test_a_claim_that_a_pod_names_between_two_writes_stays(blocked: World) -> None:
    blocked.put(a_version(a_mig_claim("other", "1g.10gb", "0:1g.10gb@1"), "1"))
    blocked.server.meanwhile = lambda: blocked.put(a_pod("user", claims=["other"]))
    await blocked.look()
    assert blocked.server.patches == ["idle"]


async def test_what_another_leader_left_is_taken_back() -> None:
    world = World()
    left = ObjectReference(
        api_version="resource.k8s.io/v1", kind="ResourceClaim", name="gone", namespace="default", uid="uid"
    )

    async def adopt() -> list[ObjectReference]:
        return [left]

    world.said.adopt = adopt  # type: ignore[method-assign]
    world.said.texts = {"gone": "It stands in the way."}
    await world.look()
    assert world.said.texts == {}


async def test_a_pod_that_comes_for_a_claim_that_something_is_said_of_wakes() -> None:
    world = World()
    world.put(IDLE, USED)
    world.wait_for("large", "7g.80gb")
    await world.look()
    assert world.said.texts.keys() == {"idle", "large"}
    woken: list[str] = []
    world.reconciler.subscribe(woken.append)
    woken.clear()
    world.put(a_pod("stranger", claims=["another"]))
    assert woken == []
    world.put(a_pod("user", claims=["idle"]))
    assert woken
