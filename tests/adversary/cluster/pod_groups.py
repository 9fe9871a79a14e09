"""Actions around PodGroups: gangs of pods, claims that a PodGroup keeps for them, and its creation and deletion.

Draws them from a seed as plain data. `actions` has the others.
"""

import json

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.manifests import GPU, MIG, Document
from tests.adversary.cluster.reservers import TOPOLOGIES, Reservers
from tests.adversary.cluster.tenants import Action

LAST = 6
"""How many of the last groups may be created a second time."""


class PodGroups(Reservers):
    """Draws these actions. It remembers only what it has created and not deleted."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._made: list[tuple[str, str]] = []
        self._unmade: list[Document] = []

    def pod_group(self) -> Action:
        """A gang with a claim for each pod, one that the PodGroup keeps for all, or both.

        There may be one pod more than start together; a pod or the PodGroup may come later. No pod has both a claim from its own
        template and one from its PodGroup's: kube-controller-manager 1.36 then drops one or the other, for ever.
        """
        namespace, title = self._tenant(), self._name("k")
        size = self._random.choice([2, 2, 3, 4])
        least = max(1, size - self._random.choice([0, 0, 0, 1]))
        seconds = self._random.choice(self.lasts)
        wanted, kept = (
            self._dracos_request(),
            self._random.choice(["", "", "", "template", "template and own", "claim"]),
        )
        claims = [self._named(namespace, f"{title}-all", [wanted])] if kept == "claim" else []
        documents = claims or [write.template(namespace, title, [wanted])]
        names = {"c0": f"{title}-all"} if claims else {"t0": title}
        group = write.pod_group(
            namespace, title, least, kept=names if kept else {}, topology=self._random.choice(TOPOLOGIES)
        )
        pods: list[Document] = []
        own: list[Document] = []
        for number in range(size):
            name = f"{title}-{number}"
            if kept == "template and own":
                own.append(self._named(namespace, name, [self._dracos_request()]))
            uses = [f"{title}-all"] if claims else [name] if own else []
            if seconds is None or kept:  # other pods end on their own, and their PodGroup stays
                self._pods.append((namespace, name))
            templates = [] if claims else [title]
            pods.append(
                write.pod(
                    namespace,
                    name,
                    uses,
                    templates=templates,
                    seconds=seconds,
                    pod_group=title,
                    gated=self._is_gated,
                )
            )
        if seconds is None and not kept:
            self._members.append((pods[0], [wanted]))
        if seconds is not None and not kept:
            self._alike.append((title, [*documents, group, *pods]))
        if self._random.random() < 0.15:
            self._late.append(pods.pop())
        self._made.append((namespace, title))
        when = self._random.choice(["first", "first", "first", "first", "first", "last", "last", "later"])
        if when == "later":
            self._unmade.append(group)
        else:
            pods = [group, *pods] if when == "first" else [*pods, group]
        # A pod's own claim comes after the pod: a claim without a pod belongs to no group.
        return Action("tenant: pods of a PodGroup", {"create": [*documents, *pods, *own]})

    def pod_group_of_both(self) -> Action:
        """A gang in which each pod has one claim per allocator, both on one node. The scheduler's claim may be named directly."""
        namespace, title = self._tenant(), self._name("x")
        size = self._random.choice([2, 2, 3])
        least = max(1, size - self._random.choice([0, 0, 0, 1]))
        seconds = self._random.choice(self.lasts)
        wanted, is_named = self._dracos_request(), self._random.random() < 0.4
        theirs = [write.request("gpu", self._random.choice([GPU, MIG]))]
        documents = [
            write.pod_group(namespace, title, least, topology=self._random.choice(TOPOLOGIES)),
            write.template(namespace, title, [wanted]),
            write.template(namespace, f"{title}-theirs", theirs),
        ]
        pods: list[Document] = []
        for number in range(size):
            name = f"{title}-{number}"
            if seconds is None:
                self._pods.append((namespace, name))
            uses = [f"{name}-theirs"] if is_named else []
            templates = [title] if is_named else [title, f"{title}-theirs"]
            pods.append(
                write.pod(
                    namespace, name, uses, templates=templates, seconds=seconds, pod_group=title, gated=self._is_gated
                )
            )
            documents += [self._named(namespace, each, theirs) for each in uses]
        if seconds is None and not is_named:
            self._members.append((pods[0], [wanted]))
        self._made.append((namespace, title))
        return Action("tenant: pods of a PodGroup with claims of both allocators", {"create": [*documents, *pods]})

    def same_again(self) -> Action:
        """A copy of a recent group, which waits in line behind it or follows it."""
        if not self._alike:
            return self.group()
        title, documents = self._random.choice(self._alike[-LAST:])
        again = self._name(title.partition("-")[0])
        made: list[Document] = json.loads(json.dumps(documents).replace(f'"{title}', f'"{again}'))
        self._made += [(each["metadata"]["namespace"], again) for each in made if each["kind"] == "PodGroup"]
        return Action("tenant: a group like one before it", {"create": made})

    def _named(self, namespace: str, title: str, requests: list[Document]) -> Document:
        self._claims.append((namespace, title))
        return write.claim(namespace, title, requests)

    def late_pod_group(self) -> Action:
        """The PodGroup of pods that exist already."""
        if not self._unmade:
            return self.pod_group()
        return Action("tenant: the PodGroup of pods that wait", {"create": [self._unmade.pop(0)]})

    def end_pod_group(self) -> Action:
        """Delete a PodGroup. Kubernetes keeps it while it has pods, and then deletes the claims that it kept, too."""
        if not self._made:
            return self.pod_group()
        namespace, title = self._made.pop(self._random.randrange(len(self._made)))
        return Action("pod group: deleted", {"pod_group": f"{namespace}/{title}"})

    def odd_pod_group(self) -> Action:
        """A PodGroup that can never start, whose pods need not start together, or whose pods also name another group."""
        title = self._name("q")
        least, label = self._random.choice([(40, ""), (None, ""), (2, "other")])
        group = write.pod_group("hostile", title, least, topology=self._random.choice([*TOPOLOGIES, "nowhere"]))
        documents = [write.template("hostile", title, [self._dracos_request()]), group]
        for number in range(2):
            name = f"{title}-{number}"
            self._pods.append(("hostile", name))
            member = write.Member(f"{title}-{label}", "3") if label else None
            documents.append(write.pod("hostile", name, [], templates=[title], member=member, pod_group=title))
        self._made.append(("hostile", title))
        return Action("hostile: an odd PodGroup", {"create": documents})
