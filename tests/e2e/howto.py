"""The how-to on pending claims shows output of the tests, word for word.

Owns the page's blocks: a line `<!-- happened: CASE -->` and the fenced block after it. A differing block fails the test; with
DRACO_WRITE_HOWTO=1 in the environment it is rewritten. Ages are left out and long lines folded.
"""

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pending-claim.md"
WRITE = os.environ.get("DRACO_WRITE_HOWTO") == "1"
_BLOCK = re.compile(
    r"(?<=<!-- happened: )(?P<case>\S+)(?P<head> -->\n```console\n)(?P<text>.*?)(?=^```$)", re.MULTILINE | re.DOTALL
)
_PREEMPTION = re.compile(r"(?: [^.]*,)? preemption: .*", re.DOTALL)
_WIDTH = 118


def blocks(page: str) -> dict[str, str]:
    """The page's blocks by case."""
    return {found["case"]: found["text"] for found in _BLOCK.finditer(page)}


def with_blocks(page: str, shown: Mapping[str, str]) -> str:
    """The page with these blocks replaced; those of other cases stay."""
    return _BLOCK.sub(lambda found: found["case"] + found["head"] + shown.get(found["case"], found["text"]), page)


def events_block(events: Sequence[tuple[str, str, str, str]]) -> str:
    """Events as `kubectl describe pod` lists them: type, reason, reporter, note."""
    widths = [max(len(event[column]) for event in events) for column in range(3)]
    lines = ["$ kubectl describe pod train"]
    for *columns, note in events:
        lines += folded("  " + "  ".join(f"{text:{width}}" for text, width in zip(columns, widths, strict=True)), note)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def without_preemption(note: str) -> str:
    """The scheduler's message without its part on preemption: it never preempts for devices."""
    return _PREEMPTION.sub("", note)


def printed_block(command: str, printed: str) -> str:
    """A command and what it printed."""
    lines = [f"$ {command}"]
    for line in printed.splitlines():
        indent = len(line) - len(line.lstrip())
        lines += folded(" " * indent, line.strip(), gap="") if line.strip() else [""]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def folded(start: str, text: str, *, gap: str = "  ") -> list[str]:
    """Fold a long line; continuation lines are indented."""
    first = start + gap
    later = " " * (len(start) - len(start.lstrip()) + 6)
    return textwrap.wrap(
        first + text,
        _WIDTH,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
