"""Answers questions, each within a budget of CPU time.

Owns the fleet built from changes (`FleetFeed`), and what a child of the fleet process does with it: one question at a time. Of a
row of questions it starts no further one once they have used the budget of one, so the next asker waits for two at most. An
answer over budget leaves the fleet in an undefined state, so the child reports that, with the selector that costs most on a few
devices, and exits. For a call that cannot be interrupted the kernel kills the child a moment later.
"""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from types import FrameType
from typing import Any, Final, NoReturn, Self, TypeVar
from uuid import uuid4

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.cel.errors import CompileError, EvaluationError
from draco.cel.selector import Selector, compile_selector
from draco.cel.values.device import DeviceVariable, device_view
from draco.controller.workers import messages
from draco.explanation.explain import explain
from draco.explanation.model import Explanation
from draco.explanation.problems.claims import problems_of
from draco.mig.known_boards import BOARDS, MODELS
from draco.mig_policy.releases import plan_release
from draco.placing.groups.place import place
from draco.placing.preempting.victim_selection import plan_preemption
from draco.placing.search.best import BestPlacer
from draco.resources.api.claims import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from draco.resources.api.core import Pod, PodSpec, Toleration
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.errors import DracoError
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, NODES, SLICES, TAINT_RULES, Kind
from draco.resources.written.sharing import Shared

R = TypeVar("R")

_LOOKING_FOR_THE_CAUSE_S: Final = 0.5
_NOBODYS: Final = "draco-warm-up"
_ANYONES: Final = [
    Toleration(key=f"node.kubernetes.io/{condition}", operator="Exists", effect="NoExecute")
    for condition in ("not-ready", "unreachable")
]
"""The API server's default tolerations of pods."""
_PRODUCTS: Final = frozenset(model.product_name for model in MODELS.values())
_PROFILES: Final = frozenset(profile.name for board in BOARDS.values() for profile in board.profiles)
_AGAIN_S: Final = 0.05
"""Interval of further signals, in case the exception was raised where it is lost."""
_KILLED_AFTER_S: Final = 2
"""CPU seconds over the budget after which the kernel kills the child."""


class BudgetUsedUp(BaseException):
    """A BaseException, so that no `except Exception` on the way swallows it."""


def answer(placer: BestPlacer, question: messages.Question) -> messages.Answer:
    """The answer, without a budget."""
    fleet = placer.fleet
    if isinstance(question, messages.ExplainPending):
        return _why_waiting(fleet, question)
    if isinstance(question, messages.CheckClaim):
        return messages.ClaimProblems(problems_of(fleet, [question.claim], kind=question.kind))
    if isinstance(question, messages.PlaceClaims):
        return messages.PlacementAnswer(place(placer, question.groups, question.held, spread=question.spread))
    if isinstance(question, messages.PlanPreemption):
        return messages.PreemptionAnswer(
            plan_preemption(placer, question.wanted, question.held, spread=question.spread)
        )
    return messages.ReleaseAnswer(plan_release(fleet, question.pod, question.claims, dict(question.movable)))


def _why_waiting(fleet: Fleet, question: messages.ExplainPending) -> messages.PendingAnswer:
    try:
        explanation = explain(
            fleet, question.claims, pod=question.pod, scheduler=question.scheduler, minor=question.minor
        )
    except DracoError as error:
        # A published object cannot be read. The pods that wait for it get that as an answer; all others are still explained.
        return messages.PendingAnswer(f"Cannot be explained: {error}", "Unknown")
    return messages.PendingAnswer(
        str(explanation),
        str(explanation.reason),
        _unmet(explanation, question.claims),
        explanation.names_subject,
        explanation.names_group,
    )


