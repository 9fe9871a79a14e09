"""Which pods can be victims of preemption at all, and what becomes free without it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.allocation.ownership.gangs import gang_of
from draco.placing.preempting.victims import IMMUNE, Evictable, VictimInput, evictable
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodDisruptionBudget, PodStatus
from draco.resources.api.meta import ObjectKey, ObjectMeta, OwnerReference
from draco.resources.kinds import DEVICE_RESERVATIONS
from tests.builders import MOMENT, a_budget, a_claim, a_pod, a_uid

JOB = OwnerReference(api_version="batch/v1", kind="Job", name="job", uid="job", controller=True)


def held(name: str, *pods: str, **more: Any) -> ResourceClaim:
    return a_claim(name, on=[f"gpu.nvidia.com/node-0/{name}"], reserved_for=pods, **more)


def running(name: str, *claims: str, priority: int = 0, age_s: int = 0, phase: str = "Running", **meta: Any) -> Pod:
    start = MOMENT - timedelta(seconds=age_s)
    pod = a_pod(name, node="node-0", claims=claims, status=PodStatus(phase=phase, start_time=start), **meta)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, priority=priority))


def waiting(name: str, *claims: str, priority: int = 0, **meta: Any) -> Pod:
    pod = running(name, *claims, priority=priority, phase="Pending", **meta)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))


def found(
    claims: list[ResourceClaim],
    *pods: Pod,
    budgets: tuple[PodDisruptionBudget, ...] = (),
    spared: tuple[str, ...] = (),
    forbidden: tuple[str, ...] = (),
    **more: Any,
) -> Evictable:
    def pods_of(key: ObjectKey) -> list[Pod]:
        return [pod for pod in pods if key in pod.claims]

    def together(pod: Pod) -> list[Pod]:
        gang = gang_of(pod)
        return [each for each in pods if gang_of(each) == gang] if gang else [pod]

    return evictable(
        VictimInput(
            now=MOMENT,
            claims=claims,
            permits=lambda claim: claim.metadata.name not in forbidden,
            pods_of=pods_of,
            together=together,
            budgets=budgets,
            spared={a_uid("pod", "default", name) for name in spared},
            **more,
        )
    )


def names(evictable_: Evictable) -> list[tuple[list[str], list[str]]]:
    return [([key.name for key in each.claims], [key.name for key in each.pods]) for each in evictable_.victims]


def test_a_pod_that_runs_can_be_a_victim_with_all_that_it_holds() -> None:
    result = found([held("a", "pod"), held("b", "pod")], running("pod", "a", "b", priority=7, age_s=90))
    assert names(result) == [(["a", "b"], ["pod"])]
    (victim,) = result.victims
    assert (victim.priority, victim.lone, victim.ran_s) == (7, 1, 90.0)
    assert found([held("a", "pod")], running("pod", "a", owner_references=[JOB])).victims[0].lone == 0


def test_pods_that_share_a_claim_leave_together_by_the_highest_of_their_priorities() -> None:
    result = found([held("a", "one", "two")], running("one", "a", priority=1), running("two", "a", priority=9))
    assert names(result) == [(["a"], ["one", "two"])]
    assert result.victims[0].priority == 9


def test_one_that_waits_for_a_shared_claim_counts_by_its_priority_and_is_not_evicted() -> None:
    result = found([held("a", "one")], running("one", "a", priority=1), waiting("two", "a", priority=9))
    assert names(result) == [(["a"], ["one"])]
    assert result.victims[0].priority == 9


def test_pods_that_start_together_leave_together() -> None:
    gang = {"kueue.x-k8s.io/pod-group-name": "train"}
    pods = [running(name, claim, labels=gang) for name, claim in (("one", "a"), ("two", "b"))]
    assert names(found([held("a", "one"), held("b", "two")], *pods)) == [(["a", "b"], ["one", "two"])]
    late = waiting("three", "c", labels=gang)
    assert names(found([held("a", "one"), held("b", "two")], *pods, late)) == [(["a", "b"], ["one", "two"])]


TRAIN = {"kueue.x-k8s.io/pod-group-name": "train"}


def of_a_reservation(claim: ResourceClaim) -> ResourceClaim:
    owner = DEVICE_RESERVATIONS.owner(ObjectMeta(name="r", uid="r"))
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, owner_references=[owner]))


def of_a_pod_group(claim: ResourceClaim) -> ResourceClaim:
    (consumer,) = claim.status.reserved_for
    group = msgspec.structs.replace(consumer, resource="podgroups", api_group="scheduling.k8s.io")
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=[group]))


@pytest.mark.parametrize("change", [None, of_a_reservation, of_a_pod_group])
def test_of_a_reservation_and_of_what_is_reserved_for_no_pod_nobody_is_a_victim_nor_of_the_same_group(
    change: Callable[[ResourceClaim], ResourceClaim] | None,
) -> None:
    pods = [running("one", "a", labels=TRAIN), running("two", "b", labels=TRAIN)]
    second = held("b", "two")
    result = found([held("a", "one"), change(second) if change is not None else second], *pods)
    assert len(result.victims) == (change is None)


@pytest.mark.parametrize(
    ("at", "priority", "users"), [(5, 5, ()), (5, 9, (9,)), (5, 5, (1,)), (None, None, ()), (IMMUNE, None, ())]
)
def test_what_a_reservation_keeps_unused_is_taken_from_it_by_its_priority_or_that_of_who_waits_for_it(
    at: int | None, priority: int | None, users: tuple[int, ...]
) -> None:
    unused = of_a_reservation(held("r-0"))
    pods = [waiting(f"pod-{its}", "r-0", priority=its) for its in users]
    victims = found([unused], *pods, reserved_at=lambda _: at).victims
    assert [(each.priority, each.pods) for each in victims] == ([(priority, [])] if priority is not None else [])
    assert not found([unused], *pods, reserved_at=lambda _: at, forbidden=("r-0",)).victims


def test_what_a_pod_uses_of_a_reservation_has_the_higher_of_both_priorities() -> None:
    """When the pod leaves, the claim returns to the reservation, so a group below its priority would not get the devices."""
    for own, reserved, counts in ((3, 5, 5), (9, 5, 9)):
        pod = running("one", "a", priority=own)
        (victim,) = found([of_a_reservation(held("a", "one"))], pod, reserved_at=lambda _, its=reserved: its).victims
        assert (victim.priority, [key.name for key in victim.pods]) == (counts, ["one"])


def test_what_goes_back_to_a_reservation_is_free_only_for_those_of_a_higher_priority() -> None:
    going = running("one", "a", deletion_timestamp=MOMENT)
    result = found([of_a_reservation(held("a", "one"))], going, reserved_at=lambda _: 5)
    assert [[key.name for key in result.leaving_for(priority)] for priority in (5, 6)] == [[], ["a"]]
    alone = found([held("a", "one")], going)
    assert [key.name for key in alone.leaving_for(-1)] == ["a"]


def test_pods_that_start_together_leave_by_the_priority_of_their_group() -> None:
    pods = [running(name, claim, labels=TRAIN, priority=its) for name, claim, its in (("one", "a", 1), ("two", "b", 9))]
    (victim,) = found([held("a", "one"), held("b", "two")], *pods, priority_of=lambda _: 1).victims
    assert victim.priority == 1


def test_where_one_of_a_group_is_spared_static_or_on_another_pool_the_others_stay_too() -> None:
    pods = [running("one", "a", labels=TRAIN), running("two", "b", labels=TRAIN)]
    claims = [held("a", "one"), held("b", "two")]
    assert len(found(claims, *pods).victims) == 1
    assert found(claims, *pods, spared=("two",)).victims == []
    assert found(claims, *pods, forbidden=("b",)).victims == []
    static = running("two", "b", labels=TRAIN, annotations={"kubernetes.io/config.mirror": "yes"})
    assert found(claims, pods[0], static).victims == []


def test_a_claim_without_a_pod_is_nobodys_to_take_and_a_pod_that_does_not_go_is_not_counted_on() -> None:
    stuck = running("stuck", "b", deletion_timestamp=MOMENT - timedelta(seconds=31))
    result = found([held("a"), held("b", "stuck")], stuck)
    assert result == Evictable([], [])
    shared = found([held("b", "stuck", "stays")], stuck, running("stays", "b"))
    assert shared == Evictable([], [])  # it would not become free, whichever other pod leaves


def test_what_only_leaving_or_vanished_pods_hold_becomes_free_by_itself_though_no_policy_permits_anything() -> None:
    leaving = running("leaving", "a", deletion_timestamp=MOMENT)
    ended = running("ended", "b", phase="Succeeded")
    claims = [held("a", "leaving"), held("b", "ended"), held("c", "vanished"), held("d", "leaving", "stays")]
    stays = running("stays", "d")
    result = found(claims, leaving, ended, stays, forbidden=("a", "b", "c"))
    assert [key.name for key in result.leaving] == ["a", "b", "c"]
    assert names(result) == [(["d"], ["stays"])]


@pytest.mark.parametrize(("allows", "covered", "victims"), [(0, 1, 0), (1, 1, 1), (1, 2, 0), (2, 2, 1)])
def test_whom_a_budget_keeps_is_no_victim(allows: int, covered: int, victims: int) -> None:
    pods = [running(f"pod-{number}", "a", labels={"app": "web"}) for number in range(covered)]
    budget = a_budget(allows=allows, app="web")
    result = found([held("a", *(pod.metadata.name for pod in pods))], *pods, budgets=(budget,))
    assert len(result.victims) == victims
    assert all(each.budgets == [(budget.metadata.key, covered)] for each in result.victims)


def test_two_budgets_forbid_an_eviction_and_none_is_asked_about_a_pod_that_has_not_started() -> None:
    web = {"app": "web"}
    budgets = (a_budget("one", allows=5, app="web"), a_budget("two", allows=5, app="web"))
    assert found([held("a", "pod")], running("pod", "a", labels=web), budgets=budgets).victims == []
    starting = running("pod", "a", phase="Pending", labels=web)
    (victim,) = found([held("a", "pod")], starting, budgets=(a_budget(allows=0, app="web"),)).victims
    assert victim.budgets == []
