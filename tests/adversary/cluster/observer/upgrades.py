"""The law of upgrades: when one agent replaces another, nobody notices.

Owns each upgrade under way. Other events (a kill, a reboot, a faulty driver) end its judgement: they have their own laws.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tests.adversary.cluster.observer.hardware import Spec
from tests.adversary.cluster.observer.members import users_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import World, name, phase, waiting

LASTS_S = 2.0
"""How long a spec may seem missing: files, claims and pods are not read atomically."""
AFTER_S = 5.0
"""How long after the old agent's end the upgrade is still judged."""
RECOVERS_S = 20.0
"""How long after another event an upgrade is not judged: a starting kubelet deletes its node's slices."""
GONE = "is not registered on this node"


@dataclass
class Upgrade:
    """The node's state when an upgrade began."""

    specs: frozenset[str]
    said: frozenset[tuple[str, str]]
    until: float = math.inf
    missed: dict[str, float] = field(default_factory=dict)


class UpgradeLaw:
    """Told of the start and end of each agent's upgrade, and of other events on its node."""

    def __init__(self) -> None:
        self._upgrades: dict[str, Upgrade] = {}
        self._specs: dict[str, frozenset[str]] = {}
        self._disturbed: dict[str, float] = {}

    def began(self, node: str, world: World, now: float) -> None:
        """The serving agent is about to be told to end; another one stands by."""
        if any(now - self._disturbed.get(each, -math.inf) < RECOVERS_S for each in (node, "")):
            return
        self._upgrades[node] = Upgrade(self._specs.get(node, frozenset()), frozenset(_said(world, node)))

    def ended(self, node: str, now: float) -> None:
        """The old agent has ended."""
        if node in self._upgrades:
            self._upgrades[node].until = now + AFTER_S

    def disturbed(self, now: float, node: str = "") -> None:
        """Something else happened to the node, or to all if no name is given."""
        self._disturbed[node] = now
        for each in [node] if node else list(self._upgrades):
            self._upgrades.pop(each, None)

    def look(
        self, world: World, specs: Collection[Spec], nodes: Mapping[str, object], now: float
    ) -> Iterator[Suspicion]:
        """What was noticeable."""
        self._specs = {node: frozenset(each.uid for each in specs if each.node == node) for node in nodes}
        for node, upgrade in list(self._upgrades.items()):
            if now > upgrade.until:
                del self._upgrades[node]
                continue
            for pod, said in sorted(_said(world, node) - upgrade.said):
                yield Suspicion(
                    "upgrade noticed", f"{node} {pod}", f"while agents followed each other, a pod was told: {said}"
                )
            if not any(one["spec"]["pool"]["name"] == node for one in list(world.slices.values())):
                yield Suspicion(
                    "upgrade noticed", node, f"while agents followed each other, nothing was published of {node}"
                )
            gone = {uid for uid in upgrade.specs - self._specs[node] if _used(world, node, uid)}
            upgrade.missed = {uid: upgrade.missed.get(uid, now) for uid in gone}
            for uid, since in upgrade.missed.items():
                if now - since >= LASTS_S:
                    text = f"the spec of claim {uid}, which a running pod uses, went while agents of {node} followed each other"
                    yield Suspicion("upgrade noticed", f"{node} {uid}", text)


def _said(world: World, node: str) -> set[tuple[str, str]]:
    """The node's pods with an Event that no plugin serves them."""
    pods = [pod for pod in list(world.pods.values()) if pod["spec"].get("nodeName") == node]
    return {(name(pod), waiting(pod)) for pod in pods if GONE in waiting(pod)}


def _used(world: World, node: str, uid: str) -> bool:
    """Whether a running pod uses the claim."""
    claim = world.claims.get(uid)
    pods = users_of(world, claim) if claim is not None else []
    return any(
        phase(pod) == "Running" and pod["spec"].get("nodeName") == node and not pod["metadata"].get("deletionTimestamp")
        for pod in pods
    )
