"""Reads manifests, as plain mappings, into the structs of `resources`. The caller says where they are from. No I/O.

Owns the readable kinds and versions, the API server's defaults, and the errors for invalid manifests.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from draco.resources.api.base import set_fields
from draco.resources.api.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate
from draco.resources.api.core import Node, Pod
from draco.resources.api.draco import GpuNode, MigPolicy
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.errors import DracoError
from draco.resources.quantity import Quantity, QuantityError
from draco.resources.written import conversion
from draco.resources.written.conversion import Json
from draco.resources.written.decoding_errors import refused_value
from draco.resources.written.forms import ChosenKey, Place, ValueRefusal, short

Object = Node | ResourceSlice | DeviceClass | DeviceTaintRule | ResourceClaim | ResourceClaimTemplate | Pod

OwnObject = GpuNode | MigPolicy

_T = TypeVar("_T", bound=Object | OwnObject)

_DRA: Final[Mapping[str, type[Object]]] = {
    "DeviceClass": DeviceClass,
    "DeviceTaintRule": DeviceTaintRule,
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": ResourceClaimTemplate,
    "ResourceSlice": ResourceSlice,
}
_CORE: Final[Mapping[str, type[Object]]] = {"Node": Node, "Pod": Pod}
OWN_API_VERSION: Final = "draco.dev/v1alpha1"
_OWN: Final[Mapping[str, type[OwnObject]]] = {"GpuNode": GpuNode, "MigPolicy": MigPolicy}
WORKLOADS: Final[Mapping[tuple[str, str], Sequence[str]]] = {
    ("apps/v1", "DaemonSet"): ("spec", "template"),
    ("apps/v1", "Deployment"): ("spec", "template"),
    ("apps/v1", "ReplicaSet"): ("spec", "template"),
    ("apps/v1", "StatefulSet"): ("spec", "template"),
    ("batch/v1", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("batch/v1", "Job"): ("spec", "template"),
    ("v1", "ReplicationController"): ("spec", "template"),
}
"""The path to the pod template in each workload."""
_COPIES: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"), ("spec", "replicas")),
    "CronJob": ("spec", "jobTemplate", "spec", "parallelism"),
    "Job": ("spec", "parallelism"),
}
_NAMESPACED: Final = frozenset({"ResourceClaim", "ResourceClaimTemplate", "Pod"})


class ManifestError(DracoError):
    """A manifest cannot be read; the text says where it is, what is wrong and the fix.

    `refusals` are the invalid values, of which the text has the first, if these are the reason. `rest` is the object if only
    amounts are invalid, with 0 in their places.
    """

    def __init__(self, message: str, refusals: Sequence[ValueRefusal] = (), rest: Any = None) -> None:
        super().__init__(message)
        self.refusals = refusals
        self.rest = rest


class UnknownKindError(ManifestError):
    """A manifest of a kind that device allocation does not use."""


def decode(document: object, *, source: str, namespace: str = "default") -> Object:
    """Decode one object. A workload is read as one pod of its template, with the workload's name.

    `namespace` is the default for namespaced objects. Raises UnknownKindError for any other kind, and ManifestError for an
    invalid object.
    """
    manifest = _mapping(document, source)
    kind, api_version = _text(manifest, "kind", source), _text(manifest, "apiVersion", source)
    group, _, version = api_version.rpartition("/")
    if (api_version, kind) in WORKLOADS:
        path = WORKLOADS[api_version, kind]
        pod = _pod_of(manifest, path, source)
        return _convert(Pod, "Pod", pod, source, namespace, at=tuple(path), called=kind)
    if group == conversion.GROUP and kind in _DRA:
        if version not in conversion.VERSIONS[kind]:
            raise ManifestError(f"{source}: {_no_version(kind, api_version)}")
        try:
            return _convert(_DRA[kind], kind, conversion.to_v1(kind, version, manifest), source, namespace)
        except conversion.NotConvertibleError as error:
            raise ManifestError(f"{_named(source, kind, manifest)}: {error}.") from error
    if api_version == "v1" and kind in _CORE:
        return _convert(_CORE[kind], kind, manifest, source, namespace)
    raise _unknown(kind, api_version, source)


def decode_own(manifest: Json, *, source: str) -> OwnObject | None:
    """Decode one object of Draco's own kinds; None for any other kind. Raises ManifestError for an invalid object."""
    kind = _text(manifest, "kind", source)
    if kind not in _OWN:
        return None
    api_version = _text(manifest, "apiVersion", source)
    if api_version != OWN_API_VERSION:
        raise ManifestError(
            f"{source}: {kind} of {short(api_version)} cannot be read; write `apiVersion: {OWN_API_VERSION}`."
        )
    return _convert(_OWN[kind], kind, manifest, source, "")


