"""Actions around pods of different priorities and their evictions.

Draws them from a seed as plain data. `actions` has the others.
"""

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.job_sets import JobSets
from tests.adversary.cluster.manifests import DRACOS_GPU, TENANTS, Document
from tests.adversary.cluster.tenants import Action

URGENT = ("adv-high", "adv-high", "adv-high", "adv-middle", "adv-polite")
GUARDED = TENANTS[0]
"""The namespace whose pods may have a PodDisruptionBudget."""
POD_BUDGETS = ("adv-some", "adv-all")


class Rivals(JobSets):
    """Draws these actions. It remembers only what it has created and not deleted."""

    def ordinary(self) -> Action:
        """A pod that may be evicted for others; its claim is deleted with it."""
        priority = self._random.choice(["", "", "adv-low", "adv-middle"])
        return self._lone("tenant: an ordinary pod", self._dracos_request(), priority)

    def urgent(self) -> Action:
        """A pod for which others may be evicted."""
        priority = self._random.choice(URGENT)
        return self._lone("tenant: an urgent pod", self._urgent_request(), priority)

    def _lone(self, kind: str, wanted: Document, priority: str) -> Action:
        namespace, title = self._tenant(), self._name("v")
        seconds = self._random.choice(self.lasts)
        if seconds is None:
            self._pods.append((namespace, title))
        node = self._random.choice(["", "", "", *self.nodes])
        one = write.pod(namespace, title, [], templates=[title], seconds=seconds, node=node, priority=priority)
        return Action(kind, {"create": [write.template(namespace, title, [wanted]), one]})

    def claimed_twice(self) -> Action:
        """A pod with a template, and a claim that pretends to come from it. Kubernetes decides which the pod uses."""
        lone = self._lone("", self._dracos_request(), "")
        template, pod = lone.arguments["create"]
        namespace, title = pod["metadata"]["namespace"], pod["metadata"]["name"]
        claim = write.claim(namespace, f"{title}-second", [self._dracos_request()])
        late, entry = self._random.random() < 0.3, pod["spec"]["resourceClaims"][0]["name"]
        arguments = {"template": template, "pod": pod, "claim": claim, "entry": entry, "late": late}
        return Action("hostile: a claim that says it is a pod's", arguments)

    def urgent_group(self) -> Action:
        """A group for which others may be evicted; sometimes its pods have different priorities."""
        namespace, title = self._tenant(), self._name("w")
        size = self._random.choice([2, 2, 3])
        priorities = self._random.choice([["adv-high"], ["adv-high"], ["adv-middle"], ["adv-high", "adv-low"]])
        seconds = self._random.choice(self.lasts)
        member: Document = {"member": write.Member(title, str(size), by=self._random.choice(list(write.LABELS)))}
        documents = [write.template(namespace, title, [self._urgent_request()])]
        if self._random.random() < 0.4:
            member = {"pod_group": title}
            documents.append(write.pod_group(namespace, title, size))
            self._made.append((namespace, title))
        for number in range(size):
            name = f"{title}-{number}"
            if seconds is None:
                self._pods.append((namespace, name))
            priority = priorities[number % len(priorities)]
            documents.append(
                write.pod(namespace, name, [], templates=[title], seconds=seconds, priority=priority, **member)
            )
        return Action("tenant: urgent pods that start together", {"create": documents})

    def permits(self, policies: list[str]) -> Action:
        """Change whether a policy permits evictions for others and of groups that lost a pod."""
        spec = self._random.choice(
            [
                {"preemption": "LowerPriority"},
                {"preemption": "LowerPriority"},
                {"preemption": "Never"},
                {"gangs": {"onPartialLoss": "Release"}},
                {"gangs": {"onPartialLoss": "Release"}},
                {"gangs": {"onPartialLoss": "Keep"}},
                {"gangs": {"releaseLeakedAfter": "1m"}},
                {"gangs": {"releaseLeakedAfter": None}},
                {"reservations": {"longestIdle": "1m"}},
                {"reservations": {"longestIdle": "1m"}},
                {"reservations": {"longestIdle": None}},
            ]
        )
        return Action("policy: permits", {"title": self._random.choice(policies), "spec": spec})

    def guard(self) -> Action:
        """Create or replace a PodDisruptionBudget."""
        title = self._random.choice(POD_BUDGETS)
        document = write.pod_budget(GUARDED, title, self._random.choice([0, 1, 2, 3, 99]))
        return Action("pod budget: set", {"budget": document})

    def end_guard(self) -> Action:
        """Delete the PodDisruptionBudget."""
        return Action("pod budget: deleted", {"budget": f"{GUARDED}/{self._random.choice(POD_BUDGETS)}"})

    def _urgent_request(self) -> Document:
        if self._random.random() < 0.6:
            return write.request("gpu", DRACOS_GPU, count=self._random.choice([1, 1, 2, 3]))
        return self._dracos_request()
