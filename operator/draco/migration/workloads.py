"""Converts workloads that ask NVIDIA's device plugin for GPUs to workloads that ask for them by claims.

Each container that asks gets a ResourceClaimTemplate; expressions over labels of GPUs become its selectors. Owns the edits of the
manifests, and the reasons for what stays. Changes nothing: the owner of the text applies the edits. A pod is converted as a whole
or not at all, since it must not get a device both ways.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from draco.linting.model import DropField, Edit, Json, Manifest, SetField, TreePath
from draco.linting.objects import (
    WrittenClaims,
    WrittenPodSpec,
    asked_of,
    at,
    drivers_of_classes,
    kind_of,
    listed,
    mapping,
    pod_claims,
    pods,
    text,
)
from draco.migration.extended_requests import (
    GPUS,
    MIG,
    Asking,
    NotConvertible,
    asking,
    holders,
    is_gpu_resource,
    profile,
    sees_all,
)
from draco.migration.node_choice import node_choice, products
from draco.resources.kinds import CLAIM_TEMPLATES
from draco.resources.names import LONGEST_NAME, NVIDIA_DRIVER

_MPS_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - a path that manifests have
_SHARED_PRODUCT: Final = re.compile(r".*(-SHARED|-MIG-.*)")
_UNNAMED_STEPS: Final = frozenset({"spec", "template", "jobTemplate"})


class Left(NamedTuple):
    """What stays as it is: the manifest, the place in it, and a sentence with the reason and the fix."""

    manifest: int
    path: TreePath
    sentence: str


class WorkloadConversion(NamedTuple):
    """By manifest: the edits, and the templates that its pods use; and what stays."""

    edits: Mapping[int, Sequence[Edit]]
    templates: Mapping[int, Sequence[Json]]
    left: Sequence[Left]


class _Naming(NamedTuple):
    """Names templates: the workload, the role of its pod if it has several, and the names that are taken, by namespace."""

    tree: Json
    role: str
    taken: set[tuple[str, str]]

    def metadata(self, namespace: str, entry: str) -> Json:
        """Of a template for an entry of the pod's resourceClaims, in the namespace of the workload."""
        metadata = mapping(self.tree.get("metadata"))
        name = text(metadata.get("name")) or text(metadata.get("generateName")) or kind_of(Manifest(self.tree)).lower()
        suffix = "-".join(filter(None, (self.role, entry)))
        taken = {each for where, each in self.taken if where == namespace}
        found = _unused(taken, f"{name[: LONGEST_NAME - len(suffix) - 5].rstrip('.-')}-{suffix}")
        self.taken.add((namespace, found))
        return {"name": found} | ({"namespace": namespace} if metadata.get("namespace") else {})


class _PodConversion(NamedTuple):
    edits: Sequence[Edit]
    templates: Sequence[Json]
    left: Sequence[Left]


def convert(manifests: Sequence[Manifest]) -> WorkloadConversion:
    """Convert the workloads among manifests that are applied together."""
    known = WrittenClaims(manifests)
    drivers = drivers_of_classes(manifests)
    names = {(each.namespace, each.name) for each in known.all if each.is_template}
    by_manifest: dict[int, list[WrittenPodSpec]] = defaultdict(list)
    for pod in pods(manifests):
        by_manifest[pod.manifest].append(pod)
    edits: dict[int, list[Edit]] = defaultdict(list)
    templates: dict[int, list[Json]] = defaultdict(list)
    left = [each for index, manifest in enumerate(manifests) for each in _quota(index, manifest)]
    for index, written in by_manifest.items():
        for pod in written:
            tree = manifests[index].tree
            try:
                _check(pod, known, drivers)
                found = _converted(pod, _Naming(tree, _role(tree, pod.path) if len(written) > 1 else "", names))
            except NotConvertible as error:
                left.append(Left(index, error.path, str(error)))
                continue
            edits[index] += found.edits
            templates[index] += found.templates
            left += found.left
    for index, manifest in enumerate(manifests):
        left += _elsewhere(index, manifest, [pod.path for pod in by_manifest[index]])
    return WorkloadConversion(edits, templates, left)


