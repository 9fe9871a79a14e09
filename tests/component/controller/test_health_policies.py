"""HealthPolicies on a real API server: what agents are told, the policies' status, and which requests they create."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import Invalid, NotFound
from draco.resources.api.draco import GpuNode
from draco.resources.api.health import FaultOverride, GpuFaultStatus, HealthPolicy
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_MAINTENANCES, EVENTS, GPU_NODES, HEALTH_POLICIES, MIG_POLICIES, NODES, SLICES
from draco.resources.names import LABEL_REMEDIATES, NVIDIA_DRIVER
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_fault, a_gpu_uuid, a_sick_node, a_slice
from tests.component.controller.replicas import Died, an_operator, until

pytestmark = pytest.mark.usefixtures("crds")

FATAL = {"name": "fatal", "condition": "fault.xid == 79", "effect": "Announce"}
RESET = {"fromCronJob": "reset-gpu"}


class Lab:
    """Nodes with two GPUs each and a label of their own, and policies that select it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.mark = f"lab-{uuid.uuid4().hex[:8]}"
        self.policies: list[str] = []
        self.nodes: list[str] = []

    async def node(self, *gpus: list[GpuFaultStatus]) -> str:
        name = f"{self.mark}-node-{len(self.nodes)}"
        self.nodes.append(name)
        await self.client.create(NODES, {"metadata": {"name": name, "labels": {"lab": self.mark}}})
        await self.client.create(GPU_NODES, {"metadata": {"name": name}})
        pool = a_slice(name, ["gpu-0", "gpu-1"], name=name, driver=NVIDIA_DRIVER)
        devices = as_json(pool.spec)["devices"]
        for minor, device in enumerate(devices):
            device["attributes"]["uuid"] = {"string": a_gpu_uuid(name, minor)}
        await self.client.create(
            SLICES, {"metadata": {"name": name}, "spec": {**as_json(pool.spec), "devices": devices}}
        )
        await self.report(name, *(gpus or ([], [])))
        return name

    async def report(self, name: str, *gpus: list[GpuFaultStatus], readable: bool = True) -> None:
        """Write the agent's report."""
        seen = as_json(a_sick_node(name, *gpus, readable=readable).status)
        await self.client.apply(GPU_NODES, ObjectKey("", name), {"status": seen}, manager="agent", subresource="status")

    async def policy(self, name: str, *rules: dict[str, Any], **spec: Any) -> ObjectKey:
        key = ObjectKey("", f"{self.mark}-{name}")
        plain = {"nodeSelector": {"matchLabels": {"lab": self.mark}}, "rules": list(rules)}
        await self.client.create(HEALTH_POLICIES, {"metadata": {"name": key.name}, "spec": {**plain, **spec}})
        self.policies.append(key.name)
        return key

    async def gpu_node(self, name: str) -> GpuNode:
        return await self.client.get(GPU_NODES, ObjectKey("", name))

    async def overrides(self, node: str, *expected: str) -> list[FaultOverride]:
        """Wait until the node's agent is told what is expected: "gpu-0 Xid79 Record"."""

        async def settled() -> tuple[list[FaultOverride]] | None:
            found = (await self.gpu_node(node)).spec.health
            return (found,) if sorted(self._shown(node, each) for each in found) == sorted(expected) else None

        (found,) = await until(settled, what=f"{node}: {expected}")
        return found

    @staticmethod
    def _shown(node: str, override: FaultOverride) -> str:
        device = next((f"gpu-{minor}" for minor in range(2) if a_gpu_uuid(node, minor) == override.uuid), override.uuid)
        return f"{device} {override.fault} {override.effect}"

    async def says(self, key: ObjectKey, message: str) -> HealthPolicy:
        async def look() -> HealthPolicy | None:
            policy = await self.client.get(HEALTH_POLICIES, key)
            return policy if message in policy.status.message else None

        try:
            return await until(look)
        except AssertionError:
            said = (await self.client.get(HEALTH_POLICIES, key)).status.message
            raise AssertionError(f"{key} says {said!r}, not {message!r}") from None

    async def requests(self) -> list[DeviceMaintenance]:
        found = await self.client.list(DEVICE_MAINTENANCES)
        return [each for each in found if each.spec.device_selector.pool in self.nodes]

    async def request(self) -> DeviceMaintenance:
        """The request that is created."""

        async def look() -> DeviceMaintenance | None:
            return next(iter(await self.requests()), None)

        return await until(look, what="a request")

    async def phase(self, request: DeviceMaintenance, *phases: MaintenancePhase) -> DeviceMaintenance:
        async def look() -> DeviceMaintenance | None:
            found = await self.client.get(DEVICE_MAINTENANCES, request.metadata.key)
            return found if found.status.phase in phases else None

        return await until(look, what=f"{request.metadata.name} {phases}")

    async def clean(self) -> None:
        for kind, names in (
            (HEALTH_POLICIES, self.policies),
            (DEVICE_MAINTENANCES, [each.metadata.name for each in await self.requests()]),
            (GPU_NODES, self.nodes),
            (SLICES, self.nodes),
            (NODES, self.nodes),
        ):
            for name in names:
                with suppress(NotFound):
                    await self.client.delete(kind, ObjectKey("", name))

        async def gone() -> bool:
            return not await self.requests()

        await until(gone, what="the deletion of all requests")


