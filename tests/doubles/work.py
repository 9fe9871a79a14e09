"""Work that is counted instead of timed, so that what a test says does not depend on the machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooMuchWork(BaseException):
    """More than was allowed. Nothing that is measured can absorb it."""


class Work:
    """What was done: calls of functions, Python's own included."""

    calls = 0


@contextmanager
def at_most(calls: int) -> Iterator[Work]:
    """Within, this thread may make so many calls; the next one ends the test."""
    work = Work()

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        if event in {"call", "c_call"}:
            work.calls += 1
            if work.calls > calls:
                sys.setprofile(None)
                raise TooMuchWork(f"more than {calls} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield work
    finally:
        sys.setprofile(before)
