"""Whether the nodes of a group publish the same devices: autoscalers take one node of a group as the model of all.

Owns what counts as a difference, and its wording. Ignores what depends on the node's location (UUIDs, PCI addresses, fabrics) and
taints, because faults are temporary. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from draco.cli.autoscale.templates import NoTemplate, SliceTemplate, of_node
from draco.resources.api.base import OutputStruct
from draco.resources.api.core import Node
from draco.resources.api.slices import Device, ResourceSlice
from draco.resources.names import LABEL_KARPENTERS
from draco.resources.texts import counted, listed

SCHEMA: Final = "draco.dev/node-groups/v1"
"""Schema of the JSON document. Fields are only added under one name."""
GROUP_LABELS: Final = (
    LABEL_KARPENTERS,
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "alpha.eksctl.io/nodegroup-name",
    "node.cluster.x-k8s.io/machine-deployment",
)
"""Labels that name a node's group; a node's first label in this order counts."""
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_PLACE: Final = frozenset(
    {"resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"}
)
_TOLD: Final = 3


class NodeDifference(OutputStruct, frozen=True, kw_only=True):
    """A node that differs from most nodes of its group, and how."""

    node: str
    how: list[str]


class NodeGroupCheck(OutputStruct, frozen=True, kw_only=True):
    """A group. `model` is a node that equals most others; `different` are the exceptions."""

    group: str
    nodes: int
    model: str
    different: list[NodeDifference] = []


class GroupsReport(OutputStruct, frozen=True, kw_only=True):
    """All groups. `ungrouped` are nodes that have devices but belong to no group."""

    schema: str = SCHEMA
    groups: list[NodeGroupCheck] = []
    ungrouped: list[str] = []

    @property
    def alike(self) -> bool:
        """Whether no group has a node that differs."""
        return not any(each.different for each in self.groups)


def check(nodes: Iterable[Node], slices: Sequence[ResourceSlice], label: str = "") -> GroupsReport:
    """Compare the nodes that have devices, grouped by `label`, or if it is "" by the labels that autoscalers use."""
    by_node: dict[str, list[ResourceSlice]] = {}
    for one in slices:
        if one.spec.node_name:
            by_node.setdefault(one.spec.node_name, []).append(one)
    groups: dict[str, list[str]] = {}
    ungrouped = []
    for node in nodes:
        if node.metadata.name not in by_node:
            continue
        group = _group(node.metadata.labels, label)
        if group:
            groups.setdefault(group, []).append(node.metadata.name)
        else:
            ungrouped.append(node.metadata.name)
    checked = [_checked(group, sorted(names), by_node) for group, names in sorted(groups.items())]
    return GroupsReport(groups=checked, ungrouped=sorted(ungrouped))


def _group(labels: Mapping[str, str], label: str) -> str:
    for each in (label,) if label else GROUP_LABELS:
        if each in labels:
            # A Karpenter NodePool has nodes of several instance types, each with its own template.
            kind = f", {INSTANCE_TYPE}={labels.get(INSTANCE_TYPE, '')}" if each == LABEL_KARPENTERS else ""
            return f"{each}={labels[each]}{kind}"
    return ""


def _checked(group: str, names: Sequence[str], slices: Mapping[str, Sequence[ResourceSlice]]) -> NodeGroupCheck:
    seen: dict[str, dict[str, Device]] = {}
    different = []
    for name in names:
        try:
            seen[name] = _devices(of_node(name, slices[name]))
        except NoTemplate as error:
            different.append(NodeDifference(node=name, how=[str(error)]))
    kinds = Counter(map(_digest, seen.values()))
    model = min(seen, key=lambda name: (-kinds[_digest(seen[name])], name), default="")
    different += [
        NodeDifference(node=name, how=list(_differences(seen[model], found)))
        for name, found in seen.items()
        if _digest(found) != _digest(seen[model])
    ]
    return NodeGroupCheck(
        group=group, nodes=len(names), model=model, different=sorted(different, key=lambda one: one.node)
    )


def _devices(templates: Iterable[SliceTemplate]) -> dict[str, Device]:
    """A node's devices by driver/name, without the attributes of their location."""
    return {
        f"{each.driver}/{one.name}": msgspec.structs.replace(
            one, attributes={name: value for name, value in sorted(one.attributes.items()) if name not in _PLACE}
        )
        for each in templates
        for one in each.devices
    }


def _digest(devices: Mapping[str, Device]) -> bytes:
    return msgspec.json.encode(dict(sorted(devices.items())))


def _differences(model: Mapping[str, Device], found: Mapping[str, Device]) -> Iterator[str]:
    missing, more = sorted(model.keys() - found.keys()), sorted(found.keys() - model.keys())
    if missing:
        yield f"lacks {counted(len(missing), 'device')}: {listed(missing, _TOLD)}"
    if more:
        yield f"has {counted(len(more), 'device')} more: {listed(more, _TOLD)}"
    others: dict[str, list[str]] = {}
    for name in sorted(model.keys() & found.keys()):
        for what in _changed(model[name], found[name]):
            others.setdefault(what, []).append(name)
    for what, names in others.items():
        yield f"{what} of {listed(names, _TOLD)}"


def _changed(model: Device, found: Device) -> Iterator[str]:
    for name in sorted(model.attributes.keys() | found.attributes.keys()):
        before, now = model.attributes.get(name), found.attributes.get(name)
        if before != now:
            yield f"{name} is {_shown(now.value if now else None)} instead of {_shown(before.value if before else None)}"
    for name in sorted(model.capacity.keys() | found.capacity.keys()):
        amounts = (found.capacity.get(name), model.capacity.get(name))
        if amounts[0] != amounts[1]:
            now_text, before_text = (each.value if each else "none" for each in amounts)
            yield f"{name} is {now_text} instead of {before_text}"
    if model.consumes_counters != found.consumes_counters:
        yield "the consumed counters differ"


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
