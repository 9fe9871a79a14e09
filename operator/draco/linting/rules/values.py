"""Rules about values that cannot be decoded or stored, with lossless corrections. `resources.written` decides what is valid."""

from collections.abc import Iterator, Sequence

from draco.allocation.fleet.hardware import beside_partitions
from draco.linting.model import Finding, Json, Manifest, SetField, finding
from draco.linting.objects import at, is_near, kind_of, mapping, of_kind, text
from draco.linting.rules.taints import SELECTORS_BEFORE_1_35
from draco.resources.api.slices import ResourceSlice, ResourceSliceSpec
from draco.resources.quantity import quantity_meant
from draco.resources.texts import listed
from draco.resources.written.forms import ValueRefusal
from draco.resources.written.limits import refusals
from draco.resources.written.manifests import OWN_API_VERSION, ManifestError, decode, decode_own, pod_path
from draco.selectors.known_names import published_twice, twice_text


def check_pools(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Pools with slices of several nodes: the scheduler takes devices of equal names on them for one device."""
    nodes: dict[tuple[str, str], dict[str, int]] = {}
    for index, manifest in of_kind(manifests, "ResourceSlice"):
        spec = mapping(manifest.tree.get("spec"))
        key = text(spec.get("driver")), text(mapping(spec.get("pool")).get("name"))
        if node := text(spec.get("nodeName")):
            nodes.setdefault(key, {}).setdefault(node, index)
    for (driver, pool), found in nodes.items():
        if len(found) > 1:
            message = (
                f"nodes {listed(sorted(found))} publish one pool {pool} of {driver}: a device is known by driver, pool and name, "
                "so those of the same name count as one; give each node a pool of its own, such as its name"
            )
            yield finding("pool-of-nodes", message, max(found.values()), ("spec", "pool", "name"), severity="warning")


def check_values(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """All wrong values in manifests whose kind and version can be decoded."""
    for index, manifest in enumerate(manifests):
        try:
            if text(manifest.tree.get("apiVersion")) == OWN_API_VERSION and decode_own(manifest.tree, source=""):
                continue
            item = decode(_readable(manifest), source="")
            for refusal in refusals(item):
                yield _stored(index, manifest, refusal)
            if isinstance(item, ResourceSlice):
                yield from _twice(index, item.spec)
                yield from _whole_and_divided(index, item.spec)
        except ManifestError as error:
            for refusal in error.refusals:
                yield _unread(index, manifest, refusal)
            places = [refusal.place[:-1] for refusal in error.refusals]
            for refusal in refusals(error.rest) if error.rest is not None else ():
                found = _stored(index, manifest, refusal)
                if not any(is_near(found.path, place) for place in places):
                    yield found


def _stored(index: int, manifest: Manifest, refusal: ValueRefusal) -> Finding:
    """A value that an API server would not store."""
    found = refusal.within(pod_path(manifest.tree))
    return finding("value", str(found), index, found.place)


def _readable(manifest: Manifest) -> Json:
    """The tree, of a taint rule without the selector of an old version, which another rule reports."""
    spec = mapping(manifest.tree.get("spec"))
    if kind_of(manifest) != "DeviceTaintRule" or not mapping(spec.get("deviceSelector")).keys() & set(
        SELECTORS_BEFORE_1_35
    ):
        return manifest.tree
    return {**manifest.tree, "spec": {**spec, "deviceSelector": {}}}


def _twice(index: int, spec: ResourceSliceSpec) -> Iterator[Finding]:
    for number, device in enumerate(spec.devices):
        for name in published_twice(spec.driver, device):
            field = "attributes" if name in device.attributes else "capacity"
            message = f"{twice_text(f'{device.name} is', spec.driver, name)}; leave one of the two out"
            place = ("spec", "devices", number, field, name)
            yield finding("published-twice", message, index, place, severity="warning")


def _whole_and_divided(index: int, spec: ResourceSliceSpec) -> Iterator[Finding]:
    places = {device.name: number for number, device in enumerate(spec.devices)}
    for name, parts in beside_partitions(spec.devices):
        message = (
            f"{name} and its partitions {listed(parts)} consume no common counters, so Kubernetes allocates both together: "
            "publish the GPU or the partitions, or let both consume one counter set"
        )
        place = ("spec", "devices", places[name])
        yield finding("whole-and-divided", message, index, place, severity="warning")


def _unread(index: int, manifest: Manifest, refusal: ValueRefusal) -> Finding:
    """A value that cannot be decoded, with the intended quantity if it is one."""
    written = at(manifest.tree, refusal.place)
    meant = quantity_meant(written) if isinstance(written, str) else None
    edits = [SetField(refusal.place, meant)] if meant and refusal.text.endswith(f": write {meant}") else []
    return finding("value", str(refusal), index, refusal.place, *edits)
