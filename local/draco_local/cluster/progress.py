"""Reports progress during steps that take a while.

Owns the lines that `draco cluster up` and a build print: one step a line, rewritten in place on a terminal, and plain lines
now and then where the output is a file (a CI log).
"""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TextIO

_TERMINAL_INTERVAL_S = 0.2
_LOG_INTERVAL_S = 30.0


class Progress(Protocol):
    """Receives the steps as they happen."""

    def step(self, text: str) -> contextlib.AbstractContextManager[Callable[[str], None]]:
        """A step that lasts as long as the block, which may report details with the function that it gets."""

    def note(self, text: str) -> None:
        """A line of its own."""


class SilentProgress:
    """Prints nothing."""

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Callable[[str], None]]:  # noqa: ARG002 - the Protocol's
        """Say nothing."""
        yield lambda _detail: None

    def note(self, text: str) -> None:
        """Say nothing."""


class LineProgress:
    """Progress as lines on a stream."""

    def __init__(self, stream: TextIO | None = None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._monotonic = monotonic

    def note(self, text: str) -> None:
        """A line of its own."""
        self._write(f"{text}\n")

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Callable[[str], None]]:
        """Print that `text` began, its details, and how it ended."""
        began = self._monotonic()
        reported = began
        interval_s = _TERMINAL_INTERVAL_S if self._terminal else _LOG_INTERVAL_S

        def detail(what: str) -> None:
            nonlocal reported
            now = self._monotonic()
            if now - reported < interval_s:
                return
            reported = now
            self._tell(f" • {text}: {what} ({_elapsed(now - began)})")

        self._tell(f" • {text} ...")
        try:
            yield detail
        except BaseException:
            self._end("✗", text, began)
            raise
        self._end("✓", text, began)

    def _end(self, mark: str, text: str, began: float) -> None:
        line = f" {mark} {text} ({_elapsed(self._monotonic() - began)})\n"
        self._write(f"\r\x1b[2K{line}" if self._terminal else line)

    def _tell(self, line: str) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns
            self._write(f"\r\x1b[2K{line[: width - 1]}")  # a line that wraps could not be rewritten
        else:
            self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()


def _elapsed(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
