"""The laws of scale-down: Draco protects a node with reserved devices from removal, and no other node.

Owns reading the annotations. Does no I/O.
"""

from collections.abc import Iterator

from tests.adversary.cluster.observer.allocators import is_for_draco
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import World, name, results

DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
HELD = "draco.dev/scale-down-held"


def not_held(world: World) -> Iterator[Suspicion]:
    """Each node with an allocated claim of Draco's that no pod uses is protected from scale-down."""
    wanted = _unattended(world)
    for uid, node in world.nodes.items():
        if name(node) in wanted and DISABLED not in (node["metadata"].get("annotations") or {}):
            text = f"claim {wanted[name(node)]} has devices of {name(node)} that no pod uses, and autoscalers may remove it"
            yield Suspicion("not held", uid, text)


def held_for_nobody(world: World) -> Iterator[Suspicion]:
    """Draco protects no other node."""
    wanted = _unattended(world)
    for uid, node in world.nodes.items():
        if name(node) not in wanted and HELD in (node["metadata"].get("annotations") or {}):
            yield Suspicion(
                "held for nobody", uid, f"Draco holds {name(node)} against scale-down, and nothing is reserved there"
            )


def _unattended(world: World) -> dict[str, str]:
    """One unused claim for each such node."""
    return {
        each["pool"]: name(claim)
        for claim in world.claims.values()
        if is_for_draco(claim)
        and not (claim.get("status") or {}).get("reservedFor")
        and not claim["metadata"].get("deletionTimestamp")
        for each in results(claim)
    }
