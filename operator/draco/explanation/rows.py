"""Devices as numbers: rows with one code are alike for the claims at hand.

Owns what goes into a code: what selectors say, whether the device is in use, its taints, and whether it has what constraints
compare. Devices of which more than this matters are odd, and told apart by `oddity`. Only devices of plain pools are looked at.
"""

from collections.abc import Hashable, Sequence
from typing import Final

import msgspec

from draco.allocation.columns import Path
from draco.allocation.fleet import Fleet
from draco.allocation.pools import Candidate, Entry
from draco.allocation.rowwise import combine, number
from draco.allocation.selectors import FAILS, YES
from draco.cel.errors import CompileError
from draco.explanation.ground import Ground
from draco.explanation.verdicts import Ask
from draco.resources.names import DeviceKey

SELECTED: Final = 0
"""Outcome of a row that all selectors of a request select; otherwise see `outcome`."""
_MOST: Final = 255
"""What a byte can tell apart."""


def outcome(place: int, *, failed: bool) -> int:
    """The first selector that does not say yes, and whether it fails. Selectors beyond what a byte can say share a number."""
    return min(1 + 2 * place + failed, _MOST - 1 + failed)


class Rows:
    """The codes of all rows."""

    def __init__(self, fleet: Fleet, asks: Sequence[Ask], ground: Ground) -> None:
        self._fleet = fleet
        self._plain = ground.plain
        self._asks_amounts = any(ask.request.asked.capacity is not None for ask in asks)
        size = fleet.inventory.columns.rows
        self.outcomes = [_outcomes(fleet, ask, size) for ask in asks]
        """For each ask a byte for each row: SELECTED or an `outcome`."""
        self._held, self._taints, self._odd = bytearray(size), bytearray(size), bytearray(size)
        self._known_taints: dict[Hashable, int] = {}
        for entries in ground.plain.values():
            for entry in entries:
                self._read(entry)
        attributes = {
            told.match_attribute or told.distinct_attribute or "" for ask in asks for told, _ in ask.constraints
        }
        columns = [self._column(attribute) for attribute in sorted(attributes)]
        self.compared = [column for column in columns if column is not None]
        """For each attribute that a constraint compares a number for each row, equal where the values are."""
        if len(self.compared) < len(columns):
            self._odd = bytearray(b"\1" * size)
        there = [number(bytes(map(bool, column)), (0, 1)) for column in self.compared]
        marks: list[bytes | bytearray] = [*self.outcomes, self._held, self._taints, self._odd]
        parts = [number(each) for each in marks]
        combined = combine([*parts, *there])
        self.codes = combined.codes
        self.odd = frozenset(code for code, row in enumerate(combined.rows) if self._odd[row])
        """Codes of devices of which more matters."""

    def oddity(self, candidate: Candidate) -> Hashable:
        """What else matters of a device, if it is odd."""
        if self.codes[candidate.row] not in self.odd:
            return None
        state, device = self._fleet.state, candidate.device
        return (
            msgspec.json.encode(device.capacity),
            msgspec.json.encode(device.attributes)
            if self._fleet.inventory.columns.irregular or not self.compared
            else b"",
            msgspec.json.encode(candidate.taints),
            device.allow_multiple_allocations,
            tuple(sorted(state.consumed(candidate.key).items())),
            state.shares(candidate.key),
        )

    def of(self, node: str) -> list[int]:
        """The rows of the devices in a node's plain pools."""
        return [row for entry in self._plain.get(node, ()) for row in entry.rows]

    def _read(self, entry: Entry) -> None:
        spec, held, state = entry.spec, self._held, self._fleet.state
        driver, pool = spec.driver, spec.pool.name
        for row, device in zip(entry.rows, spec.devices, strict=True):
            key = DeviceKey(driver, pool, device.name)
            if state.uses(key):
                held[row] = 1 if state.holds(key) else 2
            if (
                self._asks_amounts
                or device.allow_multiple_allocations
                or (device.capacity and [1 for each in device.capacity.values() if each.request_policy is not None])
            ):
                self._odd[row] = 1
        if any(entry.taints):
            self._read_taints(entry)

    def _read_taints(self, entry: Entry) -> None:
        for row, taints in zip(entry.rows, entry.taints, strict=True):
            if taints:
                key = tuple([(taint.key, taint.value, taint.effect) for taint in taints])
                code = self._known_taints.setdefault(key, min(len(self._known_taints) + 1, _MOST))
                self._taints[row] = code
                if code == _MOST:
                    self._odd[row] = 1

    def _column(self, attribute: str) -> Sequence[int] | None:
        domain, slash, name = attribute.partition("/")
        column = self._fleet.inventory.columns.read(Path("attributes", domain, name)) if slash else None
        return None if column is None else column.codes


def _outcomes(fleet: Fleet, ask: Ask, size: int) -> bytes:
    said: list[bytes] = []
    for _, _, selector in ask.selectors:
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
