"""Edits trees that remember their text: quotes, folds, comments and field order stay as a person would write them."""

import difflib
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import (
    DoubleQuotedScalarString,
    FoldedScalarString,
    ScalarString,
    SingleQuotedScalarString,
)

from draco.linting.model import DropField, Edit, MoveField, SetField, TreePath

Outcome: TypeAlias = Literal["changed", "there", "gone"]


def below(prefix: TreePath, edit: Edit) -> Edit:
    """The edit of a list's item, as an edit of the whole list."""
    match edit:
        case SetField(path, value):
            return SetField((*prefix, *path), value)
        case DropField(path):
            return DropField((*prefix, *path))
        case MoveField(path, to):
            return MoveField((*prefix, *path), (*prefix, *to))


class EditRound:
    """Edits of one tree from one check. An edit inside a part that an earlier edit removed has no effect."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self._taken: list[TreePath] = []

    def apply(self, edit: Edit) -> Outcome:
        """Apply one: `changed`, `there` if it was so already, or `gone` if its place does not exist."""
        path = edit.path
        if any(path[: len(taken)] == taken for taken in self._taken):
            return "gone"
        try:
            match edit:
                case SetField(path, value):
                    return "changed" if _put(self.tree, path, value) else "there"
                case DropField(path):
                    _take(_parent(self.tree, path), path[-1])
                case MoveField(path, to):
                    _move(self.tree, path, to)
        except (KeyError, IndexError, TypeError):
            return "gone"
        self._taken.append(path)
        return "changed"


def _parent(tree: Any, path: TreePath) -> Any:
    for step in path[:-1]:
        tree = tree[step]
    if path[-1] not in tree if isinstance(tree, dict) else not -1 < int(path[-1]) < len(tree):
        raise KeyError(path[-1])
    return tree


def _made(tree: Any, path: TreePath, position: int | None = None) -> Any:
    """The container of a path's last step. Missing mappings are created, the first one at `position`."""
    for step, following in pairwise(path):
        if isinstance(tree, CommentedMap) and tree.get(step) is None and not isinstance(following, int):
            new = CommentedMap()
            if step == "metadata" and step not in tree:
                tree.insert(list(tree).index("kind") + 1 if "kind" in tree else 0, step, new)
            elif position is not None and step not in tree:
                tree.insert(position, step, new)
            else:
                tree[step] = new
        tree = tree[step]
    return tree


def _put(tree: Any, path: TreePath, value: Any) -> bool:
    holder = _made(tree, path)
    step: Any = path[-1]
    if isinstance(holder, list) and step == len(holder):
        holder.append(as_tree(value))
        return True
    if isinstance(holder, list) or step in holder:
        old = holder[step]
        holder[step] = new = _like(old, value)
        return bool(old != new)
    if step == "apiVersion":
        holder.insert(0, step, value)
    elif step == "kind":
        holder.insert(list(holder).index("apiVersion") + 1 if "apiVersion" in holder else 0, step, value)
    else:
        holder[step] = as_tree(value)
    return True


def as_tree(value: Any) -> Any:
    """The value as ruamel mappings and lists, which remember their text."""
    if isinstance(value, dict):
        return CommentedMap((key, as_tree(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return CommentedSeq(map(as_tree, value))
    return value


def _like(old: Any, value: Any) -> Any:
    """The value, quoted or folded like the old one; of a list with this item alone, that item with its text."""
    if isinstance(old, list) and len(old) == 1 and old[0] == value:
        return old[0]
    if not isinstance(value, str) or not isinstance(old, ScalarString):
        return as_tree(value)
    if isinstance(old, DoubleQuotedScalarString | SingleQuotedScalarString):
        if '"' in value:
            return SingleQuotedScalarString(value) if "'" not in value else value
        return type(old)(value)
    new = type(old)(value + "\n" if old.endswith("\n") else value)
    if isinstance(old, FoldedScalarString) and isinstance(new, FoldedScalarString):
        setattr(new, "fold_pos", _folds(old, new))  # noqa: B010 - ruamel gives it to its instances only
    return new


def _folds(old: Any, new: Any) -> list[int]:
    """Where to fold the new text: at the old folds that are still spaces."""
    blocks = difflib.SequenceMatcher(None, str(old), str(new), autojunk=False).get_matching_blocks()
    places = {block.a + step: block.b + step for block in blocks for step in range(block.size)}
    return [places[fold] for fold in getattr(old, "fold_pos", []) if fold in places and new[places[fold]] == " "]


def _take(holder: Any, step: Any) -> tuple[Any, Any, int]:
    """Remove a field or item; return it, its comments, and its position."""
    position = list(holder).index(step) if isinstance(holder, dict) else int(step)
    comment = holder.ca.items.pop(step, None)
    value = holder[step]
    del holder[step]
    return value, comment, position


def _move(tree: Any, path: TreePath, to: TreePath) -> None:
    """Move to an empty place; raises KeyError if it is taken."""
    holder = _parent(tree, path)
    is_near = to[: len(path) - 1] == path[:-1]
    place = list(holder).index(path[-1]) if is_near and isinstance(holder, dict) else None
    target = _made(holder if is_near else tree, to[len(path) - 1 :] if is_near else to, place)
    if not isinstance(target, dict) or target.get(to[-1]) is not None:
        raise KeyError(to[-1])
    value, comment, position = _take(holder, path[-1])
    if target is holder:
        target.insert(position, to[-1], value)
    else:
        target[to[-1]] = value
    if comment is not None:
        target.ca.items[to[-1]] = comment
