"""The programs' logs: events with fields, one line each, on standard error; columns for a terminal, otherwise JSON."""

import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from draco.resources.texts import shown

LEVELS = ("debug", "info", "warning", "error")


def configure_log(level: str, *, stream: TextIO | None = None) -> None:
    """Write events of `level` (one of LEVELS) and above to `stream`, by default standard error."""
    stream = stream or sys.stderr
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if stream.isatty():
        last: list[Processor] = [_printable, structlog.dev.ConsoleRenderer()]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream),
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))  # libraries log only problems


def _printable(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Escape control characters of others' texts for a terminal; JSON escapes them anyway."""
    return {name: shown(value) if isinstance(value, str) else _fit(value) for name, value in event.items()}


def _fit(value: object) -> object:
    """A value that would be rendered with str() or repr(), as escaped text."""
    plain = isinstance(value, int | float | bool | tuple | BaseException | None)
    return value if plain else shown(str(value))