def _unmet(explanation: Explanation, claims: Sequence[ResourceClaim]) -> list[messages.UnmetDevices]:
    places = {str(claim.metadata.key): place for place, claim in enumerate(claims)}
    return [
        messages.UnmetDevices(
            places[each.claim],
            each.device_class,
            each.product if each.published or each.product in _PRODUCTS else "",
            each.profile if each.published or each.profile in _PROFILES else "",
            each.count,
        )
        for each in explanation.unmet
    ]


def answer_within(
    placer: BestPlacer, question: messages.Question, cpu_s: float, *, is_last: bool = False
) -> messages.Answer:
    """The answer, or why there is none. After OverBudget and OutOfMemory the fleet must not be used again."""
    try:
        return _limited(lambda: answer(placer, question), cpu_s)
    except BudgetUsedUp:
        return _why_over_budget(placer.fleet, question) if is_last else messages.OverBudget(None, 0)
    except MemoryError:
        return messages.OutOfMemory()
    except Exception as error:  # noqa: BLE001 - the outermost loop: the operator reports it, and asks another child next time
        return messages.Failed(f"{type(error).__name__}: {error}")


def _why_over_budget(fleet: Fleet, question: messages.Question) -> messages.OverBudget:
    costliest = CostliestSelector(fleet, messages.claims_of(question))
    with suppress(BudgetUsedUp, MemoryError):  # report what was found so far
        _limited(costliest.look, _LOOKING_FOR_THE_CAUSE_S)
    return messages.OverBudget(costliest.found, len(fleet.inventory))


def _limited(work: Callable[[], R], cpu_s: float) -> R:
    """Run the work. Raises BudgetUsedUp after `cpu_s` of CPU time."""
    hard_s = int(time.process_time() + cpu_s) + _KILLED_AFTER_S
    resource.setrlimit(resource.RLIMIT_CPU, (hard_s, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.signal(signal.SIGPROF, _use_up)
    signal.setitimer(signal.ITIMER_PROF, cpu_s, _AGAIN_S)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _use_up(_: int, __: FrameType | None) -> NoReturn:
    raise BudgetUsedUp


def warm_up(fleet: Fleet) -> None:
    """Compute in advance what every explanation needs and no user influences, on nobody's budget."""
    asked = ExactDeviceRequest(device_class_name=_NOBODYS, selectors=[])
    claim = ResourceClaim(
        metadata=ObjectMeta(name=_NOBODYS),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=[DeviceRequest(name=_NOBODYS, exactly=asked)])),
    )
    fleet.put_class(DeviceClass(metadata=ObjectMeta(name=_NOBODYS)))
    with suppress(Exception):  # the next question will meet it
        explain(fleet, [claim], pod=Pod(metadata=ObjectMeta(name=_NOBODYS), spec=PodSpec(tolerations=_ANYONES)))
    fleet.remove_class(_NOBODYS)


class FleetFeed:
    """Applies changes of each kind to the fleet."""

    def __init__(self, left_out: Callable[[messages.SkippedObject], None]) -> None:
        self.fleet = fleet = Fleet()
        self.placer = BestPlacer(fleet, share_ids=(str(uuid4()) for _ in count()))
        self.version = 0
        self._left_out = left_out
        self._shared = Shared()
        kinds: Sequence[tuple[Kind[Any], Callable[[Any], None], Callable[[ObjectKey], None]]] = (
            (SLICES, fleet.put_slice, lambda key: fleet.remove_slice(key.name)),
            (TAINT_RULES[0], fleet.put_rule, lambda key: fleet.remove_rule(key.name)),
            (NODES, fleet.put_node, lambda key: fleet.remove_node(key.name)),
            (DEVICE_CLASSES, fleet.put_class, lambda key: fleet.remove_class(key.name)),
            (CLAIMS, self.placer.put, self.placer.remove),
        )
        self._kinds = {kind.kind: (msgspec.msgpack.Decoder(kind.type), put, remove) for kind, put, remove in kinds}

    def take(self, changes: messages.Changes) -> None:
        """Apply changes."""
        for change in changes.changes:
            decoder, put, remove = self._kinds[change.kind]
            if change.kind != CLAIMS.kind:
                self.placer.forget()
            if not isinstance(change, messages.PutObject):
                remove(change.key)
                continue
            found = self._shared.of(decoder.decode(change.body))
            try:
                put(found)
            except DracoError as error:
                remove(found.metadata.key)
                self._left_out(messages.SkippedObject(change.kind, found.metadata.key, str(error)))
        self.version = changes.version

    def follow(self) -> Self:
        """The same feed for a child: unreadable objects have already been reported."""
        self._left_out = lambda _: None
        return self


