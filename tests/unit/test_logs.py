"""The log of every program."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from draco.logs import configure_log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    structlog.reset_defaults()


def test_what_others_wrote_steers_no_terminal() -> None:
    stream = Terminal()
    configure_log("info", stream=stream)
    hostile = "train\x1b[2J\nforged"
    structlog.get_logger("test").info("claim.pending", claim=hostile, more=[hostile])
    logging.getLogger("some.library").warning("it said %s", hostile)
    written = stream.getvalue()
    assert "\x1b[2J" not in written
    assert [line for line in written.splitlines() if line.startswith("forged")] == []
    assert written.count("\\u001b[2J") == 2


def test_logs_are_json_lines_with_fields_for_ours_and_for_libraries() -> None:
    stream = io.StringIO()
    configure_log("info", stream=stream)
    structlog.get_logger("test").info("claim.pending", claim="default/train")
    structlog.get_logger("test").debug("too.detailed")
    logging.getLogger("some.library").warning("it said %s", "this")
    logging.getLogger("some.library").info("too chatty")
    ours, theirs = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (ours["event"], ours["claim"], ours["level"]) == ("claim.pending", "default/train", "info")
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("it said this", "some.library", "warning")
