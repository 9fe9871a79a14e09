"""Actions around shares of GPUs: SharingPolicies, and claims that ask for capacities.

Draws them from a seed as plain data. `actions` has the others.
"""

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.manifests import DRACOS_GPU, DRIVER, GPU, MIG, Document
from tests.adversary.cluster.tenants import BUSES, Action, Tenants

MODES: tuple[Document, ...] = (
    {"mode": "Memory"},
    {"mode": "Memory", "step": "1Gi", "minimum": "2Gi", "default": "10Gi"},
    {"mode": "Memory", "default": "10Gi", "step": "1Gi", "enforcement": "DriverLimit"},
    {"mode": "Count", "count": 2},
    {"mode": "Count", "count": 4, "migDevices": True},
    {"mode": "Unlimited", "migDevices": True},
)
"""How GPUs are to be shared. No simulated driver of this cluster holds shares to their memory."""
ASKED: tuple[Document, ...] = (
    *({"memory": each} for each in ("5Gi", "10Gi", "20Gi", "30Gi", "40Gi", "1", "500Gi")),
    *({"shares": each} for each in ("1", "1", "2")),
)
"""What claims ask for of one device."""


class Sharers(Tenants):
    """Draws these actions. It remembers only what it has created and not deleted."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._sharing: list[str] = []

    def set_sharing(self) -> Action:
        """A SharingPolicy for a node's GPUs, new or changed."""
        known = self._sharing and self._random.random() < 0.5
        title = self._random.choice(self._sharing) if known else self._name("sp")
        if title not in self._sharing:
            self._sharing.append(title)
        node, bus = self._random.choice(self.nodes), self._random.choice(["", "", *BUSES])
        return Action(
            "sharing policy: set",
            {"policy": write.sharing_policy(title, node, self._random.choice(MODES), bus=bus)},
        )

    def share_node(self, node: str) -> Action:
        """A SharingPolicy for all GPUs of a node that no MigPolicy divides."""
        title = self._name("sp")
        self._sharing.append(title)
        return Action("sharing policy: set", {"policy": write.sharing_policy(title, node, MODES[1])})

    def end_sharing(self) -> Action:
        """A SharingPolicy is deleted."""
        if not self._sharing:
            return self.set_sharing()
        title = self._sharing.pop(self._random.randrange(len(self._sharing)))
        return Action("sharing policy: deleted", {"title": title})

    def share(self) -> Action:
        """A claim for a share, or for two of them, and its pod."""
        kind = self._random.choice([GPU, GPU, GPU, MIG, DRACOS_GPU])
        asked = self._random.choice(ASKED)
        count = self._random.choice([1, 1, 1, 2])
        wanted = [write.request(f"share-{each}", kind, capacity=asked) for each in range(count)]
        return self._claimed("tenant: a share", wanted)

    def share_of_many(self) -> Action:
        """Several pods with a small share each."""
        namespace, first = self._tenant(), self._name("m")
        asked, documents = self._random.choice(ASKED), []
        for number in range(self._random.choice([2, 4, 8])):
            title = f"{first}-{number}"
            self._pods.append((namespace, title))
            wanted = write.request("share", self._random.choice([GPU, GPU, DRACOS_GPU]), capacity=asked)
            documents += [
                write.template(namespace, title, [wanted]),
                write.pod(namespace, title, [], templates=[title], seconds=self._random.choice([None, 5.0, 20.0])),
            ]
        return Action("tenant: many shares", {"create": documents})

    def odd_share(self) -> Action:
        """A share that nobody can have, or that asks for what is no capacity."""
        amounts: list[Document] = [{"memory": "0"}, {"memory": "1500m"}, {"nothing": "1"}, {"shares": "99"}]
        wanted = write.request("share", GPU, capacity=self._random.choice(amounts))
        selectors = [f'device.allowMultipleAllocations == true && device.driver == "{DRIVER}"']
        wanted["exactly"]["selectors"] = [{"cel": {"expression": each}} for each in selectors]
        return self._hostile("an odd share", [wanted])
