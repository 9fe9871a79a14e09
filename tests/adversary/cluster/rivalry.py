"""What is drawn where there is too little for all: most GPUs are Draco's, and pods may be evicted for others.

Owns how often which action is drawn then. On the cluster that `actions` torments GPUs are handed over and back all the time, so
that hardly any pod ever has to leave for another.
"""

from collections.abc import Iterator

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.actions import Chooser
from tests.adversary.cluster.manifests import DRACOS_GPU, TENANTS
from tests.adversary.cluster.tenants import Action


class Rivalry(Chooser):
    """Draws pods of Draco's for most of the time, and what disturbs their evictions."""

    first = (("adv-0", "Operator"), ("adv-1", "Operator"))
    most_pods = 36
    nodes = ("adv-0", "adv-1")
    profiles = ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")

    def __init__(self, seed: int, *, pace_s: float = 0.4) -> None:
        super().__init__(seed, pace_s=pace_s)
        self._table = [
            (14, self.ordinary), (2, self._dracos), (0.5, self._dracos_alone), (0.5, self._of_both), (2, self._shared),
            (5, self.group), (1, self.late_member), (12, self.urgent), (4, self.urgent_group),
            (4, self._end_pod), (2, self._end_claim),
            (1, self.reserve), (1, self.use_reserved), (1, self.end_reservation), (0.2, self.set_limit), (1, self.end_limit),
            (1.5, self._permit), (1, self.guard), (1.5, self.end_guard),
            (0.7, self.maintain), (2, self.end_maintenance), (0.3, self._exact_rule), (1, self._end_rule),
            (0.5, self.sickness), (2, self._heal),
            (0.5, self._kill_operator), (0.1, self._kill_both), (0.15, self._stop_for_a_while), (0.3, self._kill_agent),
            (0.3, self._upgrade_operator), (0.2, self._kill_kubelet), (0.25, self._kill_component),
        ]  # fmt: skip


def a_pod_leaves() -> Iterator[Action]:
    """What goes ahead of a short run: one pod has all GPUs of a node, until an urgent one comes."""
    node, _ = Rivalry.first[0]
    yield Action("policy: set", {"policy": Rivalry.policy("mp-1", node, "Operator")})
    for title, priority in (("leaves", "adv-low"), ("stays", "adv-high")):
        pod = write.pod(TENANTS[1], title, [], templates=[title], node=node, priority=priority)
        template = write.template(TENANTS[1], title, [write.request("gpu", DRACOS_GPU, count=4)])
        yield Action("tenant: all GPUs of a node", {"create": [template, pod]})
        yield Action("wait: pods run", {"of": [f"{TENANTS[1]}/{title}"]})
