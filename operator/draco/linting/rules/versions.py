"""Rules about old versions: which are no longer served, and what v1 writes differently.

Owns which Kubernetes release can serve which version, and the conversion of every older form to v1: classic DRA (v1alpha1,
v1alpha2), v1alpha3, v1beta1, v1beta2. Source: KEP-4381, KEP-3063, k8s.io/api/resource.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from draco.linting import objects
from draco.linting.model import DropField, Edit, Finding, Json, Manifest, MoveField, SetField, TreePath, finding
from draco.resources.texts import agreeing
from draco.resources.written.conversion import GROUP, OF_A_REQUEST
from draco.selectors.complaint import Severity

_CLASSIC: Final = {
    "PodSchedulingContext": "since Kubernetes 1.32 the scheduler allocates claims itself: remove this object",
    "ResourceClaimParameters": "driver parameters are now in the claim: spec.devices.config[].opaque of a ResourceClaim",
    "ResourceClassParameters": "driver parameters are now in the class: spec.config[].opaque of a DeviceClass",
}
_CURRENT: Final = {"resourceClaimTemplate": "resourceClaimTemplateName", "resourceClaim": "resourceClaimName"}
"""New names of the fields that were below `source`."""
_OF_CLASSIC_CLAIMS: Final = ("allocationMode", "parametersRef", "resourceClassName")


_OF_RESOURCE_CLASSES: Final = {
    "parametersRef": "the parameters that parametersRef names go into spec.config[].opaque",
    "suitableNodes": "a DeviceClass has no suitableNodes: select by an attribute that only devices of these nodes have",
}
"""Fields of a ResourceClass that only its author can rewrite."""


class Served(NamedTuple):
    """The first minor release that can serve a version, and the first that no longer can; 0 if the end is unknown.

    Source: the lifecycle of each type in k8s.io/api (zz_generated.prerelease-lifecycle.go, 0.37.2, and 0.33 for removed types). A
    test compares it with what API servers of each release list.
    """

    since: int
    until: int = 0

    def by(self, minor: int) -> bool:
        """Whether Kubernetes 1.`minor` can serve it. Beta and alpha versions must be enabled."""
        return self.since <= minor and (not self.until or minor < self.until)


_OF_CLAIMS: Final = {
    "v1": Served(34),
    "v1beta2": Served(33, 39),
    "v1beta1": Served(32, 38),
    "v1alpha3": Served(31, 34),
    "v1alpha2": Served(27, 31),
    "v1alpha1": Served(26, 27),
}
_BEFORE_SLICES: Final = ("v1alpha1",)
VERSIONS: Final[Mapping[str, Mapping[str, Served]]] = {
    "ResourceClaim": _OF_CLAIMS,
    "ResourceClaimTemplate": _OF_CLAIMS,
    "ResourceSlice": {name: served for name, served in _OF_CLAIMS.items() if name not in _BEFORE_SLICES},
    "DeviceClass": {name: served for name, served in _OF_CLAIMS.items() if served.since >= 31},
    "DeviceTaintRule": {"v1": Served(37), "v1beta2": Served(36, 42), "v1alpha3": Served(33, 39)},
    "ResourcePoolStatusRequest": {"v1alpha3": Served(36, 42)},
}
"""By kind, the newest version first."""


def newest(kind: str, minor: int) -> str:
    """The newest version of a kind that Kubernetes 1.`minor` can serve; "" if there is none."""
    return next((version for version, served in VERSIONS[kind].items() if served.by(minor)), "")


def check_versions(manifests: Sequence[Manifest], kubernetes: int) -> Iterator[Finding]:
    """The version and kind of each object."""
    for index, manifest in enumerate(manifests):
        kind = objects.kind_of(manifest)
        group, slash, version = objects.text(manifest.tree.get("apiVersion")).partition("/")
        if kind in VERSIONS and not slash:
            yield from _of_group(index, kind, newest(kind, kubernetes))
        elif group != GROUP or not slash:
            continue
        elif kind in _CLASSIC:
            yield finding("classic-dra", f"{kind} belongs to a removed API: {_CLASSIC[kind]}", index, ("kind",))
        elif kind == "ResourceClass":
            yield _of_resource_class(index, manifest.tree)
        elif kind in VERSIONS:
            yield from _of_version(index, kind, version, kubernetes)


def _of_group(index: int, kind: str, wanted: str) -> Iterator[Finding]:
    if wanted:
        message = f"the apiVersion of a {kind} is {GROUP}/{wanted}"
        edit = SetField(("apiVersion",), f"{GROUP}/{wanted}")
        yield finding("api-version", message, index, ("apiVersion",), edit)


def _of_version(index: int, kind: str, version: str, kubernetes: int) -> Iterator[Finding]:
    """A version that the release cannot serve, or serves only if enabled although a newer one exists."""
    served, wanted = VERSIONS[kind].get(version), newest(kind, kubernetes)
    is_served = served is not None and served.by(kubernetes)
    if version == wanted:
        return
    if served is None:
        why = f"{kind} was never served as {GROUP}/{version}"
    elif is_served:
        why = f"{GROUP}/{version} is deprecated and not served by default"
    elif kubernetes < served.since:
        why = f"{kind} is served as {GROUP}/{version} since Kubernetes 1.{served.since}, not by 1.{kubernetes}"
    else:
        why = f"{GROUP}/{version} is not served since Kubernetes 1.{served.until}"
    severity: Severity = "warning" if is_served else "error"
    if not wanted:
        newer = min(each.since for each in VERSIONS[kind].values())
        message = f"{why}: Kubernetes 1.{kubernetes} has no {kind}, 1.{newer} is the first that does"
        yield finding("api-version", message, index, ("apiVersion",), severity=severity)
        return
    served_if = "" if wanted == "v1" else " if enabled"
    message = f"{why}: write {GROUP}/{wanted}, served since Kubernetes 1.{VERSIONS[kind][wanted].since}{served_if}"
    edit = SetField(("apiVersion",), f"{GROUP}/{wanted}")
    yield finding("api-version", message, index, ("apiVersion",), edit, severity=severity)


def _of_resource_class(index: int, tree: Json) -> Finding:
    driver = objects.text(tree.get("driverName")) or "gpu.nvidia.com"
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    edits: list[Edit] = [
        SetField(("apiVersion",), f"{GROUP}/v1"),
        SetField(("kind",), "DeviceClass"),
        *(DropField((field,)) for field in ("driverName", "structuredParameters") if field in tree),
        SetField(("spec", "selectors"), [selector]),
    ]
    message = "ResourceClass is now DeviceClass, which names the driver in a selector"
    if kept := [text for field, text in _OF_RESOURCE_CLASSES.items() if field in tree]:
        return finding("classic-dra", f"{message}; {'; '.join(kept)}", index, ("kind",))
    return finding("classic-dra", message, index, ("kind",), *edits)


def check_classic_claims(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Claims of classic DRA name a class and leave the rest to the driver; classes can name nodes."""
    for claim in objects.claims(manifests):
        path = claim.path[:-1]
        spec = objects.mapping(objects.at(manifests[claim.manifest].tree, path))
        classic = [field for field in _OF_CLASSIC_CLAIMS if field in spec]
        if "resourceClassName" in spec and "devices" not in spec:
            request = {"name": "device", "exactly": {"deviceClassName": objects.text(spec["resourceClassName"])}}
            edits: list[Edit] = [
                SetField((*path, "devices", "requests"), [request]),
                *(DropField((*path, field)) for field in classic if field != "parametersRef"),
            ]
            message = (
                "resourceClassName belongs to classic DRA: requests name a DeviceClass, in exactly.deviceClassName"
            )
            yield finding("classic-dra", message, claim.manifest, (*path, "resourceClassName"), *edits)
            classic.remove("resourceClassName")
        for field in classic:
            what = {
                "allocationMode": "a claim is always allocated when its pod is scheduled",
                "parametersRef": "parameters are now in spec.devices.config[].opaque",
            }.get(field, "requests name a DeviceClass")
            message = f"{field} belongs to classic DRA: {what}"
            edits = [] if field == "parametersRef" else [DropField((*path, field))]
            yield finding("classic-dra", message, claim.manifest, (*path, field), *edits)
    for index, manifest in enumerate(manifests):
        if objects.kind_of(manifest) == "DeviceClass" and "suitableNodes" in objects.mapping(manifest.tree.get("spec")):
            path = ("spec", "suitableNodes")
            message = "suitableNodes was removed in Kubernetes 1.32: ResourceSlices say on which nodes devices are"
            yield finding("classic-dra", message, index, path)


