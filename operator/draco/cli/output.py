"""How commands print: text for people, documents for `-o json` and `-o yaml`, and JSON lines.

Owns that text from other sources cannot control a terminal, the form of documents, and the streaming of JSON lines: each answer
is flushed as soon as it is known, and no overlong line is held in memory.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import click
import msgspec
import yaml

from draco.resources.errors import DracoError
from draco.resources.texts import shown, shown_document, shown_lines

T = TypeVar("T", bound=msgspec.Struct)


class CommandError(DracoError):
    """The command cannot be carried out; the message gives the reason and the remedy."""


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text whose line breaks are ours; other control characters are escaped."""
    click.echo(shown_lines(str(text)), err=err, nl=nl)


def echo_lines(lines: Iterable[object]) -> None:
    """Print each item on its own line."""
    for each in lines:
        echo(each)


def warn(sentences: Iterable[str]) -> None:
    """Print each sentence on its own line of standard error."""
    for each in sentences:
        echo(each, err=True)


def ask(question: str, effect: str, remedy: str) -> None:
    """Ask for confirmation. Raises CommandError with the remedy if standard input is no terminal, and click.Abort for "no"."""
    if not sys.stdin.isatty():
        raise CommandError(f"{effect}: without a terminal to confirm it, {remedy}.")
    click.confirm(question, abort=True, err=True)


def visible(view: T) -> T:
    """The same view with every text on one line and printable."""
    return msgspec.convert(_visible(msgspec.to_builtins(view)), type(view))


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list):
        return [_visible(each) for each in value]
    if isinstance(value, dict):
        return {shown(key): _visible(each) for key, each in value.items()}
    return value


def written(document: Any) -> str:
    """The document as JSON text."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def print_document(document: Any) -> None:
    """Print it to standard output as JSON."""
    click.echo(shown_document(written(document)))


def print_yaml(document: Any) -> None:
    """Print it to standard output as YAML."""
    plain = msgspec.to_builtins(document)
    echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=130), nl=False)


def print_as(form: str, document: Any) -> None:
    """Print it to standard output as JSON or YAML."""
    (print_document if form == "json" else print_yaml)(document)


def lines_of(stream: IO[bytes], longest: int) -> Iterator[bytes]:
    """The lines of a stream as they arrive. An overlong line is cut just above `longest`, so that the caller can detect it."""
    while line := stream.readline(longest + 1):
        rest = line
        while len(rest) > longest and not rest.endswith(b"\n"):
            rest = stream.readline(longest + 1)
        yield line


def answer_lines(file: Path, longest: int, answers: Callable[[Iterable[bytes]], Iterator[bytes]]) -> None:
    """Write one answer per line of the file; "-" is standard input."""
    with click.open_file(str(file), "rb") as stream:
        for line in answers(lines_of(stream, longest)):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