def _check(pod: WrittenPodSpec, known: WrittenClaims, drivers: Mapping[str, str]) -> None:
    """Raise NotConvertible for a pod whose devices claims cannot give it."""
    if not asking(pod):
        return
    if pod.spec.get("nodeName"):
        raise NotConvertible(
            (*pod.path, "nodeName"),
            "nodeName binds its pods without kube-scheduler, which allocates claims: select the node by its label "
            "kubernetes.io/hostname.",
        )
    for number, volume in enumerate(listed(pod.spec.get("volumes"))):
        if text(at(mapping(volume), ("hostPath", "path"))).rstrip("/") == _MPS_PIPES:
            raise NotConvertible(
                (*pod.path, "volumes", number),
                f"it uses the MPS daemon of its node by {_MPS_PIPES}: remove the volume, and ask for MPS in a claim's "
                "configuration (docs/how-to/mps.md).",
            )
    for path, product in products(pod):
        if _SHARED_PRODUCT.fullmatch(product):
            raise NotConvertible(
                (*pod.path, *path),
                f"on nodes with the product {product}, {GPUS} is a part of a GPU: ask for nvidia.com/mig-<profile> instead, or "
                "share GPUs with a SharingPolicy (docs/how-to/shares.md), and select the product without this suffix.",
            )
    for entry in pod_claims(pod):
        claim = known.named_by(entry, pod.namespace)
        found = {drivers.get(text(each.fields.get("deviceClassName"))) for each in asked_of(claim)} if claim else {None}
        if found & {None, NVIDIA_DRIVER}:
            what = "claims GPUs" if NVIDIA_DRIVER in found else "may claim GPUs (give that claim's manifest, too)"
            raise NotConvertible(
                entry.path,
                f"it asks both ways: {text(entry.fields.get('name'))} {what}, and containers ask for extended resources. Leave "
                "one of the two out.",
            )


def _converted(pod: WrittenPodSpec, naming: _Naming) -> _PodConversion:
    """The pod with claims. Raises NotConvertible."""
    left = [
        Left(
            pod.manifest,
            path,
            f"container {name} sees all GPUs of its node by NVIDIA_VISIBLE_DEVICES without asking for one. With CDI it sees "
            "none: write a claim, with adminAccess if it only watches.",
        )
        for path, name in sees_all(pod)
    ]
    if not (found := asking(pod)):
        return _PodConversion([], [], left)
    resources = sorted({resource for each in found for resource in each.wanted})
    choice = node_choice(pod, has_mig=resources != [GPUS])
    left += [Left(pod.manifest, (*pod.path, *path), sentence) for path, sentence in choice.kept]
    if pod.spec.get("runtimeClassName") == "nvidia":
        left.append(
            Left(
                pod.manifest,
                (*pod.path, "runtimeClassName"),
                "runtimeClassName nvidia stays. Claims reach containers by CDI and need no runtime class: remove it once no node "
                "has the device plugin.",
            )
        )
    edits: list[Edit] = [*choice.edits, *_tolerations(pod, resources)]
    groups = list(holders(pod, found))
    entries = {text(each.fields.get("name")) for each in pod_claims(pod)}
    added: list[Json] = []
    templates: list[Json] = []
    for holder, inits in groups:
        entry = _unused(entries, "gpu" if len(groups) == 1 else holder.name or "gpu")
        template = _template(naming.metadata(pod.namespace, entry), holder, choice.selectors)
        added.append({"name": entry, "resourceClaimTemplateName": template["metadata"]["name"]})
        templates.append(template)
        for each in (*inits, holder):
            edits += _resources(at(pod.spec, each.path[len(pod.path) :]), each.path, entry)
    return _PodConversion([*edits, *_appended(pod.spec, pod.path, "resourceClaims", added)], templates, left)


def _resources(container: Json, path: TreePath, entry: str) -> Iterator[Edit]:
    """Remove the extended resources of a container, and use the claim."""
    resources = mapping(container.get("resources"))
    for field in ("limits", "requests"):
        amounts = mapping(resources.get(field))
        gone = [each for each in amounts if is_gpu_resource(each)]
        if gone and len(gone) == len(amounts):
            yield DropField((*path, "resources", field))
        else:
            yield from (DropField((*path, "resources", field, each)) for each in gone)
    yield from _appended(resources, (*path, "resources"), "claims", [{"name": entry}])


def _appended(holder: Json, path: TreePath, field: str, items: Sequence[Json]) -> Iterator[Edit]:
    """Append to a list that may not exist."""
    if present := listed(holder.get(field)):
        yield from (SetField((*path, field, len(present) + number), item) for number, item in enumerate(items))
    elif items:
        yield SetField((*path, field), list(items))