def check_requests_of_v1beta1(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """v1 has request fields under `exactly`; v1beta1 had them beside the name."""
    for claim in objects.claims(manifests):
        for request in objects.requests(claim):
            beside = [field for field in request.fields if field in OF_A_REQUEST]
            if not beside:
                continue
            moved = [MoveField((*request.path, field), (*request.path, "exactly", field)) for field in beside]
            what = " and ".join(filter(None, (", ".join(beside[:-1]), beside[-1])))
            if "firstAvailable" in request.fields:
                message = f"{what} cannot be beside firstAvailable: each of its alternatives has its own"
                yield finding("exactly-missing", message, claim.manifest, (*request.path, beside[0]))
                continue
            message = f"{what} of a request {agreeing(len(beside), 'is', 'are')} under `exactly` since v1beta2"
            yield finding("exactly-missing", message, claim.manifest, (*request.path, beside[0]), *moved)


def check_slices_of_v1beta1(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """v1beta1 had a device's fields under `basic`; quantities were never attributes."""
    for index, manifest in objects.of_kind(manifests, "ResourceSlice"):
        spec = objects.mapping(manifest.tree.get("spec"))
        for number, device in enumerate(objects.listed(spec.get("devices"))):
            path: TreePath = ("spec", "devices", number)
            basic = objects.mapping(device).get("basic")
            if "basic" in objects.mapping(device):
                edits: list[Edit] = [
                    *(MoveField((*path, "basic", field), (*path, field)) for field in objects.mapping(basic)),
                    DropField((*path, "basic")),
                ]
                message = "`basic` was removed in v1beta2: move its fields into the device"
                yield finding("basic", message, index, (*path, "basic"), *edits)
            for holder in (path, (*path, "basic")):
                fields = objects.mapping(objects.at(manifest.tree, holder))
                yield from _amounts(index, holder, objects.mapping(fields.get("attributes")))
                yield from _bare_capacities(index, holder, objects.mapping(fields.get("capacity")))


def _amounts(index: int, device: TreePath, attributes: Json) -> Iterator[Finding]:
    for name, attribute in attributes.items():
        path = (*device, "attributes", name)
        if "quantity" in objects.mapping(attribute):
            edits: tuple[Edit, ...] = (
                SetField((*device, "capacity", name), {"value": objects.mapping(attribute)["quantity"]}),
                DropField(path),
                *([DropField((*device, "attributes"))] if len(attributes) == 1 else []),
            )
            message = f"an attribute has no quantity: amounts such as {name} are capacities, with a `value`"
            yield finding("capacity-as-attribute", message, index, path, *edits)
        elif not isinstance(attribute, dict):
            value = _typed(attribute)
            edits = () if value is None else (SetField(path, value),)
            message = f"the attribute {name} has no type: write one of int, bool, string or version below it"
            yield finding("attribute-type", message, index, path, *edits)


def _typed(value: Any) -> Json | None:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case str():
            return {"string": value}
    return None


def _bare_capacities(index: int, device: TreePath, capacities: Json) -> Iterator[Finding]:
    """v1alpha3 wrote `memory: 80Gi`; since v1beta1 the quantity is in a field `value`."""
    for name, amount in capacities.items():
        path = (*device, "capacity", name)
        if isinstance(amount, str | int) and not isinstance(amount, bool):
            message = f"the capacity {name} must be in a field `value`"
            yield finding("capacity-value", message, index, path, SetField(path, {"value": amount}))
        elif "quantity" in objects.mapping(amount):
            message = f"the amount of {name} must be in its `value`"
            yield finding("capacity-value", message, index, path, MoveField((*path, "quantity"), (*path, "value")))


def check_pod_claims_of_v1alpha(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """v1alpha versions had the names of claims and templates under `source`."""
    for pod in objects.pods(manifests):
        for entry in objects.pod_claims(pod):
            if "source" not in entry.fields:
                continue
            source = objects.mapping(entry.fields["source"])
            path = (*entry.path, "source")
            edits = [MoveField((*path, field), (*entry.path, _CURRENT.get(field, field))) for field in source]
            message = "`source` was removed in Kubernetes 1.31: name the claim or template beside the entry's own name"
            yield finding("claim-source", message, pod.manifest, path, *edits, DropField(path))


def check_fragments(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Fragments of manifests, as articles show them, which no cluster accepts."""
    for index, manifest in enumerate(manifests):
        missing = [field for field in ("apiVersion", "kind") if not objects.text(manifest.tree.get(field))]
        if not missing:
            continue
        kind = objects.kind_of(manifest) or _kind_of(manifest.tree)
        if kind is None:
            what = "this is not a manifest, or only part of one"
            if "mig-configs" in manifest.tree:
                what = (
                    "this configures NVIDIA's MIG manager: `draco migrate mig-parted` writes its layouts as MigPolicies"
                )
            message = f"{' and '.join(missing)} missing: {what}"
            yield finding("fragment", message, index, ())
            continue
        version = "v1" if kind == "Pod" else f"{GROUP}/v1"
        message = f"{' and '.join(missing)} missing: this is part of a {kind}, {version}"
        edits: list[Edit] = [SetField(("apiVersion",), version), SetField(("kind",), kind)]
        if not objects.name_of(manifest.tree):
            edits.append(SetField(("metadata", "name"), _name_for(kind, manifest.tree)))
        is_whole = kind != "Pod" or "containers" in objects.mapping(manifest.tree.get("spec"))
        if not is_whole:
            message += ", whose containers are missing too"
        yield finding("fragment", message, index, (), *(edits if is_whole else ()))


def _kind_of(tree: Json) -> str | None:
    spec = objects.mapping(tree.get("spec"))
    if "resourceClaims" in spec or "containers" in spec:
        return "Pod"
    if "driver" in spec and "pool" in spec:
        return "ResourceSlice"
    if "deviceSelector" in spec and "taint" in spec:
        return "DeviceTaintRule"
    if "requests" in objects.mapping(spec.get("devices")):
        return "ResourceClaim"
    if "devices" in objects.mapping(spec.get("spec")):
        return "ResourceClaimTemplate"
    return None


def _name_for(kind: str, tree: Json) -> str:
    """A name for an object without one, after its first request or container."""
    spec = objects.mapping(tree.get("spec"))
    if kind == "Pod":
        first = next(iter(objects.listed(spec.get("containers"))), None)
    else:
        devices = objects.mapping(objects.mapping(spec.get("spec", spec)).get("devices"))
        first = next(iter(objects.listed(devices.get("requests"))), None)
    return objects.text(objects.mapping(first).get("name")) or "unnamed"
