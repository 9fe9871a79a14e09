"""Which nodes a pod cannot use, whatever devices they have, and why.

Owns kube-scheduler's node rules: cordon, node name, taints, labels. Ignores devices and resources such as memory. Equal obstacles
give equal causes, so that nodes can be counted by cause.
"""

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_selection import selects
from draco.explanation.model import NodeCause, NodeReason
from draco.resources.api.core import Node, NodeTaint, Pod, PodSpec, Toleration
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from draco.resources.api.taints import BLOCKING_EFFECTS, TaintIdentity

UNSCHEDULABLE: Final = NodeTaint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""A pod that tolerates this taint may use a cordoned node."""
_CONDITIONS: Final = {
    "node.kubernetes.io/not-ready": "not ready",
    "node.kubernetes.io/unreachable": "unreachable",
    "node.kubernetes.io/memory-pressure": "short of memory",
    "node.kubernetes.io/disk-pressure": "short of disk space",
    "node.kubernetes.io/pid-pressure": "short of process ids",
    "node.kubernetes.io/network-unavailable": "without network",
    "node.kubernetes.io/out-of-service": "out of service",
    "node.cloudprovider.kubernetes.io/uninitialized": "not initialized by the cloud provider",
    "node.cloudprovider.kubernetes.io/shutdown": "shut down",
}
"""The meaning of the taints that Kubernetes itself sets."""
_KEY_OF_TAINT: Final = re.compile("[=:]")
MAX_NAMES: Final = 5
"""Nodes named per cause; the rest are counted."""
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")


class PlacementObstacle(msgspec.Struct, frozen=True):
    """One thing that keeps a pod off a node. Equal for all nodes with the same text."""

    reason: NodeReason
    what: str = ""
    """The taint, or the pod's requirement, as written in a manifest."""

    def __str__(self) -> str:
        match self.reason:
            case NodeReason.UNSCHEDULABLE:
                return "cordoned"
            case NodeReason.NODE_NAME:
                return f"not the node that the pod names ({self.what})"
            case NodeReason.NOT_READY:
                return f"{_CONDITIONS[_KEY_OF_TAINT.split(self.what, maxsplit=1)[0]]} (taint {self.what})"
            case NodeReason.TAINTED:
                return f"tainted with {self.what}, which the pod does not tolerate"
            case NodeReason.NODE_SELECTOR:
                return f"without the label {self.what}, which the pod's nodeSelector asks for"
        return f"outside the pod's node affinity ({self.what})"


class PodNodes(msgspec.Struct, frozen=True):
    """The nodes as a pod's rules divide them."""

    open: Mapping[str, Node]
    """Nodes that the pod may use."""
    causes: Sequence[NodeCause]
    """The first cause that kube-scheduler meets at each other node, counted over nodes; the most frequent first."""


def nodes_for(fleet: Fleet, pod: Pod | None) -> PodNodes:
    """The nodes a pod may use; cached in the fleet for pods with equal rules.

    Without a pod: the nodes for a pod without requirements and tolerations.
    """
    rules = PodRules(pod)
    if rules.asked not in fleet.of_nodes:
        fleet.of_nodes[rules.asked] = _divided(fleet, rules)
    known: PodNodes = fleet.of_nodes[rules.asked]
    return known


