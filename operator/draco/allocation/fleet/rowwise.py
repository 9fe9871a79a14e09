"""Arithmetic on whole columns: which combinations of values occur, where, and how often.

Owns combining, painting and counting columns of small numbers. Byte columns are combined by translating them and adding them as
two huge integers: tens of microseconds for a hundred thousand rows. Columns of more than 256 values are combined row by row,
about a hundred times slower. Knows nothing of devices.
"""

import itertools
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final, TypeAlias

BYTES: Final = 256
Narrow: TypeAlias = bytes | bytearray
Codes: TypeAlias = "Narrow | array[int]"
_NONZERO: Final = bytes(map(bool, range(BYTES)))
_COUNTED_ALONE: Final = 32
"""Up to so many values are counted one by one; for more, one pass over the rows is faster."""


class Combined:
    """Numbered combinations of columns' values: `codes` by row, `rows` the first row of each combination."""

    __slots__ = ("codes", "rows")

    def __init__(self, codes: Codes, rows: Sequence[int]) -> None:
        self.codes = codes
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def paint(self, values: Sequence[int]) -> bytes:
        """A byte per row: `values` has that of each combination."""
        if isinstance(self.codes, array):
            return bytes(map(values.__getitem__, self.codes))
        return bytes(self.codes).translate(bytes(values).ljust(BYTES, b"\0"))

    def counts(self) -> list[int]:
        """The number of rows of each combination."""
        if not isinstance(self.codes, array) and len(self) <= _COUNTED_ALONE:
            return [self.codes.count(code) for code in range(len(self))]
        counted = Counter(self.codes)
        return [counted[code] for code in range(len(self))]


def number(column: Narrow, values: Iterable[int] = range(BYTES)) -> Combined:
    """The values of one column, numbered without gaps; faster if the possible values are given."""
    table = bytearray(BYTES)
    rows: list[int] = []
    for value in values:
        row = column.find(value)
        if row >= 0:
            table[value] = len(rows)
            rows.append(row)
    return Combined(column.translate(table), rows)


def combine(columns: "Iterable[Codes | Combined]") -> Combined:
    """The combinations that occur in columns of equal length, at least one."""
    narrow: list[Combined] = []
    wide: list[Codes] = []
    for column in columns:
        codes = column.codes if isinstance(column, Combined) else column
        if isinstance(codes, array):
            wide.append(codes)
        else:
            narrow.append(column if isinstance(column, Combined) else number(codes))
    while len(narrow) > 1 and len(narrow[0]) * len(narrow[1]) <= BYTES:
        count, combinations = 1, len(narrow[0])
        while count < len(narrow) and combinations * len(narrow[count]) <= BYTES:
            combinations *= len(narrow[count])
            count += 1
        narrow[:count] = [_add(narrow[:count], combinations)]
    if len(narrow) == 1 and not wide:
        return narrow[0]
    return _zip([*(each.codes for each in narrow), *wide])


def select(columns: Sequence[Narrow]) -> bytes:
    """1 for each row with 1 in all columns of zeros and ones."""
    return unpacked(reduce(int.__and__, map(packed, columns)), len(columns[0]))


def nonzero(column: Codes) -> bytes:
    """1 for each row whose value is not 0."""
    if isinstance(column, array):
        cells, size = column.tobytes(), column.itemsize
        column = unpacked(reduce(int.__or__, (packed(cells[at::size]) for at in range(size))), len(column))
    return bytes(column).translate(_NONZERO)


def packed(column: Narrow) -> int:
    """A column as one integer. For columns of zeros and ones, `&` and `|` of these mean "all" and "any" per row."""
    return int.from_bytes(column, "little")


def unpacked(number: int, rows: int) -> bytes:
    """The reverse of `packed`, for a column of `rows` rows."""
    return number.to_bytes(rows, "little")


def places(column: Narrow, value: int) -> list[int]:
    """The rows with the value; fast if they are few."""
    found = []
    row = column.find(value)
    while row >= 0:
        found.append(row)
        row = column.find(value, row + 1)
    return found


def _add(parts: Sequence[Combined], combinations: int) -> Combined:
    """Combine byte columns whose result is a byte column."""
    total, step = 0, 1
    for part in parts:
        if isinstance(part.codes, array):
            raise TypeError("only columns of bytes can be added")
        spread = part.codes if step == 1 else part.codes.translate(bytes(code * step % BYTES for code in range(BYTES)))
        total += packed(spread)
        step *= len(part)
    return number(unpacked(total, len(parts[0].codes)), range(combinations))


def _zip(columns: Sequence[Codes]) -> Combined:
    numbers: dict[tuple[int, ...], int] = defaultdict(itertools.count().__next__)
    codes = array("i", map(numbers.__getitem__, zip(*columns, strict=True)))
    rows, row = [], -1
    for code in range(len(numbers)):  # numbered in the order of their first rows
        row = codes.index(code, row + 1)
        rows.append(row)
    return Combined(codes, rows)
