"""Every cause for which a pod waits for devices: kube-scheduler refuses the pod, and Draco explains the cause and the fix.

The how-to's output is compared with the output here; DRACO_WRITE_HOWTO=1 rewrites it.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import howto, pending_cases
from tests.e2e.conftest import draco
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.pending_cases import POD, Case

pytestmark = pytest.mark.simulated_nodes  # the cases have their names and number

CASES = pending_cases.load_all()
TOGETHER = [case for case in CASES if not case.alone and not case.refused]
ALONE = [case for case in CASES if case.alone]
REFUSED = [case for case in CASES if case.refused]
DRACO = "draco-operator"
SEEN: dict[str, str] = {}
"""What the page must show, by block."""


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", ALONE, ids=by_name)
def test_what_others_must_not_meet_is_refused_and_explained(cluster: Kubectl, case: Case) -> None:
    try:
        pending_cases.bring_about(cluster, [case])
        refused(cluster, case)
        told(cluster, case, asked(cluster, case))
        printed(cluster, case)
        if case.fixable:
            fixed(cluster, case)
    finally:
        pending_cases.take_back(cluster, [case])


@pytest.mark.parametrize("case", REFUSED, ids=by_name)
def test_the_api_server_refuses_the_claim(cluster: Kubectl, case: Case) -> None:
    try:
        pending_cases.bring_about(cluster, [case])
        said = pending_cases.refuse(cluster, case)
    finally:
        pending_cases.take_back(cluster, [case])
    assert case.refused in said
    SEEN[case.name] = howto.printed_block("kubectl apply -f claim.yaml", said)


@pytest.fixture(scope="module")
def side_by_side(cluster: Kubectl) -> Iterator[Kubectl]:
    """All cases that do not disturb each other, set up together."""
    try:
        pending_cases.bring_about(cluster, TOGETHER)
        yield cluster
    finally:
        pending_cases.take_back(cluster, TOGETHER)


@pytest.fixture(scope="module")
def explained(side_by_side: Kubectl) -> dict[str, dict[str, Any]]:
    """The command's output for all waiting pods, by namespace, once the scheduler has refused them all."""
    for case in TOGETHER:
        refused(side_by_side, case)
    done = draco("explain", "pods", "-o", "json", kubeconfig=side_by_side.kubeconfig)
    assert done.returncode == 0, done.stderr
    return {each["pod"].partition("/")[0]: each for each in json.loads(done.stdout)["explanations"]}


@pytest.mark.parametrize("case", TOGETHER, ids=by_name)
def test_the_scheduler_refuses_the_pod(side_by_side: Kubectl, case: Case) -> None:
    refused(side_by_side, case)


@pytest.mark.parametrize("case", TOGETHER, ids=by_name)
def test_draco_says_why(side_by_side: Kubectl, explained: dict[str, dict[str, Any]], case: Case) -> None:
    if case.passing:
        said = eventually(
            lambda: _asked_in_time(side_by_side, case), what=f"the command says {case.reason}", within_s=60
        )
    else:
        said = explained.get(case.namespace) or asked(side_by_side, case)
    told(side_by_side, case, json.loads(case.translated(json.dumps(said))))


@pytest.mark.parametrize("case", [case for case in TOGETHER if case.fixable], ids=by_name)
def test_the_pod_is_scheduled_after_the_change(side_by_side: Kubectl, case: Case) -> None:
    fixed(side_by_side, case)


@pytest.mark.local_provider  # the page counts its two nodes
@pytest.mark.since(36)
@pytest.mark.until(36)  # the page has its messages
def test_the_how_to_shows_what_happened() -> None:
    page = howto.PAGE.read_text(encoding="utf-8")
    if howto.WRITE:
        howto.PAGE.write_text(howto.with_blocks(page, SEEN), encoding="utf-8")
    shown = howto.blocks(howto.PAGE.read_text(encoding="utf-8"))
    assert {name: shown[name] for name in shown if name in SEEN} == {name: SEEN[name] for name in shown if name in SEEN}


def test_the_how_to_shows_no_case_that_is_not_tried() -> None:
    shown = howto.blocks(howto.PAGE.read_text(encoding="utf-8"))
    assert {name.removeprefix("explain:") for name in shown} <= {
        path.stem for path in pending_cases.FOLDER.glob("*.yaml")
    }


def refused(kube: Kubectl, case: Case) -> None:
    """Wait until Kubernetes reports on the pod what the case expects."""
    if case.scheduler:
        eventually(lambda: _scheduler_says(kube, case), what=f"the scheduler says {case.scheduler}", within_s=60)
    if case.event:
        eventually(lambda: _event_says(kube, case), what=f"an Event says {case.event!r}", within_s=60)
    elif not case.scheduler:
        assert not pending_cases.scheduled_condition(kube, case), "no scheduler looks at it"


def _scheduler_says(kube: Kubectl, case: Case) -> bool:
    condition = pending_cases.scheduled_condition(kube, case)
    assert condition.get("status") == "False", condition
    missing = [part for part in _of_the_scheduler(kube, case) if part not in condition["message"]]
    assert not missing, f"not said: {missing}; said: {condition['message']}"
    return True


