"""Work that is counted instead of timed, so that a test's result does not depend on the machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooMuchWork(BaseException):
    """More than was allowed. A BaseException, so that the code under test cannot absorb it."""


class Work:
    """Counts calls of functions, including Python's own."""

    calls = 0


@contextmanager
def at_most(calls: int) -> Iterator[Work]:
    """Within this block, this thread may make this many calls; the next one raises TooMuchWork."""
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
