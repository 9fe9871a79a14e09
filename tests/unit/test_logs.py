"""The log of every program."""

import io
import json
import logging

import structlog

from draco.logs import configure_log


def test_logs_are_json_lines_with_fields_for_ours_and_for_libraries() -> None:
    stream = io.StringIO()
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        configure_log("info", stream=stream)
        structlog.get_logger("test").info("claim.pending", claim="default/train")
        structlog.get_logger("test").debug("too.detailed")
        logging.getLogger("some.library").warning("it said %s", "this")
        logging.getLogger("some.library").info("too chatty")
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
        structlog.reset_defaults()
    ours, theirs = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (ours["event"], ours["claim"], ours["level"]) == ("claim.pending", "default/train", "info")
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("it said this", "some.library", "warning")