def _of_the_scheduler(kube: Kubectl, case: Case) -> list[str]:
    nodes = len(kube.objects("nodes"))  # kind's own nodes count, too
    return [part.replace("{nodes}", str(nodes)) for part in case.scheduler]


def _event_says(kube: Kubectl, case: Case) -> bool:
    pending_cases.report(kube, case)
    notes = [event.get("note", "") for event in pending_cases.events(kube, case)]
    assert any(case.event in note for note in notes), notes
    return True


def asked(kube: Kubectl, case: Case) -> dict[str, Any]:
    """The JSON output of `draco explain` for one pod; an error if the pod's claim is missing."""
    done = draco("explain", "pod", POD, "-n", case.namespace, "-o", "json", kubeconfig=kube.kubeconfig)
    if done.returncode:
        return {"reason": "", "summary": case.translated(done.stderr), "nearest": []}
    said: dict[str, Any] = json.loads(case.translated(done.stdout))
    return said


def _asked_in_time(kube: Kubectl, case: Case) -> dict[str, Any]:
    """The same for a claim that is allocated and deallocated in turn: asked while it is as the case says."""
    pending_cases.report(kube, case)
    said = asked(kube, case)
    assert said["reason"] == case.reason, said["summary"]
    return said


def printed(kube: Kubectl, case: Case) -> None:
    """Record the command's readable output, if the page shows it."""
    block = f"explain:{case.name}"
    if block in howto.blocks(howto.PAGE.read_text(encoding="utf-8")):
        done = draco("explain", "pod", POD, "-v", "-n", case.namespace, kubeconfig=kube.kubeconfig)
        assert done.returncode == 0, done.stderr
        SEEN[block] = howto.printed_block(f"draco explain pod {POD} -v", case.translated(done.stdout))


def told(kube: Kubectl, case: Case, said: dict[str, Any]) -> None:
    """Check the command's output, and wait until the Events on the pod and its claims say the same."""
    assert said["reason"] == case.reason, said["summary"]
    if case.passing:
        text = eventually(lambda: _passing(kube, case), what=f"an Event says {case.says}", within_s=60)
    else:
        text = said["summary"]
        _says(case, text)
        assert case.nearest in "; ".join(miss["text"] for miss in said["nearest"]), said["nearest"]
        own, quoted, _ = text.partition("; kube-controller-manager says: ")
        text = f"{own}." if quoted else text  # it also has an Event of Kubernetes
    claims = [] if case.pod_only else [("ResourceClaim", claim) for claim in case.claims]
    for kind, name in [] if case.passing else [("Pod", POD), *claims]:
        eventually(
            lambda kind=kind, name=name: _is_said(_note(kube, case, kind, name), text),
            what=f"the Event on {kind} {name} says the same",
            within_s=60,  # ten of them until a pod that no scheduler considers counts as waiting
        )
    SEEN[case.name] = howto.events_block([*_kubernetes_events(kube, case), ("Warning", "ClaimPending", DRACO, text)])


def _is_said(note: str, text: str) -> bool:
    assert note == text
    return True


def _says(case: Case, text: str) -> str:
    missing = [part for part in case.says if part not in text]
    assert not missing, f"not said: {missing}; said: {text}"
    return text


def _passing(kube: Kubectl, case: Case) -> str:
    pending_cases.report(kube, case)
    return _says(case, _note(kube, case, "Pod", POD))


def _note(kube: Kubectl, case: Case, kind: str, name: str) -> str:
    notes = [
        event["note"]
        for event in pending_cases.events(kube, case)
        if event.get("reportingController") == DRACO
        and event["regarding"] | {"kind": kind, "name": name} == event["regarding"]
    ]
    assert len(notes) <= 1, notes
    return notes[0] if notes else ""


def _kubernetes_events(kube: Kubectl, case: Case) -> list[tuple[str, str, str, str]]:
    """The newest Event of Kubernetes that says what the case expects."""
    found = [
        event
        for event in pending_cases.events(kube, case)
        if event.get("reportingController") != DRACO and event["regarding"]["name"] == POD
    ]
    said = [(event["type"], event["reason"], event["reportingController"], event["note"]) for event in found]
    expected = [each for each in said if case.event and case.event in each[3]]
    parts = _of_the_scheduler(kube, case)
    expected += [each for each in said if parts and all(part in each[3] for part in parts)]
    return [(*each[:3], howto.without_preemption(each[3])) for each in expected[-1:]]


def fixed(kube: Kubectl, case: Case) -> None:
    """Apply the case's fix, and check that the pod is scheduled and the Events are withdrawn."""
    pending_cases.fix(kube, case)
    eventually(
        lambda: pending_cases.scheduled_condition(kube, case).get("status") == "True",
        what=f"pod {POD} of {case.name} is scheduled",
    )
    eventually(lambda: not _note(kube, case, "Pod", POD), what="the Event on the pod is taken back", within_s=60)
