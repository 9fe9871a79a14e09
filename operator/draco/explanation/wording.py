"""An explanation in words: its parts, and all of it line by line for a terminal.

Owns the wording, how many things are named, and the layout of the report. `note` combines parts into a paragraph. Decides
nothing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from draco.explanation.model import (
    AllocatedClaim,
    Cause,
    CauseCount,
    ChangeKind,
    Explanation,
    Holder,
    NearestMiss,
    NodeCause,
    PendingReason,
    Problem,
    RequestExplanation,
    SeenValue,
    SelectorRef,
    Shortage,
)
from draco.resources.texts import NAMED, agreeing, are, counted, listed, sentence, shortened, shown

BRIEF: Final = 5
"""Lines per pod or claim, unless more is asked for."""
MORE: Final = "Each request and each node with -v."
"""The last line of a brief screen."""
_QUOTED: Final = 100
_WHERE: Final = re.compile(r" (?:instead of|in request) ")
_OWNER, _ADMINISTRATOR = 1, 2
_BY_OTHERS: Final[Mapping[ChangeKind, int]] = MappingProxyType(
    {
        **dict.fromkeys((ChangeKind.FREE_IDLE_CLAIM, ChangeKind.FREE_CLAIM, ChangeKind.LOWER_OTHERS), _OWNER),
        **dict.fromkeys((ChangeKind.LIFT_TAINT, ChangeKind.UNCORDON, ChangeKind.REPAIR_POOL), _ADMINISTRATOR),
    }
)
"""Changes that the owner of another claim, or an administrator, must make."""


def _quoted(text: str, most: int = _QUOTED) -> str:
    return shortened(shown(text), most)


def selector_text(selector: SelectorRef) -> str:
    """A selector, named by its owner."""
    whose = f"class {selector.class_name}'s" if selector.class_name else "the claim's"
    return f"{whose} selector `{_quoted(selector.expression)}`"


def cause_text(count: CauseCount) -> str:
    """The cause of some devices, worded to follow "2 are" or "1 is"."""
    selector = selector_text(count.selector) if count.selector is not None else "a selector"
    text = str(count.cause)
    match count.cause:
        case Cause.NO_NODE:
            text = f"published for {_nodes_gone(count)}"
        case Cause.NODE_RULES | Cause.FREE:
            text = "free" if count.cause is Cause.FREE else "on nodes that the pod cannot use"
        case Cause.NOT_SELECTED:
            text = f"not selected by {selector}{_values(count.values)}"
        case Cause.CONFIGURATION_REFUSED:
            text = count.error
        case Cause.SELECTOR_FAILED:
            text = f"rejected with an error by {selector} ({_quoted(count.error)})"
        case Cause.IN_USE:
            text = f"in use by {_holders(count)}" + ", and published for one claim at a time" * count.dedicated
        case Cause.TAINTED:
            taints = [each.taint + (f" (rule {each.rule})" if each.rule else "") for each in count.taints]
            text = f"tainted with {' and '.join(taints)}"
        case Cause.POOL_INCOMPLETE:
            text = f"in a pool with missing slices ({listed(count.pools)})"
        case Cause.POOL_OBSOLETE:
            newer = f", which is {count.newer}" if count.newer else ""
            text = f"in slices older than their pool's newest generation{newer}"
        case Cause.POOL_INVALID:
            text = f"in an invalid pool ({listed(count.pools)}): a device or counter set is listed twice, or a counter is missing"
        case Cause.CONSTRAINT:
            text = f"without the attribute {count.constraint}, which a constraint of the claim compares"
        case Cause.COUNTERS_SHORT | Cause.CAPACITY_SHORT:
            text = _shortage(count)
    return text


def together(causes: Iterable[CauseCount]) -> list[CauseCount]:
    """The causes, with those that differ only in the counter as one."""
    alike: dict[object, list[CauseCount]] = {}
    for number, each in enumerate(causes):
        short = each.shortage if each.cause is Cause.COUNTERS_SHORT else None
        alike.setdefault(number if short is None else _amounts(short), []).append(each)
    return [_of_counters(same) if len(same) > 1 else same[0] for same in alike.values()]


def _of_counters(causes: Sequence[CauseCount]) -> CauseCount:
    shortages = [each.shortage for each in causes if each.shortage is not None]
    names = listed(dict.fromkeys(each.name for each in shortages))
    text = f"short of counters {names}: {_amounts(shortages[0])}"
    return replace(causes[0], devices=sum(each.devices for each in causes), text=text)


def _amounts(short: Shortage, taken: str = "taken") -> str:
    left = f"{short.total} in all" if short.left == short.total else f"{short.left} of {short.total} left"
    takers = f", {taken} by {listed(short.takers)}" if short.takers else ""
    return f"{short.needed} needed, {left}{takers}"


def _nodes_gone(count: CauseCount) -> str:
    if not count.node_names:
        return "a node that does not exist"
    noun, verb = agreeing(count.nodes, "node", "nodes"), agreeing(count.nodes, "does", "do")
    return f"{noun} {listed(count.node_names, total=count.nodes)}, which {verb} not exist"


def _shortage(count: CauseCount) -> str:
    short = count.shortage
    if short is None:
        return f"unable to give that amount ({_quoted(count.error)})" if count.error else "short of counters"
    if count.cause is Cause.COUNTERS_SHORT:
        return f"short of counter {short.name}: {_amounts(short)}"
    if not short.total:
        return f"without the capacity {short.name}, of which {short.needed} is requested"
    if not short.left:
        return f"unable to give {short.needed} of {short.name}: the device's request policy forbids that amount"
    return f"short of {short.name}: {_amounts(short, 'the rest taken')}"


def _values(values: Sequence[SeenValue]) -> str:
    """The devices' actual values of the first path that the selector reads."""
    if not values:
        return ""
    path = values[0].path
    name = path.rpartition(".")[2] if '"]["' not in path else path.rpartition('["')[2].removesuffix('"]')
    seen = [each.value or "missing" for each in values if each.path == path]
    return f" ({name} is {' or '.join(_quoted(each, 40) for each in seen[:NAMED])}{' or other' * (len(seen) > NAMED)})"


