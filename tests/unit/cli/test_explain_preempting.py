"""What `draco explain` finds out about preemption, and how often it iterates over all claims for that."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.cli.explain.preempting import PossibleVictims, with_preemption
from draco.cli.explain.subjects import ExplainSubject
from draco.explanation.model import Cause, CauseCount, Explanation, PendingReason, RequestExplanation
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodStatus
from draco.resources.api.draco import Allocator, MigMode, PreemptionPermit
from draco.resources.api.meta import ObjectKey, ObjectMeta, OwnerReference
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec, DeviceReservationStatus
from draco.whatif.world import World
from tests.builders import MOMENT, a_budget, a_claim, a_device_class, a_mig_policy, a_pod

IN_USE: Final = Explanation(
    reason=PendingReason.IN_USE,
    summary="All are in use.",
    by_draco=True,
    requests=[
        RequestExplanation(
            claim="default/new",
            request="gpu",
            device_class="ours",
            causes=[CauseCount(cause=Cause.IN_USE, devices=3, nodes=1, text="in use")],
        )
    ],
)
POLICY = a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.OPERATOR, preemption=PreemptionPermit.LOWER_PRIORITY)


class Counted(Mapping[ObjectKey, ResourceClaim]):
    """Claims, counting how often all of them are iterated over."""

    def __init__(self, claims: Mapping[ObjectKey, ResourceClaim]) -> None:
        self._claims, self.times = claims, 0

    def __getitem__(self, key: ObjectKey) -> ResourceClaim:
        return self._claims[key]

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[ObjectKey]:
        self.times += 1
        return iter(self._claims)


class Cluster:
    """Three pods that hold a GPU each: `free` may be evicted, `guarded` has a budget, `high` has a higher priority."""

    def __init__(self) -> None:
        ours = a_device_class("ours")
        labels = {"draco.dev/allocator": "operator"}
        ours = msgspec.structs.replace(ours, metadata=msgspec.structs.replace(ours.metadata, labels=labels))
        holders = [a_holder("free", 10), a_holder("guarded", 10, app="guarded"), a_holder("high", 500)]
        claims = [
            a_claim(
                pod.metadata.name, device_class="ours", on=[f"node-0/gpu-{number}"], reserved_for=[pod.metadata.name]
            )
            for number, pod in enumerate(holders)
        ]
        fleet = Fleet.of(classes=[ours], claims=claims)
        fleet.claims = self.claims = Counted(fleet.claims)
        self.world = World(
            fleet=fleet,
            pods={pod.metadata.key: pod for pod in holders},
            templates={},
            wanted=[],
            notes=[],
            policies=[POLICY],
            budgets=[a_budget(app="guarded")],
        )

    def said(self, *pods: Pod, explanation: Explanation = IN_USE) -> list[str]:
        victims = PossibleVictims(self.world)
        subjects = [ExplainSubject(kind="pod", key=pod.metadata.key, claims=[], pod=pod) for pod in pods]
        return [with_preemption(victims, subject, explanation).preemption for subject in subjects]


def a_holder(name: str, priority: int, **labels: str) -> Pod:
    status = PodStatus(phase="Running", start_time=MOMENT)
    return of_priority(a_pod(name, node="node-0", claims=[name], labels=labels, status=status), priority)


def of_priority(pod: Pod, priority: int) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, priority=priority))


def test_each_pod_that_waits_is_told_who_could_leave_for_it_and_the_claims_are_gone_through_once() -> None:
    cluster = Cluster()
    waiting = [of_priority(a_pod(f"new-{priority}"), priority) for priority in (5, 100, 1000)]
    guarded = "PodDisruptionBudget default/budget allows no eviction of default/guarded"
    assert cluster.said(*waiting) == [
        "Draco evicts nobody for the pod: none that could leave has a priority below 5",
        (f"Draco may evict pods of a priority below 100: default/free, where their MigPolicy permits it; {guarded}"),
        (
            "Draco may evict pods of a priority below 1000: default/free, default/high, where their MigPolicy permits it; "
            f"{guarded}"
        ),
    ]
    assert cluster.claims.times == 1


@pytest.mark.parametrize(
    ("kept_at", "said"),
    [
        (50, "Draco may evict pods of a priority below 100: default/free, where their MigPolicy permits it; {guarded}"),
        (
            200,
            "Draco evicts nobody for the pod: {guarded}; {kept} default/kept (priority 200) keeps what default/free uses",
        ),
        (
            None,
            "Draco evicts nobody for the pod: {guarded}; {kept} default/kept keeps what default/free uses",
        ),
    ],
)
def test_the_reservation_that_spares_a_pod_is_named(kept_at: int | None, said: str) -> None:
    """The pod uses a claim that the reservation controls: it has the higher of both priorities."""
    cluster = Cluster()
    kept = DeviceReservation(
        metadata=ObjectMeta(name="kept", namespace="default", uid="kept"),
        spec=DeviceReservationSpec(template_name="one"),
        status=DeviceReservationStatus(priority=kept_at),
    )
    claim = cluster.world.fleet.claims[ObjectKey("default", "free")]
    owner = OwnerReference(
        api_version="draco.dev/v1alpha1", kind="DeviceReservation", name="kept", uid="kept", controller=True
    )
    owned = msgspec.structs.replace(claim.metadata, owner_references=[owner])
    cluster.world.fleet.claims._claims = {  # type: ignore[attr-defined]
        **cluster.claims._claims,
        claim.metadata.key: msgspec.structs.replace(claim, metadata=owned),
    }
    cluster.world.reservations = [kept]
    guarded = "PodDisruptionBudget default/budget allows no eviction of default/guarded"
    assert cluster.said(of_priority(a_pod("new"), 100)) == [said.format(guarded=guarded, kept="DeviceReservation")]


@pytest.mark.parametrize("changes", [{"fits": True}, {"by_draco": False}, {"requests": []}])
def test_nothing_is_looked_for_where_nobody_elses_leaving_would_help(changes: dict[str, object]) -> None:
    cluster = Cluster()
    assert cluster.said(a_pod("new"), explanation=msgspec.structs.replace(IN_USE, **changes)) == [""]
    assert cluster.claims.times == 0
