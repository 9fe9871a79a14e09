"""What the webhook answers: advice where it has some, and in doubt that everything is allowed."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.allocation.fleet import Fleet
from draco.controller import admission
from draco.controller.admission import Admission, AdmissionMode, NotAReview, Outcome
from draco.controller.following import FollowedFleet
from draco.explanation.model import Problem, ProblemKind, SelectorRef
from draco.resources.claims import ResourceClaim
from tests.builders import a_claim
from tests.doubles.clock import ManualClock

OWN = SelectorRef(source="claim default/new", index=0, expression="device.x")
OF_CLASS = SelectorRef(source="class gpu.nvidia.com", index=0, expression="device.x")


class Lab:
    """An Admission before a fleet with these problems; each look takes `takes_s`."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        problems: Sequence[Problem] = (),
        *,
        mode: AdmissionMode = AdmissionMode.WARN,
        takes_s: float = 0.0,
        ready: bool = True,
    ) -> None:
        self.clock = ManualClock()
        self.followed = FollowedFleet()
        self.looks: list[ResourceClaim] = []
        self.takes_s = takes_s

        def problems_of(fleet: Fleet, claims: Sequence[ResourceClaim]) -> list[Problem]:
            assert fleet is self.followed.fleet
            self.looks += claims
            self.clock._elapsed += self.takes_s
            return list(problems)

        monkeypatch.setattr(admission, "problems_of", problems_of)
        self.admission = Admission(self.followed, mode=mode, ready=lambda: ready, clock=self.clock)

    def review(self, **request: Any) -> tuple[dict[str, Any], Outcome]:
        answer, outcome = self.admission.review(msgspec.json.encode({"request": {**a_request(), **request}}))
        decoded = msgspec.json.decode(answer)
        assert (decoded["apiVersion"], decoded["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert decoded["response"]["uid"] == "review-1"
        return decoded["response"], outcome


def a_request() -> dict[str, Any]:
    return {
        "uid": "review-1",
        "kind": {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"},
        "name": "new",
        "namespace": "default",
        "operation": "CREATE",
        "object": a_claim("new"),
        "oldObject": None,
    }


def a_problem(kind: ProblemKind = ProblemKind.SELECTOR_ERRORS, text: str = "it fails", **fields: Any) -> Problem:
    return Problem(kind=kind, text=text, **{"request": "gpu", "selector": OWN, **fields})


def test_each_problem_is_one_warning_with_what_to_write_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, [a_problem(remedy="write x"), a_problem(text="request gpu is odd")])
    response, outcome = lab.review()
    assert response == {
        "uid": "review-1",
        "allowed": True,
        "warnings": ["request gpu: it fails; write x", "request gpu is odd"],
    }
    assert outcome is Outcome.WARNED


def test_warnings_are_lines_that_the_api_server_does_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    long = a_problem(text="it fails\n" + "x" * 250, remedy="write\n" + "y" * 400)
    response, _ = Lab(monkeypatch, [long] * 20).review()
    assert len(response["warnings"]) == 10
    assert {len(warning) for warning in response["warnings"]} == {256}
    assert not any("\n" in warning for warning in response["warnings"])
    assert response["warnings"][1].startswith("write yyy")


@pytest.mark.parametrize(
    ("problem", "denied"),
    [
        (a_problem(), True),
        (a_problem(selector=OF_CLASS), False),
        (a_problem(ProblemKind.UNKNOWN_ATTRIBUTE), False),
        (a_problem(ProblemKind.CLASS_MISSING, selector=None), False),
    ],
)
@pytest.mark.parametrize("mode", list(AdmissionMode))
def test_only_a_selector_of_the_claim_that_fails_is_denied_and_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, problem: Problem, denied: bool, mode: AdmissionMode
) -> None:
    response, outcome = Lab(monkeypatch, [problem], mode=mode).review()
    denies = denied and mode is AdmissionMode.ENFORCE
    assert response["allowed"] is not denies
    assert outcome is (Outcome.DENIED if denies else Outcome.WARNED)
    if denies:
        assert response["status"] == {"code": 422, "reason": "Invalid", "message": "request gpu: it fails"}


def test_an_update_that_leaves_the_spec_as_it_was_is_never_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, [a_problem()], mode=AdmissionMode.ENFORCE)
    response, _ = lab.review(operation="UPDATE", oldObject=a_claim("new"))
    assert response["allowed"]
    response, _ = lab.review(operation="UPDATE", oldObject=a_claim("new", device_class="other"))
    assert not response["allowed"]


