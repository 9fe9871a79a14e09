"""Judges one device for one request: what blocks it.

Owns the order in which causes are tried. Each device is judged alone; `joint_fit` finds devices that do not fit together. Every
check is `draco.allocation`'s.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec

from draco.allocation.configured_claims import ImpliedSelector
from draco.allocation.errors import AllocationError
from draco.allocation.fleet.capacity import is_left
from draco.allocation.fleet.pools import Candidate, PoolView
from draco.allocation.fleet.selectors import Selectors
from draco.allocation.fleet.state import AllocatedState, amount
from draco.allocation.search.constraints import Constraint
from draco.allocation.search.requests import ExpandedClaim, Request
from draco.cel.errors import CompileError, EvaluationError
from draco.explanation.model import NOT_ELIGIBLE, Cause
from draco.resources.api.claims import DeviceConstraint, ResourceClaim


class DeviceFinding(NamedTuple):
    """The cause of one device, and its detail; devices with equal findings are counted together.

    `respect` by cause: NOT_SELECTED the selector's position in the request; CONFIGURATION_REFUSED what the device is unable to
    have; SELECTOR_FAILED the position and the error; TAINTED the taints (key, value, effect); COUNTERS_SHORT counter set and
    counter; CAPACITY_SHORT the capacity and how it falls short; CONSTRAINT the attribute.
    """

    cause: Cause
    respect: Hashable = None


FREE = DeviceFinding(Cause.FREE)


def at_best(finding: DeviceFinding, cause: Cause) -> DeviceFinding:
    """Replace the finding by `cause`, unless the device is not eligible or `cause` is FREE."""
    return finding if cause is Cause.FREE or finding.cause in NOT_ELIGIBLE else DeviceFinding(cause)


class JudgedDevice(msgspec.Struct, frozen=True):
    """A device that a node may reach, with a finding for each request."""

    view: PoolView
    candidate: Candidate
    findings: tuple[DeviceFinding, ...]


class ConstrainedRequest:
    """One request, or one alternative of it, with its constraints."""

    def __init__(self, claim: ResourceClaim, expanded: ExpandedClaim, request: Request, *, number: int) -> None:
        self.claim = claim
        self.request = request
        self.number = number
        """Position of its claim among the claims to be allocated."""
        self.all_mode = request.asked.allocation_mode == "All"
        self.constraints: list[tuple[DeviceConstraint, Constraint]] = [
            (written, constraint)
            for written, constraint in zip(claim.spec.devices.constraints, expanded.constraints, strict=True)
            if constraint.applies(request.base, request.name)
        ]
        self.selectors = request.selectors

    @property
    def wanted(self) -> int:
        """The least number of devices that it takes."""
        return 1 if self.all_mode else self.request.count


def constrained_requests(expanded: Sequence[ExpandedClaim]) -> list[ConstrainedRequest]:
    """All requests of the claims, alternatives one by one."""
    return [
        ConstrainedRequest(claim.claim, claim, request, number=number)
        for number, claim in enumerate(expanded)
        for alternatives in claim.requests
        for request in alternatives
    ]


class Judge:
    """Judges devices of one node, or of nodes that see the same pools."""

    def __init__(self, selectors: Selectors, state: AllocatedState) -> None:
        self._selectors = selectors
        self._state = state
        self._left: dict[int, tuple[PoolView, list[int]]] = {}

    def finding(self, constrained: ConstrainedRequest, view: PoolView, candidate: Candidate) -> DeviceFinding:
        """What blocks a device that its node may reach."""
        failed = None
        for place, (_, _, selector) in enumerate(constrained.selectors):
            expression = selector.cel.expression if selector.cel is not None else ""
            try:
                if not self._selectors.matches(expression, candidate.key.driver, candidate.device, candidate.row):
                    if isinstance(selector, ImpliedSelector):
                        return DeviceFinding(Cause.CONFIGURATION_REFUSED, selector.unable)
                    return DeviceFinding(Cause.NOT_SELECTED, place)
            except (CompileError, EvaluationError) as error:
                failed = DeviceFinding(Cause.SELECTOR_FAILED, (place, str(error)))
                break
        is_in_use = not constrained.request.admin_access and self._state.holds(candidate.key)
        if is_in_use and not (failed and constrained.all_mode):
            return DeviceFinding(Cause.IN_USE)
        if failed is not None:
            return failed
        return (
            self._amount_error(constrained, candidate)
            or self._taint(constrained, candidate)
            or self._counter(view, candidate)
            or self._capacity(constrained, candidate)
            or self._constraint(constrained, candidate)
            or FREE
        )

    def left(self, view: PoolView) -> list[int]:
        """What devices in use leave of the pool's counters."""
        known = self._left.get(id(view))
        if known is None:
            counters = list(view.counters)
            charged = [(each.key, each.charges) for each in view.candidates] if counters else []
            for key, charges in (*charged, *view.others):
                if charges and self._state.uses(key):
                    for place, taken in charges:
                        counters[place] -= taken
            known = self._left[id(view)] = (view, counters)
        return known[1]

    @staticmethod
    def _taint(constrained: ConstrainedRequest, candidate: Candidate) -> DeviceFinding | None:
        if constrained.request.tolerates(candidate):
            return None
        tolerations = constrained.request.asked.tolerations
        untolerated = [
            taint.identity for taint in candidate.taints if not any(each.tolerates(taint) for each in tolerations)
        ]
        return DeviceFinding(Cause.TAINTED, tuple(sorted(set(untolerated))))

    def _counter(self, view: PoolView, candidate: Candidate) -> DeviceFinding | None:
        if not candidate.charges:
            return None
        if candidate.device.allow_multiple_allocations and self._state.shares(candidate.key):
            return None
        left = self.left(view)
        names = counter_names(candidate)
        for name, (place, taken) in zip(names, candidate.charges, strict=True):
            if taken > left[place]:
                return DeviceFinding(Cause.COUNTERS_SHORT, name)
        if any(each < 0 for each in left):
            return DeviceFinding(Cause.COUNTERS_SHORT, names[0])
        return None

    @staticmethod
    def _amount_error(constrained: ConstrainedRequest, candidate: Candidate) -> DeviceFinding | None:
        try:
            constrained.request.amounts(candidate)
        except AllocationError as error:
            return DeviceFinding(Cause.CAPACITY_SHORT, ("", str(error)))
        return None

    def _capacity(self, constrained: ConstrainedRequest, candidate: Candidate) -> DeviceFinding | None:
        device = candidate.device
        amounts = constrained.request.amounts(candidate)
        wanted = constrained.request.asked.capacity.requests if constrained.request.asked.capacity is not None else {}
        if amounts is None:
            lacking = [name for name in wanted if name not in device.capacity]
            name = lacking[0] if lacking else next(iter(wanted or device.capacity), "")
            return DeviceFinding(Cause.CAPACITY_SHORT, (name, "lacks" if lacking else "forbids"))
        if not amounts or is_left(amounts, device, self._state.consumed(candidate.key)):
            return None
        consumed = self._state.consumed(candidate.key)
        return next(
            DeviceFinding(Cause.CAPACITY_SHORT, (name, "short"))
            for name, asked in amounts.items()
            if asked.nanos + consumed.get(name, 0) > amount(device.capacity[name].value)
        )

    @staticmethod
    def _constraint(constrained: ConstrainedRequest, candidate: Candidate) -> DeviceFinding | None:
        for written, constraint in constrained.constraints:
            if not constraint.join(candidate.key.driver, candidate.device):
                return DeviceFinding(Cause.CONSTRAINT, written.match_attribute or written.distinct_attribute or "")
            constraint.leave()
        return None


def counter_names(candidate: Candidate) -> list[tuple[str, str]]:
    """Counter set and counter of each of the candidate's charges."""
    names = [(each.counter_set, name) for each in candidate.device.consumes_counters for name in each.counters]
    return list(dict.fromkeys(names))