def unbound(pod: Pod) -> Pod:
    """The pod without spec.nodeName."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))


def _divided(fleet: Fleet, rules: "PodRules") -> PodNodes:
    is_open: dict[str, Node] = {}
    nodes_of: dict[PlacementObstacle, list[str]] = {}
    for name, node in fleet.nodes.items():
        if obstacles := rules.obstacles(node):
            nodes_of.setdefault(obstacles[0], []).append(name)
        else:
            is_open[name] = node
    causes = [
        NodeCause(reason=obstacle.reason, text=str(obstacle), nodes=len(names), names=heapq.nsmallest(MAX_NAMES, names))
        for obstacle, names in nodes_of.items()
    ]
    return PodNodes(is_open, sorted(causes, key=lambda cause: -cause.nodes))


class PodRules:
    """One pod's node rules. Equivalent nodes are judged once, so a cluster takes a few microseconds per node."""

    def __init__(self, pod: Pod | None) -> None:
        spec = pod.spec if pod is not None else PodSpec()
        self._tolerations = spec.tolerations
        self._node_name = spec.node_name
        self._selector = sorted(spec.node_selector.items())
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        self._required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
        terms = self._required.node_selector_terms if self._required is not None else []
        self._labels = sorted({*spec.node_selector, *(each.key for term in terms for each in term.match_expressions)})
        self._asks_name = bool(self._node_name) or any(term.match_fields for term in terms)
        self._requests = bool(self._labels or self._asks_name or self._required is not None)
        self.asked: Final = msgspec.msgpack.encode((spec.tolerations, spec.node_name, self._selector, self._required))
        """Equal for pods with equal rules."""
        self._judged: dict[tuple[object, ...], tuple[PlacementObstacle, ...]] = {}

    def obstacles(self, node: Node) -> tuple[PlacementObstacle, ...]:
        """Everything that keeps the pod off the node, in kube-scheduler's order; empty if it may go there."""
        spec = node.spec
        if not (self._requests or spec.unschedulable or spec.taints):
            return ()
        labels = node.metadata.labels
        like = (
            spec.unschedulable,
            tuple([(taint.key, taint.value, taint.effect) for taint in spec.taints]),
            tuple([labels.get(key) for key in self._labels]),
            node.metadata.name if self._asks_name else "",
        )
        judged = self._judged.get(like)
        if judged is None:
            judged = self._judged[like] = tuple(self._judge(node))
        return judged

    def _judge(self, node: Node) -> Iterable[PlacementObstacle]:
        if node.spec.unschedulable and not self._tolerates(UNSCHEDULABLE):
            yield PlacementObstacle(NodeReason.UNSCHEDULABLE)
        if self._node_name and node.metadata.name != self._node_name:
            yield PlacementObstacle(NodeReason.NODE_NAME, self._node_name)
        for taint in node.spec.taints:
            if taint.effect in BLOCKING_EFFECTS and not self._tolerates(taint):
                if taint.key == UNSCHEDULABLE.key and node.spec.unschedulable:
                    continue  # set by the cordon, which is reported already
                reason = NodeReason.NOT_READY if taint.key in _CONDITIONS else NodeReason.TAINTED
                yield PlacementObstacle(reason, str(TaintIdentity(taint.key, taint.value, taint.effect)))
        for key, value in self._selector:
            if node.metadata.labels.get(key) != value:
                yield PlacementObstacle(NodeReason.NODE_SELECTOR, f"{key}={value}")
        if self._required is not None and not _allows(self._required, node):
            yield PlacementObstacle(NodeReason.NODE_AFFINITY, selector_text(self._required))

    def _tolerates(self, taint: NodeTaint) -> bool:
        return any(tolerates(toleration, taint) for toleration in self._tolerations)


def tolerates(toleration: Toleration, taint: NodeTaint) -> bool:
    """Whether the toleration covers the taint.

    Gt and Lt compare the taint's value with the toleration's. They are an alpha feature; the API server stores them only if it is
    enabled, so no feature check is needed here.
    """
    is_about_it = toleration.effect in {"", taint.effect} and toleration.key in {"", taint.key}
    match toleration.operator:
        case "" | "Equal":
            return is_about_it and toleration.value == taint.value
        case "Exists":
            return is_about_it
        case "Gt" | "Lt" if _INTEGER.fullmatch(toleration.value) and _INTEGER.fullmatch(taint.value):
            difference = int(taint.value) - int(toleration.value)
            return is_about_it and (difference > 0 if toleration.operator == "Gt" else difference < 0)
    return False


def selector_text(selector: NodeSelector) -> str:
    """A node selector in one line: requirements joined by "and", terms by "or"."""
    terms = [term_text(term) for term in selector.node_selector_terms]
    return " or ".join(terms) or "no terms, which no node matches"


def term_text(term: NodeSelectorTerm) -> str:
    """One term in one line."""
    wanted = [_requirement_text(each) for each in (*term.match_expressions, *term.match_fields)]
    return " and ".join(wanted) or "an empty term, which no node matches"


def _requirement_text(wanted: NodeSelectorRequirement) -> str:
    values = ", ".join(wanted.values)
    match wanted.operator:
        case "In":
            return f"{wanted.key}={values}" if len(wanted.values) == 1 else f"{wanted.key} in ({values})"
        case "NotIn":
            return f"{wanted.key}!={values}" if len(wanted.values) == 1 else f"{wanted.key} not in ({values})"
        case "Exists":
            return f"{wanted.key} exists"
        case "DoesNotExist":
            return f"{wanted.key} does not exist"
        case "Gt" | "Lt":
            return f"{wanted.key} {'>' if wanted.operator == 'Gt' else '<'} {values}"
    return f"{wanted.key} {wanted.operator} {values}"


def _allows(required: NodeSelector, node: Node) -> bool:
    """Whether one term matches. Unlike in a slice, an invalid term does not invalidate the others."""
    return any(holds(NodeSelector(node_selector_terms=[term]), node) for term in required.node_selector_terms)


def holds(selector: NodeSelector, node: Node) -> bool:
    """Whether the selector matches the node; an invalid one matches none."""
    try:
        return selects(selector, node)
    except AllocationError:
        return False