def _tolerations(pod: WrittenPodSpec, resources: Sequence[str]) -> Iterator[Edit]:
    """What the admission plugin ExtendedResourceToleration adds for the resources."""
    present = [mapping(each) for each in listed(pod.spec.get("tolerations"))]
    missing = [
        {"key": resource, "operator": "Exists", "effect": "NoSchedule"}
        for resource in resources
        if not any(_tolerates(each, resource) for each in present)
    ]
    yield from _appended(pod.spec, pod.path, "tolerations", missing)


def _tolerates(toleration: Json, key: str) -> bool:
    is_for_key = toleration.get("key") in (key, "", None)
    return (
        is_for_key and toleration.get("operator") == "Exists" and toleration.get("effect") in ("NoSchedule", "", None)
    )


def _template(metadata: Json, holder: Asking, selectors: Sequence[str]) -> Json:
    """The template of a container's claims."""
    requests = [
        {"name": _request_name(resource), "exactly": _request(resource, count, selectors)}
        for resource, count in holder.wanted.items()
    ]
    return {
        "apiVersion": CLAIM_TEMPLATES.api_version,
        "kind": CLAIM_TEMPLATES.kind,
        "metadata": metadata,
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def _request(resource: str, count: int, selectors: Sequence[str]) -> Json:
    of_profile = [f'device.attributes["{NVIDIA_DRIVER}"].profile == "{profile(resource)}"'] if resource != GPUS else []
    expressions = [{"cel": {"expression": each}} for each in (*of_profile, *selectors)]
    return {
        "deviceClassName": "mig.nvidia.com" if of_profile else NVIDIA_DRIVER,
        **({"selectors": expressions} if expressions else {}),
        **({"allocationMode": "ExactCount", "count": count} if count > 1 else {}),
    }


def _request_name(resource: str) -> str:
    return "gpu" if resource == GPUS else re.sub(r"[^a-z0-9]+", "-", resource.partition("/")[2])


def _unused(taken: set[str], name: str) -> str:
    """The name, with a number if it is taken; it is taken then."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found


def _role(tree: Json, path: TreePath) -> str:
    """What tells a pod template from others of its object: the name of its item, or its field."""
    for length in range(len(path), 0, -1):
        step = path[length - 1]
        if isinstance(step, int):
            item = mapping(at(tree, path[:length]))
            return text(item.get("name")) or text(item.get("groupName")) or str(step)
        if step not in _UNNAMED_STEPS:
            return re.sub(r"[^a-z0-9]+", "-", step.lower()).strip("-")
    return ""


def _quota(index: int, manifest: Manifest) -> Iterator[Left]:
    """Quotas of extended resources count no claims."""
    if kind_of(manifest) != "ResourceQuota":
        return
    for resource, amount in mapping(at(manifest.tree, ("spec", "hard"))).items():
        name = resource.partition(".")[2]
        if resource.startswith(("requests.", "limits.")) and is_gpu_resource(name):
            count = f"{'mig.nvidia.com' if name.startswith(MIG) else NVIDIA_DRIVER}.deviceclass.resource.k8s.io/devices"
            what = " for all profiles together" if name.startswith(MIG) else ""
            yield Left(
                index,
                ("spec", "hard", resource),
                f"{resource} counts no devices of claims: add `{count}: {amount}`{what}, or write a DeviceLimit.",
            )


def _elsewhere(index: int, manifest: Manifest, pod_specs: Sequence[TreePath]) -> Iterator[Left]:
    """Extended resources outside pod specs: a controller makes the pods, from fields of its own."""
    waiting: list[tuple[TreePath, Any]] = [((), manifest.tree)]
    while waiting:
        path, here = waiting.pop()
        if path in pod_specs:
            continue
        if isinstance(here, dict):
            for each, amount in here.items() if path[-1:] in (("limits",), ("requests",)) else ():
                if is_gpu_resource(each) and amount not in (0, "0"):
                    yield Left(
                        index,
                        (*path, each),
                        f"{'.'.join(map(str, path))} is no part of a pod, so only its controller can ask by claims: see "
                        f"whether {kind_of(manifest)} knows them, or let a DeviceClass serve {each}.",
                    )
            waiting += [((*path, str(key)), value) for key, value in here.items()]
        elif isinstance(here, list):
            waiting += [((*path, number), value) for number, value in enumerate(here)]
