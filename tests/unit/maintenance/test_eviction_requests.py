"""When a pod gets an EvictionRequest, how long it is waited for, and when the EvictionRequest is withdrawn."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.maintenance.draining.drain import ASKED_AT_ONCE, TAKEN_ON_WITHIN, AskedPod, DrainInput, plan_drain
from draco.maintenance.draining.eviction_requests import (
    RequestedEviction,
    RequestStanding,
    eviction_request_for,
    is_draco_request,
    is_wanted,
    pod_uid,
    request_key,
    standing_of,
)
from draco.maintenance.progress import DrainPlan
from draco.resources.api.core import EvictionResponder, Pod, PodStatus
from draco.resources.api.evictions import EvictionRequest
from draco.resources.api.maintenance import DeviceMaintenance, DrainPolicy, MaintainedDevice, MaintenanceDrain
from draco.resources.api.maintenance import MaintenancePhase as Phase
from draco.resources.api.meta import Condition
from tests.builders import MOMENT, a_budget, a_claim, a_device_key, a_maintenance, a_pod, a_uid

GPU = a_device_key("node-0/gpu-0")
UID = a_uid("pod", "default", "pod")
SECOND = timedelta(seconds=1)


def drains(
    policy: DrainPolicy = DrainPolicy.EVICT, *, phase: Phase = Phase.DRAINING, **drain: Any
) -> DeviceMaintenance:
    """A request that drains its only device."""
    request = a_maintenance(pool="node-0", device="gpu-0")
    spec = msgspec.structs.replace(request.spec, drain=MaintenanceDrain(policy=policy, **drain))
    device = MaintainedDevice(driver=GPU.driver, pool=GPU.pool, device=GPU.device)
    status = msgspec.structs.replace(
        request.status, phase=phase, isolated_at=MOMENT, draining_at=MOMENT, devices=[device]
    )
    return msgspec.structs.replace(request, spec=spec, status=status)


def runs(name: str = "pod", *, responders: tuple[str, ...] = (), **meta: Any) -> Pod:
    made = a_pod(name, node="node-0", claims=["claim"], status=PodStatus(phase="Running"), **meta)
    named = [EvictionResponder(name=each) for each in responders]
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, eviction_responders=named))


def look(
    *pods: Pod,
    request: DeviceMaintenance | None = None,
    requested: dict[str, RequestedEviction] | None = None,
    after: timedelta = timedelta(0),
    **seen: Any,
) -> DrainPlan:
    claims = [a_claim("claim", on=["node-0/gpu-0"], reserved_for=[pod.metadata.name for pod in pods])]
    known = DrainInput(
        now=MOMENT + after, devices=frozenset({GPU}), claims=claims, pods=pods, requested=requested, **seen
    )
    found = plan_drain(request or drains(), known)
    assert found is not None
    return found


def asked_for(standing: RequestStanding = RequestStanding.UNANSWERED) -> dict[str, RequestedEviction]:
    return {UID: RequestedEviction(at=MOMENT, standing=standing)}


def made_for(pod: Pod, **status: Any) -> EvictionRequest:
    """The EvictionRequest as the API server stores it."""
    written = msgspec.json.decode(msgspec.json.encode(eviction_request_for(pod)))
    return msgspec.json.decode(msgspec.json.encode({**written, "status": status}), type=EvictionRequest)


def test_the_cluster_is_asked_before_the_pod_is_evicted() -> None:
    pod = runs()
    state = look(pod, requested={})
    assert (state.request, state.evict, state.begun) == ((pod.metadata.key,), (), True)
    assert state.message == "1 pod is leaving: default/pod."


def test_a_cluster_that_takes_no_requests_is_not_asked() -> None:
    state = look(runs(), requested=None)
    assert (state.request, state.evict) == ((), (runs().metadata.key,))


def test_a_request_that_nobody_takes_on_is_followed_by_an_eviction() -> None:
    early = look(runs(), requested=asked_for(), after=TAKEN_ON_WITHIN - SECOND)
    assert (early.request, early.evict, early.leaving) == ((), (), (runs().metadata.key,))
    assert early.look_again == SECOND
    late = look(runs(), requested=asked_for(), after=TAKEN_ON_WITHIN)
    assert (late.request, late.evict) == ((), (runs().metadata.key,))


def test_a_clock_that_was_set_back_makes_no_pod_wait() -> None:
    ahead = {UID: RequestedEviction(at=MOMENT + timedelta(hours=1))}
    assert look(runs(), requested=ahead).evict == (runs().metadata.key,)


def test_a_request_that_was_given_up_is_followed_by_an_eviction_at_once() -> None:
    assert look(runs(), requested=asked_for(RequestStanding.GIVEN_UP)).evict == (runs().metadata.key,)


def test_a_pod_that_the_cluster_makes_leave_is_left_to_it_for_as_long_as_that_takes() -> None:
    state = look(runs(), requested=asked_for(RequestStanding.TAKEN_ON), after=timedelta(hours=5))
    key = runs().metadata.key
    assert (state.request, state.evict, state.leaving) == ((), (), (key,))
    assert state.look_again == timedelta(seconds=10)


def test_a_pod_that_was_evicted_once_stays_with_the_eviction_api() -> None:
    asked = {UID: AskedPod(at=MOMENT, refusal="a budget", by_budget=True)}
    state = look(runs(), requested=asked_for(RequestStanding.TAKEN_ON), asked=asked, after=timedelta(minutes=5))
    assert state.evict == (runs().metadata.key,)
    assert look(runs(), requested={}, asked=asked, after=timedelta(minutes=5)).request == ()


def test_a_budget_that_holds_up_the_cluster_is_named_too() -> None:
    pod = runs(labels={"app": "web"})
    state = look(pod, requested=asked_for(RequestStanding.TAKEN_ON), budgets=[a_budget("keep", app="web", allows=0)])
    (refused,) = state.refused
    assert refused.pod == pod.metadata.key
    assert "PodDisruptionBudget default/keep allows no eviction now" in state.message
    free = look(pod, requested=asked_for(RequestStanding.TAKEN_ON), budgets=[a_budget("keep", app="web", allows=1)])
    assert (free.refused, free.leaving) == ((), (pod.metadata.key,))


def test_the_responders_that_see_to_a_pod_are_named() -> None:
    pod = runs(responders=("example.com/mover", "example.com/saver"))
    state = look(pod, requested=asked_for(RequestStanding.TAKEN_ON))
    assert state.message == ("Waiting for eviction responders example.com/mover, example.com/saver of pod default/pod.")


def test_a_grace_period_can_be_given_to_the_eviction_api_only() -> None:
    state = look(runs(), request=drains(grace_period_seconds=5), requested={})
    assert (state.request, state.evict) == ((), (runs().metadata.key,))


def test_while_a_budget_is_paused_the_cluster_is_not_asked() -> None:
    assert look(runs(), requested={}, paused="gpus").request == ()


def test_no_more_is_asked_of_the_cluster_at_once_than_of_the_eviction_api() -> None:
    pods = [runs(f"pod-{number}") for number in range(ASKED_AT_ONCE + 3)]
    state = look(*pods, requested={})
    assert (len(state.request), state.evict, state.look_again) == (ASKED_AT_ONCE, (), SECOND)


def test_a_request_is_the_pods_and_named_after_it_so_that_there_is_one() -> None:
    pod = runs()
    body = msgspec.json.decode(msgspec.json.encode(eviction_request_for(pod)))
    assert body["spec"] == {
        "target": {"pod": {"name": "pod", "uid": UID}},
        "requester": "draco.dev/maintenance",
        "intent": "Eviction",
    }
    assert body["metadata"]["name"] == request_key(pod).name == f"draco-{UID}"
    assert body["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": UID}]
    assert is_draco_request(made_for(pod))
    assert pod_uid(made_for(pod)) == UID


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        ({}, RequestStanding.UNANSWERED),
        ({"observedGeneration": 1}, RequestStanding.TAKEN_ON),
        ({"conditions": [Condition(type="TargetEvicted", status="False")]}, RequestStanding.TAKEN_ON),
        ({"observedGeneration": 1, "conditions": [Condition(type="Failed", status="True")]}, RequestStanding.GIVEN_UP),
        ({"conditions": [Condition(type="TargetEvicted", status="True")]}, RequestStanding.TAKEN_ON),
        ({"observedGeneration": 1, "conditions": [Condition(type="Failed", status="False")]}, RequestStanding.TAKEN_ON),
    ],
)
def test_the_clusters_controller_says_what_has_become_of_a_request(
    status: dict[str, Any], standing: RequestStanding
) -> None:
    assert standing_of(made_for(runs(), **status), runs()) is standing


@pytest.mark.parametrize("change", [{"intent": "Withdrawn"}, {"requester": "example.com/other"}, {"target": None}])
def test_nothing_is_expected_of_a_request_that_somebody_has_changed(change: dict[str, Any]) -> None:
    request = made_for(runs(), observedGeneration=1)
    if "target" in change:
        change = {"target": made_for(runs("other")).spec.target}
    changed = msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, **change))
    assert standing_of(changed, runs()) is RequestStanding.GIVEN_UP


def test_what_others_have_made_is_not_touched() -> None:
    request = made_for(runs())
    other = msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, requester="example.com/x"))
    unlabelled = msgspec.structs.replace(request, metadata=msgspec.structs.replace(request.metadata, labels={}))
    renamed = msgspec.structs.replace(request, metadata=msgspec.structs.replace(request.metadata, name="draco-1"))
    assert not any(map(is_draco_request, (other, unlabelled, renamed)))


def wanted(*requests: DeviceMaintenance, pod: Pod | None = None, paused: bool = False, gone: bool = False) -> bool:
    return is_wanted(None if gone else pod or runs(), frozenset({GPU}), requests, lambda _: paused)


def of(request: DeviceMaintenance, **spec: Any) -> DeviceMaintenance:
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, **spec))


def test_a_request_stays_as_long_as_one_maintenance_wants_the_pod_gone() -> None:
    assert wanted(drains())
    assert wanted(of(drains(), cancelled=True), drains())
    assert not wanted()


@pytest.mark.parametrize("phase", [each for each in Phase if each is not Phase.DRAINING])
def test_a_request_is_withdrawn_once_nobody_is_being_made_to_leave(phase: Phase) -> None:
    assert not wanted(drains(phase=phase))


def test_a_request_is_withdrawn_when_the_maintenance_is_cancelled_finished_deleted_or_paused() -> None:
    request = drains()
    assert not wanted(of(request, cancelled=True))
    assert not wanted(of(request, finished=True))
    meta = msgspec.structs.replace(request.metadata, deletion_timestamp=MOMENT)
    assert not wanted(msgspec.structs.replace(request, metadata=meta))
    assert not wanted(request, paused=True)
    assert not wanted(drains(DrainPolicy.WAIT))
    assert not wanted(drains(grace_period_seconds=5))


def test_a_request_for_a_pod_that_is_gone_over_or_holds_another_device_is_withdrawn() -> None:
    assert not wanted(drains(), gone=True)
    over = msgspec.structs.replace(runs(), status=PodStatus(phase="Succeeded"))
    assert not wanted(drains(), pod=over)
    assert not is_wanted(runs(), frozenset({a_device_key("node-0/gpu-1")}), [drains()], lambda _: False)