def _holders(count: CauseCount) -> str:
    if not count.holders:
        return "other claims"
    names = [_holder(each) for each in count.holders]
    if count.holders_total:
        return listed(names, total=count.holders_total)
    return f"claims such as {', '.join(names[:NAMED])}"


def _holder(holder: Holder) -> str:
    if holder.idle:
        return f"{holder.claim} (no pod uses it)"
    return f"{holder.claim} ({listed(holder.consumers)})"


def is_of_no_concern(count: CauseCount) -> bool:
    """Whether the class excludes these devices, for example by driver."""
    return count.cause is Cause.NOT_SELECTED and count.selector is not None and bool(count.selector.class_name)


def added_up(causes: Iterable[CauseCount]) -> "Counter[str]":
    """The devices by the text of their cause, in order: causes that differ only in what the text leaves out are one."""
    found: Counter[str] = Counter()
    for each in causes:
        found[each.text] += each.devices
    return found


def node_text(cause: NodeCause) -> str:
    """Nodes with one cause: which, and the cause."""
    if cause.nodes <= NAMED:
        who = f"node {cause.names[0]}" if cause.nodes == 1 else f"nodes {', '.join(cause.names[: cause.nodes])}"
    else:
        who = f"{cause.nodes} nodes ({listed(cause.names, total=cause.nodes)})"
    return f"{who} {are(cause.nodes)} {cause.text}"


def problem_text(problem: Problem) -> str:
    """A problem with its remedy."""
    return " ".join(sentence(capital(each)) for each in (problem.text, problem.remedy) if each)


def core_of_error(error: str) -> str:
    """An error without its advice and its source excerpt."""
    return " ".join(error.partition(". consider using")[0].partition("\n |")[0].split())


def capital(text: str) -> str:
    """The text with an upper-case first letter."""
    return text[:1].upper() + text[1:]


def brief(explanation: Explanation) -> Iterator[str]:
    """At most BRIEF lines: why it waits and what to do, other obstacles, other changes that would help."""
    lines = [explanation.summary]
    if explanation.preemption:
        lines.append(sentence(capital(explanation.preemption)))
    heading, others = _others(explanation)
    lines += [f"{heading}: {text}" for text in others]
    lines += _problems(explanation)
    lines += [f"A bug of the scheduler may matter: {bug}" for bug in _bugs(explanation)]
    lines += [f"Or: {sentence(_change(each))}" for each in _changes(explanation)]
    if len(lines) <= BRIEF:
        yield from lines
        return
    yield from lines[: BRIEF - 1]
    yield f"{counted(len(lines) - BRIEF + 1, 'more line')} with -v."


