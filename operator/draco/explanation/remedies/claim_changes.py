"""Tries the claims with a little less demand, as their author could change them. No changed selector fails on any device."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import Candidate
from draco.allocation.fleet.rowwise import select
from draco.cel.errors import CompileError
from draco.explanation.model import ChangeKind
from draco.explanation.problems.published import closest_value
from draco.explanation.problems.suggestions import guard
from draco.explanation.remedies.changes import SuggestedChange, with_asked, with_changed, with_selector
from draco.explanation.remedies.trials import RequestCandidates, Trials
from draco.explanation.selection import count, failing, met
from draco.resources.api.claims import CapacityRequirements, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.resources.texts import slip_of
from draco.selectors.comparisons import Comparison, Plain, accepting, comparison, holds, literal
from draco.selectors.demands import Demand, demands, without
from draco.selectors.tokens import replaced

_DEMANDS: Final = 8
_VALUES: Final = 3
_COUNTS: Final = 4


class _Rewriting:
    """Changed expressions in one selector of one request."""

    def __init__(self, trials: Trials, request: RequestCandidates, index: int) -> None:
        self._trials = trials
        self._request = request
        self._index = index
        self.step = request.selection.own[index]
        self.expression = self.step.ref.expression

    def candidates(self, expression: str) -> bytes:
        """1 for each suitable row if the selector were this one; all 0 if a selector then fails on a device."""
        fleet, chain = self._trials.fleet, self._request.selection
        marks = chain.start
        for step in chain.steps:
            asked = expression if step is self.step else step.ref.expression
            try:
                if count(failing(fleet, asked, select([marks, self._trials.unheld]))):
                    return bytes(len(marks))
                marks = met(fleet, asked, marks)
            except CompileError:
                return bytes(len(marks))
        return self._trials.free(self._request, self._request.tolerated, marks, chain.able)

    def on_nodes(
        self, kind: ChangeKind, expression: str, text: str, rows: bytes | None = None
    ) -> Iterator[SuggestedChange]:
        """The change to this expression, if the claims then fit on a node."""
        trials, request = self._trials, self._request
        rows = self.candidates(expression) if rows is None else rows
        if not count(rows):
            return
        asked = with_selector(request.asked, self._index, expression)
        claims = with_asked(trials.claims, request.claim, request.name, asked)
        marks = [(each, rows if each is request else trials.usable(each)) for each in trials.requests]
        nodes, claim = trials.nodes(marks), request.claim
        yield from _changes_on(trials, nodes, kind, claims, text=text, claim=claim, expression=expression)


def _changes_on(
    trials: Trials,
    nodes: Iterable[Node],
    kind: ChangeKind,
    claims: Sequence[ResourceClaim],
    *,
    text: str,
    claim: ResourceClaim,
    expression: str = "",
    names_subject: bool = False,
) -> Iterator[SuggestedChange]:
    """The change to these claims, if they fit on one of the nodes. Its text names a claim also if there are several."""
    names_subject = names_subject or trials.are_several
    for node in nodes:
        results = trials.fits(node, claims)
        if results is not None:
            yield SuggestedChange.of(
                kind,
                text,
                node,
                results,
                claim=str(claim.metadata.key),
                expression=expression,
                names_subject=names_subject,
                claims=claims,
            )
            return


def guarded_selectors(trials: Trials) -> Iterator[SuggestedChange]:
    """Selectors that fail on devices, guarded so that they fail on none."""
    for request in trials.requests:
        for index in range(len(request.selection.own)):
            rewriting = _Rewriting(trials, request, index)
            if count(rewriting.step.failed) or rewriting.step.error is not None:
                better = guard(trials.fleet, trials.published, rewriting.step)
                if better:
                    text = f"write {better} in request {request.called}"
                    yield from rewriting.on_nodes(ChangeKind.RELAX_SELECTOR, better, text)


def relaxed_selectors(trials: Trials) -> Iterator[SuggestedChange]:
    """One demand of a selector with another value, or removed."""
    for request in trials.requests:
        left = _DEMANDS
        for index in range(len(request.selection.own)):
            rewriting = _Rewriting(trials, request, index)
            parts = demands(rewriting.expression)
            for part in parts[:left]:
                yield from _relaxed(trials, request, rewriting, parts, part)
            left = max(0, left - len(parts))


def _relaxed(
    trials: Trials, request: RequestCandidates, rewriting: _Rewriting, parts: Sequence[Demand], part: Demand
) -> Iterator[SuggestedChange]:
    dropped = without(parts, part)
    there = rewriting.candidates(dropped)
    if not count(there):
        return
    compared = comparison(part)
    if compared is not None:
        for value in _values(trials, compared, there):
            expression = replaced(rewriting.expression, *accepting(part, compared, value))
            text = f"ask for {_said(compared, value)} in request {request.called}"
            changes = list(rewriting.on_nodes(ChangeKind.RELAX_SELECTOR, expression, text))
            if changes:
                yield from changes
                return
    text = f"remove {part.text} from request {request.called}"
    yield from rewriting.on_nodes(ChangeKind.DROP_SELECTOR, dropped, text, there)


def _values(trials: Trials, compared: Comparison, there: bytes) -> Sequence[Plain]:
    """The published values that a weaker comparison would accept, the closest first."""
    if compared.operator in {"in", "!="} or compared.start < 0:
        return []
    unmet = [
        each
        for each in trials.published.values(compared.path, there)
        if type(each) is type(compared.value) and holds(compared.operator, each, compared.values) is False
    ]
    if compared.operator == "==":
        near = closest_value(compared.value, unmet)
        return [] if near is None else [near]
    unmet.sort(reverse=compared.operator in {">", ">="})
    return unmet[:_VALUES]


def _said(compared: Comparison, value: Plain) -> str:
    """A change of value in few words."""
    path = compared.path
    name = f"{path.domain}/{path.id}" if path.id is not None else path.kind
    sign = compared.operator if compared.operator in {"==", ">=", "<="} else f"{compared.operator}="
    old, new = (str(each) if isinstance(each, Quantity | SemVer) else literal(each) for each in (compared.value, value))
    return f"{name} {sign} {new} instead of {compared.operator} {old}"


def lowered_counts(trials: Trials) -> Iterator[SuggestedChange]:
    """Requests with a smaller count."""
    for request in trials.requests:
        if request.asked.allocation_mode == "All" or request.asked.count <= 1:
            continue
        best: SuggestedChange | None = None
        least = 0
        for node in trials.likely_nodes(most=_COUNTS):
            there = trials.fleet.inventory.nodes.read(node.metadata.name, trials.usable(request)).count(1)
            most = min(request.asked.count - 1, there or request.asked.count - 1)
            for number in range(most, max(least, most - _COUNTS), -1):
                claims = with_asked(
                    trials.claims, request.claim, request.name, msgspec.structs.replace(request.asked, count=number)
                )
                results = trials.fits(node, claims)
                if results is not None:
                    text = f"ask for {number} instead of {request.asked.count} devices in request {request.called}"
                    claim = str(request.claim.metadata.key)
                    best = SuggestedChange.of(
                        ChangeKind.LOWER_COUNT,
                        text,
                        node,
                        results,
                        claim=claim,
                        names_subject=trials.are_several,
                        claims=claims,
                    )
                    least = number
                    break
        if best is not None:
            yield best


def lowered_capacities(trials: Trials) -> Iterator[SuggestedChange]:
    """Requests with smaller amounts of capacities: what some device has left."""
    for request in trials.requests:
        yield from islice(_lowered_capacities(trials, request), 1)


def _lowered_capacities(trials: Trials, request: RequestCandidates) -> Iterator[SuggestedChange]:
    wanted = request.asked.capacity.requests if request.asked.capacity is not None else {}
    rows = trials.usable(request)
    for node in trials.likely_nodes():
        candidates = [each for view in trials.fleet.inventory.views(node) for each in view.candidates]
        found = {_too_much(trials.fleet, each, wanted) for each in candidates if rows[each.row]}
        for lowered in sorted(filter(None, found), key=_small_first)[:_VALUES]:
            amounts = {name: str(left) for name, left, _ in lowered}
            capacity = CapacityRequirements(requests={**wanted, **amounts})
            asked = msgspec.structs.replace(request.asked, capacity=capacity)
            claims = with_asked(trials.claims, request.claim, request.name, asked)
            text = _said_lower(lowered, wanted, request.called)
            yield from _changes_on(trials, [node], ChangeKind.LOWER_CAPACITY, claims, text=text, claim=request.claim)


_Lowered = tuple[tuple[str, Quantity, str], ...]
"""Capacities with what a device has left of them and what the request takes."""


def _too_much(fleet: Fleet, candidate: Candidate, wanted: Mapping[str, str]) -> _Lowered:
    """The capacities of which a request takes more than the device has left; empty if it cannot take less.

    Of a shared device, it takes a default, or everything, of each capacity that it does not name.
    """
    device = candidate.device
    if not wanted.keys() <= device.capacity.keys():
        return ()
    lowered = []
    for name in device.capacity if device.allow_multiple_allocations else wanted:
        capacity, policy = device.capacity[name], device.capacity[name].request_policy
        takes = wanted.get(name) or (policy.default if policy is not None else None) or capacity.value
        taken = fleet.state.consumed(candidate.key).get(name, 0)
        left = Quantity.parse(capacity.value) - Quantity.parse(f"{taken}n")
        if left.sign() <= 0:
            return ()
        if left < Quantity.parse(takes):
            lowered.append((name, left, takes))
    return tuple(lowered)


def _small_first(lowered: _Lowered) -> tuple[int, list[int]]:
    """Sort the smallest change first."""
    return len(lowered), [-left.nanos for _, left, _ in lowered]


def _said_lower(lowered: _Lowered, wanted: Mapping[str, str], request: str) -> str:
    amounts = [
        f"{left} instead of {takes} of {name}" if name in wanted else f"at most {left} of {name}"
        for name, left, takes in lowered
    ]
    unasked = [takes for name, _, takes in lowered if name not in wanted]
    without = f": without a request it takes {' and '.join(unasked)}" if unasked else ""
    return f"ask for {' and '.join(amounts)} in request {request}{without}"


def dropped_constraints(trials: Trials) -> Iterator[SuggestedChange]:
    """Claims without one of their constraints."""
    for claim in trials.claims:
        constraints = claim.spec.devices.constraints
        nodes = trials.likely_nodes() if constraints else []
        for index, constraint in enumerate(constraints):
            others = [*constraints[:index], *constraints[index + 1 :]]
            claims = with_changed(trials.claims, claim, constraints=others)
            kind = "matchAttribute" if constraint.match_attribute is not None else "distinctAttribute"
            attribute = constraint.match_attribute or constraint.distinct_attribute
            which = f"{kind}: {attribute}" if attribute else f"#{index}"
            text = f"remove the constraint {which} from claim {claim.metadata.key}"
            yield from _changes_on(
                trials, nodes, ChangeKind.DROP_CONSTRAINT, claims, text=text, claim=claim, names_subject=True
            )


def other_classes(trials: Trials) -> Iterator[SuggestedChange]:
    """An existing class instead of a missing one."""
    classes = trials.fleet.classes
    for claim in trials.claims:
        for name, asked in (each for request in claim.spec.devices.requests for each in request.alternatives):
            near = "" if asked.device_class_name in classes else slip_of(asked.device_class_name, classes)
            if not near:
                continue
            changed = with_asked(trials.claims, claim, name, msgspec.structs.replace(asked, device_class_name=near))
            marks = [(request, trials.usable(request)) for request in trials.requests_of(changed)]
            called = f"{name} of claim {claim.metadata.name}" if trials.are_several else name
            text = f"write deviceClassName: {near} in request {called}"
            yield from _changes_on(trials, trials.nodes(marks), ChangeKind.OTHER_CLASS, changed, text=text, claim=claim)