def note_place(places: dict[str, str], item: Object | OwnObject, source: str) -> None:
    """Record where an object is. Raises ManifestError for a duplicate."""
    name = f"{type(item).__name__} {item.metadata.key}"
    if name in places:
        raise ManifestError(f"{source}: {name} is also in {places[name]}; leave one of the two out.")
    places[name] = source


def pod_path(manifest: Json) -> Place:
    """Return where the pod of a workload is in it; () for any other object."""
    return tuple(WORKLOADS.get((str(manifest.get("apiVersion")), str(manifest.get("kind"))), ()))


def copies(manifest: Json) -> int:
    """Return the number of pods of a workload, if it has one; else 1."""
    path = _COPIES.get(str(manifest.get("kind")), ())
    value: Any = manifest
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def expand(document: object, *, source: str) -> Iterator[tuple[Json, str]]:
    """Yield the manifests of a document with their sources: the items of a list, else the document itself."""
    manifest = _mapping(document, source)
    kind = manifest.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List") or "items" not in manifest:
        yield manifest, source
        return
    items = manifest["items"] or []
    if not isinstance(items, list):
        raise ManifestError(f"{source}: items of {kind} must be a list of objects.")
    inherited = {"apiVersion": manifest.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    for number, item in enumerate(items, 1):
        where = f"{source}, item {number}"
        yield {**inherited, **_mapping(item, where)}, where


def _convert(
    type_: type[_T], kind: str, manifest: Json, source: str, namespace: str, *, at: Place = (), called: str = ""
) -> _T:
    """Decode a manifest. `at` is where it is in the object that people wrote, of the kind `called`."""
    named, stored = _named(source, called or kind, manifest), _as_stored(kind, manifest, namespace)
    wrong = [each.within(at) for each in _quantities(kind, stored)]
    try:
        item = msgspec.convert(stored, type_)
    except msgspec.ValidationError as error:
        wrong.append(refused_value(str(error), stored, type_).within(at))
        raise ManifestError(f"{named}: {wrong[0]}.", wrong) from error
    if wrong:
        raise ManifestError(f"{named}: {wrong[0]}.", wrong, item)
    if not item.metadata.name:
        raise ManifestError(f"{named}: metadata.name is missing; give the object a name.")
    return item


def _as_stored(kind: str, manifest: Json, namespace: str) -> Any:
    """The manifest as an API server would store it, as far as needed: no nulls, and defaults."""
    stored = set_fields(manifest, _is_unset)
    if kind in _NAMESPACED and isinstance(metadata := stored.setdefault("metadata", {}), dict):
        metadata["namespace"] = metadata.get("namespace") or namespace
    return stored


def _quantities(kind: str, stored: Any) -> Iterator[ValueRefusal]:
    """Convert numbers at places of quantities to texts; report invalid quantities and replace them by 0. Ignores other types."""
    for path in _QUANTITIES.get(kind, ()):
        for holder, key, place in _places(stored, path, ()):
            value = holder[key]
            if isinstance(value, int | float) and not isinstance(value, bool):
                value = holder[key] = _number(value)
            try:
                if isinstance(value, str):
                    Quantity.parse(value)
            except QuantityError as error:
                holder[key] = "0"
                yield ValueRefusal(place, str(error))


_AMOUNTS_OF_A_REQUEST: Final = (
    "devices.requests.[].exactly.capacity.requests.*",
    "devices.requests.[].firstAvailable.[].capacity.requests.*",
)
_QUANTITIES: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    kind: [path.split(".") for path in paths]
    for kind, paths in {
        "Pod": [
            f"spec.{containers}.[].resources.{field}.*"
            for containers in ("containers", "initContainers")
            for field in ("limits", "requests")
        ],
        "ResourceClaim": [
            *(f"spec.{path}" for path in _AMOUNTS_OF_A_REQUEST),
            "status.allocation.devices.results.[].consumedCapacity.*",
        ],
        "ResourceClaimTemplate": [f"spec.spec.{path}" for path in _AMOUNTS_OF_A_REQUEST],
        "ResourceSlice": [
            "spec.sharedCounters.[].counters.*.value",
            "spec.devices.[].consumesCounters.[].counters.*.value",
            "spec.devices.[].capacity.*.value",
            "spec.devices.[].capacity.*.requestPolicy.default",
            "spec.devices.[].capacity.*.requestPolicy.validValues.[]",
            "spec.devices.[].capacity.*.requestPolicy.validRange.min",
            "spec.devices.[].capacity.*.requestPolicy.validRange.max",
            "spec.devices.[].capacity.*.requestPolicy.validRange.step",
        ],
    }.items()
}
"""Places of quantities: `[]` is every item of a list, `*` every value of a mapping. They may be written as numbers."""


