"""What `-o json` prints: the base of the structs with a schema, and the printing.

Owns the form of these documents, indented and in camelCase, and nothing of what they say.
"""

from typing import Any

import click
import msgspec

from draco.resources.texts import shown_document


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what `-o json` writes: camelCase, every field always present."""


def written(document: Any) -> str:
    """The document as text."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def print_document(document: Any) -> None:
    """Print it to standard output."""
    click.echo(shown_document(written(document)))
