"""The webhook's answers: advice where it has some; in doubt, everything is allowed."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.controller.webhook import claim_advice
from draco.controller.webhook.admission_review import NotAReview, ReviewOutcome
from draco.controller.webhook.claim_advice import AdmissionMode, ClaimAdvice
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.controller.workers.messages import (
    Answer,
    CheckClaim,
    ClaimProblems,
    CostlySelector,
    Failed,
    OutOfMemory,
    OverBudget,
    Question,
)
from draco.controller.workers.places import Answered
from draco.explanation.model import Problem, ProblemKind, SelectorRef
from draco.resources.api.claims import ResourceClaim
from tests.builders import a_claim
from tests.doubles.workers import UnaskedWorkers

OWN = SelectorRef(source="claim default/new", index=0, expression="device.x")
OF_CLASS = SelectorRef(source="class gpu.nvidia.com", index=0, expression="device.x")


class Lab(UnaskedWorkers):
    """A ClaimAdvice with workers that find these problems, unless they are set to answer something else, or too late."""

    def __init__(
        self, problems: Sequence[Problem] = (), *, mode: AdmissionMode = AdmissionMode.WARN, ready: bool = True
    ) -> None:
        self.followed = FollowedFleet()
        self.looks: list[ResourceClaim] = []
        self.kinds: list[str] = []
        self.answer: Answer | None = ClaimProblems(list(problems))
        self.has_budget = True
        self.admission = ClaimAdvice(self.followed, self, mode=mode, ready=lambda: ready, within_s=1.5)

    def may_ask(self, namespace: str) -> bool:
        assert namespace == "default"
        return self.has_budget

    async def ask_within(
        self, question: Question, namespace: str, urgency: QueuePriority, within_s: float
    ) -> Answered | None:
        assert isinstance(question, CheckClaim)
        assert (namespace, urgency, within_s) == ("default", QueuePriority.REVIEW, 1.5)
        self.looks.append(question.claim)
        self.kinds.append(question.kind)
        return Answered(self.answer, self.followed.version, 0.0) if self.answer is not None else None

    async def review(self, **request: Any) -> tuple[dict[str, Any], ReviewOutcome]:
        answer, outcome = await self.admission.review(msgspec.json.encode({"request": {**a_request(), **request}}))
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


async def test_each_problem_is_one_warning_with_what_to_write_instead() -> None:
    lab = Lab([a_problem(remedy="write x"), a_problem(text="request gpu is odd")])
    response, outcome = await lab.review()
    assert response == {
        "uid": "review-1",
        "allowed": True,
        "warnings": ["request gpu: it fails; write x", "request gpu is odd"],
    }
    assert outcome is ReviewOutcome.WARNED


async def test_warnings_are_lines_that_the_api_server_does_not_cut() -> None:
    long = a_problem(text="it fails\n" + "x" * 250, remedy="write\n" + "y" * 400)
    response, _ = await Lab([long] * 20).review()
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
        (a_problem(ProblemKind.CONFIGURATION_REFUSED, selector=None), True),
        (a_problem(ProblemKind.CONFIGURATION_REFUSED, selector=None, is_of_class=True), False),
        (a_problem(ProblemKind.DEVICES_UNABLE, selector=None), False),
    ],
)
@pytest.mark.parametrize("mode", list(AdmissionMode))
async def test_only_what_fails_of_the_claim_itself_is_denied_and_only_where_that_is_asked_for(
    problem: Problem, denied: bool, mode: AdmissionMode
) -> None:
    response, outcome = await Lab([problem], mode=mode).review()
    denies = denied and mode is AdmissionMode.ENFORCE
    assert response["allowed"] is not denies
    assert outcome is (ReviewOutcome.DENIED if denies else ReviewOutcome.WARNED)
    if denies:
        assert response["status"] == {"code": 422, "reason": "Invalid", "message": "request gpu: it fails"}


async def test_an_update_that_leaves_the_spec_as_it_was_is_never_denied() -> None:
    lab = Lab([a_problem()], mode=AdmissionMode.ENFORCE)
    response, _ = await lab.review(operation="UPDATE", oldObject=a_claim("new"))
    assert response["allowed"]
    response, _ = await lab.review(operation="UPDATE", oldObject=a_claim("new", device_class="other"))
    assert not response["allowed"]


async def test_a_template_is_reviewed_as_the_claim_that_it_makes() -> None:
    lab = Lab([a_problem()])
    template = {"metadata": {"name": "new"}, "spec": {"spec": a_claim("any").spec}}
    _, outcome = await lab.review(kind={"kind": "ResourceClaimTemplate"}, object=template)
    assert outcome is ReviewOutcome.WARNED
    assert [claim.spec for claim in lab.looks] == [a_claim("any").spec]


async def test_advice_about_a_template_is_asked_for_as_such_and_apart_from_that_about_a_claim() -> None:
    lab = Lab([a_problem()])
    template = {"metadata": {"name": "new"}, "spec": {"spec": a_claim("new").spec}}
    for _ in range(2):
        await lab.review(kind={"kind": "ResourceClaimTemplate"}, object=template)
        await lab.review()
    assert lab.kinds == ["claim template", "claim"]


@pytest.mark.parametrize(
    ("ready", "request_"),
    [
        (False, {}),
        (True, {"kind": {"kind": "Pod"}}),
        (True, {"object": None}),
        (True, {"object": {"spec": {"devices": {"requests": [{"name": 3}]}}}}),
    ],
)
async def test_what_cannot_be_looked_at_is_allowed(ready: bool, request_: dict[str, Any]) -> None:
    lab = Lab([a_problem()], mode=AdmissionMode.ENFORCE, ready=ready)
    with capture_logs():
        response, outcome = await lab.review(**request_)
    assert (response, outcome) == ({"uid": "review-1", "allowed": True}, ReviewOutcome.UNSEEN)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"request": {"uid": 1}}', b"\xff"])
async def test_what_is_no_review_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    with pytest.raises(NotAReview, match="takes an AdmissionReview"):
        await Lab().admission.review(body)


async def test_the_same_question_is_answered_once_until_the_cluster_changes() -> None:
    lab = Lab([a_problem()])
    assert [(await lab.review())[1] for _ in range(3)] == [ReviewOutcome.WARNED] * 3
    assert len(lab.looks) == 1
    lab.followed.version += 1
    await lab.review()
    assert len(lab.looks) == 2


OVER_BUDGET = OverBudget(CostlySelector(0, "gpu", "", 2, 423_456), 800)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            OVER_BUDGET,
            "selector #2 of request gpu of claim default/new takes about 420,000 steps on each of 800 devices; simplify it",
        ),
        (OutOfMemory(), "checking it needs more than 384 MiB of memory; split the claim"),
        (Failed("its process died"), "the check failed (its process died); Draco tries again later"),
        (None, "it takes longer than 1.5 s; the claim is stored anyway"),
    ],
)
async def test_a_claim_that_nobody_could_look_at_in_time_is_allowed_with_a_warning(
    answer: Answer | None, said: str
) -> None:
    lab = Lab([a_problem()], mode=AdmissionMode.ENFORCE)
    lab.answer = answer
    response, outcome = await lab.review()
    assert response == {"uid": "review-1", "allowed": True, "warnings": [f"Draco did not check it: {said}"]}
    assert outcome is ReviewOutcome.UNSEEN


async def test_nobody_looks_for_a_namespace_that_has_used_up_its_budget() -> None:
    lab = Lab([a_problem()], mode=AdmissionMode.ENFORCE)
    lab.has_budget = False
    response, outcome = await lab.review()
    assert (response["allowed"], outcome, lab.looks) == (True, ReviewOutcome.UNSEEN, [])
    assert response["warnings"] == [
        "Draco did not check it: the namespace has used up its budget for advice; the claim is stored anyway"
    ]


async def test_no_more_answers_are_remembered_than_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_advice, "_REMEMBERED", 2)
    lab = Lab([a_problem()])
    for number in (0, 1, 2, 2, 1, 0):
        await lab.review(object=a_claim("new", device_class=f"class-{number}"))
    asked = [claim.spec.devices.requests[0] for claim in lab.looks]
    assert [each.exactly and each.exactly.device_class_name for each in asked] == [
        f"class-{number}" for number in (0, 1, 2, 0)
    ]
