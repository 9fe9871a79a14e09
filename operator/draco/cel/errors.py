"""Errors of selectors: one does not compile, or fails on a device.

Owns the errors that callers catch, and the texts of compiler errors with their marked source line. The texts equal those of
Kubernetes for the same selector and device, because people compare the two.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from draco.resources.errors import DracoError


class CelError(DracoError):
    """A selector does not compile or cannot be evaluated."""


class CompileError(CelError):
    """The expression is refused. The text is Kubernetes' own, with line, column and source line where it has them."""


class EvaluationError(CelError):
    """The expression has no value for this device. Inside an expression, `&&` and `||` may absorb this error, as CEL defines."""


class EvaluationAborted(EvaluationError):
    """The whole evaluation was stopped (cost limit, internal error of Kubernetes' evaluator)."""


class Abort(CelError):
    """Stops an evaluation from inside. Nothing absorbs it; it becomes an EvaluationAborted."""


_WIDE_DOT, _WIDE_MARK = "\uff0e", "\uff3e"
_MOST_SHOWN: Final = 100
_LONGEST_LINE: Final = 16384
"""Bytes. Longer source lines are not shown below a message."""


class Issue(NamedTuple):
    """One error: its offset in characters, or None for the whole expression, and its text."""

    position: int | None
    message: str


def refusal(expression: str, issues: Iterable[Issue]) -> CompileError:
    """Return one CompileError for all issues of the parser or checker."""
    lines = expression.split("\n")
    found = [(*_line_and_column(expression, issue.position), issue) for issue in issues]
    found.sort(key=lambda item: item[:2])
    shown = [_show(lines, line, column, issue.message) for line, column, issue in found[:_MOST_SHOWN]]
    if len(found) > _MOST_SHOWN:
        shown.append(f"{len(found) - _MOST_SHOWN} more errors were truncated")
    return CompileError("compilation failed: " + "\n".join(shown))


def one_line(error: CompileError) -> str:
    """The error on one line, for conditions and warnings: positions as numbers, without the marked source."""
    lines = [line for line in str(error).splitlines() if not line.startswith(" | ")]
    said = " ".join(" ".join(lines).split()).removeprefix("compilation failed: ").rstrip(".")
    return said.replace("ERROR: <input>:-1:0: ", "").replace("ERROR: <input>:", "at ")


def _line_and_column(expression: str, position: int | None) -> tuple[int, int]:
    """Line (from 1) and column (from 0); -1, -1 without a position."""
    if position is None:
        return -1, -1
    before = expression.count("\n", 0, position)
    return before + 1, position - (expression.rfind("\n", 0, position) + 1)


def _show(lines: list[str], line: int, column: int, message: str) -> str:
    text = f"ERROR: <input>:{line}:{column + 1}: {message}"
    if not 1 <= line <= len(lines):
        return text
    source = lines[line - 1].replace("\t", " ")
    if len(source.encode("utf-8", "surrogatepass")) > _LONGEST_LINE:
        return text
    # Wide characters get wide dots and marks, so that the mark stands below its character in a fixed-width font.
    dots = "".join("." if character < "\x80" else _WIDE_DOT for character in source[:column])
    mark = _WIDE_MARK if source[column : column + 1] > "\x7f" else "^"
    return f"{text}\n | {source}\n | {dots}{mark}"
