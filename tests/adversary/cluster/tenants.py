"""Actions of tenants, friendly and hostile, drawn from a seed as plain data.

Owns the shape of an action and these draws; `actions` has the others.
"""

from random import Random
from typing import Any, NamedTuple

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.manifests import (
    ADMINS,
    ANY,
    DRACOS_GPU,
    DRACOS_MIG,
    DRIVER,
    GPU,
    MIG,
    PROFILES,
    TENANTS,
    Document,
)

NODES = ("adv-0", "adv-1", "adv-2")
BUSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0", "0000:07:00.0", "0000:0b:00.0")


class Action(NamedTuple):
    """One thing to do. `wait_s` is the pause before it."""

    kind: str
    arguments: Document
    wait_s: float = 0.0

    def __str__(self) -> str:
        shown = {
            key: value if not isinstance(value, dict | list) else _brief(value) for key, value in self.arguments.items()
        }
        return f"{self.kind} " + " ".join(f"{key}={value}" for key, value in shown.items())


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) < 160 else f"{text[:157]}..."


class Tenants:
    """Draws tenants' actions. It remembers only what it has created and not deleted."""

    nodes: tuple[str, ...] = NODES
    """Nodes that pods may be bound to."""
    profiles: tuple[str, ...] = PROFILES
    """Profiles that claims request on Draco's GPUs."""
    lasts: tuple[float | None, ...] = (None, None, 5.0, 20.0)
    """How many seconds pods of groups and rivals run; None: until they are deleted."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._number = 0
        self._pods: list[tuple[str, str]] = []
        self._claims: list[tuple[str, str]] = []
        self._costly: list[tuple[str, str]] = []

    def _name(self, what: str) -> str:
        return f"{what}-{self._number}"

    @property
    def _is_gated(self) -> bool:
        """Whether the next pod has Draco's gate: in every third action, so that no random draw is used up."""
        return self._number % 3 == 0

    def _tenant(self) -> str:
        return self._random.choice(TENANTS)

    def refuse(self) -> Action:
        """Refuse all allocations in one namespace for a while."""
        return Action(
            "allocations refused", {"namespace": self._tenant(), "seconds": self._random.choice([2.0, 10.0, 20.0])}
        )

    def _claimed(self, kind: str, requests: list[Document], *, priority: str = "", **devices: Any) -> Action:
        """A claim and a pod that uses it."""
        namespace, title = self._tenant(), self._name("p")
        seconds = self._random.choice([None, None, 1.0, 5.0, 20.0])
        node = self._random.choice(["", "", "", *self.nodes])
        self._pods.append((namespace, title))
        if (
            seconds is None
        ):  # kube-controller-manager gives a claim back and forth when one of its pods ends before another
            self._claims.append((namespace, title))
        documents = [
            write.claim(namespace, title, requests, **devices),
            write.pod(namespace, title, [title], seconds=seconds, node=node, priority=priority, gated=self._is_gated),
        ]
        return Action(kind, {"create": documents})

    def _whole(self) -> Action:
        count = self._random.choice([1, 1, 1, 1, 2, 4])
        selectors = self._random.choice(
            [
                [],
                [],
                [f'device.attributes["{DRIVER}"].architecture == "Hopper"'],
                [f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("60Gi"))'],
            ]
        )
        return self._claimed("tenant: whole GPUs", [write.request("gpu", GPU, count=count, selectors=selectors)])

    def _parts(self) -> Action:
        count = self._random.choice([1, 1, 1, 2, 3])
        wanted = self._random.choice(PROFILES)
        return self._claimed(
            "tenant: partitions", [write.request("part", MIG, count=count, selectors=[write.profile(wanted)])]
        )

    def _several(self) -> Action:
        requests = [write.request("gpu", GPU), write.request("part", MIG)]
        constraint = {"requests": [], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
        constraints: Document = self._random.choice([{}, {"constraints": [constraint]}])
        return self._claimed("tenant: several requests", requests, **constraints)

    def _either(self) -> Action:
        part = write.request("x", MIG, selectors=[write.profile(self._random.choice(PROFILES))])
        return self._claimed("tenant: either of two", [write.first_of("any", write.request("x", GPU, count=2), part)])

    def _templated(self) -> Action:
        namespace, title = self._tenant(), self._name("t")
        self._pods.append((namespace, title))
        kind = self._random.choice([GPU, MIG])
        documents = [
            write.template(namespace, title, [write.request("r", kind)]),
            write.pod(namespace, title, [], templates=[title], gated=self._is_gated),
        ]
        return Action("tenant: template", {"create": documents})

    def _admin(self) -> Action:
        title = self._name("a")
        self._pods.append((ADMINS, title))
        self._claims.append((ADMINS, title))
        wanted = write.request("all", self._random.choice([GPU, MIG]), admin=True, everything=True, tolerations=ANY)
        documents = [
            write.claim(ADMINS, title, [wanted]),
            write.pod(ADMINS, title, [title], node=self._random.choice(NODES), gated=self._is_gated),
        ]
        return Action("admin: looks at all", {"create": documents})

    def _shared(self) -> Action:
        if not self._claims:
            return self._alone()
        namespace, shared = self._random.choice(self._claims)
        title = self._name("s")
        self._pods.append((namespace, title))
        pod = write.pod(namespace, title, [shared], gated=self._is_gated)
        return Action("tenant: shares a claim", {"create": [pod]})

    def _alone(self) -> Action:
        namespace, title = self._tenant(), self._name("c")
        self._claims.append((namespace, title))
        wanted = write.request("gpu", self._random.choice([GPU, MIG]))
        return Action("tenant: claim without a pod", {"create": [write.claim(namespace, title, [wanted])]})

    def _dracos_request(self) -> Document:
        count = self._random.choice([1, 1, 1, 2])
        if self._random.random() < 0.5:
            return write.request("gpu", DRACOS_GPU, count=count)
        selectors = [write.profile(self._random.choice(self.profiles))]
        return write.request("part", DRACOS_MIG, count=count, selectors=selectors)

    def _dracos(self) -> Action:
        priority = self._random.choice(["", "", "adv-low", "adv-middle"])
        return self._claimed("tenant: a claim of Draco's", [self._dracos_request()], priority=priority)

    def _dracos_alone(self) -> Action:
        """A claim of Draco's without a pod at first; one may share it later."""
        namespace, title = self._tenant(), self._name("d")
        self._claims.append((namespace, title))
        documents = [write.claim(namespace, title, [self._dracos_request()])]
        return Action("tenant: a claim of Draco's without a pod", {"create": documents})

    def _of_both(self) -> Action:
        """A pod with one claim per allocator, both on one node."""
        namespace, title = self._tenant(), self._name("b")
        self._pods.append((namespace, title))
        names = [f"{title}-theirs", f"{title}-ours"]
        self._claims += [(namespace, each) for each in names]
        documents = [
            write.claim(namespace, names[0], [write.request("gpu", self._random.choice([GPU, MIG]))]),
            write.claim(namespace, names[1], [self._dracos_request()]),
            write.pod(namespace, title, names, gated=self._is_gated),
        ]
        return Action("tenant: claims of both allocators", {"create": documents})

    def _sneaks(self) -> Action:
        """A claim that tolerates Draco's hand-over taint. It is refused while any GPU is handed over."""
        toleration = {"key": "draco.dev/operator-allocated", "operator": "Exists"}
        return self._hostile("tolerates its way in", [write.request("gpu", GPU, tolerations=[toleration])])

    def _end_pod(self) -> Action:
        if self._costly and self._random.random() < 0.5:
            namespace, title = self._costly.pop(0)
        elif self._pods:
            namespace, title = self._pods.pop(self._random.randrange(len(self._pods)))
        else:
            return self._whole()
        grace = self._random.choice([None, None, 0])
        return Action("tenant: deletes a pod", {"pod": f"{namespace}/{title}", "grace": grace})

    def _end_claim(self) -> Action:
        if not self._claims:
            return self._alone()
        namespace, title = self._claims.pop(self._random.randrange(len(self._claims)))
        return Action("tenant: deletes a claim", {"claim": f"{namespace}/{title}"})

    def _let_go(self) -> Action:
        """Delete a pod and the claim of the same name, one after the other or both at once."""
        both = sorted({*self._pods} & {*self._claims})
        if not both:
            return self._end_pod()
        each = self._random.choice(both)
        self._pods.remove(each)
        self._claims.remove(each)
        order = self._random.choice(["pod first", "pod first", "claim first", "at once"])
        grace = self._random.choice([None, 0, 0])
        title = "/".join(each)
        return Action("tenant: lets go", {"pod": title, "claim": title, "grace": grace, "order": order})

    def _hostile(
        self, kind: str, requests: list[Document], *, title: str = "", pod: Document | None = None, **devices: Any
    ) -> Action:
        title = title or self._name("h")
        self._pods.append(("hostile", title))
        self._claims.append(("hostile", title))
        documents = [
            write.claim("hostile", title, requests, **devices),
            write.pod("hostile", title, [title], **(pod or {})),
        ]
        return Action(f"hostile: {kind}", {"create": documents})

    def _costly_selectors(self) -> Action:
        if self._costly:
            return self._end_pod()
        number = self._number * 100
        drawn = self._hostile(
            "16 costly selectors",
            [write.request("gpu", GPU, count=8, selectors=[write.costly(number=number + each) for each in range(16)])],
        )
        self._costly.append(self._pods.pop())
        return drawn

    def _failing_selectors(self) -> Action:
        selectors = [write.failing(each) for each in range(self._random.choice([1, 4]))]
        return self._hostile(
            "selectors that fail", [write.request("gpu", self._random.choice([GPU, MIG]), selectors=selectors)]
        )

    def _odd_names(self) -> Action:
        title = f"{self._number}.{'x' * 55}.{'9' * 60}.a-.-b".replace(".-", ".").replace("-.", ".")
        wanted = write.request("r" + "-" * 61 + "r", GPU)
        return self._hostile("odd names", [wanted], title=title)

    def _many_tolerations(self) -> Action:
        each = [{"key": f"key-{number}", "operator": "Exists"} for number in range(4000)]
        few = [{"key": f"key-{number}", "operator": "Exists", "effect": "NoExecute"} for number in range(16)]
        return self._hostile(
            "thousands of tolerations", [write.request("gpu", GPU, tolerations=few)], pod={"tolerations": each}
        )

    def _tolerates_all(self) -> Action:
        wanted = write.request("gpu", self._random.choice([GPU, MIG]), tolerations=ANY)
        return self._hostile("tolerates every taint", [wanted])

    def _huge(self) -> Action:
        long = f'device.driver == "{DRIVER}" || "{"x" * 9000}" == ""'
        requests = [
            write.request(f"r{number}", GPU, selectors=[long, long, long])
            for number in range(self._random.choice([4, 30]))
        ]
        return self._hostile("huge claim", requests)

    def _odd_configuration(self) -> Action:
        parameters = self._random.choice(
            [
                {
                    "apiVersion": "resource.nvidia.com/v1beta1",
                    "kind": "GpuConfig",
                    "sharing": {"strategy": "TimeSlicing"},
                },
                {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "Nothing", "x": ["\u202e", "\\u0000", {"a": 1}]},
                {"kind": 7},
            ]
        )
        config = [{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": parameters}}]
        return self._hostile("odd configuration", [write.request("gpu", GPU)], config=config)
