"""What is done next about PodGroups: gangs of pods that name one, of claims that it keeps for them, and of its coming and going.

Owns these draws: plain data, from a seed. `actions` has the others.
"""

import json

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.manifests import GPU, MIG, Document
from tests.adversary.cluster.reservers import TOPOLOGIES, Reservers
from tests.adversary.cluster.tenants import Action

LAST = 6
"""Of so many groups that were made last, one may be made a second time."""


class PodGroups(Reservers):
    """Draws these. What was made, and not taken back, is all it remembers."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._made: list[tuple[str, str]] = []
        self._unmade: list[Document] = []

    def pod_group(self) -> Action:
        """A gang with a claim for each pod, with one that the PodGroup keeps for all, or with both.

        There may be a pod more than start together, or one may come later, and so may the PodGroup. No pod has a claim from a
        template of its own and one from its PodGroup's: kube-controller-manager 1.36 then forgets one of them in turn, for ever.
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
            if seconds is None or kept:  # others end by themselves, and their PodGroup stays
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
        # A pod's own claim comes after it: one that is there before its pod is no group's.
        return Action("tenant: pods of a PodGroup", {"create": [*documents, *pods, *own]})

    def pod_group_of_both(self) -> Action:
        """A gang each pod of which has a claim of each allocator's, which must be on one node; the scheduler's may be by name."""
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
        """A group that asks for just what another one asked for a while ago: they stand in line, or it takes its turn."""
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
        """The PodGroup that pods name which are there already."""
        if not self._unmade:
            return self.pod_group()
        return Action("tenant: the PodGroup of pods that wait", {"create": [self._unmade.pop(0)]})

    def end_pod_group(self) -> Action:
        """A PodGroup is deleted: Kubernetes keeps it as long as it has pods, and with it go the claims that it kept."""
        if not self._made:
            return self.pod_group()
        namespace, title = self._made.pop(self._random.randrange(len(self._made)))
        return Action("pod group: deleted", {"pod_group": f"{namespace}/{title}"})

    def odd_pod_group(self) -> Action:
        """One that can never start, or need not start together, or whose pods say that they are of another group, too."""
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
