"""Sentences: an explanation in plain words.

Owns the wording and the order in which things are said in one paragraph. Decides and computes nothing.
"""

from collections.abc import Sequence
from typing import Final

from draco.explanation.model import Cause, CauseCount, Explanation, NodeCause, Problem, RequestExplanation, SelectorRef

MAX_SUMMARY: Final = 1000
"""Characters of an Event's note, less some."""
_NAMED: Final = 3


def counted(number: int, what: str) -> str:
    """A number of things: "1 device", "2 devices"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def some(names: Sequence[str], total: int = 0) -> str:
    """The first names, and how many more there are."""
    left = max(total, len(names)) - min(len(names), _NAMED)
    return ", ".join(names[:_NAMED]) + (f" and {left} more" if left else "")


def selector_text(selector: SelectorRef) -> str:
    """A selector, named by whose it is."""
    kind, _, name = selector.source.partition(" ")
    whose = f"class {name}" if kind == "class" else "the claim"
    return f"the selector of {whose} `{_short(selector.expression)}`"


def _short(text: str, limit: int = 120) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1].rstrip()}…"


def cause_text(count: CauseCount) -> str:
    """What is told of some devices, to follow their number."""
    plain = _PLAIN.get(count.cause)
    return plain if plain is not None else _particular(count)


_PLAIN: Final = {
    Cause.POOL_OBSOLETE: "in slices of an older generation than their pool's newest",
    Cause.NO_NODE: "that no node can reach",
    Cause.NODE_RULES: "on nodes to which the pod cannot go",
    Cause.FREE: "free",
}


def _particular(count: CauseCount) -> str:
    selector = selector_text(count.selector) if count.selector is not None else "a selector"
    text = str(count.cause)
    match count.cause:
        case Cause.NOT_SELECTED:
            text = f"not selected by {selector}"
        case Cause.SELECTOR_FAILED:
            text = f"on which {selector} fails: {count.error}"
        case Cause.IN_USE:
            text = f"in use by {_holders(count)}"
        case Cause.TAINTED:
            text = f"tainted {', '.join(each.taint for each in count.taints)}"
        case Cause.POOL_INCOMPLETE:
            text = f"in pools that are not completely published ({some(count.pools)})"
        case Cause.POOL_INVALID:
            text = f"in invalid pools ({some(count.pools)})"
        case Cause.CONSTRAINT:
            text = f"without the attribute {count.constraint}, which a constraint of the claim compares"
        case Cause.COUNTERS_SHORT | Cause.CAPACITY_SHORT if count.shortage is not None:
            short = count.shortage
            text = f"with too little {short.name} ({short.needed} needed, {short.left} left)"
    return text


def _holders(count: CauseCount) -> str:
    return some([holder.claim for holder in count.holders], count.holders_total)


def summary(told: Explanation) -> str:
    """The whole explanation in one paragraph."""
    sentences = list(_sentences(told))
    text = " ".join(sentences)
    return text if len(text) <= MAX_SUMMARY else f"{text[: MAX_SUMMARY - 1].rstrip()}…"


def _sentences(told: Explanation) -> list[str]:
    if told.error:
        return [f"Cannot be allocated: {told.error}.", *_help(told), *_scheduler(told)]
    if told.fits:
        return [f"Can be allocated on {some(told.fits_on, told.fits_on_total)}.", *_scheduler(told)]
    said = [f"Cannot be allocated: {_requests(told.requests)}."]
    if told.nodes:
        said.append(f"{'; '.join(node_text(each) for each in told.nodes[:_NAMED])}.")
    return [*said, *_help(told), *_scheduler(told)]


def _help(told: Explanation) -> list[str]:
    """What is wrong with the claims, and what would do; the first of many."""
    said = [f"{problem_text(problem)}." for problem in told.problems[:_NAMED]]
    return [*said, *(f"It would fit if {miss.text}." for miss in told.nearest[:1])]


def problem_text(problem: Problem) -> str:
    """What is wrong, as a sentence without its full stop, and what to write instead."""
    text = f"{problem.text[:1].upper()}{problem.text[1:]}"
    return f"{text}; {problem.remedy}" if problem.remedy else text


def _scheduler(told: Explanation) -> list[str]:
    return [f"The scheduler says: {_short(told.scheduler, 200)}"] if told.scheduler else []


def _requests(requests: Sequence[RequestExplanation]) -> str:
    return ". ".join(
        (f"request {each.request}: " if len(requests) > 1 else "") + request_text(each) for each in requests
    )


def request_text(request: RequestExplanation) -> str:
    """The devices of one request, by what stands in their way."""
    counts = "; ".join(f"{count.devices} {count.text}" for count in request.causes)
    return f"of {counted(request.devices, 'device')}: {counts}" if request.devices else "no devices are published"


def node_text(cause: NodeCause) -> str:
    """Nodes with one cause."""
    who = f"node {cause.names[0]}" if cause.nodes == 1 and cause.names else counted(cause.nodes, "node")
    return f"{who}: {cause.text}"
