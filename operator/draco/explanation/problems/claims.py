"""Finds defects of claims themselves, whatever devices are free.

Owns the checks that need no search: whether classes exist; whether selectors compile, work on every device and can select any;
whether the names they use are published; whether a claim asks for more than exists. Suggests a correction only if it was tried.
Skips what no API server of a known release stores, such as a constraint without an attribute: there, the allocator's error is the
explanation.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from draco.allocation.fleet.capacity import most
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.rowwise import select
from draco.cel.errors import CompileError
from draco.cel.paths import AttributePath
from draco.explanation.model import Problem, ProblemKind, SelectorRef
from draco.explanation.problems.configurations import configuration_problems
from draco.explanation.problems.dead_ends import dead_ends, unknown_names
from draco.explanation.problems.published import PublishedNames, closest
from draco.explanation.problems.shares import share_problems
from draco.explanation.problems.suggestions import guard, main_error, rewritten
from draco.explanation.selection import Asked, Selection, SelectorStep, count, drivers_of, first_rows, selection
from draco.resources.api.claims import MAX_RESULTS, ExactDeviceRequest, ResourceClaim
from draco.resources.api.slices import DeviceCapacity
from draco.resources.quantity import Quantity
from draco.resources.texts import agreeing, counted, listed, slip_of
from draco.selectors import corrections
from draco.selectors.complaint import Complaint

_ERROR_LINE: Final = re.compile(r"ERROR: <input>:(.*)")
_WRONG_TYPES: Final = "no such overload"
_LOOKED_AT: Final = 200
_ANY_NUMBER: Final = 1_000_000
_NODES_AT_ONCE: Final = 500
"""Often one of the first nodes has enough."""


def problems_of(fleet: Fleet, claims: Sequence[ResourceClaim], *, kind: str = "claim") -> list[Problem]:
    """All defects of the claims, those that forbid every node first. `kind` is what the author wrote (claim or template)."""
    published = PublishedNames(fleet.inventory.columns)
    found = [
        problem
        for claim in claims
        for problem in _of_claim(fleet, published, claim, f"{kind} {claim.metadata.key}", of_several=len(claims) > 1)
    ]
    found = [_to_whom(problem) for problem in found]
    problems: dict[object, Problem] = {}
    for problem in sorted(found, key=lambda problem: not problem.fatal):
        ref = problem.selector
        is_shared = ref is not None and bool(ref.class_name)  # several requests may have one class
        what = ref if is_shared and problem.kind is ProblemKind.SELECTOR_ERRORS else problem.text
        problems.setdefault((problem.kind, what, "" if is_shared else problem.claim), problem)
    return list(problems.values())


def _of_claim(
    fleet: Fleet, published: PublishedNames, claim: ResourceClaim, called: str, *, of_several: bool
) -> Iterator[Problem]:
    problem = partial(Problem, claim=str(claim.metadata.key))
    selected: dict[str, bytes] = {}
    fewest = 0
    every = [each for request in claim.spec.devices.requests for each in request.alternatives]
    for request in claim.spec.devices.requests:
        asked = request.alternatives
        fewest += min((each.count if each.allocation_mode != "All" else 0 for _, each in asked), default=0)
        for full_name, each in asked:
            device_class = fleet.classes.get(each.device_class_name)
            if device_class is None:
                text, remedy = _class_missing(fleet, each)
                kind = ProblemKind.CLASS_MISSING
                yield problem(kind=kind, text=text, request=full_name, remedy=remedy, fatal=True)
                continue
            found = _Request(
                fleet=fleet,
                published=published,
                selection=selection(fleet, claim, device_class, each, called=called),
                claim=str(claim.metadata.key),
                name=full_name,
                asked=each,
                only=len(asked) == 1,
                selectors_of=called if len(every) == 1 else f"{_alike(every, each)} of {called}",
                called=f"request {full_name} of {called}" if of_several else f"request {full_name}",
                names_subject=of_several,
            )
            yield from found.problems()
            selected[full_name] = found.selection.end
    if fewest > MAX_RESULTS:
        yield problem(
            kind=ProblemKind.TOO_MANY_DEVICES,
            text=f"{called} asks for {fewest} devices, and the maximum is {MAX_RESULTS}",
            remedy="split it into several claims",
            fatal=True,
            names_subject=True,
        )
    yield from _of_constraints(published, claim, called, selected)
    yield from configuration_problems(fleet, claim, selected)
    yield from share_problems(fleet, claim, selected)


def _alike(every: Sequence[tuple[str, Asked]], asked: Asked) -> str:
    """The requests that ask for exactly this."""
    names = [name for name, each in every if each == asked]
    return f"{agreeing(len(names), 'request', 'requests')} {listed(names)}"


def _is_for_admin(asked: Asked) -> bool:
    """Whether a request shares the devices of others, as alternatives cannot."""
    return isinstance(asked, ExactDeviceRequest) and bool(asked.admin_access)


def _class_missing(fleet: Fleet, asked: Asked) -> tuple[str, str]:
    """The problem and the remedy for a class that does not exist."""
    slip = slip_of(asked.device_class_name, fleet.classes)
    if slip:
        remedy = f"write deviceClassName: {slip}"
    elif fleet.classes:  # which existing class fits the purpose is unknown
        remedy = f"create it; the cluster has {listed(sorted(fleet.classes))}"
    else:
        remedy = "create it; the cluster has no DeviceClass yet"
    return f"DeviceClass {asked.device_class_name} does not exist", remedy


class _Request(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The problems of one request or alternative, called with its claim's name if there are several claims.

    `only`: the request has no other alternative.
    """

    fleet: Fleet
    published: PublishedNames
    selection: Selection
    claim: str
    name: str
    asked: Asked
    only: bool
    selectors_of: str
    """Whose selectors the claim's own are: the requests that ask for the same, if the claim has several."""
    called: str
    names_subject: bool

    def problems(self) -> Iterator[Problem]:
        chain = self.selection
        for step in chain.steps:
            if not step.ref.expression:
                text, remedy = " has no CEL expression", "write a CEL expression"
                yield self._of_selector(step.ref, ProblemKind.SELECTOR_INVALID, text, remedy=remedy, fatal=True)
            elif step.error is not None:
                yield self._uncompilable(step, step.error)
            elif count(step.failed):
                yield from self._failing(step)
        if not count(chain.start):
            return
        if chain.of_class and not count(chain.by_class):
            yield from self._nothing(chain.steps[: chain.of_class], chain.start)
        elif not count(chain.end):
            yield from self._nothing(chain.steps[chain.of_class :], chain.by_class)
        else:
            yield from self._too_many()
        yield from self._capacities()

    def _problem(self, **fields: Any) -> Problem:
        fields.setdefault("names_subject", self.names_subject)
        return Problem(claim=self.claim, request=self.name, **fields)

    def _of_selector(self, ref: SelectorRef, kind: ProblemKind, text: str, *, remedy: str = "", fatal: bool) -> Problem:
        """A problem of a selector; `text` follows the selector's name."""
        return self._problem(
            kind=kind,
            text=f"selector #{ref.index} of {ref.source if ref.class_name else self.selectors_of}{text}",
            selector=ref,
            remedy=remedy,
            fatal=fatal,
            names_subject=not ref.class_name,
        )

    def _uncompilable(self, step: SelectorStep, error: CompileError) -> Problem:
        """The problem in terms of the language the author probably meant; else the compiler's errors."""
        drivers = drivers_of(self.fleet.inventory.columns, step.before)
        forms = rewritten(self.published, step.ref.expression, drivers)
        better = next(filter(self._compiles, forms), "")
        wrong = [each for each in self._complaints(step) if each.severity == "error"]
        known = next((each for each in wrong if (each.corrected is not None) == bool(better)), None)
        said, remedy = (known.cause, known.advice) if known is not None else ("", "")
        if not said:
            said = "; ".join(_ERROR_LINE.findall(str(error))[:3]) or str(error).splitlines()[0]
        text, remedy = f" does not compile: {said}", f"write {better}" if better else remedy
        return self._of_selector(step.ref, ProblemKind.SELECTOR_INVALID, text, remedy=remedy, fatal=True)

    def _compiles(self, expression: str) -> bool:
        try:
            self.fleet.inventory.selectors.scan(expression)
        except CompileError:
            return False
        return True

    def _complaints(self, step: SelectorStep) -> list[Complaint]:
        """What `draco lint` finds in a selector."""
        drivers = drivers_of(self.fleet.inventory.columns, step.before)
        return corrections.corrected(step.ref.expression, drivers[0] if len(drivers) == 1 else None)[0]

    def _failing(self, step: SelectorStep) -> Iterator[Problem]:
        """A selector that fails on devices.

        Fatal if one of them is free: the allocator skips devices in use, unless the request takes all devices or may share them.
        """
        fleet, ref, error = self.fleet, step.ref, main_error(self.fleet, step)
        unknown = list(unknown_names(fleet, self.published, ref, ref.expression, step.before))
        guilty = [each for each in unknown if error == f"no such key: {each.name}"]
        mistyped = error.startswith(_WRONG_TYPES)
        known = next(
            (each.cause for each in self._complaints(step) if each.always_fails or (mistyped and each.corrected)), ""
        )
        failed = count(step.failed)
        free = select([step.failed, fleet.unheld])
        is_free, takes_used = count(free) > 0, self.asked.allocation_mode == "All" or _is_for_admin(self.asked)
        fatal, devices = is_free or takes_used, counted(failed, "device")
        if why := known or " and ".join(each.text for each in guilty):
            where = (
                "the pod on every node"
                if fatal
                else f"on {devices}, {agreeing(failed, 'which is', 'all of which are')} in use"
            )
            text = f" fails {where}: {why}"
        else:
            example = min(map(fleet.inventory.key, first_rows(free if is_free else step.failed, _LOOKED_AT)))
            only = f"{agreeing(failed, 'it is', 'all of them are')} in use, so it matters only when one is free"
            text = f" fails on {devices}, for example {example}: {error}; {'this fails the pod on every node' if fatal else only}"
        better = guard(fleet, self.published, step)
        remedy = f"write {better}" if better else next((each.remedy for each in guilty if each.remedy), "")
        for each in unknown:
            if each not in guilty:
                yield self._of_selector(ref, each.kind, f": {each.text}", remedy=each.remedy, fatal=fatal)
        yield self._of_selector(ref, ProblemKind.SELECTOR_ERRORS, text, remedy=remedy, fatal=fatal)

    def _nothing(self, steps: Sequence[SelectorStep], among: bytes) -> Iterator[Problem]:
        """The problems if nothing is selected: by which selector, and why."""
        if any(step.error is not None or count(step.failed) for step in self.selection.steps):
            return  # reported already
        of_class, class_name = among is self.selection.start, self.asked.device_class_name
        who = "no device" if of_class else f"no device of class {class_name}"
        ends = list(dead_ends(self.fleet, self.published, steps, among, who=who))
        for end in ends:
            fatal = self.only and end.kind is not ProblemKind.PUBLISHED_TWICE
            yield self._of_selector(end.ref, end.kind, f": {end.text}", remedy=end.remedy, fatal=fatal)
        if ends:
            return  # the empty selection is a consequence
        if of_class:
            text = f"DeviceClass {class_name} selects none of the {count(among)} published devices"
            yield self._problem(kind=ProblemKind.CLASS_SELECTS_NOTHING, text=text, fatal=self.only)
        else:
            text = f"no device of class {class_name} meets all selectors of {self.called}"
            ref = steps[-1].ref if steps else None
            yield self._problem(kind=ProblemKind.SELECTOR_NEVER_TRUE, text=text, selector=ref, fatal=self.only)

    def _too_many(self) -> Iterator[Problem]:
        wanted = self.asked.count
        if self.asked.allocation_mode == "All":
            most = most_on_one_node(self.fleet, self.selection.end, _ANY_NUMBER)
            if most > MAX_RESULTS:
                yield self._problem(
                    kind=ProblemKind.TOO_MANY_DEVICES,
                    text=f"{self.called} takes every device of a node, one node has {most}, and a claim gets no more than "
                    f"{MAX_RESULTS}",
                    remedy="ask for a count, or select fewer",  # not fatal: the pod may go to another node
                )
            return
        if wanted <= 1:
            return
        most = most_on_one_node(self.fleet, self.selection.end, wanted)
        if wanted > most:
            yield self._problem(
                kind=ProblemKind.TOO_MANY_DEVICES,
                text=f"{self.called} wants {wanted} devices on one node, and no node has more than {most} that it selects",
                remedy=f"ask for {most}, or use several pods with a claim each" if most else "",
                fatal=self.only,
            )

    def _capacities(self) -> Iterator[Problem]:
        """Requested capacities that no selected device has, or not as much of."""
        wanted = self.asked.capacity.requests if self.asked.capacity is not None else {}
        if not wanted or not count(self.selection.end):
            return
        columns = self.fleet.inventory.columns
        amounts: dict[str, dict[str, DeviceCapacity]] = {}
        for row, device in enumerate(columns.devices):
            if device is not None and self.selection.end[row]:
                for name, capacity in device.capacity.items():
                    alike = capacity.value if capacity.request_policy is None else str(capacity)
                    amounts.setdefault(name, {})[alike] = capacity
        for name in sorted(wanted.keys() - amounts.keys()):
            near = closest(name.rpartition("/")[2], amounts)
            there = f"leave it out: these devices have {listed(sorted(amounts)) or 'none'}"
            yield self._problem(
                kind=ProblemKind.UNKNOWN_CAPACITY,
                text=f"{self.called} asks for the capacity {name}, and no device that it selects has it",
                remedy=f"ask for {near}" if near else there,
                fatal=self.only,
            )
        for name in sorted(wanted.keys() & amounts.keys()):
            largest = max(map(most, amounts[name].values()))
            whole = max(Quantity.parse(each.value) for each in amounts[name].values())
            if Quantity.parse(wanted[name]) > largest:
                gives = "has more than" if largest == whole else f"has more than {whole}, of which a claim can have"
                yield self._problem(
                    kind=ProblemKind.TOO_MUCH_CAPACITY,
                    text=f"{self.called} asks for {wanted[name]} of {name}, and no device that it selects {gives} {largest}",
                    remedy=f"ask for {largest}",
                    fatal=self.only,
                )


