"""What commands read of a cluster: slices of a pool that is being published are waited for, but not for long."""

from typing import Any, cast

import pytest

from draco.cli.input import reading
from draco.cli.input.reading import Reader
from draco.kube.connect.client import Client, Page
from draco.resources.api.slices import ResourceSlice
from tests.builders import a_slice

FIRST, SECOND = a_slice(name="first", generation=2, of=2), a_slice(name="second", generation=2, of=2)
BEFORE = a_slice("node-1", name="before")


class Published:
    """A cluster whose slices are others at each reading, until the last."""

    def __init__(self, *readings: list[ResourceSlice]) -> None:
        self.readings = list(readings)
        self.read = 0

    async def list_page(self, *_: Any, **__: Any) -> Page[ResourceSlice]:
        self.read += 1
        return Page(self.readings[min(self.read, len(self.readings)) - 1], "1")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_READ_AGAIN_AFTER_S", 0.0)


async def test_a_pool_that_is_being_published_is_read_again_until_it_is_complete() -> None:
    cluster = Published([BEFORE, FIRST], [BEFORE, FIRST], [BEFORE, FIRST, SECOND])
    assert await Reader(cast("Client", cluster)).slices() == [BEFORE, FIRST, SECOND]
    assert cluster.read == 3


async def test_a_pool_that_stays_incomplete_is_shown_as_it_is() -> None:
    cluster = Published([BEFORE, FIRST])
    assert await Reader(cast("Client", cluster)).slices() == [BEFORE, FIRST]
    assert cluster.read == 5


async def test_complete_pools_are_read_once() -> None:
    cluster = Published([BEFORE], [])
    assert await Reader(cast("Client", cluster)).slices() == [BEFORE]
    assert cluster.read == 1
