"""Sorts devices into equivalence classes: devices with the same code are alike for the claims at hand.

Owns what a code covers: the selectors' results, whether the device is in use, its taints, and whether it has the attributes that
constraints compare. Devices that no request selects are all alike. Devices with more relevant properties are odd; `oddity` tells
them apart. Of counters, codes note only whether a device draws from any.
"""

from array import array
from collections.abc import Hashable, Sequence
from typing import Final

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import Candidate
from draco.allocation.fleet.rowwise import Combined, combine, nonzero, number, select
from draco.allocation.fleet.selectors import FAILS, YES
from draco.cel.errors import CompileError
from draco.cel.paths import AttributePath
from draco.explanation.findings.reachability import VisiblePools
from draco.explanation.findings.verdicts import ConstrainedRequest

SELECTED: Final = 0
"""Outcome of a row that all selectors of a request select; for others see `outcome`."""
_MOST: Final = 255
"""The largest value of a byte."""
_EVERY_BIT: Final = 0xFF


def outcome(place: int, *, failed: bool) -> int:
    """Code of the first selector that is not true, and whether it fails. Selectors too far back for a byte share a code."""
    return min(1 + 2 * place + failed, _MOST - 1 + failed)


def _matters(result: int) -> bool:
    """Whether other properties can matter: not if a selector is false."""
    return result % 2 == 0


class EquivalenceClasses:
    """The codes of all rows."""

    def __init__(self, fleet: Fleet, requests: Sequence[ConstrainedRequest]) -> None:
        self._fleet = fleet
        columns = fleet.inventory.columns
        self.outcomes = [_outcomes(fleet, constrained, columns.rows) for constrained in requests]
        """Per request, a byte for each row: SELECTED or an `outcome`."""
        attributes = {
            constraint.match_attribute or constraint.distinct_attribute or ""
            for constrained in requests
            for constraint, _ in constrained.constraints
        }
        compared = [self._column(attribute) for attribute in sorted(attributes)]
        self.compared = [column for column in compared if column is not None]
        """Per attribute that a constraint compares, a number for each row; equal numbers mean equal values."""
        if any(constrained.request.asked.capacity is not None for constrained in requests) or len(self.compared) < len(
            compared
        ):
            odd = bytes([1]) * columns.rows
        else:
            odd = bytes(fleet.by_amount)
        results = combine([number(each) for each in self.outcomes] or [bytes(columns.rows)])
        matters = results.paint(
            [_EVERY_BIT if any(_matters(each[row]) for each in self.outcomes) else 0 for row in results.rows]
        )
        drawing, odd = select([bytes(fleet.inventory.drawing), matters]), select([odd, matters])
        there = [number(select([nonzero(column), matters]), (0, 1)) for column in self.compared]
        marks = [number(each, (0, 1, 2)) for each in (select([bytes(fleet.held), matters]), odd, drawing)]
        taints = fleet.inventory.taints.numbered()
        if isinstance(taints, Combined) and not isinstance(taints.codes, array):
            taints = number(select([taints.codes, matters]), range(len(taints)))
        combined = combine([results, *marks, taints, *there])
        self.codes = combined.codes
        self.odd = frozenset(code for code, row in enumerate(combined.rows) if odd[row])
        """Codes of odd devices."""
        self.drawing = frozenset(code for code, row in enumerate(combined.rows) if drawing[row])
        """Codes of devices that draw from shared counters."""
        fails = any(each[row] and each[row] % 2 == 0 for each in self.outcomes for row in combined.rows)
        self.order_matters = fails or bool(self.odd) or bool(self.drawing) or bool(compared)
        """Whether equivalent nodes must have their equivalent devices in the same order."""

    def fails_on(self, pools: VisiblePools) -> bool:
        """Whether a selector fails on a device of a slice with perDeviceNodeSelection, even on a device for another node.

        The allocator evaluates selectors before it checks whether the device is for the node.
        """
        return any(
            candidate.spec.per_device_node_selection
            and any(each[candidate.row] and each[candidate.row] % 2 == 0 for each in self.outcomes)
            for view in pools.views
            for candidate in view.candidates
        )

    def oddity(self, candidate: Candidate) -> Hashable:
        """The other relevant properties of an odd device; None if it is not odd."""
        if self.codes[candidate.row] not in self.odd:
            return None
        state, device = self._fleet.state, candidate.device
        return (
            msgspec.json.encode(device.capacity),
            msgspec.json.encode(device.attributes)
            if self._fleet.inventory.columns.irregular or not self.compared
            else b"",
            device.allow_multiple_allocations,
            tuple(sorted(state.consumed(candidate.key).items())),
            state.shares(candidate.key),
        )

    def _column(self, attribute: str) -> "array[int] | None":
        domain, slash, name = attribute.partition("/")
        return self._fleet.inventory.columns.peek(AttributePath("attributes", domain, name)) if slash else None


def _outcomes(fleet: Fleet, constrained: ConstrainedRequest, size: int) -> bytes:
    said: list[bytes] = []
    for _, _, selector in constrained.selectors:
        try:
            said.append(
                fleet.inventory.selectors.scan(selector.cel.expression if selector.cel is not None else "").outcomes
            )
        except CompileError:
            said.append(bytes([FAILS]) * size)
    if not said:
        return bytes(size)
    combined = combine([number(each, range(FAILS + 1)) for each in said])
    return combined.paint([_first([each[row] for each in said]) for row in combined.rows])


def _first(said: Sequence[int]) -> int:
    for place, each in enumerate(said):
        if each != YES:
            return outcome(place, failed=each == FAILS)
    return SELECTED