def as_json(struct: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(struct))


@pytest.fixture
async def lab(client: Client) -> AsyncIterator[Lab]:
    made = Lab(client)
    yield made
    await made.clean()


async def test_what_a_policy_makes_of_a_fault_is_told_to_the_agent_and_goes_with_either(
    served: ControlPlane, lab: Lab
) -> None:
    node = await lab.node([a_fault()], [a_fault("Xid63")])
    async with an_operator(served):
        key = await lab.policy("p", FATAL)
        (told,) = await lab.overrides(node, "gpu-0 Xid79 Announce")
        assert told.policy == key.name
        policy = await lab.says(key, f"Xid79 of gpu-0 of {node} → Announce (rule fatal).")
        assert (policy.status.gpus, policy.status.faulty, policy.status.remediating) == (2, 1, 0)
        assert [(each.type, each.status) for each in policy.status.conditions] == [("Accepted", "True")]
        await lab.report(node, [], [a_fault()])
        await lab.overrides(node, "gpu-1 Xid79 Announce")
        await lab.report(node, readable=False)
        await lab.says(key, "It selects no GPU.")
        await lab.overrides(node, "gpu-1 Xid79 Announce")
        await lab.client.delete(HEALTH_POLICIES, key)
        await lab.overrides(node)


async def test_what_is_told_comes_beside_what_mig_policies_want(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node([a_fault()], [])
    mig = ObjectKey("", f"{lab.mark}-mig")
    async with an_operator(served):
        await lab.policy("p", FATAL)
        await lab.overrides(node, "gpu-0 Xid79 Announce")
        selector = {"matchLabels": {"lab": lab.mark}}
        await lab.client.create(
            MIG_POLICIES, {"metadata": {"name": mig.name}, "spec": {"mode": "Dynamic", "nodeSelector": selector}}
        )
        await lab.client.patch(NODES, ObjectKey("", node), {"metadata": {"labels": {"seen": "yes"}}})
        by_hand = {"uuid": "GPU-of-nobody", "fault": "Xid1", "effect": "NoExecute", "policy": "by-hand"}
        await lab.client.patch(GPU_NODES, ObjectKey("", node), {"spec": {"health": [by_hand]}})
        await lab.overrides(node, "gpu-0 Xid79 Announce")
    await lab.client.delete(MIG_POLICIES, mig)


async def test_a_dry_run_writes_nothing_for_agents_and_opens_nothing(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node([a_fault()], [])
    async with an_operator(served):
        key = await lab.policy("p", {**FATAL, "effect": "Evict", "remediation": RESET}, dryRun=True)
        await lab.says(
            key, "Dry run: would treat Xid79 as Evict and open a DeviceMaintenance with CronJob reset-gpu on gpu-0"
        )
        assert (await lab.gpu_node(node)).spec.health == []
        assert await lab.requests() == []
        await lab.client.patch(HEALTH_POLICIES, key, {"spec": {"dryRun": False}})
        await lab.overrides(node, "gpu-0 Xid79 Evict")
        assert (await lab.request()).spec.drain.policy == "Evict"


async def test_a_mistake_is_said_when_the_policy_is_written(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node([a_fault()], [])
    async with an_operator(served):
        key = await lab.policy("p", FATAL)
        await lab.overrides(node, "gpu-0 Xid79 Announce")
        wrong = {**FATAL, "condition": 'fault.xid == "79"'}
        await lab.client.patch(HEALTH_POLICIES, key, {"spec": {"rules": [wrong]}})
        policy = await lab.says(
            key, "The condition of rule fatal is invalid: at 1:11: found no matching overload for '_==_'"
        )
        (accepted,) = policy.status.conditions
        assert (accepted.status, accepted.reason) == ("False", "InvalidCondition")
        await lab.overrides(node)
        await lab.client.patch(HEALTH_POLICIES, key, {"spec": {"rules": [FATAL]}})
        await lab.overrides(node, "gpu-0 Xid79 Announce")
        assert (await lab.says(key, "Xid79")).status.conditions[0].status == "True"


async def test_a_policy_without_a_condition_or_with_two_rules_of_one_name_is_refused(lab: Lab) -> None:
    with pytest.raises(Invalid, match="condition"):
        await lab.policy("p", {"name": "fatal"})
    with pytest.raises(Invalid, match="Duplicate"):
        await lab.policy("p", FATAL, FATAL)


async def test_two_operators_that_both_lead_open_one_request(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node()
    key = await lab.policy("p", {**FATAL, "remediation": RESET})
    async with an_operator(served), an_operator(served):
        await lab.says(key, "None of 2 GPUs has a fault")
        await lab.report(node, [a_fault()], [])
        request = await lab.request()
        await lab.phase(request, MaintenancePhase.IN_MAINTENANCE, MaintenancePhase.ISOLATED)
        assert request.spec.work is not None
        assert request.spec.work.from_cron_job == "reset-gpu"
        assert request.metadata.labels[LABEL_REMEDIATES] == (await lab.client.get(HEALTH_POLICIES, key)).metadata.uid
        await lab.overrides(node, "gpu-0 Xid79 Announce")

        async def counted() -> bool:
            return (await lab.client.get(HEALTH_POLICIES, key)).status.remediating == 1

        await until(counted)
        assert [each.metadata.name for each in await lab.requests()] == [request.metadata.name]


async def test_a_gpu_under_a_persons_request_is_left_to_them(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node()
    mine = f"{lab.mark}-mine"
    selector = {"driver": NVIDIA_DRIVER, "pool": node, "device": "gpu-0"}
    await lab.client.create(DEVICE_MAINTENANCES, {"metadata": {"name": mine}, "spec": {"deviceSelector": selector}})
    async with an_operator(served):
        key = await lab.policy("p", {**FATAL, "remediation": RESET})
        await lab.report(node, [a_fault()], [])
        await lab.says(key, f"gpu-0 of {node} waits for DeviceMaintenance {mine}.")
        assert [each.metadata.name for each in await lab.requests()] == [mine]
        await lab.client.delete(DEVICE_MAINTENANCES, ObjectKey("", mine))
        assert (await lab.request()).metadata.name == f"health-{a_gpu_uuid(node, 0).lower()}-1"


async def test_a_gpu_that_was_only_to_be_emptied_is_given_back_when_its_fault_is_over(
    served: ControlPlane, lab: Lab
) -> None:
    node = await lab.node([a_fault()], [])
    async with an_operator(served):
        await lab.policy("p", {**FATAL, "effect": "Evict"})
        request = await lab.request()
        await lab.phase(request, MaintenancePhase.IN_MAINTENANCE)
        await lab.report(node, [], [])

        async def finished() -> bool:
            return (await lab.client.get(DEVICE_MAINTENANCES, request.metadata.key)).spec.finished

        await until(finished)


async def test_after_so_many_repairs_that_did_not_last_a_person_has_to_look(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node([a_fault()], [])
    async with an_operator(served) as (operator, _):
        key = await lab.policy("p", {**FATAL, "remediation": {**RESET, "maxFailures": 2}})
        for attempt in (1, 2):
            name = ObjectKey("", f"health-{a_gpu_uuid(node, 0).lower()}-{attempt}")

            async def opened(name: ObjectKey = name) -> DeviceMaintenance | None:
                return next((each for each in await lab.requests() if each.metadata.key == name), None)

            request = await lab.phase(await until(opened, what=str(name)), MaintenancePhase.IN_MAINTENANCE)
            await lab.report(node, [], [])
            by_word = {"finished": True, "verification": {"mode": "Person"}}
            await lab.client.patch(DEVICE_MAINTENANCES, name, {"spec": by_word})
            await lab.phase(request, MaintenancePhase.COMPLETED)
            # The agent has had time to report the fault's end, without waiting for it here.
            earlier = (datetime.now(UTC) - timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
            await lab.client.patch(
                DEVICE_MAINTENANCES, name, {"status": {"completedAt": earlier}}, subresource="status"
            )
            await lab.says(key, "None of 2 GPUs has a fault")
            await lab.report(node, [a_fault()], [])
        said = await lab.says(key, "2 requests for gpu-0 of")
        assert "failed in a row. Repair it; delete" in said.status.message
        assert {each.status.phase for each in await lab.requests()} == {MaintenancePhase.COMPLETED}, "no third"
        assert operator.metrics.registry.get_sample_value("draco_health_given_up", {"policy": key.name}) == 1


async def test_a_request_whose_policy_is_deleted_goes_on_and_says_so(served: ControlPlane, lab: Lab) -> None:
    await lab.node([a_fault()], [])
    async with an_operator(served):
        key = await lab.policy("p", {**FATAL, "remediation": RESET})
        request = await lab.phase(await lab.request(), MaintenancePhase.IN_MAINTENANCE)
        await lab.client.delete(HEALTH_POLICIES, key)

        async def told() -> bool:
            events = await lab.client.list(EVENTS, field_selector="reason=RemediationLeft")
            return any(each.involved_object and each.involved_object.uid == request.metadata.uid for each in events)

        await until(told)
        left = await lab.client.get(DEVICE_MAINTENANCES, request.metadata.key)
        assert (left.spec.cancelled, left.spec.finished) == (False, False)


async def test_an_operator_that_dies_after_any_write_leaves_what_the_next_one_completes(
    served: ControlPlane, client: Client
) -> None:
    for writes in range(1, 40):
        lab = Lab(client)
        node = await lab.node([a_fault()], [])
        key = await lab.policy("p", {**FATAL, "remediation": RESET})
        died = False
        try:
            async with an_operator(served, dies_after_writes=writes) as (_, task):
                settled = asyncio.create_task(_settled(lab, node, key))
                await asyncio.wait({task, settled}, return_when=asyncio.FIRST_COMPLETED)
                died = task.done()
                settled.cancel()
        except* Died:
            died = True
        async with an_operator(served):
            await _settled(lab, node, key)
            (opened,) = await lab.requests()
            await lab.client.delete(HEALTH_POLICIES, key)
            await lab.overrides(node)
            assert [each.metadata.uid for each in await lab.requests()] == [opened.metadata.uid]
            await lab.clean()
        if not died:
            assert writes > 4
            return
    raise AssertionError("the operator never came to an end")


async def _settled(lab: Lab, node: str, key: ObjectKey) -> None:
    await lab.overrides(node, "gpu-0 Xid79 Announce")

    async def done() -> bool:
        status = (await lab.client.get(HEALTH_POLICIES, key)).status
        requests = [each for each in await lab.requests() if each.spec.device_selector.pool == node]
        ready = [each for each in requests if each.status.phase is MaintenancePhase.IN_MAINTENANCE]
        return bool(ready) and status.faulty is not None and status.faulty >= 1 and status.remediating == 1

    await until(done, what=f"{key} settled")