def test_a_template_is_reviewed_as_the_claim_that_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, [a_problem()])
    template = {"metadata": {"name": "new"}, "spec": {"spec": a_claim("any").spec}}
    _, outcome = lab.review(kind={"kind": "ResourceClaimTemplate"}, object=template)
    assert outcome is Outcome.WARNED
    assert [claim.spec for claim in lab.looks] == [a_claim("any").spec]


def test_advice_about_a_template_names_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = msgspec.structs.replace(a_problem(), text="selector #0 of claim default/new fails", claim="default/new")
    lab = Lab(monkeypatch, [problem])
    template = {"metadata": {"name": "new"}, "spec": {"spec": a_claim("new").spec}}
    of_template, _ = lab.review(kind={"kind": "ResourceClaimTemplate"}, object=template)
    assert "selector #0 of claim template default/new fails" in of_template["warnings"][0]
    of_claim, _ = lab.review()
    assert "selector #0 of claim default/new fails" in of_claim["warnings"][0]


@pytest.mark.parametrize(
    ("ready", "request_"),
    [
        (False, {}),
        (True, {"kind": {"kind": "Pod"}}),
        (True, {"object": None}),
        (True, {"object": {"spec": {"devices": {"requests": [{"name": 3}]}}}}),
    ],
)
def test_what_cannot_be_looked_at_is_allowed(
    monkeypatch: pytest.MonkeyPatch, ready: bool, request_: dict[str, Any]
) -> None:
    lab = Lab(monkeypatch, [a_problem()], mode=AdmissionMode.ENFORCE, ready=ready)
    with capture_logs():
        response, outcome = lab.review(**request_)
    assert (response, outcome) == ({"uid": "review-1", "allowed": True}, Outcome.UNSEEN)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"request": {"uid": 1}}', b"\xff"])
def test_what_is_no_review_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    with pytest.raises(NotAReview, match="takes an AdmissionReview"):
        Lab(monkeypatch).admission.review(body)


def test_the_same_question_is_answered_once_until_the_cluster_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, [a_problem()])
    assert [lab.review()[1] for _ in range(3)] == [Outcome.WARNED] * 3
    assert len(lab.looks) == 1
    lab.followed.version += 1
    lab.review()
    assert len(lab.looks) == 2


async def test_looks_take_half_of_one_processor_at_most_and_the_rest_is_let_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = Lab(monkeypatch, [a_problem()], takes_s=0.05)
    outcomes = []
    for number in range(2000):
        outcomes.append(lab.review(object=a_claim("new", device_class=f"class-{number}"))[1])
        await lab.clock.advance(0.01)
    elapsed_s = lab.clock.monotonic()
    assert len(lab.looks) * lab.takes_s <= elapsed_s / 2 + 0.6
    assert len(lab.looks) * lab.takes_s >= elapsed_s / 3
    assert set(outcomes) == {Outcome.WARNED, Outcome.UNSEEN}


def test_no_more_answers_are_remembered_than_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_REMEMBERED", 2)
    lab = Lab(monkeypatch, [a_problem()])
    for number in (0, 1, 2, 2, 1, 0):
        lab.review(object=a_claim("new", device_class=f"class-{number}"))
    asked = [claim.spec.devices.requests[0] for claim in lab.looks]
    assert [each.exactly and each.exactly.device_class_name for each in asked] == [
        f"class-{number}" for number in (0, 1, 2, 0)
    ]
