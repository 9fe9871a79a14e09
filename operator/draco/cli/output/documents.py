"""What `-o json` and `-o yaml` print: the base of the structs with a schema, and the printing.

Owns the form of these documents, and nothing of what they say.
"""

from typing import Any

import click
import msgspec
import yaml

from draco.cli.output.showing import echo
from draco.resources.texts import shown_document


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what `-o json` writes: camelCase, every field always present."""


def written(document: Any) -> str:
    """The document as text."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def print_document(document: Any) -> None:
    """Print it to standard output."""
    click.echo(shown_document(written(document)))


def print_yaml(document: Any) -> None:
    """Print it to standard output as YAML."""
    plain = msgspec.to_builtins(document)
    echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=130), nl=False)
