"""Numbers and lists in sentences."""

import pytest

from draco.resources.texts import are, counted, listed, others, them


def test_numbers_agree_with_what_is_counted() -> None:
    assert [counted(number, "device") for number in (0, 1, 2)] == ["0 devices", "1 device", "2 devices"]
    assert [f"{are(number)} {them(number)}" for number in (0, 1, 2)] == ["are them", "is it", "are them"]
    assert [others(number, "pod") for number in (0, 1, 2)] == ["", " (and 1 more pod)", " (and 2 more pods)"]


@pytest.mark.parametrize(
    ("names", "said"),
    [("", ""), ("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more"), ("abcde", "a, b, c and 2 more")],
)
def test_a_list_says_how_many_more_there_are(names: str, said: str) -> None:
    assert listed(names) == said


def test_a_list_of_which_not_all_is_given_counts_all() -> None:
    assert listed(["a", "b"], total=2) == "a, b"
    assert listed(["a", "b"], total=5) == "a, b and 3 more"
    assert listed("abcde", total=9) == "a, b, c and 6 more"


def test_a_list_is_as_long_and_called_as_its_sentence_wants() -> None:
    assert listed(range(6), 4, separator="; ", rest="other values") == "0; 1; 2; 3 and 2 other values"