def _places(value: Any, path: Sequence[str], at: Place) -> Iterator[tuple[Any, Any, Place]]:
    """The holder of each value at a path, its key there, and its place. Skips values of other shapes."""
    step, rest = path[0], path[1:]
    inner: list[tuple[Any, str | int]]
    if step == "[]" and isinstance(value, list):
        inner = [(index, index) for index in range(len(value))]
    elif step == "*" and isinstance(value, dict):
        inner = [(key, ChosenKey(key)) for key in value]
    elif isinstance(value, dict) and step in value:
        inner = [(step, step)]
    else:
        return
    for key, written in inner:
        if rest:
            yield from _places(value[key], rest, (*at, written))
        else:
            yield value, key, (*at, written)


def _number(value: float) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "1" + "0" * 5000


def _is_unset(key: object, value: object) -> bool:
    """Whether a value is null, or an empty value that the API also treats as unset."""
    return (
        value is None
        or (key == "count" and value == 0 and value is not False)
        or (key in {"operator", "allocationMode"} and value == "")
    )


def _pod_of(manifest: Json, path: Sequence[str], source: str) -> Json:
    inner: Any = manifest
    for step in path:
        inner = _mapping(inner, source).get(step) or {}
    template = _mapping(inner, source)
    named = {name: value for name, value in _metadata(manifest).items() if name in {"name", "namespace"}}
    return {**template, "metadata": {**_metadata(template), **named}}


def _mapping(value: object, source: str) -> Json:
    if not isinstance(value, Mapping):
        raise ManifestError(f"{source}: this is {_what(value)}, not an object with apiVersion, kind and metadata.")
    return value


def _metadata(manifest: Json) -> Json:
    metadata = manifest.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _text(manifest: Json, name: str, source: str) -> str:
    value = manifest.get(name)
    if value is None or value == "":
        example = "resource.k8s.io/v1" if name == "apiVersion" else "ResourceClaim"
        raise ManifestError(f"{source}: {name} is missing; write for example `{name}: {example}`.")
    if not isinstance(value, str):
        raise ManifestError(f"{source}: {name} must be a string, not {_what(value)}.")
    return value


def _named(source: str, kind: str, manifest: Json) -> str:
    metadata = _metadata(manifest)
    name, namespace = metadata.get("name"), metadata.get("namespace")
    parts = [part for part in (namespace, name) if isinstance(part, str) and part]
    return f"{source}: {kind} {'/'.join(parts)}" if parts else f"{source}: {kind}"


def _no_version(kind: str, api_version: str) -> str:
    known = ", ".join(sorted(conversion.VERSIONS[kind], key=lambda version: (len(version), version)))
    today = f"{conversion.GROUP}/v1"
    return f"{kind} of {api_version} cannot be read (known versions: {known}); write {today}, as `draco lint` shows."


def _unknown(kind: str, api_version: str, source: str) -> ManifestError:
    places = {
        **dict.fromkeys(_DRA, f"{conversion.GROUP}/v1"),
        **dict.fromkeys(_CORE, "v1"),
        **{workload: version for version, workload in WORKLOADS},
    }
    if kind in places:
        return ManifestError(
            f"{source}: {kind} of {short(api_version)} cannot be read; write `apiVersion: {places[kind]}`."
        )
    near = difflib.get_close_matches(kind[:100], places, n=1, cutoff=0.8)
    if near:
        return ManifestError(f"{source}: Draco does not know kind {short(kind)}; did you mean {near[0]}?")
    return UnknownKindError(f"{source}: {short(kind)} of {short(api_version)} is not used for device allocation.")


def _what(value: object) -> str:
    return "an object" if isinstance(value, Mapping) else _KINDS_OF_VALUES.get(type(value), "something else")


_KINDS_OF_VALUES: Final[Mapping[type, str]] = {
    type(None): "empty",
    bool: "true or false",
    str: "a string",
    int: "a number",
    float: "a number",
    list: "a list",
}
