"""Rules about unknown fields, misplaced fields, and values of the wrong form. `schema` knows the fields."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from draco.linting.model import DropField, Edit, Finding, Json, Manifest, MoveField, SetField, TreePath, finding
from draco.linting.objects import (
    at,
    is_of_group,
    kind_of,
    mapping,
    name_of,
    namespace_of,
    of_kind,
    pod_claims,
    pods,
    text,
)
from draco.linting.schema import CLAIMS, EACH, GONE, OPEN, POD_SPEC, PODS, WATCHED, Schema
from draco.resources.texts import ALIKE, most_like, slip_of

_DEVICE_SELECTOR: Final = ("spec", "deviceSelector")
_ONLY_EXACT: Final = (
    "a taint rule selects only by driver, pool (mostly the node's name) and device; `draco selector eval` finds them by any "
    "attribute"
)
"""The remedy for fields of a taint rule's selector, whose closest name would select something else."""
_SAME: Final = {
    "drivername": "driver",
    "poolname": "pool",
    "selector": "deviceSelector",
    "deviceclass": "deviceClassName",
    "resourceclaim": "resourceClaimName",
    "resourceclaimtemplate": "resourceClaimTemplateName",
}
"""Lower-case fields with a missing or superfluous word."""
_ONE_OF: Final = {
    "exactly": "write a request for each, or list them in firstAvailable if one of them is enough",
    "taint": "write a rule for each",
}
"""What to do with a list of several in place of one mapping."""
_OWN_CLAIM: Final = frozenset({"spec", "template", "devices", "requests", "deviceClassName", "resourceClassName"})
"""Fields of claims that people write into a pod."""
_NESTED: Final[TreePath] = ("spec", "spec")
_NAMED: Final = 8
"""Up to this number of fields of a place are listed; otherwise only the closest is named."""


