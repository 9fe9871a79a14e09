"""What Kopf gets to read, and how often it reports where an error came from."""

import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import aiohttp
import pytest

from draco.controller.handlers import ShallowContent
from draco.controller.kopf_thread import quiet_kopf
from draco.resources.api.foreign import DEEPEST


class Pieces:
    """An answer that arrives in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def read(self) -> bytes:
        return b"".join(self.pieces)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        for each in self.pieces:
            yield each


def content(*pieces: bytes) -> ShallowContent:
    return ShallowContent(cast("aiohttp.StreamReader", Pieces(*pieces)))


async def read(shallow: ShallowContent) -> bytes:
    return b"".join([each async for each in shallow.iter_chunked(1 << 20)])


def depth_of(value: Any) -> int:
    depth = 0
    while isinstance(value, dict):
        value, depth = value.get("a"), depth + 1
    return depth


DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
LINES = b"".join(b'{"type":"ADDED","object":{"n":%d}}\n' % number for number in range(20))


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
async def test_lines_arrive_as_they_were_sent_however_they_are_cut_into_pieces(size: int) -> None:
    whole = LINES + DEEP + b"\n" + LINES
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    found = (await read(content(*pieces))).split(b"\n")
    assert found[:20] == found[21:41] == LINES.split(b"\n")[:20]
    assert DEEPEST <= depth_of(json.loads(found[20])) <= DEEPEST + 3


async def test_a_line_is_handed_on_as_soon_as_it_is_complete() -> None:
    shallow = content(b'{"a":1}\n{"b"', b":2}\n", b'{"last":3}')
    assert [each async for each in shallow.iter_chunked(1)] == [b'{"a":1}\n', b'{"b":2}\n', b'{"last":3}']


async def test_one_object_of_a_list_costs_the_others_nothing() -> None:
    listed = b'{"items":[{"n":1},{"deep":%s},{"n":2}]}' % DEEP
    items = json.loads(await content(listed[:100], listed[100:]).read())["items"]
    assert (items[0], items[2]) == ({"n": 1}, {"n": 2})


@pytest.fixture
def heard() -> Iterator[list[logging.LogRecord]]:
    """The records that reach the root logger."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(logging.makeLogRecord(record.__dict__))  # type: ignore[method-assign]
    root, kopf = logging.getLogger(), logging.getLogger("kopf")
    before, propagated = kopf.handlers[:], kopf.propagate
    root.addHandler(handler)
    quiet_kopf()
    yield records
    root.removeHandler(handler)
    kopf.handlers[:], kopf.propagate = before, propagated


def test_kopf_says_once_where_an_error_came_from_and_each_time_that_it_happened(heard: list[logging.LogRecord]) -> None:
    for error in (RecursionError("too deep"), RecursionError("too deep"), ValueError("other")):
        logging.getLogger("kopf._cogs.aiokits").error("Watcher has failed", exc_info=error)
    assert [each.getMessage() for each in heard] == ["Watcher has failed"] * 3
    assert [each.exc_info is not None for each in heard] == [True, False, True]