def report(explanation: Explanation) -> Iterator[str]:
    """The whole explanation, line by line; two spaces of indentation per level."""
    yield explanation.summary
    if explanation.preemption:
        yield sentence(capital(explanation.preemption))
    for claim in explanation.allocated:
        yield from _allocated(claim)
    heading, others = _others(explanation)
    if others:
        yield from ("", heading)
        yield from (f"  {text}" for text in others)
    for request in explanation.requests:
        yield from _request(request)
    nodes = [text for each in explanation.nodes if not _is_said(text := node_text(each), explanation.summary)]
    if nodes:
        which = "Nodes" if len(nodes) == len(explanation.nodes) else "Other nodes"
        yield from ("", f"{which}, {explanation.nodes_total} in all")
        if explanation.fits_on:
            yield f"  would do: {listed(explanation.fits_on, total=explanation.fits_on_total)}"
        yield from (f"  {text}" for text in nodes)
    if problems := _problems(explanation):
        yield from ("", "Problems" if len(problems) == len(explanation.problems) else "Further problems")
        yield from (f"  {text}" for text in problems)
    if changes := _changes(explanation):
        all_of_them = len(changes) == len(explanation.nearest)
        yield from ("", "Any one of these would do" if all_of_them else "Any one of these would do as well")
        yield from (f"  {_change(miss)}" for miss in changes)
    if bugs := _bugs(explanation):
        yield from ("", "Known bugs of the scheduler that may matter")
        yield from (f"  {bug}" for bug in bugs)
    yield from device_lines(explanation)


def device_lines(explanation: Explanation) -> Iterator[str]:
    """The verdict on each device, if they were asked for."""
    if explanation.devices:
        yield from ("", "Devices")
        yield from (f"  {each.device} for request {each.request}: {each.text}" for each in explanation.devices)


def _others(explanation: Explanation) -> tuple[str, list[str]]:
    """Obstacles that the summary does not mention, and their heading. They do not stop a pod that has started."""
    is_said = explanation.reason is PendingReason.DEVICE_UNUSABLE
    left = explanation.obstacles[1:] if is_said else explanation.obstacles
    texts = [f"{sentence(capital(each.text))} {sentence(capital(each.remedy))}" for each in left]
    return "Also in the way" if is_said else "Changed since then", texts


def _problems(explanation: Explanation) -> list[str]:
    """Problems that the summary does not mention."""
    left = [each for each in explanation.problems if not _is_said(each.text, explanation.summary)]
    return list(dict.fromkeys(map(problem_text, left)))


def _bugs(explanation: Explanation) -> list[str]:
    """Bugs that the summary does not mention."""
    return [each for each in explanation.upstream_bugs if not _is_said(each, explanation.summary)]


def _changes(explanation: Explanation) -> list[NearestMiss]:
    """Changes that nothing above mentions: those of the claim's author first, those of an administrator last."""
    above = "\n".join([explanation.summary, *_problems(explanation)])
    left = [each for each in explanation.nearest if not _is_advised(each, above)]
    return sorted(left, key=lambda each: _BY_OTHERS.get(each.kind, 0))


def _is_said(text: str, above: str, end: str = "") -> bool:
    """Whether a text stands in what is above it, at the beginning of a sentence or within one; `end` is the pattern after it."""
    text = text.rstrip(".")
    return re.search(rf"(?<!\w)(?i:{re.escape(text[:1])}){re.escape(text[1:])}{end}", above, re.MULTILINE) is not None


def _is_advised(miss: NearestMiss, above: str) -> bool:
    """Whether what is above gives the same advice, perhaps without the request or the former value, or as a whole selector."""
    forms = [miss.text, _WHERE.split(miss.text)[0], *([f"write {miss.expression}"] if miss.expression else [])]
    return any(_is_said(each, above, r"(?:[.,;]\s|\.?$)") for each in forms)


def _change(miss: NearestMiss) -> str:
    is_named = not miss.node or miss.node in miss.text
    return miss.text if is_named else f"{miss.text} (on node {miss.node})"


def _request(request: RequestExplanation) -> Iterator[str]:
    wanted = "every device of one node" if request.mode == "All" else f"{request.wanted} on one node"
    yield from ("", f"Request {request.request} of claim {request.claim}: class {request.device_class}, {wanted}")
    for text, devices in added_up(request.causes).items():
        yield f"  {devices:>6} {text}"
    if request.free and request.best_node and request.most_free_on_one_node < request.wanted:
        yield f"  most on one node: {request.most_free_on_one_node}, on {request.best_node}"


def _allocated(claim: AllocatedClaim) -> Iterator[str]:
    yield from ("", f"Claim {claim.claim} is allocated: {listed(claim.devices)}")
    if claim.nodes:
        yield f"  reached from: {claim.nodes}"
    yield f"  reserved for: {listed(claim.consumers) if claim.consumers else 'nobody'}"
    if claim.waiting_for:
        yield f"  waits for: {', '.join(claim.waiting_for)}"
    if claim.failed:
        yield f"  failed: {', '.join(claim.failed)}"
