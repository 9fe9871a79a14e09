"""Actions around groups, reservations and limits, for which Draco considers several claims together.

Draws them from a seed as plain data. `actions` has the others.
"""

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.manifests import DRACOS_GPU, DRACOS_MIG, PROFILES, TENANTS, Document
from tests.adversary.cluster.tenants import Action, Tenants

LIMITS = ("adv-limit-each", "adv-limit-all")
TOPOLOGIES = ("", "", "sameNode", "sameNVLinkDomain", "spread")


class Reservers(Tenants):
    """Draws these actions. It remembers only what it has created and not deleted."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._late: list[Document] = []
        self._members: list[tuple[Document, list[Document]]] = []
        self._alike: list[tuple[str, list[Document]]] = []
        """Groups, by title, that end on their own, so none of their pods is deleted: they may be created again."""
        self._reservations: list[tuple[str, str, int]] = []
        self._held: list[tuple[str, list[Document]]] = []
        """Pods held by a queue, and the gates that they keep after admission."""

    def group(self) -> Action:
        """Pods that start together, or all but one of them."""
        namespace, title = self._tenant(), self._name("g")
        size = self._random.choice([2, 2, 3, 4])
        topology = self._random.choice(TOPOLOGIES)
        seconds = self._random.choice(self.lasts)
        member = write.Member(title, str(size), topology, self._random.choice(list(write.LABELS)))
        documents = [write.template(namespace, title, [self._dracos_request()])]
        for number in range(size):
            name = f"{title}-{number}"
            if seconds is None:  # other pods end on their own
                self._pods.append((namespace, name))
            documents.append(
                write.pod(
                    namespace,
                    name,
                    [],
                    templates=[title],
                    seconds=seconds,
                    member=member,
                    gated=self._is_gated,
                )
            )
        if seconds is None:
            self._members.append((documents[1], documents[0]["spec"]["spec"]["devices"]["requests"]))
        else:
            self._alike.append((title, list(documents)))
        if self._random.random() < 0.2:
            self._late.append(documents.pop())
        return Action("tenant: pods that start together", {"create": documents})

    def late_member(self) -> Action:
        """The missing pod of a group."""
        if not self._late:
            return self.group()
        return Action("tenant: the last pod of a group", {"create": [self._late.pop(0)]})

    def lose_member(self) -> Action:
        """Delete a pod of a group, let another claim take its devices, and create its replacement later."""
        if not self._members:
            return self.group()
        pod, wanted = self._members.pop(self._random.randrange(len(self._members)))
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._late.insert(0, {**pod, "metadata": {**pod["metadata"], "name": f"{name}-{self._number}"}})
        self._claims.append((namespace, f"{name}-taken"))
        taker = write.claim(namespace, f"{name}-taken", wanted)
        return Action("tenant: a group loses a pod", {"pod": f"{namespace}/{name}", "grace": 0, "taker": taker})

    def odd_group(self) -> Action:
        """A group that contradicts itself or can never start."""
        title = self._name("o")
        sizes = self._random.choice([("2", "3"), ("many", "many"), ("40", "40"), ("999999", "999999"), ("", "")])
        by = self._random.choice(list(write.LABELS))
        documents = [write.template("hostile", title, [self._dracos_request()])]
        for number, size in enumerate(sizes):
            name = f"{title}-{number}"
            self._pods.append(("hostile", name))
            member = write.Member(title, size, self._random.choice([*TOPOLOGIES, "nowhere"]), by)
            documents.append(write.pod("hostile", name, [], templates=[title], member=member))
        return Action("hostile: an odd group", {"create": documents})

    def held_back(self) -> Action:
        """A pod that a queue has not admitted, with a named claim created before or after it."""
        namespace, title = self._tenant(), self._name("q")
        self._claims.append((namespace, title))
        self._pods.append((namespace, title))
        gated = self._random.random() < 0.5
        pod = write.pod(namespace, title, [title], gated=gated, held=True)
        self._held.append((f"{namespace}/{title}", pod["spec"]["schedulingGates"][1:]))
        documents = [write.claim(namespace, title, [self._dracos_request()]), pod]
        return Action("tenant: a pod that a queue holds back", {"create": documents[:: self._random.choice([1, -1])]})

    def let_go(self) -> Action:
        """The queue admits a pod."""
        if not self._held:
            return self.held_back()
        pod, gates = self._held.pop(self._random.randrange(len(self._held)))
        return Action("queue: lets a pod go", {"pod": pod, "gates": gates})

    def reserve(self) -> Action:
        """Create a reservation for a limited time."""
        namespace, title = self._tenant(), self._name("r")
        count = self._random.choice([1, 1, 2, 3])
        duration = self._random.choice(["", "", "1m", "1m", "2m"])
        wanted = self._kind()
        document = write.reservation(
            namespace,
            title,
            [wanted],
            count=count,
            duration=duration,
            topology=self._random.choice(TOPOLOGIES),
            priority=self._random.choice(["", "", "adv-low", "adv-middle", "adv-polite"]),
        )
        self._reservations.append((namespace, title, count))
        template = write.template(namespace, title, [wanted], reservation=title)
        return Action("tenant: reserves", {"create": [document, template]})

    def use_reserved(self) -> Action:
        """A pod that uses a reserved claim by name or by take-over."""
        if not self._reservations:
            return self.reserve()
        namespace, reservation, count = self._random.choice(self._reservations)
        title = self._name("u")
        self._pods.append((namespace, title))
        seconds = self._random.choice([None, 1.0, 5.0, 20.0])
        if self._random.random() < 0.5:
            claim = f"{reservation}-{self._random.randrange(count)}"
            return Action(
                "tenant: uses a reserved claim", {"create": [write.pod(namespace, title, [claim], seconds=seconds)]}
            )
        pod = write.pod(namespace, title, [], templates=[reservation], seconds=seconds)
        return Action("tenant: takes a reserved claim over", {"create": [pod]})

    def change_reservation(self) -> Action:
        """Change a reservation's number of claims or its end."""
        if not self._reservations:
            return self.reserve()
        namespace, title, _ = self._random.choice(self._reservations)
        spec = self._random.choice([{"count": 1}, {"count": 2}, {"count": 4}, {"duration": "1s"}, {"duration": None}])
        return Action("reservation: changed", {"reservation": f"{namespace}/{title}", "spec": spec})

    def end_reservation(self) -> Action:
        """Delete a reservation."""
        if not self._reservations:
            return self.reserve()
        namespace, title, _ = self._reservations.pop(self._random.randrange(len(self._reservations)))
        return Action("reservation: deleted", {"reservation": f"{namespace}/{title}"})

    def set_limit(self) -> Action:
        """Create or replace a limit for each tenant or all together."""
        title = self._random.choice(LIMITS)
        limits: Document = self._random.choice(
            [
                {"devices": 2},
                {"devices": 4},
                {"devices": 8},
                {"memorySlices": 8},
                {"memorySlices": 20},
                {"gpuShare": "1.5"},
                {"gpuShare": "3"},
                {"devices": 0},
            ]
        )
        classes = self._random.choice([[], [], [DRACOS_GPU], [DRACOS_MIG]])
        document = write.limit(
            title,
            limits,
            per="Namespace" if title == LIMITS[0] else "Selection",
            namespaces=self._random.sample(TENANTS, self._random.randrange(1, len(TENANTS) + 1)),
            classes=classes,
        )
        return Action("limit: set", {"limit": document})

    def end_limit(self) -> Action:
        """Delete a limit."""
        return Action("limit: deleted", {"title": self._random.choice(LIMITS)})

    def _kind(self) -> Document:
        if self._random.random() < 0.5:
            return write.request("gpu", DRACOS_GPU)
        return write.request("part", DRACOS_MIG, selectors=[write.profile(self._random.choice(PROFILES))])
