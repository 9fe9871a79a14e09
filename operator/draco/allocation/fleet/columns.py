"""One column of small integers per attribute path: equal numbers mean equal values.

Owns rows (one per device) and the distinct values of each path, so that a selector is evaluated once per distinct combination of
the values it reads, and equal values are stored once. Knows nothing of pools and nodes.

A code is never reused for another value, so results cached by code stay valid; 0 means absent. A value also has a slot, a number
below 256 that may be reused: scans of all rows work on columns of one byte per row.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from functools import lru_cache
from itertools import compress, islice
from typing import Final, TypeVar

import msgspec

from draco.allocation.fleet.rowwise import BYTES, Combined, Narrow, nonzero, number, packed, unpacked
from draco.cel.paths import AttributePath, PathKind
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from draco.resources.semver import SemVer

MAX_SLOTS: Final = 255
MAX_COLUMNS: Final = 512
"""Limits memory if a driver publishes a different attribute name for every device."""
_GROWTH: Final = 1024
_AT_ONCE: Final = 8192
_ANY_VALUE: Final = bytes(bool(slot) for slot in range(BYTES))
_EVERY_BIT: Final = bytes(0xFF if mark else 0 for mark in range(BYTES))

_CODE: Final = "i"
Value = TypeVar("Value", DeviceAttribute, DeviceCapacity, None)


DRIVER: Final = AttributePath("driver")
SHAREABLE: Final = AttributePath("allowMultipleAllocations")


class _Known(msgspec.Struct, gc=False):
    value: DeviceAttribute | DeviceCapacity | None
    code: int
    slot: int
    uses: int


class Column:
    """The codes of one path by row (always the same object); as bytes in `slots`, until it has 256 distinct values."""

    def __init__(self, rows: int) -> None:
        self.codes = array(_CODE, bytes(4 * rows))
        self.slots: bytearray | None = bytearray(rows)
        self.pinned = False
        """Whether a selector reads it, so that it stays even if no device has the attribute."""
        self._known: dict[Hashable, _Known] = {}
        self._codes_given = 0
        self._free_slots = list(range(MAX_SLOTS, 0, -1))
        self._numbered: Combined | None = None
        self._present: bytes | None = None
        self._no_strings = 0

    def put(self, row: int, key: Hashable, value: Value) -> Value:
        """Set the value of an empty cell; returns the stored value of this key, which may be an older equal object."""
        known = self._known.get(key)
        if known is None:
            self._codes_given += 1
            known = self._known[key] = _Known(value, self._codes_given, self._new_slot(), 0)
            self._no_strings += not isinstance(key, str)
        known.uses += 1
        self.codes[row] = known.code
        self._numbered = self._present = None
        if self.slots is not None:
            self.slots[row] = known.slot
        return known.value  # type: ignore[return-value] # the key's

    def clear(self, row: int, key: Hashable) -> None:
        """Empty a cell that has the value of this key."""
        self.codes[row] = 0
        self._numbered = self._present = None
        known = self._known[key]
        known.uses -= 1
        if self.slots is not None:
            self.slots[row] = 0
        if not known.uses:
            del self._known[key]
            self._no_strings -= not isinstance(key, str)
            self._free_slots.append(known.slot)

    def grow(self, rows: int) -> None:
        """Add empty cells."""
        self.codes.frombytes(bytes(4 * rows))
        self._numbered = self._present = None
        if self.slots is not None:
            self.slots.extend(bytes(rows))

    def numbered(self) -> "Combined | array[int]":
        """The current values of all rows, to be combined with other columns."""
        if self.slots is None:
            return self.codes
        if self._numbered is None:
            self._numbered = number(self.slots, [0, *(known.slot for known in self._known.values())])
        return self._numbered

    def told_apart(self, strings: Collection[str]) -> "Combined | array[int]":
        """The same for callers that distinguish only these strings: fast for any number of distinct values."""
        if self._no_strings or len(strings) > MAX_SLOTS - 2:
            return self.numbered()
        values = range(2 + len(strings))
        if self.slots is not None:
            table = bytearray(_ANY_VALUE)
            for value, string in enumerate(strings, start=2):
                if string in self._known:
                    table[self._known[string].slot] = value
            return number(self.slots.translate(table), values)
        if self._present is None:
            self._present = nonzero(self.codes)
        codes = bytearray(self._present)
        for value, string in enumerate(strings, start=2):
            known = self._known.get(string)
            if known is None:
                continue
            row = -1
            for _ in range(known.uses):
                row = self.codes.index(known.code, row + 1)
                codes[row] = value
        return number(codes, values)

    def _new_slot(self) -> int:
        if not self._free_slots:
            self.slots = None
        return self._free_slots.pop() if self.slots is not None else 0

    def values(self) -> Iterator[tuple[Hashable, DeviceAttribute | DeviceCapacity | None, int]]:
        """Each distinct value: its key, an attribute or capacity with it, and its number of cells."""
        for key, known in self._known.items():
            yield key, known.value, known.uses

    def examples(self, marks: Narrow, most: int) -> list[int]:
        """One marked row for each distinct value that marked rows have, at most `most`, in the order of first rows."""
        if self.slots is not None:
            there = unpacked(packed(self.slots) & packed(marks.translate(_EVERY_BIT)), len(marks))
            found = [there.find(known.slot) for known in self._known.values()]
            return sorted(row for row in found if row >= 0)[:most]
        row_of: dict[int, int] = {0: 0}  # by the code; 0 means absent
        cells = zip(compress(self.codes, marks), compress(range(len(marks)), marks), strict=True)
        while len(row_of) <= most and (some := dict(islice(cells, _AT_ONCE))):
            row_of |= some
        del row_of[0]
        return list(islice(row_of.values(), most))

    @property
    def empty(self) -> bool:
        """Whether no cell has a value."""
        return not self._known

    def distinct(self) -> int:
        """The number of distinct values."""
        return len(self._known)


class Columns:
    """Rows and columns of all devices of one inventory."""

    def __init__(self) -> None:
        self.irregular: set[int] = set()
        """Rows whose selectors must be evaluated on the device: even an attribute that they do not read can make them fail."""
        self.twice: Counter[AttributePath] = Counter()
        """How many devices publish a path with and without its domain, with different values. The former counts."""
        self.devices: list[Device | None] = []
        """By row; None for unused rows."""
        self.drivers: list[str] = []
        """By row, if used."""
        self.sources: list[str] = []
        """By row, if used: the name of the slice that publishes the device."""
        self.version = 0
        """Changes with every change of a row, to invalidate results about all rows."""
        self.driver = Column(0)
        self._columns: dict[AttributePath, Column] = {DRIVER: self.driver, SHAREABLE: Column(0)}
        self._left_out: Counter[AttributePath] = Counter()
        self._free: list[int] = []
        self._rows = 0
        self._marks: list[bytearray] = []
        self._others: list[Column] = []
        self.live = self.new_marks()
        """1 for each used row."""

    def __len__(self) -> int:
        return self._rows - len(self._free)

    @property
    def paths(self) -> frozenset[AttributePath]:
        """Every path that a device has or a selector reads."""
        return frozenset(self._columns) | frozenset(self._left_out)

    def get(self, path: AttributePath) -> Column | None:
        """The column of a path, if it has one."""
        return self._columns.get(path)

    def read(self, path: AttributePath) -> Column | None:
        """The column of a path, maintained from now on; None if there are too many paths."""
        column = self._column(path)
        if column is not None:
            column.pinned = True
        return column

    def peek(self, path: AttributePath) -> "array[int] | None":
        """The current codes of a path, all 0 if no device has it; None if there are too many paths."""
        column = self._columns.get(path)
        if column is not None:
            return column.codes
        return None if path in self._left_out else array(_CODE, bytes(4 * self._rows))

    @property
    def unpublished(self) -> int:
        """Number of columns that exist only because selectors read them."""
        return sum(column.pinned and column.empty for column in self._columns.values())

    def let_go(self) -> None:
        """Unpin all columns and drop those without values."""
        for path, column in list(self._columns.items()):
            column.pinned = False
            if column.empty and path not in {DRIVER, SHAREABLE}:
                del self._columns[path]

    @property
    def rows(self) -> int:
        """Number of rows, used or not."""
        return self._rows

    def new_marks(self) -> bytearray:
        """One byte per row for the caller's use; grows with the rows and is reset to 0 for unused rows."""
        marks = bytearray(self._rows)
        self._marks.append(marks)
        return marks

    def new_column(self) -> Column:
        """A column for the caller's use, of values without a path; they must be cleared before their row is removed."""
        column = Column(self._rows)
        self._others.append(column)
        return column

    def add(self, driver: str, device: Device, source: str = "") -> tuple[int, Device]:
        """Add a device; returns its row and the device with values replaced by equal stored ones."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        kept = self._fill(row, driver, device)
        self.devices[row], self.drivers[row], self.sources[row] = kept, driver, source
        self.live[row] = 1
        self.version += 1
        return row, kept

    def _fill(self, row: int, driver: str, device: Device) -> Device:
        attributes = {}
        for name, attribute in device.attributes.items():
            path, full = _path("attributes", driver, name)
            if full and full in device.attributes:
                attributes[name] = attribute
                self.twice[path] += attribute != device.attributes[full]
                continue
            key, regular = _attribute_key(attribute)
            if not regular:
                self.irregular.add(row)
            column = self._column(path)
            if column is None:
                self._left_out[path] += 1
                attributes[name] = attribute
            else:
                attributes[name] = column.put(row, key, attribute)
        capacity = {}
        for name, amount in device.capacity.items():
            path, full = _path("capacity", driver, name)
            kept = amount
            if full and full in device.capacity:
                self.twice[path] += amount.value != device.capacity[full].value
            else:
                column = self._column(path)
                if column is None:
                    self._left_out[path] += 1
                else:
                    kept = column.put(row, amount.value, amount)
            capacity[name] = kept if kept == amount else amount  # the request policy is not part of the column's value
        self.driver.put(row, driver, None)
        self._columns[SHAREABLE].put(row, bool(device.allow_multiple_allocations), None)
        if not attributes and not capacity:
            return device
        return msgspec.structs.replace(device, attributes=attributes, capacity=capacity)

    def remove(self, row: int, driver: str, device: Device) -> None:
        """Free the row of a device."""
        for name, attribute in device.attributes.items():
            path, full = _path("attributes", driver, name)
            if full and full in device.attributes:
                self.twice[path] -= attribute != device.attributes[full]
            else:
                self._clear(path, row, _attribute_key(attribute)[0])
        for name, amount in device.capacity.items():
            path, full = _path("capacity", driver, name)
            if full and full in device.capacity:
                self.twice[path] -= amount.value != device.capacity[full].value
            else:
                self._clear(path, row, amount.value)
        self.driver.clear(row, driver)
        self._columns[SHAREABLE].clear(row, bool(device.allow_multiple_allocations))
        self.irregular.discard(row)
        self.devices[row] = None
        for marks in self._marks:
            marks[row] = 0
        self.version += 1
        self._free.append(row)

    def _column(self, path: AttributePath) -> Column | None:
        column = self._columns.get(path)
        if column is None:
            if self._left_out.get(path) or len(self._columns) >= MAX_COLUMNS:
                return None
            column = self._columns[path] = Column(self._rows)
        return column

    def _clear(self, path: AttributePath, row: int, key: Hashable) -> None:
        column = self._columns.get(path)
        if column is None:
            self._left_out[path] -= 1
            if not self._left_out[path]:
                del self._left_out[path]
            return
        column.clear(row, key)
        if column.empty and not column.pinned:
            del self._columns[path]

    def _grow(self) -> None:
        more = max(_GROWTH, self._rows // 8)
        for column in self._columns.values():
            column.grow(more)
        for column in self._others:
            column.grow(more)
        for marks in self._marks:
            marks.extend(bytes(more))
        self.devices.extend([None] * more)
        self.drivers.extend([""] * more)
        self.sources.extend([""] * more)
        self._free.extend(range(self._rows + more - 1, self._rows - 1, -1))
        self._rows += more


@lru_cache(maxsize=8192)
def _path(kind: PathKind, driver: str, name: str) -> tuple[AttributePath, str]:
    """The path of a published name, and its full name, which counts if it is published too; "" if the name is the full one."""
    domain, slash, identifier = name.partition("/")
    return (
        (AttributePath(kind, domain, identifier), "")
        if slash
        else (AttributePath(kind, driver, name), f"{driver}/{name}")
    )


def attribute_key(attribute: DeviceAttribute) -> Hashable | None:
    """A key that is equal for attributes of the same type and value; None for lists, which are off by default."""
    if attribute.string is not None:
        return attribute.string
    if attribute.int_ is not None:
        return attribute.int_
    if attribute.bool_ is not None:
        return ("bool", attribute.bool_)
    if attribute.version is not None:
        return ("version", attribute.version)
    return None


def _attribute_key(attribute: DeviceAttribute) -> tuple[Hashable, bool]:
    """The key, and whether every selector can be evaluated on a device with the attribute."""
    key = attribute_key(attribute)
    if key is None:
        return ("list", repr(attribute.value)), False
    return key, attribute.version is None or _is_semver(attribute.version)


@lru_cache(maxsize=8192)
def _is_semver(text: str) -> bool:
    return SemVer.read(text) is not None
