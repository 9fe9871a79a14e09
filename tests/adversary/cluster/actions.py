"""What the adversary does next: one action at a time, drawn from a seed.

Owns the choice. An action is plain data with every name in it, so a list of actions can be recorded and replayed. `performing`
executes it. Nothing here looks at the cluster: the same seed draws the same actions.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.drivers import VERSIONS
from tests.adversary.cluster.maintainers import GPUS, Maintainers
from tests.adversary.cluster.manifests import DRIVER, PROFILES, Document
from tests.adversary.cluster.rivals import Rivals
from tests.adversary.cluster.sharers import Sharers
from tests.adversary.cluster.tenants import BUSES, NODES, Action

FIRST = (
    *(("adv-0", "Operator", bus) for bus in BUSES[:2]),
    *(("adv-0", "Scheduler", ""), ("adv-1", "Operator", ""), ("adv-2", "Scheduler", BUSES[4])),
)
LAYOUTS = {
    "adv-0": (("3g.40gb", "3g.40gb"), ("1g.10gb",) * 7, ("4g.40gb", "2g.20gb", "1g.10gb"), ("7g.80gb",)),
    "adv-1": (("3g.40gb", "2g.20gb"), ("1g.10gb",) * 4, ("2g.20gb",) * 3),
    "adv-2": (("3g.20gb", "3g.20gb"), ("1g.5gb",) * 7, ("2g.10gb",) * 3),
}
EFFECTS = ("NoSchedule", "NoSchedule", "NoExecute", "None")
SLOW_CALLS = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstances",
    "",
)
COMPONENTS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "etcd")


class Chooser(Maintainers, Sharers, Rivals):
    """Draws actions. It remembers only what it has created and not deleted."""

    first: tuple[tuple[str, str, str], ...] = FIRST
    """The first policies, all Dynamic: node, allocator, and PCI address of one GPU; "" for all others of the node."""
    shared: tuple[str, ...] = ("adv-2",)
    """Nodes whose other GPUs are shared by memory from the start."""
    most_pods = 24

    def __init__(self, seed: int, *, pace_s: float = 0.4) -> None:
        super().__init__(seed)
        self._pace_s = pace_s
        self._rules: list[str] = []
        self._policies: list[str] = []
        self._lasting = ""
        self._table: list[tuple[float, Callable[[], Action]]] = [
            (10, self._whole), (12, self._parts), (3, self._several), (2, self._templated), (2, self._admin),
            (4, self._shared), (2, self._alone), (2, self._either), (14, self._end_pod), (5, self._end_claim),
            (6, self._let_go),
            (1.2, self._costly_selectors), (2, self._failing_selectors), (1, self._odd_names), (1, self._many_tolerations),
            (4, self._tolerates_all), (0.7, self._huge), (1, self._odd_configuration),
            (4, self._exact_rule), (0.6, self._wide_rule), (9, self._end_rule),
            (5, self.maintain), (8, self.end_maintenance), (2, self.set_budget), (1, self.end_budget),
            (1.5, self.set_health_policy), (1, self.end_health_policy),
            (4, self._set_policy), (2, self._end_policy), (4, self._hand_over),
            (5, self._dracos), (3, self._dracos_alone), (2, self._of_both), (0.7, self._sneaks), (0.8, self.refuse),
            (5, self.group), (1.5, self.late_member), (1, self.lose_member), (0.7, self.odd_group), (3, self.same_again),
            (4, self.pod_group), (2, self.pod_group_of_both), (1, self.late_pod_group), (2.5, self.end_pod_group),
            (0.7, self.odd_pod_group),
            (4, self.job_set), (1, self.last_job), (5, self.change_job), (1.5, self.relabel_job), (1, self.lose_job_pod),
            (0.7, self.restart_job_set), (2, self.end_job_set),
            (2, self.held_back), (2, self.let_go),
            (3, self.reserve), (4, self.use_reserved), (1, self.change_reservation), (2, self.end_reservation),
            (1.5, self.set_limit), (1, self.end_limit),
            (6, self.urgent), (2, self.urgent_group), (1, self._permit), (0.7, self.guard), (1, self.end_guard),
            (9, self.sickness), (1.2, self._reboot), (1, self._reload),
            (0.8, self._take_out), (0.8, self._replace),
            (1.5, self._slow), (0.8, self._hang), (1, self._by_hand), (5, self._heal),
            (1.5, self._kill_operator), (0.4, self._kill_both), (0.5, self._stop_for_a_while), (2, self._kill_agent),
            (0.4, self._kill_fleet), (1, self._kill_child), (1.5, self._forget_report),
            (6, self.share), (3, self.share_of_many), (0.7, self.odd_share), (4, self.set_sharing), (2, self.end_sharing),
            (1, self._packages), (0.5, self._no_driver), (0.8, self._toolkit), (1.5, self._load_driver),
            (2, self._upgrade_agent), (1, self._upgrade_operator),
            (1, self._kill_kubelet), (1.9, self._kill_component), (0.2, self._switch_off),
        ]  # fmt: skip

    def next(self) -> Action:
        """The next action. The first ones set the policies in `first` and `shared`."""
        self._number += 1
        if self._number <= len(self.first):
            title, (node, allocator, bus) = self._name("mp"), self.first[self._number - 1]
            if allocator == "Operator" and not bus:
                self._lasting = title  # a hand-over is slow, so one policy is never deleted
            else:
                self._policies.append(title)
            return Action("policy: set", {"policy": self.policy(title, node, allocator, bus)})
        if self._number <= len(self.first) + len(self.shared):
            return self.share_node(self.shared[self._number - len(self.first) - 1])
        weights = [weight for weight, _ in self._table]
        (choose,) = self._random.choices([each for _, each in self._table], weights)
        if len(self._pods) > self.most_pods and self._random.random() < 0.5:
            choose = self._end_pod
        drawn = choose()
        return drawn._replace(wait_s=round(self._random.expovariate(1 / self._pace_s), 2))

    @staticmethod
    def policy(title: str, node: str, allocator: str, bus: str = "") -> Document:
        """A policy that exists from the start."""
        return write.policy(
            title, node, "Dynamic", bus=bus, allocator=allocator, preemption="LowerPriority", loss="Release", leak="1m"
        )

    def _exact_rule(self) -> Action:
        title = self._name("rule")
        self._rules.append(title)
        effect = self._random.choice(EFFECTS)
        document = write.rule(title, self.device(), effect=effect, key="example.com/exact")
        return Action("rule: one device", {"rule": document})

    def _wide_rule(self) -> Action:
        title = self._name("rule")
        self._rules.append(title)
        selector = self._random.choice([{"driver": DRIVER}, {"pool": self._random.choice(NODES)}, {"device": "gpu-1"}])
        effect = self._random.choice(EFFECTS)
        document = write.rule(title, selector, effect=effect, key="example.com/wide")
        return Action("rule: many devices", {"rule": document})

    def _end_rule(self) -> Action:
        if not self._rules:
            return self._exact_rule()
        return Action("rule: lifted", {"title": self._rules.pop(self._random.randrange(len(self._rules)))})

    def _set_policy(self) -> Action:
        node = self._random.choice(NODES)
        mode = self._random.choice(["Dynamic", "Dynamic", "Dynamic", "Static", "Static", "Disabled"])
        bus = self._random.choice(["", *BUSES])
        allocator = self._random.choice(["Scheduler", "Scheduler", "Operator"])
        layout = self._random.choice(LAYOUTS[node])
        title = (
            self._random.choice(self._policies) if self._policies and self._random.random() < 0.4 else self._name("mp")
        )
        if title not in self._policies:
            self._policies.append(title)
        preemption = self._random.choice(["LowerPriority", "Never"])
        loss = self._random.choice(["Keep", "Release"])
        document = write.policy(
            title,
            node,
            mode,
            bus=bus,
            layout=layout,
            allocator=allocator,
            preemption=preemption,
            loss=loss,
            leak=self._random.choice([None, "1m", "2m"]),
            ahead=self._ahead(layout) if mode == "Dynamic" and self._random.random() < 0.4 else None,
        )
        return Action("policy: set", {"policy": document})

    def _ahead(self, layout: Sequence[str]) -> Document:
        """The policy's warmAhead: idle instances of some of the node's profiles."""
        profiles = sorted(set(layout))
        limits = [{"profile": each, "count": self._random.choice([1, 2, 8])} for each in profiles]
        return {"window": "1m", "leadTimeSeconds": self._random.choice([5, 15, 60]), "limits": limits}

    def _hand_over(self) -> Action:
        """Hand a policy's GPUs over to the other allocator; their mode stays."""
        allocator = self._random.choice(["Operator", "Operator", "Scheduler"])
        title = self._random.choice([self._lasting, *self._policies])
        return Action("policy: allocator", {"title": title, "allocator": allocator})

    def _permit(self) -> Action:
        return self.permits([self._lasting, *self._policies])

    def _end_policy(self) -> Action:
        if not self._policies:
            return self._set_policy()
        return Action("policy: deleted", {"title": self._policies.pop(self._random.randrange(len(self._policies)))})

    def _reload(self) -> Action:
        return self.fault("driver reloaded")

    def _take_out(self) -> Action:
        return self.fault("board taken out")

    def _replace(self) -> Action:
        return self.fault("board replaced")

    def _reboot(self) -> Action:
        return self.fault("reboot", minors=self._random.choice([None, self._random.sample(range(GPUS), GPUS)]))

    def _slow(self) -> Action:
        return self.fault(
            "slow", function=self._random.choice(SLOW_CALLS), seconds=self._random.choice([0.2, 1.0, 3.0])
        )

    def _hang(self) -> Action:
        return self.fault("hangs", function=self._random.choice(SLOW_CALLS), seconds=self._random.choice([5.0, 15.0]))

    def _by_hand(self) -> Action:
        return self.fault("instance made by hand", profile=self._random.choice(PROFILES))

    def _heal(self) -> Action:
        if not self._sick:
            return self._whole()
        return Action("hardware: healed", {"node": self._sick.pop(0)})

    def _kill_operator(self) -> Action:
        who = self._random.choice(["leader", "leader", "follower"])
        return Action("kill: operator", {"who": who, "back_in_s": self._random.choice([0.5, 3.0, 8.0])})

    def _kill_both(self) -> Action:
        return Action("kill: both operators", {"back_in_s": self._random.choice([0.5, 3.0])})

    def _stop_for_a_while(self) -> Action:
        return Action("kill: leader stops for a while", {"back_in_s": self._random.choice([4.0, 20.0])})

    def _kill_fleet(self) -> Action:
        return Action("kill: fleet process", {})

    def _kill_child(self) -> Action:
        return Action("kill: child with questions", {})

    def _kill_agent(self) -> Action:
        back_in_s = self._random.choice([0.5, 3.0, 8.0])
        return Action("kill: agent", {"node": self._random.choice(NODES), "back_in_s": back_in_s})

    def _forget_report(self) -> Action:
        """Delete a GpuNode. Its agent creates another with an empty spec until an operator writes it."""
        return Action("report: deleted", {"node": self._random.choice(NODES)})

    def _kill_kubelet(self) -> Action:
        return Action("kill: kubelet", {"node": self._random.choice(NODES), "back_in_s": 2.0})

    def _kill_component(self) -> Action:
        """Kill a component; the slower it recovers, the less often."""
        (name,) = self._random.choices(COMPONENTS, (3, 2, 2, 1))
        return Action(f"kill: {name}", {})

    def _switch_off(self) -> Action:
        return Action(
            "feature switched off",
            {"feature": self._random.choice(["taint rules", "device status"]), "back_in_s": 15.0},
        )

    def _upgrade_agent(self) -> Action:
        dies = self._random.choice(["", "", "", "the old", "the next"])
        beside_s = self._random.choice([0.0, 0.5, 3.0])
        return Action("upgrade: agent", {"node": self._random.choice(NODES), "beside_s": beside_s, "dies": dies})

    def _upgrade_operator(self) -> Action:
        who = self._random.choice(["leader", "leader", "follower"])
        return Action("upgrade: operator", {"who": who, "beside_s": self._random.choice([0.0, 5.0])})

    def _driver(self, what: str, **arguments: Any) -> Action:
        node = self._random.choice(NODES)
        self._sick.append(node)
        return Action(f"driver: {what}", {"node": node, **arguments})

    def _packages(self) -> Action:
        return self._driver("other files", version=self._random.choice(VERSIONS))

    def _no_driver(self) -> Action:
        return self._driver("no files")

    def _toolkit(self) -> Action:
        return self._driver("toolkit", which=self._random.choice(["works", "works", "fails", "gone"]))

    def _load_driver(self) -> Action:
        return self._driver("loaded as installed")
