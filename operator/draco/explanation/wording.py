"""Sentences: an explanation in plain words.

Owns the wording, the order of what is said in one paragraph, and what is left out when there is too much. Decides nothing.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from draco.explanation.model import (
    Cause,
    CauseCount,
    Explanation,
    Holder,
    NodeCause,
    NodeReason,
    Problem,
    ProblemKind,
    Reason,
    RequestExplanation,
    SeenValue,
    SelectorRef,
)
from draco.resources.texts import shown

MAX_SUMMARY: Final = 1000
"""Characters of an Event's note, less some."""
_NAMED: Final = 3
_QUOTED: Final = 100
_SCHEDULER_TEXT: Final = 200
_PREEMPTION: Final = re.compile(r"(?: [^.]*,)? preemption: .*", re.DOTALL)
"""What the scheduler says of preemption, which does nothing for devices."""
_PLAIN: Final = {
    Cause.NO_NODE: "published for no node that exists",
    Cause.NODE_RULES: "on nodes to which the pod cannot go",
    Cause.FREE: "free",
}


def counted(number: int, what: str) -> str:
    """A number of things: "1 device", "2 devices"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def some(names: Sequence[str], total: int = 0) -> str:
    """The first names, and how many more there are."""
    left = max(total, len(names)) - min(len(names), _NAMED)
    return ", ".join(names[:_NAMED]) + (f" and {left} more" if left else "")


def shortened(text: str, limit: int = _QUOTED) -> str:
    """One line of at most so many characters."""
    flat = " ".join(shown(text).split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1].rstrip()}…"


def selector_text(selector: SelectorRef) -> str:
    """A selector, named by whose it is."""
    kind, _, name = selector.source.partition(" ")
    whose = f"class {name}" if kind == "class" else "the claim"
    return f"the selector of {whose} `{shortened(selector.expression)}`"


def cause_text(count: CauseCount) -> str:
    """What is told of some devices, to follow "2 are" or "1 is"."""
    plain = _PLAIN.get(count.cause)
    return plain if plain is not None else _particular(count)


def _particular(count: CauseCount) -> str:
    selector = selector_text(count.selector) if count.selector is not None else "a selector"
    text = str(count.cause)
    match count.cause:
        case Cause.NOT_SELECTED:
            text = f"not selected by {selector}{_values(count.values)}"
        case Cause.SELECTOR_FAILED:
            text = f"such that {selector} fails ({shortened(count.error)})"
        case Cause.IN_USE:
            text = f"in use by {_holders(count)}"
        case Cause.TAINTED:
            taints = [each.taint + (f" (rule {each.rule})" if each.rule else "") for each in count.taints]
            text = f"tainted {' and '.join(taints)}"
        case Cause.POOL_INCOMPLETE:
            text = f"in pools of which slices are missing ({some(count.pools)})"
        case Cause.POOL_OBSOLETE:
            newer = f", which is {count.newer}" if count.newer else ""
            text = f"in slices of an older generation than their pool's newest{newer}"
        case Cause.POOL_INVALID:
            text = f"in pools that contradict themselves ({some(count.pools)})"
        case Cause.CONSTRAINT:
            text = f"without {count.constraint}, which a constraint of the claim compares"
        case Cause.COUNTERS_SHORT | Cause.CAPACITY_SHORT:
            text = _shortage(count)
    return text


def _shortage(count: CauseCount) -> str:
    short = count.shortage
    if short is None:
        return f"not to be asked for such an amount ({shortened(count.error)})" if count.error else "short of counters"
    if count.cause is Cause.COUNTERS_SHORT:
        takers = f", taken by {some(short.takers)}" if short.takers else ""
        return f"short of counter {short.name}: {short.needed} needed, {short.left} of {short.total} left{takers}"
    if not short.total:
        return f"without capacity {short.name}, of which {short.needed} is asked for"
    if not short.left:
        return f"not to be asked for {short.needed} of {short.name}: their request policy forbids it"
    takers = f", the rest taken by {some(short.takers)}" if short.takers else ""
    return f"short of {short.name}: {short.needed} needed, {short.left} of {short.total} left{takers}"


def _values(values: Sequence[SeenValue]) -> str:
    """What the devices have instead, of the first thing that is read."""
    if not values:
        return ""
    path = values[0].path
    name = path.rpartition(".")[2] if '"]["' not in path else path.rpartition('["')[2].removesuffix('"]')
    seen = [each.value or "not there" for each in values if each.path == path]
    return (
        f" ({name} is {' or '.join(shortened(each, 40) for each in seen[:_NAMED])}{' or other' * (len(seen) > _NAMED)})"
    )


def _holders(count: CauseCount) -> str:
    if not count.holders:
        return "other claims"
    names = [_holder(each) for each in count.holders]
    if count.holders_total:
        return some(names, count.holders_total)
    return f"claims such as {', '.join(names[:_NAMED])}"


def _holder(holder: Holder) -> str:
    if holder.idle:
        return f"{holder.claim} (idle: no pod uses it)"
    return f"{holder.claim} ({some(holder.consumers)})"


def request_text(request: RequestExplanation) -> str:
    """The devices of one request, by what stands in their way. Those that its class does not mean are left out."""
    if not request.devices:
        return "no devices are published: check that a driver runs on the nodes"
    causes = [count for count in request.causes if not _is_of_no_concern(count)]
    of_class = f" of class {request.device_class}" if causes and len(causes) < len(request.causes) else ""
    causes = causes or request.causes
    devices = sum(count.devices for count in causes)
    if len(causes) == 1:
        text = causes[0].text + ", but no node can give all that is asked for" * (causes[0].cause is Cause.FREE)
        return f"the only device{of_class} is {text}" if devices == 1 else f"all {devices} devices{of_class} are {text}"
    counts = [f"{count.devices} {'is' if count.devices == 1 else 'are'} {count.text}" for count in causes]
    return f"of {devices} devices{of_class}, {'; '.join(counts)}"


def _is_of_no_concern(count: CauseCount) -> bool:
    """Whether the class tells these devices apart from those that it means, as by their driver."""
    return (
        count.cause is Cause.NOT_SELECTED and count.selector is not None and count.selector.source.startswith("class ")
    )


def node_text(cause: NodeCause) -> str:
    """Nodes with one cause: who, and what of them."""
    if cause.nodes <= _NAMED:
        who = f"node {cause.names[0]}" if cause.nodes == 1 else f"nodes {', '.join(cause.names[: cause.nodes])}"
    else:
        who = f"{cause.nodes} nodes ({some(cause.names, cause.nodes)})"
    return f"{who} {'is' if cause.nodes == 1 else 'are'} {cause.text}"


def problem_text(problem: Problem) -> str:
    """A problem with its remedy."""
    text = problem.text[:1].upper() + problem.text[1:]
    remedy = problem.remedy[:1].upper() + problem.remedy[1:]
    return " ".join(_stopped(each) for each in (text, remedy) if each)


def summary(told: Explanation) -> str:
    """The whole explanation in one paragraph; what is said later is left out first, but for the nearest miss."""
    last = f"It would fit if {_stopped(told.nearest[0].text)}" if told.nearest else ""
    room = MAX_SUMMARY - (len(last) + 1 if last else 0)
    said = ""
    for number, sentence in enumerate(_sentences(told)):
        longer = f"{said} {sentence}".strip()
        if len(longer) <= room:
            said = longer
        elif not number:
            said = f"{longer[: room - 1].rstrip()}…"
    return f"{said} {last}".strip()


def _sentences(told: Explanation) -> Iterator[str]:
    """From the most useful to the least."""
    allocated = _ALLOCATED.get(told.reason)
    if allocated is not None:
        yield from allocated(told)
    elif told.reason in {Reason.CLAIM_MISSING, Reason.CLAIM_DELETING}:
        yield f"Cannot be scheduled: {_stopped(told.error)}"
    elif told.reason is Reason.BYPASSES_SCHEDULER:
        yield f"Will not be allocated: {_stopped(told.error)}"
    elif told.fits:
        yield from _fits(told)
    else:
        yield from _unfit(told)
    if told.scheduler and not told.error:
        words = _PREEMPTION.sub("", told.scheduler)
        yield f"The scheduler says: {_stopped(shortened(words, _SCHEDULER_TEXT))}"
    if told.fits:  # otherwise the scheduler is right
        yield from (f"Kubernetes of this version has a bug that may matter: {bug}" for bug in told.upstream_bugs[:1])


def _fits(told: Explanation) -> Iterator[str]:
    where = f"on {some(told.fits_on, told.fits_on_total)}"
    if told.scheduler:
        yield f"The devices are there: all claims can be allocated {where}. Something else keeps the pod waiting."
    elif told.pod:
        yield f"The devices are there: all claims can be allocated {where}. The scheduler has not said anything yet."
    else:
        yield f"The devices are there: all claims can be allocated {where}. A claim is allocated only when a pod uses it."


def _unfit(told: Explanation) -> Iterator[str]:
    failing = 0
    if told.error:
        yield f"Cannot be allocated; the scheduler gives up on every node: {_stopped(_core(told.error))}"
        failing = sum(
            count.devices
            for request in told.requests[:1]
            for count in request.causes
            if count.cause is Cause.SELECTOR_FAILED
        )
        if failing:
            yield f"{counted(failing, 'device')} would make it fail so."
        if told.fits_on:
            yield f"But for that, the claims could be allocated on {some(told.fits_on, told.fits_on_total)}."
    else:
        yield f"Cannot be allocated{_stopped(_requests(told.requests))}"
        tellable = [each for each in told.nodes if each.reason is not NodeReason.NO_DEVICES]
        if tellable:
            yield _stopped(_capital("; ".join(node_text(each) for each in tellable[:_NAMED])))
        elif told.reason is Reason.NOT_TOGETHER:
            best = [f"{_named(each, told.requests)} on {each.best_node}" for each in told.requests if each.best_node]
            yield f"No node has all of it, only a part each: {', '.join(best)}."
    remedies = set()
    for problem in sorted(told.problems, key=lambda each: not each.fatal)[:2]:
        if failing and problem.kind is ProblemKind.SELECTOR_ERRORS:  # that it fails has been said
            if problem.remedy and problem.remedy not in remedies:
                yield _stopped(_capital(problem.remedy))
        else:
            yield problem_text(problem)
        remedies.add(problem.remedy)


def _requests(requests: Sequence[RequestExplanation]) -> str:
    """Every request, those with the same text together; to follow "Cannot be allocated"."""
    said: dict[str, list[str]] = {}
    for request in requests:
        said.setdefault(request_text(request), []).append(_named(request, requests))
    if len(said) == 1:
        return f": {next(iter(said))}"
    told = [_capital(f"{' and '.join(names)}: {text}") for text, names in said.items()]
    return f". {'. '.join(told)}"


def _named(request: RequestExplanation, among: Sequence[RequestExplanation]) -> str:
    """How a request is called among these: with its claim, if there are several."""
    of_claim = f" of claim {request.claim.partition('/')[2]}" if len({each.claim for each in among}) > 1 else ""
    return f"request {request.request}{of_claim}"


def _core(error: str) -> str:
    """An error without the advice and the picture that come with it, which what is said next makes up for."""
    return " ".join(error.partition(". consider using")[0].partition("\n |")[0].split())


def _allocated(told: Explanation) -> Iterator[str]:
    devices = [device for claim in told.allocated for device in claim.devices]
    if not told.pod:
        used = any(claim.consumers for claim in told.allocated)
        yield f"The claim is allocated ({some(devices)})" + (
            ". No pod waits for it." if used else ", but no pod uses it."
        )
        return
    yield f"All claims are allocated ({some(devices)}): what the pod still waits for is no matter of devices."


def _binding(told: Explanation) -> Iterator[str]:
    failed = [f"{claim.claim} ({', '.join(claim.failed)})" for claim in told.allocated if claim.failed]
    waiting = [f"{claim.claim} ({', '.join(claim.waiting_for)})" for claim in told.allocated if claim.waiting_for]
    if failed:
        yield f"Allocated, but a device could not be made ready: {some(failed)}. The scheduler will allocate another."
    else:
        yield f"Allocated, and waiting until the driver has made the devices ready: {some(waiting)}."


def _elsewhere(told: Explanation) -> Iterator[str]:
    bound = [f"{claim.claim} ({claim.nodes})" for claim in told.allocated if claim.nodes]
    yield f"Allocated already, but for nodes to which the pod cannot go: {some(bound)}."
    if told.nodes:
        yield _stopped(_capital("; ".join(node_text(each) for each in told.nodes[:_NAMED])))


def _full(told: Explanation) -> Iterator[str]:
    claims = [f"{claim.claim} ({counted(len(claim.consumers), 'user')})" for claim in told.allocated]
    yield f"Allocated, but as many pods use a claim as may: {some(claims)}. Give the pod a claim of its own."


_ALLOCATED: Final = {
    Reason.ALLOCATED: _allocated,
    Reason.WAITING_FOR_BINDING: _binding,
    Reason.BOUND_ELSEWHERE: _elsewhere,
    Reason.RESERVED_BY_OTHERS: _full,
}


def _stopped(text: str) -> str:
    return text if text.endswith((".", "…", "?", "!")) else f"{text}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
