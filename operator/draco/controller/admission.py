"""What an author of a claim is told when the claim is written: warnings that kubectl shows at once.

Owns the reading of an AdmissionReview, the answer, and how much of the processor goes into answers. What is wrong with a claim is
found by `draco.explanation.problems`. In doubt everything is allowed and nothing said: a request that is not understood, a claim
that cannot be read, a fleet that is not known yet, more requests than can be looked at. Only a selector of the claim itself that
fails on published devices is ever denied, and only where that is asked for.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import structlog

from draco.controller.following import FollowedFleet
from draco.explanation.model import Problem, ProblemKind
from draco.explanation.problems import problems_of
from draco.kube.clock import Clock
from draco.resources.base import ApiStruct
from draco.resources.claims import ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate
from draco.resources.errors import DracoError
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS
from draco.resources.meta import ObjectMeta

log = structlog.get_logger(__name__)

_WARNING_CHARACTERS = 256
"""The API server may cut longer ones."""
_MOST_WARNINGS = 10
_REMEMBERED = 256
_REST = 1.0
_LONGEST_REST_S = 1.0
"""Each look is owed a rest as long as itself. While more than this is owed, claims are let pass unseen: looks take half of one
processor at most, in bursts of half a second."""


class AdmissionMode(StrEnum):
    """What happens to a claim whose selector fails on published devices."""

    WARN = "Warn"
    """It is stored, with a warning."""
    ENFORCE = "Enforce"
    """It is denied."""


class Outcome(StrEnum):
    """What came of one review, for metrics."""

    CLEAN = "clean"
    WARNED = "warned"
    DENIED = "denied"
    UNSEEN = "unseen"
    """Allowed without a look: not readable, not known enough yet, or too many at once."""


class NotAReview(DracoError):
    """The body of a request is no AdmissionReview."""


class _ReviewedKind(ApiStruct, frozen=True, kw_only=True):
    kind: str = ""


class _Request(ApiStruct, frozen=True, kw_only=True):
    uid: str
    kind: _ReviewedKind = _ReviewedKind()
    name: str = ""
    namespace: str = ""
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(ApiStruct, frozen=True, kw_only=True):
    request: _Request


class Admission:
    """Reviews of claims and templates against one fleet. `ready` says whether all of it is known."""

    def __init__(
        self, followed: FollowedFleet, *, mode: AdmissionMode, ready: Callable[[], bool], clock: Clock
    ) -> None:
        self._followed = followed
        self._mode = mode
        self._ready = ready
        self._clock = clock
        self._rested_at_s = 0.0
        self._known: OrderedDict[bytes, list[Problem]] = OrderedDict()  # of `_known_version`, the oldest first
        self._known_version = -1

    def review(self, body: bytes) -> tuple[bytes, Outcome]:
        """The answer to an AdmissionReview. Raises NotAReview."""
        try:
            request = msgspec.json.decode(body, type=_Review).request
        except msgspec.DecodeError as error:
            raise NotAReview(f"this endpoint takes an AdmissionReview of admission.k8s.io/v1 ({error})") from error
        problems = self._problems(request)
        if problems is None:
            return _answer(request, []), Outcome.UNSEEN
        fatal = [problem for problem in problems if _is_deniable(problem)]
        if fatal and self._mode is AdmissionMode.ENFORCE and _may_deny(request):
            return _answer(request, [], denied=". ".join(map(_sentence, fatal))), Outcome.DENIED
        return _answer(request, problems), Outcome.WARNED if problems else Outcome.CLEAN

    def _problems(self, request: _Request) -> Sequence[Problem] | None:
        """What is wrong with the claim of the request; None when nobody looked."""
        if not self._ready():
            return None
        try:
            claim = _claim(request)
            problems = self._of_claim(claim) if claim is not None else None
        except (msgspec.DecodeError, DracoError) as error:
            log.warning("admission.unreadable", kind=request.kind.kind, namespace=request.namespace, error=str(error))
            return None
        if problems and request.kind.kind == CLAIM_TEMPLATES.kind:
            return [_of_template(problem) for problem in problems]
        return problems

    def _of_claim(self, claim: ResourceClaim) -> Sequence[Problem] | None:
        question = msgspec.json.encode((claim.metadata.key, claim.spec))
        if (known := self._remembered(question)) is not None:
            return known
        started_s = self._clock.monotonic()
        if self._rested_at_s - started_s > _LONGEST_REST_S:
            return None
        problems = problems_of(self._followed.fleet, [claim])
        took_s = self._clock.monotonic() - started_s
        self._rested_at_s = max(self._rested_at_s, started_s) + (1 + _REST) * took_s
        self._remember(question, problems)
        return problems

    def _remembered(self, question: bytes) -> list[Problem] | None:
        if self._known_version != self._followed.version:
            self._known.clear()
            self._known_version = self._followed.version
        return self._known.get(question)

    def _remember(self, question: bytes, problems: list[Problem]) -> None:
        if self._known_version == self._followed.version:
            self._known[question] = problems
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)


def _claim(request: _Request) -> ResourceClaim | None:
    """The claim of the request, or the one that its template makes; None for anything else."""
    named = ObjectMeta(name=request.name or "new", namespace=request.namespace)
    spec: ResourceClaimSpec
    if request.kind.kind == CLAIMS.kind:
        spec = msgspec.json.decode(request.object, type=ResourceClaim).spec
    elif request.kind.kind == CLAIM_TEMPLATES.kind:
        spec = msgspec.json.decode(request.object, type=ResourceClaimTemplate).spec.spec
    else:
        return None
    return ResourceClaim(metadata=named, spec=spec)


def _may_deny(request: _Request) -> bool:
    """Not what leaves the spec as it was: a finalizer must always come off."""
    if request.operation == "CREATE":
        return True
    return bool(_spec(request.object) != _spec(request.old_object))


def _spec(raw: msgspec.Raw) -> Any:
    decoded = msgspec.json.decode(raw)
    return decoded.get("spec") if isinstance(decoded, dict) else None


def _is_deniable(problem: Problem) -> bool:
    # The selector of a class is not for the author of the claim to put right.
    mine = problem.selector is not None and problem.selector.source.startswith("claim ")
    return mine and problem.kind is ProblemKind.SELECTOR_ERRORS


def _of_template(problem: Problem) -> Problem:
    """As told to the author of a template: there is no claim of that name."""
    text = problem.text.replace(f"claim {problem.claim}", f"claim template {problem.claim}")
    return msgspec.structs.replace(problem, text=text)


def _sentence(problem: Problem) -> str:
    request = f"request {problem.request}: " if problem.request and problem.request not in problem.text else ""
    remedy = f"; {problem.remedy}" if problem.remedy else ""
    return f"{request}{problem.text}{remedy}"  # no full stop: a remedy may end with code that is copied


def _warnings(problems: Sequence[Problem]) -> list[str]:
    """One for each problem; its remedy is one of its own where both would be cut."""
    said: list[str] = []
    for problem in problems:
        whole = _sentence(problem)
        if len(whole) > _WARNING_CHARACTERS and problem.remedy:
            said += [_sentence(msgspec.structs.replace(problem, remedy="")), problem.remedy]
        else:
            said.append(whole)
    return [_short(each) for each in said[:_MOST_WARNINGS]]


def _short(text: str) -> str:
    flat = " ".join(text.split())  # a warning is one line of a header
    return flat if len(flat) <= _WARNING_CHARACTERS else f"{flat[: _WARNING_CHARACTERS - 1]}…"


def _answer(request: _Request, problems: Sequence[Problem], *, denied: str = "") -> bytes:
    response: dict[str, Any] = {"uid": request.uid, "allowed": not denied}
    if denied:
        response["status"] = {"code": 422, "reason": "Invalid", "message": denied}
    if problems:
        response["warnings"] = _warnings(problems)
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
