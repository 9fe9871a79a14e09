"""Where everything that is printed for people passes: nothing that others wrote steers their terminal.

Owns the printing of lines, and texts of a view before it is drawn. Says nothing by itself.
"""

from typing import Any, TypeVar

import click
import msgspec

from draco.resources.texts import shown, shown_lines

T = TypeVar("T", bound=msgspec.Struct)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text, whose line breaks are ours."""
    click.echo(shown_lines(str(text)), err=err, nl=nl)


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
