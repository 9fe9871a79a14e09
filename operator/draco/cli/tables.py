"""Tables as kubectl prints them: one line per row, which the terminal wraps. Cell texts are never parsed as rich markup."""

import re
from collections.abc import Callable, Collection
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH: Final = 10_000
_PADDING: Final = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")


def table(*columns: str | Text, numbers: Collection[int] = ()) -> Table:
    """A table without borders. `numbers` are the indices of numeric columns."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        made.add_column(column, justify="right" if index in numbers else "left", no_wrap=True)
    return made


def print_table(made: Table) -> None:
    """Print it to standard output."""
    print_screen(lambda console: console.print(made))


def print_screen(show: Callable[[Console], None]) -> None:
    """Print what `show` writes, with lines of any length."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=_WIDTH)
    with console.capture() as screen:
        show(console)
    for line in screen.get().splitlines():
        click.echo(trimmed(line))


def trimmed(line: str) -> str:
    """The line without a table's padding, which would wrap into blank lines on narrow terminals."""
    return _PADDING.sub(lambda end: end[0].replace(" ", ""), line)
