"""Rules about extended resources (KEP-5004): several classes for one resource, and devices requested twice."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from draco.linting.model import Finding, Manifest, finding
from draco.linting.objects import (
    WrittenClaim,
    WrittenClaims,
    WrittenRequest,
    asked_of,
    at,
    container_claims,
    containers,
    drivers_of_classes,
    mapping,
    name_of,
    of_kind,
    pod_claims,
    pods,
    text,
)
from draco.resources.names import EXTENDED_BY_CLASS, NVIDIA_DRIVER
from draco.resources.texts import listed


def check_extended_resources(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Each resource has one class, and no device is requested twice."""
    standing = defaultdict(list)
    for index, manifest in of_kind(manifests, "DeviceClass"):
        if resource := text(mapping(manifest.tree.get("spec")).get("extendedResourceName")):
            standing[resource].append((name_of(manifest.tree), index))
    for resource, classes in standing.items():
        names = {name for name, _ in classes}
        if len(names) > 1:
            message = (
                f"DeviceClasses {listed(sorted(names))} stand for {resource}: of several, Kubernetes takes the newest, and of "
                "equally old ones the first by name; leave extendedResourceName out of all but one"
            )
            for name, index in classes:
                if name != classes[0][0]:
                    path = ("spec", "extendedResourceName")
                    yield finding("extended-resource-twice", message, index, path, severity="warning")
    yield from _asked_twice(manifests, {resource: {name for name, _ in each} for resource, each in standing.items()})


def _asked_twice(manifests: Sequence[Manifest], standing: Mapping[str, set[str]]) -> Iterator[Finding]:
    drivers = drivers_of_classes(manifests)
    known = WrittenClaims(manifests)
    for pod in pods(manifests):
        entries = {text(entry.fields.get("name")): entry for entry in pod_claims(pod)}
        targets = {name: known.named_by(entry, pod.namespace) for name, entry in entries.items()}
        for container in containers(pod):
            for resource, path in _extended(container):
                for use in container_claims(container):
                    name = text(use.fields.get("name"))
                    classes = _classes(targets.get(name))
                    own = standing.get(resource, set()) | {resource.removeprefix(EXTENDED_BY_CLASS)}
                    nvidias = resource.startswith("nvidia.com/") and NVIDIA_DRIVER in map(drivers.get, classes)
                    if not nvidias and not classes & own:
                        continue
                    message = (
                        f"container {text(container.fields.get('name'))} asks for devices twice, as {resource} and in claim "
                        f"{name}: it gets both; leave one of the two out"
                    )
                    yield finding("device-asked-twice", message, pod.manifest, path, severity="warning")


def _extended(container: WrittenRequest) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    """Each extended resource of a container, with its first path."""
    told = set()
    for field in ("limits", "requests"):
        for resource in mapping(at(container.fields, ("resources", field))):
            if "/" in str(resource) and resource not in told:
                told.add(resource)
                yield str(resource), (*container.path, "resources", field, resource)


def _classes(claim: WrittenClaim | None) -> set[str]:
    """The classes whose devices a claim takes; admin access takes none."""
    if claim is None:
        return set()
    every = (one.fields for one in asked_of(claim))
    return {text(each.get("deviceClassName")) for each in every if each.get("adminAccess") is not True}
