"""Manifests, findings and edits. Edits are plain data, so that the owner of the text can apply them and keep its comments."""

from typing import Any, TypeAlias

import msgspec

from draco.selectors.complaint import Severity

Json: TypeAlias = dict[str, Any]
TreePath: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top of a manifest to a place in it."""


class SetField(msgspec.Struct, frozen=True, tag="put"):
    """Set the value at a path; missing mappings on the way are created."""

    path: TreePath
    value: Any


class DropField(msgspec.Struct, frozen=True, tag="drop"):
    """Remove the value at a path."""

    path: TreePath


class MoveField(msgspec.Struct, frozen=True, tag="move"):
    """Move a value with its comments; missing mappings on the way are created."""

    path: TreePath
    to: TreePath


Edit: TypeAlias = SetField | DropField | MoveField


class Manifest(msgspec.Struct, frozen=True):
    """One document. `comments` is the text of its comments, where people write what they expect."""

    tree: Json
    comments: str = ""


class Finding(msgspec.Struct, frozen=True):
    """A mistake at one place, in one sentence.

    `edits` correct it, each with the index of the manifest that it changes; empty if only the author can correct it.
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
    """Make a finding whose edits all change its own manifest."""
    return Finding(rule, severity, message, manifest, path, tuple((manifest, edit) for edit in edits))
