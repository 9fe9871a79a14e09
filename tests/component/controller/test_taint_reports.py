"""Reports on DeviceTaintRules, on a real API server without a scheduler: the test allocates and reserves."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from draco.controller.app import Operator
from draco.controller.taints.reports import EVENT_REASON
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import NotFound
from draco.resources.api.core import Event
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_MAINTENANCES, EVENTS, POD_DISRUPTION_BUDGETS, PODS, TAINT_RULES
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_claim
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_pending_claims import Lab, as_json

pytestmark = pytest.mark.usefixtures("crds")

NOT_ALLOCATED = {"status": {"allocation": None, "reservedFor": None}}
RULES = next(kind for kind in TAINT_RULES if kind.version == "v1beta2")


class TaintLab(Lab):
    """A lab with rules, which are deleted at the end."""

    def __init__(self, client: Client, namespace: str) -> None:
        super().__init__(client, namespace)
        self.rule = f"rule-of-{self.node}"

    async def taint(self, effect: str, *, name: str = "", **selector: str) -> None:
        """Make the rule, by default for the first device, or change its effect."""
        key = ObjectKey("", name or self.rule)
        with suppress(NotFound):
            await self.client.patch(RULES, key, {"spec": {"taint": {"effect": effect}}})
            return
        wanted = selector or {"driver": self.driver, "pool": self.node, "device": "gpu-0"}
        await self.create(
            RULES, key.name, {"taint": {"key": "example.com/broken", "effect": effect}, "deviceSelector": wanted}
        )

    async def use(self, claim: str, *pods: str, device: str = "gpu-0") -> None:
        """Create a claim on a device, reserved for pods on the node."""
        key = await self.claim(claim)
        users = []
        for name in pods:
            made = await self.pod(name, claim, nodeName=self.node)
            await self.client.patch(PODS, made, {"metadata": {"labels": {"app": "web"}}})
            uid = (await self.client.get(PODS, made)).metadata.uid
            users.append({"resource": "pods", "name": name, "uid": uid})
        status = as_json(a_claim(on=[f"{self.driver}/{self.node}/{device}"]).status)
        await self.client.patch(CLAIMS, key, {"status": {**status, "reservedFor": users}}, subresource="status")

    async def reports(self, rule: str = "") -> list[Event]:
        found = await self.client.list(EVENTS, namespace="default", field_selector=f"reason={EVENT_REASON.name}")
        return [each for each in found if each.involved_object and each.involved_object.name == (rule or self.rule)]

    async def reported(self, *texts: str, rule: str = "", type_: str = "Normal") -> Event:
        """The only Event on the rule, once it has all these texts."""

        async def look() -> Event | None:
            events = await self.reports(rule)
            assert len(events) <= 1
            return next(
                (each for each in events if all(text in each.message for text in texts) and each.type == type_), None
            )

        return await until(look, what=f"a report of {texts}")

    async def unreported(self) -> None:
        async def look() -> bool:
            return not await self.reports()

        await until(look, what="the withdrawal of the Event")


async def at_rest(operator: Operator) -> bool:
    """Whether the operator leads and is idle."""
    queue = operator.reconcilers["taint-reports"].queue
    return operator.election.leading and not queue.depth and not queue.longest_running_s


@pytest.fixture
async def lab(api_server: ControlPlane, namespace: str) -> AsyncIterator[TaintLab]:
    async with Client(await connect(api_server.kubeconfig), manager="tests") as client:
        lab = TaintLab(client, namespace)
        await lab.set_up()
        try:
            yield lab
        finally:
            await lab.clean()


async def test_a_rule_says_what_it_does_and_follows_every_change(api_server: ControlPlane, lab: TaintLab) -> None:
    await lab.use("shared", "one", "two")
    async with an_operator(api_server):
        await lab.taint("None")
        await lab.reported("only announces (effect None) a taint on 1 device", "NoExecute would delete 2 pods")
        await lab.taint("NoSchedule")
        await lab.reported("keeps new claims off 1 device", f"for 2 pods: {lab.namespace}/shared")
        spec: dict[str, Any] = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}
        meta = {"name": "web", "namespace": lab.namespace}
        await lab.client.create(POD_DISRUPTION_BUDGETS, {"metadata": meta, "spec": spec})
        await lab.taint("NoExecute")
        await lab.reported("deletes 2 pods", f"breaks PodDisruptionBudget {lab.namespace}/web", type_="Warning")
        await lab.client.delete(PODS, ObjectKey(lab.namespace, "two"), grace_period_s=0)
        await lab.reported("deletes 1 pod: ", type_="Warning")
        await lab.client.patch(CLAIMS, ObjectKey(lab.namespace, "shared"), NOT_ALLOCATED, subresource="status")
        await lab.reported("deletes no pod")
        await lab.client.delete(RULES, ObjectKey("", lab.rule))
        await lab.unreported()


async def test_a_rule_that_matches_nothing_says_so_until_the_device_is_there(
    api_server: ControlPlane, lab: TaintLab
) -> None:
    async with an_operator(api_server):
        await lab.taint("NoSchedule", driver=lab.driver, pool=f"{lab.node}-b")
        await lab.reported("No published device matches it", type_="Warning")
        await lab.add_slice(f"{lab.node}-b")
        await lab.reported("keeps new claims off 2 devices")


async def test_a_rule_for_all_pools_of_a_driver_counts_them_all(api_server: ControlPlane, lab: TaintLab) -> None:
    await lab.use("held", "one", device="gpu-1")
    await lab.taint("NoSchedule", driver=lab.driver)
    async with an_operator(api_server):
        await lab.reported("keeps new claims off 2 devices. 1 claim keeps its devices for 1 pod.")
        await lab.add_slice(f"{lab.node}-b")
        await lab.reported("keeps new claims off 4 devices")


async def test_what_was_said_of_a_rule_that_went_while_nobody_looked_is_taken_back(
    api_server: ControlPlane, lab: TaintLab
) -> None:
    await lab.taint("NoSchedule")
    async with an_operator(api_server):
        await lab.reported("keeps new claims off 1 device")
    await lab.client.delete(RULES, ObjectKey("", lab.rule))
    async with an_operator(api_server):
        await lab.unreported()


async def test_rules_of_draco_are_reported_on_where_they_belong(api_server: ControlPlane, lab: TaintLab) -> None:
    selector = {"driver": lab.driver, "pool": lab.node, "device": "gpu-0"}
    await lab.create(DEVICE_MAINTENANCES, f"swap-{lab.node}", {"deviceSelector": selector})
    async with an_operator(api_server) as (operator, _):

        async def own() -> list[str]:
            rules = await lab.client.list(RULES)
            return [
                rule.metadata.name
                for rule in rules
                if rule.metadata.name.startswith("draco-maintenance-")
                and rule.spec.device_selector
                and rule.spec.device_selector.pool == lab.node
            ]

        (own_rule,) = await until(own, what="the rule of the request")
        await lab.taint("NoSchedule")
        await lab.reported("keeps new claims off 1 device")
        await until(lambda: at_rest(operator), what="all rules are looked at")
        assert not await lab.reports(own_rule)
    async with an_operator(api_server) as (operator, _):  # it finds the rules there
        await until(lambda: at_rest(operator), what="all rules are looked at")
        assert not await lab.reports(own_rule)
