"""The table of upstream's bugs says what users need to know about each."""

import pytest

from draco.allocation.search.upstream_bugs import UPSTREAM_BUGS, AffectedArea, UpstreamBug, bugs_of


@pytest.mark.parametrize("bug", UPSTREAM_BUGS, ids=lambda bug: str(bug.changes[0]))
def test_a_bug_has_a_sentence_an_area_and_where_to_read_on(bug: UpstreamBug) -> None:
    assert bug.what.startswith("The scheduler ")
    assert bug.what.endswith(".")
    assert bug.changes
    assert all(number > 100_000 for number in (*bug.changes, *bug.issues))
    assert bug.areas
    assert len(set(bug.areas)) == len(bug.areas)
    assert not any(one < other for one in bug.areas for other in bug.areas), "the larger set says nothing more"


def test_a_bug_concerns_only_who_uses_all_that_it_takes() -> None:
    by_change = {bug.changes[0]: bug for bug in UPSTREAM_BUGS}
    with_constraints, with_amounts = {AffectedArea.CONSTRAINTS}, {AffectedArea.CONSUMABLE_CAPACITY}
    assert by_change[140431].concerns(with_constraints)
    assert by_change[140431].concerns({AffectedArea.SHARED_COUNTERS})
    assert by_change[140437].concerns(with_amounts)
    assert not by_change[138885].concerns({AffectedArea.ALL_MODE})
    assert by_change[138885].concerns({AffectedArea.ALL_MODE, AffectedArea.SHARED_COUNTERS})
    assert not by_change[140325].concerns(with_constraints)


def test_no_change_is_listed_twice() -> None:
    numbers = [number for bug in UPSTREAM_BUGS for number in bug.changes]
    assert len(set(numbers)) == len(numbers)


def test_a_release_has_the_bugs_fixed_after_it_and_the_open_ones() -> None:
    assert [bug.changes[0] for bug in bugs_of(37)] == [141648, 142202, 140729]
    assert 140325 in [bug.changes[0] for bug in bugs_of(36)]
    assert 137347 not in [bug.changes[0] for bug in bugs_of(36)]
    assert bugs_of(34) == bugs_of(35) == UPSTREAM_BUGS
