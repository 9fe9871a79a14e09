"""Operations on whole columns give the same result as row by row."""

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from draco.allocation.fleet.rowwise import Codes, combine, nonzero, number, packed, places, select, unpacked

few = st.integers(0, 3)
any_byte = st.integers(0, 255)
rows = st.lists(st.tuples(few, few, any_byte, any_byte, st.integers(0, 1 << 20)), min_size=1, max_size=60)


def columns_of(table: list[tuple[int, ...]], chosen: list[int]) -> list[Codes]:
    columns = list(zip(*table, strict=True))
    return [array("i", columns[each]) if each == 4 else bytes(columns[each]) for each in chosen]


@given(rows, st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_combinations_are_those_of_the_rows(table: list[tuple[int, ...]], chosen: list[int]) -> None:
    columns = columns_of(table, chosen)
    combined = combine(columns)
    by_row = list(zip(*columns, strict=True))
    assert [by_row[combined.rows[code]] for code in combined.codes] == by_row
    assert [by_row.index(by_row[row]) for row in combined.rows] == list(combined.rows)
    assert sorted(combined.codes[row] for row in combined.rows) == list(range(len(combined)))
    counted = Counter(by_row)
    assert combined.counts() == [counted[by_row[row]] for row in combined.rows]
    values = [code % 3 for code in range(len(combined))]
    assert list(combined.paint(values)) == [values[code] for code in combined.codes]


def test_what_was_combined_can_be_combined_with_more() -> None:
    one, two, three = bytes([1, 1, 2, 2]), bytes([7, 8, 7, 8]), array("i", [5, 5, 5, 6])
    both = combine([one, two])
    assert combine([both, three]).counts() == [1, 1, 1, 1]
    assert combine([both, one]).counts() == [1, 1, 1, 1]
    assert combine([combine([three, one]), two]).counts() == [1, 1, 1, 1]


def test_a_column_can_be_numbered_by_the_values_that_there_may_be() -> None:
    column = bytes([4, 9, 4])
    assert list(number(column, [9, 4, 200]).codes) == [1, 0, 1]
    assert number(column, [9, 4, 200]).rows == [1, 0]


def test_rows_are_selected_and_found() -> None:
    assert select([bytes([1, 1, 0, 1]), bytearray([1, 0, 0, 1])]) == bytes([1, 0, 0, 1])
    assert select([bytes([0, 1])]) == bytes([0, 1])
    assert unpacked(packed(bytes([1, 0, 1])) | packed(bytes([0, 0, 1])), 3) == bytes([1, 0, 1])
    assert places(bytes([0, 2, 1, 2]), 2) == [1, 3]
    assert places(b"", 2) == []


@given(st.lists(st.sampled_from([0, 1, 255, 256, 1 << 16, 1 << 24, -1]), max_size=20))
def test_what_is_not_zero_is_marked(values: list[int]) -> None:
    assert nonzero(array("i", values)) == bytes(map(bool, values))
    narrow = bytes(value & 255 for value in values)
    assert nonzero(narrow) == bytes(map(bool, narrow))
