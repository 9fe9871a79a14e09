"""Answers the admission webhook for claims with warnings that kubectl shows to the author.

Owns the evaluation of an AdmissionReview, the answer, and its time limit. Workers find the problems, in processes of their own.
In doubt everything is allowed: a malformed request, an unreadable claim, a fleet not known yet, a claim that is too costly or not
checked in time. A claim is denied only if one of its own selectors fails on published devices, or if its own configuration is
refused on all that it selects, and only where that is configured.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec
import structlog
from cachetools import LRUCache

from draco.controller.webhook.admission_review import (
    MOST_WARNINGS,
    WARNING_CHARACTERS,
    AdmissionRequest,
    ReviewOutcome,
    answer_to,
    changes_spec,
    read_review,
)
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.controller.workers.messages import CheckClaim, ClaimProblems, Failed, OutOfMemory, OverBudget, refusal
from draco.controller.workers.pool import Workers
from draco.explanation.model import Problem, ProblemKind
from draco.resources.api.claims import ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate
from draco.resources.api.foreign import read
from draco.resources.api.meta import ObjectMeta
from draco.resources.errors import DracoError
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS

log = structlog.get_logger(__name__)

_REMEMBERED = 256


class AdmissionMode(StrEnum):
    """What happens to a claim whose selector fails on published devices, or whose configuration all of them refuse."""

    WARN = "Warn"
    ENFORCE = "Enforce"


_claim_decoder = msgspec.json.Decoder(ResourceClaim)
_template_decoder = msgspec.json.Decoder(ResourceClaimTemplate)


class _Advice(msgspec.Struct, frozen=True):
    """The advice on a claim; `unseen` says why there is none."""

    problems: Sequence[Problem] = ()
    unseen: str | None = None


class ClaimAdvice:
    """Reviews claims and templates, each within `within_s`. `ready` says whether the whole fleet is known."""

    def __init__(
        self,
        followed: FollowedFleet,
        workers: Workers,
        *,
        mode: AdmissionMode,
        ready: Callable[[], bool],
        within_s: float,
    ) -> None:
        self._followed = followed
        self._workers = workers
        self._mode = mode
        self._ready = ready
        self._within_s = within_s
        self._known: LRUCache[bytes, Sequence[Problem]] = LRUCache(_REMEMBERED)  # for `_known_version`
        self._known_version = -1

    async def review(self, body: bytes) -> tuple[bytes, ReviewOutcome]:
        """The answer to an AdmissionReview. Raises NotAReview."""
        request = read_review(body)
        advice = await self._advise(request)
        if advice.unseen is not None:
            return answer_to(
                request, [f"Draco did not check it: {advice.unseen}"] if advice.unseen else []
            ), ReviewOutcome.UNSEEN
        fatal = [problem for problem in advice.problems if _is_deniable(problem)]
        if fatal and self._mode is AdmissionMode.ENFORCE and changes_spec(request):
            return answer_to(request, [], denied=". ".join(map(_sentence, fatal))), ReviewOutcome.DENIED
        return answer_to(
            request, _warnings(advice.problems)
        ), ReviewOutcome.WARNED if advice.problems else ReviewOutcome.CLEAN

    async def _advise(self, request: AdmissionRequest) -> _Advice:
        if not self._ready():
            return _Advice(unseen="")
        try:
            claim = _claim(request)
        except (msgspec.DecodeError, DracoError) as error:
            log.warning("admission.unreadable", kind=request.kind.kind, namespace=request.namespace, error=str(error))
            return _Advice(unseen="")
        if claim is None:
            return _Advice(unseen="")
        kind = "claim template" if request.kind.kind == CLAIM_TEMPLATES.kind else "claim"
        return await self._at_claim(claim, kind)

    async def _at_claim(self, claim: ResourceClaim, kind: str) -> _Advice:
        question = msgspec.json.encode((kind, claim.metadata.key, claim.spec))
        if (known := self._remembered(question)) is not None:
            return _Advice(known)
        if not self._workers.may_ask(claim.metadata.namespace):
            return _Advice(unseen="the namespace has used up its budget for advice; the claim is stored anyway")
        answered = await self._workers.ask_within(
            CheckClaim(claim, kind), claim.metadata.namespace, QueuePriority.REVIEW, self._within_s
        )
        if answered is None:
            return _Advice(unseen=f"it takes longer than {self._within_s:g} s; the claim is stored anyway")
        match answered.answer:
            case ClaimProblems(problems):
                self._remember(question, problems, answered.version)
                return _Advice(problems)
            case OverBudget() | OutOfMemory() | Failed() as why:
                return _Advice(unseen=refusal(why, [claim], self._workers.long_cpu_s))
        raise TypeError(f"{answered.answer} is the answer to another question")

    def _remembered(self, question: bytes) -> Sequence[Problem] | None:
        if self._known_version != self._followed.version:
            self._known.clear()
            self._known_version = self._followed.version
        return self._known.get(question)

    def _remember(self, question: bytes, problems: Sequence[Problem], version: int) -> None:
        if self._known_version == self._followed.version == version:
            self._known[question] = problems


def _claim(request: AdmissionRequest) -> ResourceClaim | None:
    """The claim, or the one that the template makes; None for anything else."""
    named = ObjectMeta(name=request.name or "new", namespace=request.namespace)
    spec: ResourceClaimSpec
    if request.kind.kind == CLAIMS.kind:
        spec = read(_claim_decoder, request.object).spec
    elif request.kind.kind == CLAIM_TEMPLATES.kind:
        spec = read(_template_decoder, request.object).spec.spec
    else:
        return None
    return ResourceClaim(metadata=named, spec=spec)


def _is_deniable(problem: Problem) -> bool:
    """Whether a part of the claim itself fails its pods. Its author cannot correct a DeviceClass."""
    if problem.kind is ProblemKind.CONFIGURATION_REFUSED:
        return not problem.is_of_class
    is_own = problem.selector is not None and not problem.selector.class_name
    return is_own and problem.kind is ProblemKind.SELECTOR_ERRORS


def _sentence(problem: Problem) -> str:
    request = f"request {problem.request}: " if problem.request and problem.request not in problem.text else ""
    remedy = f"; {problem.remedy}" if problem.remedy else ""
    return f"{request}{problem.text}{remedy}"  # no full stop: a remedy may end with code to copy


def _warnings(problems: Sequence[Problem]) -> list[str]:
    """One per problem; its remedy is separate if both would be cut."""
    said: list[str] = []
    for problem in problems:
        whole = _sentence(problem)
        if len(whole) > WARNING_CHARACTERS and problem.remedy:
            said += [_sentence(msgspec.structs.replace(problem, remedy="")), problem.remedy]
        else:
            said.append(whole)
    return said[:MOST_WARNINGS]