def most_on_one_node(fleet: Fleet, marks: bytes, wanted: int) -> int:
    """The most marked devices that one node has, at most `wanted`; ignores whether the pod may go there."""
    nodes = fleet.inventory.nodes
    anywhere = sum(nodes.read("", marks))
    most, names = anywhere, fleet.node_names
    for start in range(0, len(names), _NODES_AT_ONCE):
        alike = nodes.profiles(marks, names[start : start + _NODES_AT_ONCE])
        most = max(most, anywhere + max(map(sum, alike)))
        if most >= wanted:
            return wanted
    return most


def _of_constraints(
    published: PublishedNames, claim: ResourceClaim, called: str, selected: Mapping[str, bytes]
) -> Iterator[Problem]:
    problem = partial(Problem, claim=str(claim.metadata.key), names_subject=True)
    for index, constraint in enumerate(claim.spec.devices.constraints):
        which = f"constraint #{index} of {called}"
        attribute = constraint.match_attribute or constraint.distinct_attribute
        if attribute is None:
            continue
        domain, slash, name = attribute.partition("/")
        path = AttributePath("attributes", domain if slash else None, name if slash else attribute)
        about = {
            full_name: marks
            for full_name, marks in selected.items()
            if not constraint.requests or {full_name, full_name.partition("/")[0]} & set(constraint.requests)
        }
        without = [
            name for name, marks in about.items() if count(marks) and (not slash or not published.is_on(path, marks))
        ]
        if not without:
            continue
        those = f"{agreeing(len(without), 'request', 'requests')} {listed(without)} {agreeing(len(without), 'selects', 'select')}"
        yield problem(
            kind=ProblemKind.UNKNOWN_ATTRIBUTE,
            text=f"{which} compares the attribute {attribute}, and no device that {those} has it",
            request=without[0],
            remedy=_comparable(published, path),
            fatal=any("/" not in name for name in without),
        )


def _comparable(published: PublishedNames, path: AttributePath) -> str:
    """The remedy for an attribute that no device has; "" if there is none."""
    if path.domain is None:
        return f"write the attribute with its domain, such as {next(iter(published.drivers), 'example.com')}/{path.id}"
    meant = None if published.has(path) else published.meant(path)
    if meant is None:
        return ""
    name = f"{meant.domain}/{meant.id}"
    return (
        f"write {name}" if meant.kind == "attributes" else f"{name} is a capacity; constraints compare attributes only"
    )


def _to_whom(problem: Problem) -> Problem:
    """The problem; if it is the class's fault, its remedy says to change the class."""
    if problem.kind is ProblemKind.PUBLISHED_TWICE:
        return problem
    name = problem.selector.class_name if problem.selector is not None else ""
    if not name or not problem.remedy:
        return problem
    return msgspec.structs.replace(problem, remedy=f"change the DeviceClass {name}, not the claim: {problem.remedy}")
