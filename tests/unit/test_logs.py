"""The log of every program."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
import uvloop

from draco.logs import configure_log, log_loop_fault


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


def test_that_a_connection_is_lost_while_something_is_written_to_it_is_no_error_of_uvloops() -> None:
    stream = io.StringIO()
    configure_log("info", stream=stream)
    uvloop.run(write_to_a_lost_connection())
    (said,) = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (said["event"], said["level"]) == ("Fatal error on SSL protocol", "error")
    assert said["exception"].endswith("RuntimeError: a mistake")


async def write_to_a_lost_connection() -> None:
    """Have the loop handle what uvloop raises then, as its TLS does, and then a mistake."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_fault)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await reader.read()
    writer.close()
    await writer.wait_closed()
    with pytest.raises(RuntimeError) as lost:
        writer.transport.write(b"x")
    for error in (lost.value, RuntimeError("a mistake")):
        loop.call_exception_handler({"message": "Fatal error on SSL protocol", "exception": error})
    server.close()
