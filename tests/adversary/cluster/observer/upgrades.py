"""The law of upgrades: while one agent follows another, nobody notices.

Owns what is known of each upgrade under way. What happens besides (a kill, a reboot, an ill driver) ends the judgement of it:
such things have laws of their own.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tests.adversary.cluster.observer.hardware import Spec
from tests.adversary.cluster.observer.members import users_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import World, name, phase, waiting

LASTS_S = 2.0
"""So long a spec may be missed: files, claims and pods are not read all at once."""
AFTER_S = 5.0
"""Also so long after the one before has ended, nothing may be amiss."""
RECOVERS_S = 20.0
"""So long after something else has happened an upgrade is not judged: a kubelet that starts deletes the slices of its node."""
GONE = "is not registered on this node"


@dataclass
class Upgrade:
    """What there was when it began."""

    specs: frozenset[str]
    said: frozenset[tuple[str, str]]
    until: float = math.inf
    missed: dict[str, float] = field(default_factory=dict)


class UpgradeLaw:
    """Told of the begin and the end of each upgrade of an agent, and of what else happens to its node."""

    def __init__(self) -> None:
        self._upgrades: dict[str, Upgrade] = {}
        self._specs: dict[str, frozenset[str]] = {}
        self._disturbed: dict[str, float] = {}

    def began(self, node: str, world: World, now: float) -> None:
        """The agent that serves is about to be told to end; another one stands by."""
        if any(now - self._disturbed.get(each, -math.inf) < RECOVERS_S for each in (node, "")):
            return
        self._upgrades[node] = Upgrade(self._specs.get(node, frozenset()), frozenset(_said(world, node)))

    def ended(self, node: str, now: float) -> None:
        """It has ended."""
        if node in self._upgrades:
            self._upgrades[node].until = now + AFTER_S

    def disturbed(self, now: float, node: str = "") -> None:
        """Something else happened to the node; without a name, to all."""
        self._disturbed[node] = now
        for each in [node] if node else list(self._upgrades):
            self._upgrades.pop(each, None)

    def look(
        self, world: World, specs: Collection[Spec], nodes: Mapping[str, object], now: float
    ) -> Iterator[Suspicion]:
        """What somebody has noticed."""
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
    """The pods of a node that are told that nobody serves them."""
    pods = [pod for pod in list(world.pods.values()) if pod["spec"].get("nodeName") == node]
    return {(name(pod), waiting(pod)) for pod in pods if GONE in waiting(pod)}


def _used(world: World, node: str, uid: str) -> bool:
    """Whether a pod runs with the claim."""
    claim = world.claims.get(uid)
    pods = users_of(world, claim) if claim is not None else []
    return any(
        phase(pod) == "Running" and pod["spec"].get("nodeName") == node and not pod["metadata"].get("deletionTimestamp")
        for pod in pods
    )
