"""Caches of selectors for one inventory: compiled once, evaluated once per combination of the values they read."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Final, TypeAlias

from draco.allocation.fleet.columns import DRIVER, Column, Columns
from draco.allocation.fleet.rowwise import BYTES, Combined, combine, number, packed, places
from draco.cel import AttributePath, CompileError, EvaluationError, Selector, compile_selector, device_view
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity

MAX_SELECTORS: Final = 4096
MAX_CHARACTERS: Final = 2**20
"""Of all selectors together: a compiled character takes some 75 bytes, and one selector may have 10,000 characters."""
MAX_SCANS: Final = 64
"""A scan of 100,000 devices takes some 300 kB."""
MAX_UNPUBLISHED: Final = 64
"""Columns that nobody publishes, some 500 kB each; anyone who may write claims can name any number of attributes."""
MAX_REMEMBERED: Final = 2**18
"""Cached outcomes of all selectors; one that reads a serial number has as many as there are devices."""
NO, YES, FAILS = 0, 1, 2
_YES: Final = bytes(outcome == YES for outcome in range(BYTES))
_FAILS: Final = bytes(outcome == FAILS for outcome in range(BYTES))
_ALONE: Final = 2


_Outcome: TypeAlias = bool | EvaluationError


class Scan:
    """The outcome of a selector for every device.

    `outcomes` has a byte per row: NO, YES or FAILS (evaluation error), and NO for unused rows. Valid until the columns' `version`
    changes. Combine it with other columns by `rowwise.combine`.
    """

    def __init__(self, outcomes: bytes) -> None:
        self.outcomes: Final = outcomes

    @cached_property
    def selected(self) -> int:
        """The rows with YES, packed (see `rowwise.packed`)."""
        return packed(self.outcomes.translate(_YES))

    @cached_property
    def failing(self) -> int:
        """The rows with FAILS, packed."""
        return packed(self.outcomes.translate(_FAILS)) if FAILS in self.outcomes else 0


class _Entry:
    """A compiled selector with its outcomes by the codes of what it reads; with `read` None, nothing is cached."""

    def __init__(self, selector: Selector, read: Sequence[tuple[AttributePath, Column]] | None) -> None:
        self.selector = selector
        self.read = read
        self.codes = None if read is None else tuple(column.codes for _, column in read)
        self.outcomes: dict[tuple[int, ...], _Outcome] = {}
        self.scan: tuple[int, Scan] | None = None

    def numbered(self, path: AttributePath, column: Column) -> "Combined | array[int]":
        """The values of a column that it distinguishes."""
        strings = self.selector.compared.get(path)
        return column.numbered() if strings is None else column.told_apart(strings)


class Selectors:
    """A cache of selectors with their outcomes for the devices of one inventory."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._entries: dict[str, _Entry | CompileError] = {}
        self._scanned: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._remembered = 0
        self._characters = 0

    def matches(self, expression: str, driver: str, device: Device, row: int) -> bool:
        """Whether the expression matches the device of that row. Raises CompileError and EvaluationError."""
        outcome = self._said(self._entry(expression), driver, device, row)
        if isinstance(outcome, EvaluationError):
            raise outcome.with_traceback(None)
        return outcome

    def compile(self, expression: str) -> Selector:
        """The compiled expression, cached; its columns are maintained from now on. Raises CompileError."""
        return self._entry(expression).selector

    def scan(self, expression: str) -> Scan:
        """The outcome of the expression for every device, evaluated once per combination of values. Raises CompileError."""
        entry = self._entry(expression)
        version = self._columns.version
        if entry.scan is None or entry.scan[0] != version:
            entry.scan = (version, self._scan(entry))
        self._scanned[expression] = entry
        self._scanned.move_to_end(expression)
        if len(self._scanned) > MAX_SCANS:
            _, oldest = self._scanned.popitem(last=False)
            oldest.scan = None
        return entry.scan[1]

    def _scan(self, entry: _Entry) -> Scan:
        columns = self._columns
        alone = sorted(columns.irregular) if entry.read is not None else places(columns.live, 1)
        live = bytearray(columns.live)
        for row in alone:
            live[row] = _ALONE
        read = [(path, column) for path, column in entry.read or () if alone or path != DRIVER]
        used = number(live, range(_ALONE + 1)) if alone else columns.driver.numbered()  # every device has a driver
        combined = combine([used, *(entry.numbered(path, column) for path, column in read)])
        outcomes = combined.paint([self._outcome(entry, row) if live[row] == 1 else NO for row in combined.rows])
        if not alone:
            return Scan(outcomes)
        patched = bytearray(outcomes)
        for row in alone:
            patched[row] = self._outcome(entry, row)
        return Scan(bytes(patched))

    def _outcome(self, entry: _Entry, row: int) -> int:
        device = self._columns.devices[row]
        if device is None:
            raise LookupError(f"row {row} has no device")
        said = self._said(entry, self._columns.drivers[row], device, row)
        return FAILS if isinstance(said, EvaluationError) else int(said)

    def _entry(self, expression: str) -> _Entry:
        entry = self._entries.get(expression)
        if entry is None:
            entry = self._add(expression)
        if isinstance(entry, CompileError):
            raise entry.with_traceback(None)
        return entry

    def _said(self, entry: _Entry, driver: str, device: Device, row: int) -> _Outcome:
        if entry.codes is None or entry.read is None or row in self._columns.irregular:
            return self._evaluate(entry.selector, driver, device)
        seen = tuple([codes[row] for codes in entry.codes])
        outcome = entry.outcomes.get(seen)
        if outcome is None:
            outcome = self._evaluate(entry.selector, driver, _reduced(device, driver, entry.read))
            if self._remembered >= MAX_REMEMBERED:
                self._forget()
            self._remembered += 1
            entry.outcomes[seen] = outcome
        return outcome

    def _forget(self) -> None:
        for entry in self._entries.values():
            if isinstance(entry, _Entry):
                entry.outcomes.clear()
        self._remembered = 0

    def _evaluate(self, selector: Selector, driver: str, device: Device) -> _Outcome:
        try:
            return selector.matches(device_view(driver, device))
        except EvaluationError as error:
            return error

    def _add(self, expression: str) -> _Entry | CompileError:
        is_full = len(self._entries) >= MAX_SELECTORS or self._characters + len(expression) > MAX_CHARACTERS
        if is_full or self._columns.unpublished > MAX_UNPUBLISHED:
            self._entries.clear()
            self._scanned.clear()
            self._remembered = self._characters = 0
            self._columns.let_go()
        self._characters += len(expression)
        try:
            selector = compile_selector(expression)
        except CompileError as error:
            entry: _Entry | CompileError = error
        else:
            entry = _Entry(selector, self._read(selector))
        self._entries[expression] = entry
        return entry

    def _read(self, selector: Selector) -> Sequence[tuple[AttributePath, Column]] | None:
        if selector.reads_everything:
            return None
        read = []
        for each in selector.paths:
            if each.kind in {"attributes", "capacity"} and not (each.domain and each.id):
                return None
            column = self._columns.read(each)
            if column is None:
                return None
            read.append((each, column))
        return read


def _reduced(device: Device, driver: str, read: Sequence[tuple[AttributePath, Column]]) -> Device:
    """The device with only what a selector reads: a view of all of it would take far longer."""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    for path, _ in read:
        for name in _names(path, driver):
            if path.kind == "attributes" and name in device.attributes:
                attributes[name] = device.attributes[name]
                break
            if path.kind == "capacity" and name in device.capacity:
                capacity[name] = device.capacity[name]
                break
    shareable = device.allow_multiple_allocations
    return Device(name=device.name, attributes=attributes, capacity=capacity, allow_multiple_allocations=shareable)


def _names(path: AttributePath, driver: str) -> Sequence[str]:
    """The names under which a device of the driver may publish a path; the full name takes precedence."""
    full = f"{path.domain}/{path.id}"
    return (full, path.id or "") if path.domain == driver else (full,)