def serve(feed: FleetFeed, questions: int, answers: int) -> NoReturn:
    """Apply changes and answer questions from one pipe into the other, until it ends."""
    frames = messages.FrameReader()
    while data := os.read(questions, 1 << 20):
        for body in frames.feed(data):
            message = messages.inward(body)
            if isinstance(message, messages.Changes):
                feed.take(message)
                continue
            for reply in _answers(feed, message):
                messages.write(answers, reply)
                if isinstance(reply.answer, messages.NoAnswer):
                    os._exit(0)
    os._exit(0)


def _answers(feed: FleetFeed, asked: messages.AskQuestions) -> Iterator[messages.Reply]:
    """The reply to each question in turn; iteration must stop after NoAnswer."""
    row_began_s = time.process_time()
    for number, question in asked.questions:
        began_s = time.process_time()
        if began_s - row_began_s >= asked.cpu_s:
            yield messages.Reply(number, messages.NotReached(), feed.version, 0.0)
            continue
        answered = answer_within(feed.placer, question, asked.cpu_s, is_last=asked.is_last)
        yield messages.Reply(number, answered, feed.version, time.process_time() - began_s)


_WORTH_NAMING: Final = 2_000
_SAMPLES: Final = 3


class CostliestSelector:
    """The costliest selector found so far; readable even if `look` was interrupted."""

    def __init__(self, fleet: Fleet, claims: list[ResourceClaim]) -> None:
        self._fleet = fleet
        self._claims = claims
        self.found: messages.CostlySelector | None = None

    def look(self) -> None:
        """Evaluate every selector on some devices."""
        views = list(self._samples())
        for named, selector in self._selectors():
            if selector.cel is None:
                continue
            try:
                compiled = compile_selector(selector.cel.expression)
            except CompileError:
                continue
            steps = max((_steps(compiled, view) for view in views), default=0)
            if steps >= _WORTH_NAMING and (self.found is None or steps > self.found.steps):
                self.found = messages.CostlySelector(*named, steps)

    def _samples(self) -> Iterator[DeviceVariable]:
        columns = self._fleet.inventory.columns
        rows = [row for row, live in enumerate(columns.live) if live]
        for row in {rows[each * (len(rows) - 1) // (_SAMPLES - 1)] for each in range(_SAMPLES)} if rows else ():
            device = columns.devices[row]
            if device is None:
                continue
            try:
                yield device_view(columns.drivers[row], device)
            except EvaluationError:
                continue  # every selector fails on it immediately

    def _selectors(self) -> Iterator[tuple[tuple[int, str, str, int], DeviceSelector]]:
        for index, claim in enumerate(self._claims):
            for request in claim.spec.devices.requests:
                for asked in (request.exactly, *request.first_available):
                    if asked is None:
                        continue
                    device_class = self._fleet.classes.get(asked.device_class_name)
                    of_class = device_class.spec.selectors if device_class is not None else []
                    for number, selector in enumerate(asked.selectors):
                        yield (index, request.name, "", number), selector
                    for number, selector in enumerate(of_class):
                        yield (index, "", asked.device_class_name, number), selector


def _steps(selector: Selector, view: DeviceVariable) -> int:
    try:
        return selector.cost(view)
    except EvaluationError as error:
        return messages.MOST_STEPS if "cost limit" in str(error) else 0
