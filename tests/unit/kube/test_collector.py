"""What the garbage collector does with the objects of a list."""

import gc
from collections.abc import Iterator

import pytest

from draco.kube.connect.client import collector_at_rest


@pytest.fixture(autouse=True)
def _nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def is_old(thing: object) -> bool:
    return any(each is thing for each in gc.get_objects(generation=2))


def test_objects_of_a_list_are_old_at_once_and_collected_as_others_are() -> None:
    with collector_at_rest():
        assert not gc.isenabled()
        made: list[object] = [object()]
    assert gc.isenabled()
    assert is_old(made)
    assert not gc.get_freeze_count()


def test_what_a_process_keeps_frozen_stays_so() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collector_at_rest():
        made: list[object] = [object()]
    assert not is_old(made)
    assert gc.get_freeze_count() <= frozen


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_at_rest():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
