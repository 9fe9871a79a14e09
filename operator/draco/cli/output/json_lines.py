"""JSON lines: one question a line in, one answer a line out, each as soon as it is known.

Owns that no line, however long, is held whole, and that nothing waits for the end of the input. What a line says, and how long it
may be, is whose it is.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import click


def lines_of(stream: IO[bytes], longest: int) -> Iterator[bytes]:
    """The lines of a stream as they come; of one that is too long only so much that this can be seen."""
    while line := stream.readline(longest + 1):
        rest = line
        while len(rest) > longest and not rest.endswith(b"\n"):
            rest = stream.readline(longest + 1)
        yield line


def answer(file: Path, longest: int, answers: Callable[[Iterable[bytes]], Iterator[bytes]]) -> None:
    """Write one line for each line of the file (- is standard input)."""
    with click.open_file(str(file), "rb") as stream:
        for line in answers(lines_of(stream, longest)):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
