"""Tries the claims with a little less demand, as their author could change them. No changed selector fails on any device."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from draco.allocation.fleet.rowwise import select
from draco.cel.errors import CompileError
from draco.explanation.model import ChangeKind
from draco.explanation.problems.published import closest_value
from draco.explanation.problems.suggestions import guard
from draco.explanation.remedies.changes import SuggestedChange, with_asked, with_changed, with_selector
from draco.explanation.remedies.trials import RequestCandidates, Trials
from draco.explanation.selection import alternatives, count, failing, met
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.resources.texts import slip_of
from draco.selectors.accesses import path_text
from draco.selectors.comparisons import Comparison, Plain, comparison, holds, literal, with_value
from draco.selectors.demands import Demand, demands, with_demand, without

_DEMANDS: Final = 8
_VALUES: Final = 3
_COUNTS: Final = 4


class _Rewriting:
    """Changed expressions in one selector of one request."""

    def __init__(self, trials: Trials, request: RequestCandidates, index: int) -> None:
        self._trials = trials
        self._request = request
        self._index = index
        self.step = request.selection.steps[request.selection.of_class + index]
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
        return self._trials.free(self._request, self._request.tolerated, marks)

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
        for each in _changes_on(trials, trials.nodes(marks), kind, claims, text=text, claim=request.claim):
            yield msgspec.structs.replace(each, miss=msgspec.structs.replace(each.miss, selector=expression))


def _changes_on(
    trials: Trials,
    nodes: Iterable[Node],
    kind: ChangeKind,
    claims: Sequence[ResourceClaim],
    *,
    text: str,
    claim: ResourceClaim,
    names_subject: bool = False,
) -> Iterator[SuggestedChange]:
    """The change to these claims, if they fit on one of the nodes."""
    for node in nodes:
        results = trials.fits(node, claims)
        if results is not None:
            key = str(claim.metadata.key)
            yield SuggestedChange.of(kind, text, node, results, claim=key, names_subject=names_subject, claims=claims)
            return


def guarded_selectors(trials: Trials) -> Iterator[SuggestedChange]:
    """Selectors that fail on devices, guarded so that they fail on none."""
    for request in trials.requests:
        for index in range(len(request.asked.selectors)):
            rewriting = _Rewriting(trials, request, index)
            if count(rewriting.step.failed) or rewriting.step.error is not None:
                better = guard(trials.fleet, trials.published, rewriting.step)
                if better:
                    text = f"write {better} in request {request.name}"
                    yield from rewriting.on_nodes(ChangeKind.RELAX_SELECTOR, better, text)


def relaxed_selectors(trials: Trials) -> Iterator[SuggestedChange]:
    """One demand of a selector with another value, or removed."""
    for request in trials.requests:
        left = _DEMANDS
        for index in range(len(request.asked.selectors)):
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
            expression, demand = _with_value(rewriting.expression, part, compared, value)
            if not demand:
                continue
            text = f"ask for {_said(compared, value)} in request {request.name}"
            changes = list(rewriting.on_nodes(ChangeKind.RELAX_SELECTOR, expression, text))
            if changes:
                yield from changes
                return
    text = f"remove {part.text} from request {request.name}"
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


def _with_value(expression: str, part: Demand, compared: Comparison, value: Plain) -> tuple[str, str]:
    """The expression, and its changed part, with a comparison that just accepts the value."""
    if compared.operator in {"==", ">=", "<="}:
        changed = with_value(expression, compared, value)
        return changed, changed[part.start : part.end + len(changed) - len(expression)]
    sign = f"{compared.operator}="
    if isinstance(value, Quantity | SemVer):
        function = "quantity" if isinstance(value, Quantity) else "semver"
        demand = f"{path_text(compared.path)}.compareTo({function}({literal(value)})) {sign} 0"
    else:
        demand = f"{path_text(compared.path)} {sign} {literal(value)}"
    return with_demand(expression, part, demand), demand


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
                    text = f"ask for {number} instead of {request.asked.count} devices in request {request.name}"
                    claim = str(request.claim.metadata.key)
                    best = SuggestedChange.of(ChangeKind.LOWER_COUNT, text, node, results, claim=claim, claims=claims)
                    least = number
                    break
        if best is not None:
            yield best


def lowered_capacities(trials: Trials) -> Iterator[SuggestedChange]:
    """Requests with a smaller amount of a capacity: what some device has left."""
    for request in trials.requests:
        wanted = request.asked.capacity.requests if request.asked.capacity is not None else {}
        for name in wanted:
            yield from _lowered_capacity(trials, request, name)


def _lowered_capacity(trials: Trials, request: RequestCandidates, name: str) -> Iterator[SuggestedChange]:
    if request.asked.capacity is None:
        return
    fleet, asked = trials.fleet, request.asked.capacity.requests[name]
    rows = trials.usable(request)
    for node in trials.likely_nodes():
        amounts = set()
        for view in fleet.inventory.views(node):
            for candidate in view.candidates:
                capacity = candidate.device.capacity.get(name)
                if capacity is not None and rows[candidate.row]:
                    taken = fleet.state.consumed(candidate.key).get(name, 0)
                    amounts.add(Quantity.parse(capacity.value) - Quantity.parse(f"{taken}n"))
        enough = Quantity.parse(asked)
        for amount in sorted((each for each in amounts if each.sign() > 0 and each < enough), reverse=True)[:_VALUES]:
            requests = {**request.asked.capacity.requests, name: str(amount)}
            lowered = msgspec.structs.replace(request.asked.capacity, requests=requests)
            claims = with_asked(
                trials.claims, request.claim, request.name, msgspec.structs.replace(request.asked, capacity=lowered)
            )
            text = f"ask for {amount} instead of {asked} of {name} in request {request.name}"
            changes = list(
                _changes_on(trials, [node], ChangeKind.LOWER_CAPACITY, claims, text=text, claim=request.claim)
            )
            if changes:
                yield from changes
                return


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
        for name, asked in (each for request in claim.spec.devices.requests for each in alternatives(request)):
            near = "" if asked.device_class_name in classes else slip_of(asked.device_class_name, classes)
            if not near:
                continue
            changed = with_asked(trials.claims, claim, name, msgspec.structs.replace(asked, device_class_name=near))
            marks = [(request, trials.usable(request)) for request in trials.requests_of(changed)]
            text = f"write deviceClassName: {near} in request {name}"
            yield from _changes_on(trials, trials.nodes(marks), ChangeKind.OTHER_CLASS, changed, text=text, claim=claim)
