"""Actions around maintenance: requests of every kind, budgets, HealthPolicies, faults of every family.

Draws them from a seed as plain data. `actions` has the others.
"""

from typing import Any

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.manifests import DRIVER, GPU, MIG, Document
from tests.adversary.cluster.observer.service import ENDING_WORKS
from tests.adversary.cluster.tenants import NODES, Action, Tenants

GPUS = 4
XIDS = (13, 31, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95, 109, 119, 120, 140)
EFFECTS = ("NoSchedule", "NoSchedule", "NoSchedule", "NoSchedule", "NoExecute", "None")
CHANGED_EFFECTS = ("NoSchedule", "None", "NoSchedule", "None", "NoExecute")
BUDGETS = ("adv-all", "adv-node", "adv-share")
POLICIES = ("adv-mild", "adv-strict")
BY_PLACE = 'device.attributes["resource.kubernetes.io"].pciBusID == "{}"'
BUSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
CONDITIONS = (
    "fault.family == 'xid'",
    "fault.xid in [13, 31, 43]",
    "fault.family == 'thermal' || fault.family == 'nvlink'",
    "gpu.product.startsWith('NVIDIA A100')",
    "fault.nothing == 1",
)
HEALTH_EFFECTS = ("Record", "Announce", "NoSchedule", "Evict", "NoExecute")


class Maintainers(Tenants):
    """Draws maintainers' actions and faults. It remembers only what it has requested and not ended."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._requests: list[str] = []
        self._sick: list[str] = []

    def device(self) -> Document:
        """A device of a node: a whole GPU by number, or a partition by its position in the published list."""
        node = self._random.choice(NODES)
        whole = self._random.random() < 0.6
        device = f"gpu-{self._random.randrange(GPUS)}" if whole else f"partition:{self._random.randrange(64)}"
        return {"driver": DRIVER, "pool": node, "device": device}

    def maintain(self) -> Action:
        """Request maintenance of some devices in one of many ways."""
        title = self._name("dm")
        self._requests.append(title)
        selector = self._selector()
        spec: Document = {"allowMostOfClass": "device" not in selector}
        spec["drain"] = self._random.choice(
            [
                {},
                {},
                {"policy": "Evict"},
                {"policy": "Evict", "gracePeriodSeconds": 0},
                {"policy": "NoExecute", "noExecuteAfter": "0m"},
                {"policy": "NoExecute", "noExecuteAfter": "1m"},
            ]
        )
        if self._random.random() < 0.2:
            spec["approval"] = "Required"
        if self._random.random() < 0.2:
            windows = [{"start": "00:00", "duration": "24h"}, {"start": "12:00", "duration": "30m", "days": ["Sun"]}]
            spec["schedule"] = {"windows": [self._random.choice(windows)]}
        if self._random.random() < 0.2:
            spec["deadline"] = {"after": "1m", "action": self._random.choice(["Fail", "Cancel"])}
        if self._random.random() < 0.2:
            spec["work"] = {"fromCronJob": self._random.choice(write.WORKS)}
        spec["verification"] = self._random.choice(
            [
                *({}, {}, {"mode": "Person"}),
                {"mode": "Job", "fromCronJob": self._random.choice(ENDING_WORKS)},
                {"mode": "Job", "fromCronJob": self._random.choice(write.WORKS)},
            ]
        )
        effect = self._random.choice(EFFECTS)
        return Action("maintenance: asked for", {"request": write.maintenance(title, selector, effect=effect, **spec)})

    def _selector(self) -> Document:
        device, node = self.device(), self._random.choice(NODES)
        return self._random.choice(
            [
                device,
                device,
                device,
                device,
                device,
                {"driver": DRIVER, "pool": node},
                {"nodeName": node, "deviceClassName": self._random.choice([GPU, MIG])},
                {"nodeName": node, "selectors": [{"cel": {"expression": BY_PLACE.format(self._random.choice(BUSES))}}]},
                {"selectors": [{"cel": {"expression": BY_PLACE.format(self._random.choice(BUSES))}}]},
            ]
        )

    def end_maintenance(self) -> Action:
        """Finish, approve, cancel or delete a request, or change its taint's effect."""
        if not self._requests:
            return self.maintain()
        title = self._random.choice(self._requests)
        if self._random.random() < 0.2:
            return Action("maintenance: other effect", {"title": title, "effect": self._random.choice(CHANGED_EFFECTS)})
        how = self._random.choice(["finished", "finished", "finished", "approved", "cancelled", "deleted"])
        if how == "deleted":
            self._requests.remove(title)
        return Action(f"maintenance: {how}", {"title": title})

    def set_budget(self) -> Action:
        """Create a budget or replace one."""
        title = self._random.choice(BUDGETS)
        specs: dict[str, list[Document]] = {
            "adv-all": [{"maxDevices": 3}, {"maxDevices": 6}, {"maxDevices": 1}, {"paused": True}, {"maxFailed": 2}],
            "adv-node": [
                {"maxDevices": 1, "per": "Node"},
                {"maxDevices": 2, "per": "Node"},
                {"maxDevices": 2, "per": "NVLinkDomain"},
            ],
            "adv-share": [{"maxPercent": 25}, {"maxPercent": 50}, {"maxPercent": 50, "per": "Node"}],
        }
        return Action("budget: set", {"budget": write.budget(title, **self._random.choice(specs[title]))})

    def end_budget(self) -> Action:
        """Delete a budget."""
        return Action("budget: deleted", {"title": self._random.choice(BUDGETS)})

    def set_health_policy(self) -> Action:
        """Create or replace a HealthPolicy."""
        rules: list[Document] = [
            {"name": f"rule-{number}", "condition": condition, "effect": self._random.choice(HEALTH_EFFECTS)}
            for number, condition in enumerate(self._random.sample(CONDITIONS, 2))
        ]
        if self._random.random() < 0.6:
            rules[0]["remediation"] = {"fromCronJob": write.WORKS[0], "maxFailures": 2}
        spec = {"rules": rules, "dryRun": self._random.random() < 0.2, "priority": self._random.randrange(3)}
        document = write.health_policy(self._random.choice(POLICIES), spec)
        return Action("health policy: set", {"policy": document})

    def end_health_policy(self) -> Action:
        """Delete a HealthPolicy."""
        return Action("health policy: deleted", {"title": self._random.choice(POLICIES)})

    def fault(self, what: str, **arguments: Any) -> Action:
        """A fault of a board."""
        node = self._random.choice(NODES)
        self._sick.append(node)
        return Action(f"hardware: {what}", {"node": node, "gpu": self._random.randrange(GPUS), **arguments})

    def sickness(self) -> Action:
        """A fault of any family."""
        kinds = [
            (6, lambda: self.fault("XID", code=self._random.choice(XIDS))),
            (2, lambda: self.fault("ECC", corrected=self._random.choice([0, 5]), uncorrected=self._random.choice([0, 1]))),
            (1, lambda: self.fault("rows remapped", uncorrectable=1, failed=self._random.random() < 0.3)),
            (2, lambda: self.fault("temperature", degrees=self._random.choice([40, 85, 100]))),
            (2, lambda: self.fault("NVLink", link=self._random.randrange(4), down=self._random.random() < 0.6)),
            (2, lambda: self.fault("recovery action", action=self._random.choice(["none", "reset", "reboot", "drain-p2p"]))),
            (1, lambda: self.fault("lost")),
            (1, lambda: self.fault("unreadable")),
            (2, lambda: self.fault("reset")),
        ]  # fmt: skip
        (draw,) = self._random.choices([each for _, each in kinds], [weight for weight, _ in kinds])
        return draw()
