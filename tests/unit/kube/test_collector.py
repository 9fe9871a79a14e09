"""What the garbage collector does with the objects of a list."""

import gc
from collections.abc import Iterator

import pytest

from draco.kube import collector
from draco.kube.collector import collector_at_rest, freeze_for_good


@pytest.fixture(autouse=True)
def _nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(collector, "_keeps_frozen", type(collector._keeps_frozen)())
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


def test_what_a_process_keeps_frozen_stays_so_and_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_for_good()
    frozen = gc.get_freeze_count()

    def counting() -> int:
        raise AssertionError("it takes milliseconds for each list")

    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", counting)
        with collector_at_rest():
            made: list[object] = [object()]
    assert not is_old(made)
    assert frozen // 2 < gc.get_freeze_count() <= frozen


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_at_rest():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
