"""What the API server answers to Kopf, with no nesting that Kopf cannot read.

Kopf reads answers with Python's own JSON parser, which takes a level of the stack for each level of nesting, and ends all its
watches on what is too deep for that. Anybody who may write an object can nest a part of it thousands of levels deep, be it only
in `managedFields`, which no schema bounds. So what is nested more deeply than Draco reads is null before Kopf sees it: one
such object costs nobody else anything, and what it says of itself is its reconciler's business.

Owns that, for lists and for watches line by line. Knows nothing of kinds.
"""

from collections.abc import AsyncIterator
from typing import Final

import aiohttp

from draco.resources.api.foreign import DEEPEST, shallow

_AROUND: Final = 2
"""Levels around an object in a list; in the line of a watch there is one."""


class ShallowContent:
    """Takes the place of the content of an answer: that of `aiohttp.StreamReader` which Kopf and aiohttp use."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def read(self) -> bytes:
        """The whole answer."""
        return _shallow(await self._content.read())

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """The lines, each whole, as soon as they are complete."""
        begun: list[bytes] = []
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                yield _shallow(b"".join([*begun, line])) + b"\n"
                begun.clear()
            begun.append(rest)
        if last := b"".join(begun):
            yield _shallow(last)

    def exception(self) -> BaseException | None:
        """What the connection failed with."""
        return self._content.exception()

    def set_exception(self, *args: BaseException) -> None:
        """The connection fails with this."""
        self._content.set_exception(*args)


def _shallow(written: bytes) -> bytes:
    deepest = DEEPEST + _AROUND
    if written.count(b"{") + written.count(b"[") <= deepest:
        return written  # nearly all lines of a watch
    return shallow(written, deepest)