def check_fields(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Check every field of every manifest whose fields are known."""
    for index, manifest in enumerate(manifests):
        kind = kind_of(manifest)
        schema = CLAIMS.get(kind) if is_of_group(manifest) or kind in CLAIMS else PODS.get(kind)
        if schema is not None:
            yield from _Walk(index, manifest.tree, schema).findings((), manifest.tree, schema)
    for pod in pods(manifests):
        if pod.kind not in PODS:
            around: Schema = POD_SPEC
            for step in reversed(pod.path):
                around = [around] if isinstance(step, int) else {OPEN: None, step: around}
            walk = _Walk(pod.manifest, manifests[pod.manifest].tree, around)
            yield from walk.findings(pod.path, pod.spec, POD_SPEC)


class _Walk(NamedTuple):
    """One manifest, walked along its schema."""

    number: int
    tree: Json
    schema: Schema

    def findings(self, path: TreePath, value: Any, schema: Schema) -> Iterator[Finding]:
        """The mistakes at a place and below it; recursion is bounded by the schema."""
        if isinstance(schema, list):
            yield from self._list(path, value, schema[0])
        elif isinstance(schema, Mapping) and value is not None:
            if not isinstance(value, dict):
                yield from self._no_mapping(path, value, schema)
                return
            for field, inner in value.items():
                if EACH in schema:
                    yield from self.findings((*path, field), inner, schema[EACH])
                elif field in schema:
                    yield from self.findings((*path, field), inner, schema[field])
                elif (OPEN not in schema or field in WATCHED) and not _is_nested(self.tree, (*path, field)):
                    yield self._unknown(path, str(field), schema)

    def _list(self, path: TreePath, value: Any, schema: Schema) -> Iterator[Finding]:
        if value is None:
            return
        if not isinstance(value, list):
            edits = [SetField(path, [value])] if isinstance(value, dict) == isinstance(schema, Mapping) else []
            yield finding(
                "field-form", f"{path[-1]} is a list: begin each of its items with `-`", self.number, path, *edits
            )
            return
        for number, item in enumerate(value):
            yield from self.findings((*path, number), item, schema)

    def _no_mapping(self, path: TreePath, value: Any, schema: Mapping[str, Schema]) -> Iterator[Finding]:
        if schema.keys() == {"value"} and isinstance(value, str | int | float) and not isinstance(value, bool):
            message = f"the amount of {path[-1]} must be in a field `value`"
            yield finding("field-form", message, self.number, path, SetField(path, {"value": value}))
        elif path and isinstance(path[-1], int):
            field = next(str(step) for step in reversed(path) if isinstance(step, str))
            edits = (
                [SetField(path, {"name": value})]
                if isinstance(value, str) and field in {"claims", "resourceClaims"}
                else []
            )
            yield finding(
                "field-form", f"each item of {field} is a mapping, such as `name: …`", self.number, path, *edits
            )
            return
        where, edits = path[-1] if path else "the manifest", []
        if isinstance(value, list) and len(value) > 1:
            what = f"a list of {len(value)}: {_ONE_OF.get(str(where), 'keep one of them')}"
        elif isinstance(value, list):
            what = "a list: leave out the `-`"
            edits = [SetField(path, value[0])] if path and value and isinstance(value[0], dict) else []
        else:
            what = "a plain value"
        message = f"{where} must be a mapping with its own fields, but is {what}"
        yield finding("field-form", message, self.number, path, *edits)

    def _unknown(self, path: TreePath, field: str, schema: Mapping[str, Schema]) -> Finding:
        here = (*path, field)
        choices = [name for name in schema if name not in {OPEN, EACH, GONE, *schema.get(GONE, ())}]
        where = f" of {_where(path)}" if path else ""
        if advice := _advice(text(self.tree.get("kind")), path, field):
            return finding("unknown-field", f"there is no field {field}{where}: {advice}", self.number, here)
        moves, how = self._moves(here, choices)
        if moves:
            return finding("field-place", f"{field} is not a field{where or ' here'}: {how}", self.number, here, *moves)
        slip = _SAME.get(field.lower(), "") if _SAME.get(field.lower()) in choices else slip_of(field, choices)
        if not slip and path == _DEVICE_SELECTOR:
            return finding("unknown-field", f"there is no field {field}{where}: {_ONLY_EXACT}", self.number, here)
        likely = slip or most_like(field, choices, at_least=ALIKE)
        if likely:
            is_free = at(self.tree, (*path, likely)) is None
            edits: list[Edit] = [MoveField(here, (*path, likely))] if slip and is_free else []
            message = f"there is no field {field}{where}: the nearest is {likely}"
            return finding("unknown-field", message, self.number, here, *edits)
        if elsewhere := _in_lists(self.schema, field):
            message = f"{field} is not a field{where or ' here'}: it belongs to {elsewhere}"
            return finding("field-place", message, self.number, here)
        listed = f": there are {', '.join(choices)}" if 0 < len(choices) <= _NAMED else ""
        return finding("unknown-field", f"there is no field {field}{where}{listed}", self.number, here)

    def _moves(self, path: TreePath, choices: Sequence[str]) -> tuple[list[Edit], str]:
        """The edits that put a field, or what it holds, in its place, and what they do; none if its place is unknown."""
        if moves := self._moves_up(path, choices):
            return moves, "move what is below it up one level"
        outer, field = path[:-1], str(path[-1])
        meant = self._place_of(outer, field)
        if meant is None and outer[-1:] == ("capacity",) and at(self.tree, (*outer, "requests", field)) is None:
            meant = (*outer, "requests", field)
        return ([MoveField(path, meant)], f"move it into {_where(meant[:-1])}") if meant is not None else ([], "")

    def _moves_up(self, path: TreePath, choices: Sequence[str]) -> list[Edit]:
        """The edits that remove a level around fields that belong outside of it; none if it holds anything else."""
        outer, inner = path[:-1], at(self.tree, path)
        if not isinstance(inner, dict) or not inner or not inner.keys() <= set(choices):
            return []
        if any(at(self.tree, (*outer, name)) is not None for name in inner):
            return []
        return [*(MoveField((*path, name), (*outer, name)) for name in inner), DropField(path)]

    def _place_of(self, path: TreePath, field: str) -> TreePath | None:
        """The only free place for a field of this name, in the same list item or outside of lists; None if not unique."""
        inner = max((number for number, step in enumerate(path) if isinstance(step, int)), default=-1)
        for start in dict.fromkeys((inner + 1, 0)):
            base = path[:start]
            places = [
                (*base, *place)
                for place in _places(self._schema_at(base), field)
                if at(self.tree, (*base, *place)) is None
            ]
            if len(places) == 1:
                return places[0]
        return None

    def _schema_at(self, path: TreePath) -> Schema:
        here = self.schema
        for step in path:
            here = here[0] if isinstance(step, int) else here.get(step, here.get(EACH))
        return here


def _advice(kind: str, path: TreePath, field: str) -> str:
    """What to write instead of a field whose place is in another object, or in an expression; "" for any other field."""
    if path[-2:-1] == ("resourceClaims",) and field in _OWN_CLAIM:
        return "a pod cannot contain a claim; write a ResourceClaimTemplate, and name it in resourceClaimTemplateName"
    if field == "resourceClaimTemplates":
        return (
            "write each as a ResourceClaimTemplate of its own, and name it in resourceClaimTemplateName of the pod template's "
            "resourceClaims"
        )
    if (kind, path) == ("DeviceClass", ("spec",)) and field in {"driver", "driverName"}:
        return 'a class compares the driver in a selector, as in `device.driver == "gpu.example.com"`'
    if path == ("spec", "taint") and field == "tolerationSeconds":
        return "how long a pod may stay is in a toleration of its request"
    return ""


def _places(schema: Schema, field: str) -> Iterator[TreePath]:
    """All places of a field below a schema that are not inside lists."""
    waiting: list[tuple[TreePath, Schema]] = [((), schema)]
    while waiting:
        path, here = waiting.pop()
        if not isinstance(here, Mapping):
            continue
        for name, inner in here.items():
            if name == field:
                yield (*path, name)
            elif name not in {OPEN, EACH, GONE}:
                waiting.append(((*path, name), inner))


def _in_lists(schema: Schema, field: str) -> str:
    """The place of a request's field, as in spec.devices.requests[].exactly; "" for any other field."""
    found: list[str] = []
    waiting: list[tuple[str, Schema]] = [("", schema)]
    while waiting:
        path, here = waiting.pop()
        if isinstance(here, list):
            waiting.append((f"{path}[]", here[0]))
        elif isinstance(here, Mapping):
            if field in here and field not in here.get(GONE, ()):
                found.append(path)
            waiting += [(f"{path}.{name}", inner) for name, inner in here.items() if name not in {OPEN, EACH, GONE}]
    # v1beta1 had it beside the request's name, and each alternative has it, too.
    return next((path.removeprefix(".") for path in found if path.endswith(".exactly")), "")


def _is_nested(tree: Json, path: TreePath = _NESTED) -> bool:
    """Whether this is a template's spec in a ResourceClaim."""
    return path == _NESTED and tree.get("kind") == "ResourceClaim" and "devices" in mapping(at(tree, _NESTED))


def check_nesting(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """A claim written like a template. The pods that name it decide which of the two it becomes."""
    named = {
        (pod.namespace, text(entry.fields[field]), field)
        for pod in pods(manifests)
        for entry in pod_claims(pod)
        for field in ("resourceClaimName", "resourceClaimTemplateName")
        if field in entry.fields
    }
    for index, manifest in of_kind(manifests, "ResourceClaim"):
        if not _is_nested(manifest.tree):
            continue
        key = (namespace_of(manifest.tree), name_of(manifest.tree))
        is_claim, is_template = ((*key, field) in named for field in ("resourceClaimName", "resourceClaimTemplateName"))
        if is_template and not is_claim:
            message = (
                "spec.spec belongs to a ResourceClaimTemplate, and pods use this object as one: "
                "write kind: ResourceClaimTemplate"
            )
            yield finding("field-place", message, index, _NESTED, SetField(("kind",), "ResourceClaimTemplate"))
            continue
        message = "spec is not a field of a ResourceClaim's spec: move what is below it into spec"
        if not is_claim:
            message += ", or write kind: ResourceClaimTemplate if pods name it in resourceClaimTemplateName"
        inner = mapping(at(manifest.tree, _NESTED))
        moves: list[Edit] = [MoveField((*_NESTED, field), ("spec", field)) for field in inner]
        is_free = inner.keys().isdisjoint(manifest.tree["spec"].keys() - {"spec"})
        yield finding("field-place", message, index, _NESTED, *([*moves, DropField(_NESTED)] if is_free else []))


def _where(path: TreePath) -> str:
    """A path as people write it: spec.devices.requests[0]."""
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
                continue  # reported as a misplaced field
            kind = kind_of(manifest)
            yield finding("name-missing", f"the {kind} has no metadata.name", index, ("metadata",))
