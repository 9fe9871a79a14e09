"""Topology domains: the parts of a cluster that may host a whole group, by the names of topologies."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.ownership.claims import nodes_of
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.slices import fabric_of
from draco.resources.errors import DracoError
from draco.resources.names import NVIDIA_DRIVER, PoolKey
from draco.resources.texts import listed

SAME_NODE: Final = "sameNode"
SAME_NVLINK_DOMAIN: Final = "sameNVLinkDomain"
SPREAD: Final = "spread"
"""No two members on one node."""


class TopologyError(DracoError):
    """The group's topology has no usable domain."""


def domains_of(
    topology: str, fleet: Fleet, nodes: Mapping[str, Node], placed: Sequence[ResourceClaim]
) -> list[Mapping[str, Node]]:
    """The domains of these nodes, only theirs if claims are `placed`. Raises TopologyError for none, or claims in several."""
    if topology in {"", SPREAD}:
        return [nodes]
    by_value: dict[str, dict[str, Node]] = {}
    for name, node in nodes.items():
        if (value := _value(topology, fleet, node)) is not None:
            by_value.setdefault(value, {})[name] = node
    if topology not in {SAME_NODE, SAME_NVLINK_DOMAIN} and not by_value:
        raise TopologyError(f"No node that the group may run on has the label {topology}, which its topology needs.")
    homes = [home for claim in placed for name in nodes_of(claim) if (home := fleet.nodes.get(name)) is not None]
    taken = {value for home in homes if (value := _value(topology, fleet, home)) is not None}
    if len(taken) > 1:
        raise TopologyError(
            f"Other members of the group are in several domains of its topology {topology}: {listed(sorted(taken))}."
        )
    return [domain for value, domain in by_value.items() if not taken or value in taken]


def _value(topology: str, fleet: Fleet, node: Node) -> str | None:
    """The domain of a node; None if it has none."""
    if topology == SAME_NODE:
        return node.metadata.name
    if topology == SAME_NVLINK_DOMAIN:
        fabrics = set(_fabrics(fleet, node.metadata.name))
        return (
            fabrics.pop() if len(fabrics) == 1 else node.metadata.name
        )  # without one fabric, the node is its own domain
    return node.metadata.labels.get(topology)


def _fabrics(fleet: Fleet, name: str) -> Iterable[str]:
    pool = fleet.inventory.pool(PoolKey(NVIDIA_DRIVER, name))
    for entry in pool.entries if pool is not None else ():
        for device in entry.spec.devices:
            if (fabric := fabric_of(NVIDIA_DRIVER, device)) is not None:
                yield ".".join(fabric)
