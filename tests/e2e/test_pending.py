"""Every cause for which a pod waits for devices: kube-scheduler refuses the pod, and Draco says the reason and what helps."""

from collections.abc import Iterator

import pytest

from tests.e2e import pending_cases
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.pending_cases import POD, Case

CASES = pending_cases.load_all()
TOGETHER = [case for case in CASES if not case.alone and not case.refused]
ALONE = [case for case in CASES if case.alone]
REFUSED = [case for case in CASES if case.refused]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_the_api_server_refuses_the_claim(cluster: Kubectl, case: Case) -> None:
    try:
        pending_cases.bring_about(cluster, [case])
        assert case.refused in pending_cases.refuse(cluster, case)
    finally:
        pending_cases.take_back(cluster, [case])


@pytest.fixture(scope="module")
def side_by_side(cluster: Kubectl) -> Iterator[Kubectl]:
    """All cases that do not disturb each other, brought about at once."""
    try:
        pending_cases.bring_about(cluster, TOGETHER)
        yield cluster
    finally:
        pending_cases.take_back(cluster, TOGETHER)


@pytest.mark.parametrize("case", TOGETHER, ids=lambda case: case.name)
def test_the_scheduler_refuses_the_pod(side_by_side: Kubectl, case: Case) -> None:
    refused(side_by_side, case)


@pytest.mark.parametrize("case", [case for case in TOGETHER if case.fixable], ids=lambda case: case.name)
def test_the_pod_runs_after_the_change(side_by_side: Kubectl, case: Case) -> None:
    fixed(side_by_side, case)


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.name)
def test_the_scheduler_refuses_the_pod_for_what_would_disturb_others(cluster: Kubectl, case: Case) -> None:
    try:
        pending_cases.bring_about(cluster, [case])
        refused(cluster, case)
        if case.fixable:
            fixed(cluster, case)
    finally:
        pending_cases.take_back(cluster, [case])


def refused(kube: Kubectl, case: Case) -> None:
    """Wait until Kubernetes has said of the pod what the case expects."""
    if case.scheduler:
        eventually(lambda: _scheduler_says(kube, case), what=f"the scheduler says {case.scheduler}", within_s=30)
    if case.event:
        eventually(lambda: _event_says(kube, case), what=f"an Event says {case.event!r}", within_s=30)
    elif not case.scheduler:
        assert not pending_cases.scheduled_condition(kube, case), "no scheduler looks at it"


def _scheduler_says(kube: Kubectl, case: Case) -> bool:
    condition = pending_cases.scheduled_condition(kube, case)
    assert condition.get("status") == "False", condition
    missing = [part for part in case.scheduler if part not in condition["message"]]
    assert not missing, f"not said: {missing}; said: {condition['message']}"
    return True


def _event_says(kube: Kubectl, case: Case) -> bool:
    pending_cases.report(kube, case)
    notes = [event.get("note", "") for event in pending_cases.events(kube, case)]
    assert any(case.event in note for note in notes), notes
    return True


def fixed(kube: Kubectl, case: Case) -> None:
    """Do what the case says, and see the pod run."""
    pending_cases.fix(kube, case)
    eventually(
        lambda: pending_cases.scheduled_condition(kube, case).get("status") == "True",
        what=f"pod {POD} of {case.name} is scheduled",
    )
