"""Actions for a cluster with too few GPUs: Draco allocates most of them, and pods may be evicted for others.

Owns how often each action is drawn. With `actions`, GPUs are handed over and back all the time, so evictions for other pods are
rare.
"""

from collections.abc import Iterator

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.actions import Chooser
from tests.adversary.cluster.manifests import DRACOS_GPU, TENANTS, Document
from tests.adversary.cluster.observer import members
from tests.adversary.cluster.tenants import Action

TENANT = TENANTS[1]
LEAVES_WITHIN_S = 90.0
"""A refused eviction is retried only after 10 s, and a busy machine is slow."""
APART_S = 2.0
"""Delay between groups of different age: creation timestamps have whole seconds."""
AHEAD_S = 2 * APART_S + 13.0
"""How long the initial actions take on a fast machine."""


class Rivalry(Chooser):
    """Draws mostly pods with Draco's claims, and disturbances of their evictions."""

    first = (("adv-0", "Operator", ""), ("adv-1", "Operator", ""))
    shared = ()
    most_pods = 36
    nodes = ("adv-0", "adv-1")
    lasts = (None, None, 5.0)
    """Short, because the cluster cannot come to rest while these pods follow each other."""
    profiles = ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")

    def __init__(self, seed: int, *, pace_s: float = 0.4) -> None:
        super().__init__(seed, pace_s=pace_s)
        self._table = [
            (14, self.ordinary), (2, self._dracos), (0.5, self._dracos_alone), (0.5, self._of_both), (2, self._shared),
            (4, self.pod_group), (0.5, self.pod_group_of_both), (1, self.late_pod_group), (2.5, self.end_pod_group),
            (4, self.group), (6, self.same_again), (4, self.late_member), (3, self.lose_member),
            (4, self.job_set), (1, self.last_job), (5, self.change_job), (1.5, self.relabel_job), (1, self.lose_job_pod),
            (0.7, self.restart_job_set), (2, self.end_job_set),
            (12, self.urgent), (4, self.urgent_group), (1.5, self.claimed_twice),
            (4, self._end_pod), (2, self._end_claim),
            (1, self.held_back), (1, self.let_go),
            (1, self.reserve), (1, self.use_reserved), (1, self.end_reservation), (0.2, self.set_limit), (1, self.end_limit),
            (1.5, self._permit), (1, self.guard), (1.5, self.end_guard), (0.5, self.refuse),
            (0.7, self.maintain), (2, self.end_maintenance), (0.3, self._exact_rule), (1, self._end_rule),
            (0.5, self.sickness), (2, self._heal),
            (0.5, self._kill_operator), (0.1, self._kill_both), (0.15, self._stop_for_a_while), (0.3, self._kill_agent),
            (0.3, self._upgrade_operator), (0.2, self._kill_kubelet), (0.25, self._kill_component),
        ]  # fmt: skip


def some_wait_and_some_leave() -> Iterator[Action]:
    """The start of a short run: two identical groups wait, a pod is evicted for an urgent one, and a group loses a pod.

    Before the last step, a gang whose PodGroup keeps a claim for its pods runs on the same GPUs.
    """
    (node, *_), (second, *_) = Rivalry.first
    for title, where in (("mp-1", node), ("mp-2", second)):
        yield Action("policy: set", {"policy": Rivalry.policy(title, where, "Operator")})
    yield from _two_alike_wait(node, second)
    yield _all_gpus("leaves", node, "adv-low")
    yield _until_there("leaves")
    yield _all_gpus("stays", node, "adv-high")
    yield _until_there("stays")
    yield from _a_pod_group_comes_and_goes(second)
    wanted = [write.request("gpu", DRACOS_GPU, count=2)]
    one, other, third = (
        write.pod(
            TENANT, title, [], templates=["two"], node=second, priority="adv-high", member=write.Member("group", "2")
        )
        for title in ("one", "other", "third")
    )
    yield Action("tenant: a group", {"create": [write.template(TENANT, "two", wanted), one, other]})
    yield _until_there("one", "other")
    taker = write.claim(TENANT, "taken", wanted)
    yield Action("tenant: a group loses a pod", {"pod": f"{TENANT}/other", "grace": 0, "taker": taker})
    yield Action("tenant: the last pod of a group", {"create": [third]}, 1.0)
    yield Action("wait: pods are gone", {"of": [f"{TENANT}/one"], "within_s": LEAVES_WITHIN_S})


def _two_alike_wait(node: str, second: str) -> Iterator[Action]:
    """Two identical groups arrive while all GPUs are taken; then half of the GPUs become free, twice."""
    holders = {"holds-0": node, "holds-1": second}
    for title, where in holders.items():
        yield _all_gpus(title, where, "adv-high")
    yield _until_there(*holders)
    groups = {each: [f"{each}-{number}" for number in range(2)] for each in ("older", "younger")}
    made: list[Document] = []
    for each, titles in groups.items():
        member = write.Member(each, str(len(titles)))
        pods = [write.pod(TENANT, title, [], templates=[each], priority="adv-high", member=member) for title in titles]
        template = write.template(TENANT, each, [write.request("gpu", DRACOS_GPU, count=2)])
        made += pods
        yield Action("tenant: a group", {"create": [template, *pods]}, APART_S)
    keys = [members.key_of(pod) for pod in made]
    yield Action("wait: groups have waited", {"of": sorted(set(keys)), "within_s": LEAVES_WITHIN_S})
    for holder, titles in zip(holders, groups.values(), strict=True):
        yield Action("tenant: deletes a pod", {"pod": f"{TENANT}/{holder}", "grace": 0})
        yield _until_there(*titles)
    for title in (title for titles in groups.values() for title in titles):
        yield Action("tenant: deletes a pod", {"pod": f"{TENANT}/{title}", "grace": 0})


def _a_pod_group_comes_and_goes(node: str) -> Iterator[Action]:
    kept = write.pod_group(TENANT, "gang", 2, kept={"t0": "kept"})
    titles, one_gpu = ("gang-0", "gang-1"), [write.request("gpu", DRACOS_GPU)]
    pods = [write.pod(TENANT, title, [title], templates=["kept"], node=node, pod_group="gang") for title in titles]
    own = [write.claim(TENANT, title, one_gpu) for title in titles]
    template = write.template(TENANT, "kept", one_gpu)
    yield Action("tenant: pods of a PodGroup", {"create": [template, kept, *pods, *own]})
    yield _until_there(*titles)
    yield Action("pod group: deleted", {"pod_group": f"{TENANT}/gang"})
    for title in titles:
        yield Action("tenant: deletes a pod", {"pod": f"{TENANT}/{title}", "grace": 0})
        yield Action("tenant: deletes a claim", {"claim": f"{TENANT}/{title}"})


def _all_gpus(title: str, node: str, priority: str) -> Action:
    pod = write.pod(TENANT, title, [], templates=[title], node=node, priority=priority)
    template = write.template(TENANT, title, [write.request("gpu", DRACOS_GPU, count=4)])
    return Action("tenant: all GPUs of a node", {"create": [template, pod]})


def _until_there(*titles: str) -> Action:
    return Action("wait: pods run", {"of": [f"{TENANT}/{each}" for each in titles], "within_s": LEAVES_WITHIN_S})
