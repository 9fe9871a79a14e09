"""Rules about fields: those that do not exist, stand in the wrong place, or hold another form of value.

Owns the search for the field or the place that was meant. Which fields there are is `schema`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from draco.linting.model import Edit, Finding, Json, Manifest, MoveField, SetField, TreePath, finding
from draco.linting.names import ALIKE
from draco.linting.objects import at, is_of_group, kind_of, mapping, text
from draco.linting.schema import CLAIMS, EACH, OPEN, PODS, WATCHED, Schema
from draco.resources.texts import most_like

_NAMED: Final = 8
"""Fields of a place that are listed; of more only the nearest is said."""


def check_fields(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Check every field of every manifest whose fields are known."""
    for index, manifest in enumerate(manifests):
        kind = kind_of(manifest)
        schema = CLAIMS.get(kind) if is_of_group(manifest) or kind in CLAIMS else PODS.get(kind)
        if schema is not None:
            yield from _Walk(index, manifest.tree, schema).findings((), manifest.tree, schema)


class _Walk:
    """One manifest, walked along its schema."""

    def __init__(self, index: int, tree: Json, schema: Schema) -> None:
        self._index = index
        self._tree = tree
        self._schema = schema

    def findings(self, path: TreePath, value: Any, schema: Schema) -> Iterator[Finding]:
        """What is wrong at a place and below it. As deep as the schema, whatever the manifest is."""
        if isinstance(schema, list):
            yield from self._list(path, value, schema[0])
        elif isinstance(schema, Mapping) and value is not None:
            if not isinstance(value, dict):
                yield from self._no_mapping(path, value)
                return
            for field, inner in value.items():
                if EACH in schema:
                    yield from self.findings((*path, field), inner, schema[EACH])
                elif field in schema:
                    yield from self.findings((*path, field), inner, schema[field])
                elif OPEN not in schema or field in WATCHED:
                    yield self._unknown(path, str(field), schema)

    def _list(self, path: TreePath, value: Any, schema: Schema) -> Iterator[Finding]:
        if value is None:
            return
        if not isinstance(value, list):
            edits = [SetField(path, [value])] if isinstance(value, dict) == isinstance(schema, Mapping) else []
            yield finding(
                "field-form", f"{path[-1]} is a list: begin each of its items with `-`", self._index, path, *edits
            )
            return
        for number, item in enumerate(value):
            yield from self.findings((*path, number), item, schema)

    def _no_mapping(self, path: TreePath, value: Any) -> Iterator[Finding]:
        if path and isinstance(path[-1], int):
            field = next(str(step) for step in reversed(path) if isinstance(step, str))
            edits = (
                [SetField(path, {"name": value})]
                if isinstance(value, str) and field in {"claims", "resourceClaims"}
                else []
            )
            yield finding(
                "field-form", f"each item of {field} is a mapping, such as `name: …`", self._index, path, *edits
            )
        else:
            where = path[-1] if path else "the manifest"
            what = "a list: leave out the `-`" if isinstance(value, list) else "a plain value"
            yield finding(
                "field-form", f"{where} must be a mapping with its own fields, but is {what}", self._index, path
            )

    def _unknown(self, path: TreePath, field: str, schema: Mapping[str, Schema]) -> Finding:
        here = (*path, field)
        choices = [name for name in schema if name not in {OPEN, EACH}]
        where = f" of {_where(path)}" if path else ""
        meant = self._place_of(path, field)
        if meant is not None:
            message = f"{field} is not a field{where or ' here'}: move it into {_where(meant[:-1])}"
            return finding("field-place", message, self._index, here, MoveField(here, meant))
        likely = most_like(field, choices, at_least=ALIKE)
        if likely:
            edits: list[Edit] = [MoveField(here, (*path, likely))] if at(self._tree, (*path, likely)) is None else []
            message = f"there is no field {field}{where}: the nearest is {likely}"
            return finding("unknown-field", message, self._index, here, *edits)
        listed = f": there are {', '.join(choices)}" if 0 < len(choices) <= _NAMED else ""
        return finding("unknown-field", f"there is no field {field}{where}{listed}", self._index, here)

    def _place_of(self, path: TreePath, field: str) -> TreePath | None:
        """The one place where a field of this name may stand and nothing stands yet: in the same item of a list, or in none."""
        inner = max((number for number, step in enumerate(path) if isinstance(step, int)), default=-1)
        for start in dict.fromkeys((inner + 1, 0)):
            base = path[:start]
            places = [
                (*base, *place)
                for place in _places(self._schema_at(base), field)
                if at(self._tree, (*base, *place)) is None
            ]
            if len(places) == 1:
                return places[0]
        return None

    def _schema_at(self, path: TreePath) -> Schema:
        here = self._schema
        for step in path:
            here = here[0] if isinstance(step, int) else here.get(step, here.get(EACH))
        return here


def _places(schema: Schema, field: str) -> Iterator[TreePath]:
    """Every place of a field below a schema that no list lies before."""
    waiting: list[tuple[TreePath, Schema]] = [((), schema)]
    while waiting:
        path, here = waiting.pop()
        if not isinstance(here, Mapping):
            continue
        for name, inner in here.items():
            if name == field:
                yield (*path, name)
            elif name not in {OPEN, EACH}:
                waiting.append(((*path, name), inner))


def _where(path: TreePath) -> str:
    """A place as people write it: spec.devices.requests[0]."""
    written = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return written.removeprefix(".") or "the manifest"


def check_names(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Every object of resource.k8s.io has a name."""
    for index, manifest in enumerate(manifests):
        metadata = mapping(manifest.tree.get("metadata"))
        name = metadata.get("name")
        if kind_of(manifest) in CLAIMS and isinstance(name, bool | int | float):
            message = "metadata.name is not a string: put it in quotes, as all numbers, and words such as y, no and on"
            yield finding("name-form", message, index, ("metadata", "name"))
        elif kind_of(manifest) in CLAIMS and not name and not metadata.get("generateName"):
            if text(manifest.tree.get("name")):
                continue  # reported as a field in the wrong place
            kind = kind_of(manifest)
            yield finding("name-missing", f"the {kind} has no metadata.name", index, ("metadata",))
