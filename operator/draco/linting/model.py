"""Manifests, findings and edits.

Owns these structs. Edits are plain data, so that the owner of the text decides how to apply them and keeps its comments.
"""

from typing import Any, TypeAlias

import msgspec

from draco.selectors.corrections import Severity

Json: TypeAlias = dict[str, Any]
TreePath: TypeAlias = tuple[str | int, ...]
"""Keys and list indices that lead from the top of a manifest to a place in it."""


class SetField(msgspec.Struct, frozen=True, tag="put"):
    """Set what stands at a place; mappings on the way there are made."""

    path: TreePath
    value: Any


class DropField(msgspec.Struct, frozen=True, tag="drop"):
    """Take away what stands at a place."""

    path: TreePath


class MoveField(msgspec.Struct, frozen=True, tag="move"):
    """Take what stands at one place to another, with its comments; mappings on the way there are made."""

    path: TreePath
    to: TreePath


Edit: TypeAlias = SetField | DropField | MoveField


class Manifest(msgspec.Struct, frozen=True):
    """One document. `comments` is all that its comments say: people write there what they expect."""

    tree: Json
    comments: str = ""


class Finding(msgspec.Struct, frozen=True):
    """What is wrong at one place, in one sentence.

    `edits` put it right, each with the index of the manifest that it changes; none where only the author can.
    """

    rule: str
    severity: Severity
    message: str
    manifest: int
    path: TreePath
    edits: tuple[tuple[int, Edit], ...] = ()


def finding(
    rule: str, message: str, manifest: int, path: TreePath, *edits: Edit, severity: Severity = "error"
) -> Finding:
    """Make a finding whose edits all change the manifest that it is about."""
    return Finding(rule, severity, message, manifest, path, tuple((manifest, edit) for edit in edits))
