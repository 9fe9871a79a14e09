"""Senseless maintenance requests, and what goes wrong around a request, on a real API server.

Each is reported in a condition with a reason and a message, nothing is lost, and the request can be deleted.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, NotFound
from draco.maintenance.taint_rules import isolates_as, maintenance_uid
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import Condition, ObjectKey
from draco.resources.kinds import DEVICE_MAINTENANCES, GPU_NODES, NODES, SLICES
from draco.resources.names import NVIDIA_DRIVER
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_fault, a_gpu_uuid, a_sick_node, a_slice
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_health_policies import Lab as HealthLab
from tests.component.controller.test_maintenance import RULES, Lab, as_json
from tests.component.controller.test_maintenance_gates import GatedLab
from tests.component.controller.test_reservation_schema import ODD_TIMES

pytestmark = pytest.mark.usefixtures("crds")

NIGHT = {"start": "22:00", "duration": "2h"}


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[GatedLab]:
    made = GatedLab(client, namespace)
    await made.publish()
    yield made
    await made.clean()


class Nodes(HealthLab):
    """Nodes with an agent of Draco."""

    async def report_only(self, name: str, minor: int) -> None:
        """The agent's report when NVML lists only this GPU."""
        status = a_sick_node(name, [], []).status
        well = [*status.conditions, Condition(type="Published", status="True")]
        changed = {"gpus": [status.gpus[minor]], "conditions": well, "driver_version": "580.65.06"}
        seen = as_json(msgspec.structs.replace(status, **changed))
        await self.client.apply(GPU_NODES, ObjectKey("", name), {"status": seen}, manager="agent", subresource="status")


@pytest.fixture
async def nodes(client: Client) -> AsyncIterator[Nodes]:
    made = Nodes(client)
    yield made
    await made.clean()


class WrongClock(SystemClock):
    """A clock that is off by some minutes."""

    def __init__(self, minutes: int) -> None:
        self.off = timedelta(minutes=minutes)

    def now(self) -> datetime:
        return super().now() + self.off


def said(request: DeviceMaintenance, type_: str) -> Condition:
    return next(each for each in request.status.conditions if each.type == type_)


async def deleted(lab: Lab, key: ObjectKey) -> None:
    """Delete the request; nothing may block the deletion."""
    await lab.client.delete(DEVICE_MAINTENANCES, key)
    with pytest.raises(NotFound):
        await lab.client.get(DEVICE_MAINTENANCES, key)
    await lab.no_rules()


@pytest.mark.parametrize(
    ("selector", "spec", "reason", "sentence"),
    [
        ({"device": "gpu-99"}, {}, "NoDevices", "No published device matches driver node-"),
        ({"selectors": [{"cel": {"expression": "false"}}]}, {}, "NoDevices", "1 CEL selector"),
        ({"selectors": [{"cel": {"expression": "true"}}]}, {}, "MostOfClass", "set spec.allowMostOfClass to true"),
        ({}, {}, "MostOfClass", "This takes 8 of 8 GPUs of DeviceClass class-node-"),
        (
            {"device": "gpu-3"},
            {"schedule": {"windows": [NIGHT, {**NIGHT, "timeZone": "Mars/Olympus"}]}},
            "InvalidSchedule",
            "Mars/Olympus is not a time zone; use a name such as UTC",
        ),
        (
            {"device": "gpu-3"},
            {"schedule": {"windows": [{**NIGHT, "duration": "0m"}]}},
            "InvalidSchedule",
            "spec.schedule.windows[0] has no duration",
        ),
        ({"device": "gpu-3"}, {"deadline": {"after": "0m"}}, "InvalidSchedule", "spec.deadline.after is zero"),
    ],
)
async def test_what_cannot_be_meant_is_said_taints_nothing_and_can_be_deleted(
    served: ControlPlane, lab: GatedLab, selector: dict[str, Any], spec: dict[str, Any], reason: str, sentence: str
) -> None:
    await lab.a_class()
    async with an_operator(served):
        key = await lab.ask("wrong", {"driver": lab.driver, "pool": lab.pool, **selector}, **spec)
        waits = await lab.reason(key, reason)
        assert waits.status.phase is MaintenancePhase.PENDING
        assert sentence in waits.status.message == said(waits, "Isolated").message
        assert (waits.metadata.finalizers, await lab.rules()) == ([], [])
        await deleted(lab, key)


async def test_a_schedule_that_is_put_right_is_kept_to(served: ControlPlane, lab: GatedLab) -> None:
    async with an_operator(served):
        windows = [{**NIGHT, "timeZone": "Mars/Olympus"}]
        key = await lab.ask_for("wrong", "gpu-3", schedule={"windows": windows})
        await lab.reason(key, "InvalidSchedule")
        right = [{"start": "00:00", "duration": "24h", "timeZone": "Europe/Berlin"}]
        await lab.client.patch(DEVICE_MAINTENANCES, key, {"spec": {"schedule": {"windows": right}}})
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)


@pytest.mark.parametrize(("moment", "said"), ODD_TIMES)
async def test_a_start_that_programs_cannot_read_is_refused(client: Client, moment: str, said: str) -> None:
    spec = {"deviceSelector": {"pool": "nowhere"}, "schedule": {"start": moment}}
    with pytest.raises(ApiError, match=said):
        await client.create(DEVICE_MAINTENANCES, {"metadata": {"name": f"odd-{uuid.uuid4().hex[:8]}"}, "spec": spec})


async def test_a_start_that_is_past_holds_up_nobody(served: ControlPlane, lab: GatedLab) -> None:
    async with an_operator(served):
        key = await lab.ask_for("late", "gpu-3", schedule={"start": "2020-01-01T00:00:00Z"})
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)


async def test_a_rule_that_is_deleted_during_the_work_comes_back_and_the_work_is_held_up_until_then(
    served: ControlPlane, lab: GatedLab
) -> None:
    mended = asyncio.Event()
    mended.set()

    async def wait(method: str, path: str) -> None:
        if method == "PATCH" and f"/{RULES.plural}/" in path:
            await mended.wait()

    async with an_operator(served, before_requests=wait):
        key = await lab.ask_for("work", "gpu-3")
        begun = await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        (rule,) = await lab.rules()
        mended.clear()
        await lab.client.delete(RULES, rule.metadata.key)
        open_again = await lab.reason(key, "Isolating")
        assert said(open_again, "Isolated").message == "0 of 1 device is isolated."
        assert said(open_again, "ReadyForWork").status == "False"
        mended.set()
        again = await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        assert again.status.started_at == begun.status.started_at
        assert [each.metadata.name for each in await lab.rules()] == [rule.metadata.name]
        await lab.client.delete(RULES, rule.metadata.key)
        await deleted(lab, key)


@pytest.mark.parametrize(
    "edit",
    [
        {"spec": {"taint": {"effect": "None"}}},
        {"spec": {"taint": {"key": "example.com/mine"}}},
        {"spec": {"deviceSelector": {"device": "gpu-5"}}},
        {"metadata": {"labels": None}},
        {"metadata": {"ownerReferences": None}},
    ],
)
async def test_a_rule_that_is_edited_during_the_work_is_put_right(
    served: ControlPlane, lab: GatedLab, edit: dict[str, Any]
) -> None:
    """The edited field has another field manager; the operator must restore it all the same."""
    async with an_operator(served):
        key = await lab.ask_for("work", "gpu-3")
        request = await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        (rule,) = await lab.rules()
        await lab.client.patch(RULES, rule.metadata.key, edit)

        async def put_right() -> bool:
            found = await lab.rules()
            return [each.metadata.uid for each in found if isolates_as(each, rule)] == [rule.metadata.uid]

        await until(put_right, what="the rule as it was")
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        assert request.metadata.uid == maintenance_uid((await lab.rules())[0])
        await deleted(lab, key)


@pytest.mark.parametrize("end", ["finished", "cancelled", "deleted"])
async def test_a_device_that_vanishes_during_the_work_is_said_until_it_is_back_and_holds_up_no_end(
    served: ControlPlane, lab: GatedLab, end: str
) -> None:
    async with an_operator(served):
        key = await lab.ask_for("work", "gpu-3")
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.client.delete(SLICES, ObjectKey("", lab.pool))
        gone = await lab.reason(key, "NotPublished")
        assert gone.status.phase is MaintenancePhase.IN_MAINTENANCE
        assert f"gpu-3 of {lab.pool} is not published now" in gone.status.message
        assert len(await lab.rules()) == 1
        await lab.publish()
        await lab.reason(key, "Free")
        await lab.client.delete(SLICES, ObjectKey("", lab.pool))
        await lab.reason(key, "NotPublished")
        if end == "deleted":
            await deleted(lab, key)
            return
        await lab.client.patch(DEVICE_MAINTENANCES, key, {"spec": {end: True}})
        await lab.phase(key, MaintenancePhase.COMPLETED if end == "finished" else MaintenancePhase.CANCELLED)
        assert await lab.rules() == []


async def test_a_gpu_that_did_not_come_back_is_not_given_back_until_somebody_says_so(
    served: ControlPlane, nodes: Nodes
) -> None:
    node = await nodes.node([], [])
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await nodes.client.patch(NODES, ObjectKey("", node), ready, subresource="status")
    key = ObjectKey("", f"{node}-swap")
    selector = {"driver": NVIDIA_DRIVER, "pool": node, "device": "gpu-0"}
    await nodes.client.create(
        DEVICE_MAINTENANCES, {"metadata": {"name": key.name}, "spec": {"deviceSelector": selector}}
    )
    clock = WrongClock(0)
    async with an_operator(served, clock=clock):
        request = await nodes.client.get(DEVICE_MAINTENANCES, key)
        await nodes.phase(request, MaintenancePhase.IN_MAINTENANCE)
        await nodes.report_only(node, 1)
        await nodes.client.patch(DEVICE_MAINTENANCES, key, {"spec": {"finished": True}})
        waits = await nodes.phase(request, MaintenancePhase.VERIFYING)
        assert said(waits, "Verified").reason == "NotReadYet"
        sentence = f"GPU gpu-0 of {node} ({a_gpu_uuid(node, 0)}) is not reported by its node's agent"
        assert sentence in said(waits, "Verified").message
        clock.off = timedelta(minutes=2)  # the agent has had time to report
        await nodes.report(node, [], [a_fault("Xid63")])
        await nodes.report_only(node, 1)
        failed = await nodes.phase(request, MaintenancePhase.FAILED)
        assert (said(failed, "Failed").reason, sentence in failed.status.message) == ("GpuUnhealthy", True)
        await nodes.client.patch(DEVICE_MAINTENANCES, key, {"spec": {"cancelled": True}})
        await nodes.phase(request, MaintenancePhase.CANCELLED)
        assert [each for each in await nodes.client.list(RULES) if maintenance_uid(each) == request.metadata.uid] == []


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("Wait", "1 of 1 device is still in use: gpu-3 of {pool} by {namespace}/left"),
        (
            "Evict",
            "Claim {namespace}/left holds a device and no pod uses it: `kubectl delete resourceclaim -n {namespace} left`",
        ),
    ],
)
async def test_a_claim_without_a_pod_is_named_and_holds_up_the_work_until_it_is_gone(
    served: ControlPlane, lab: GatedLab, policy: str, sentence: str
) -> None:
    claim = await lab.hold("left", "gpu-3")
    async with an_operator(served):
        key = await lab.ask_for("work", "gpu-3", drain={"policy": policy})
        waits = await lab.reason(key, "InUse")
        assert sentence.format(pool=lab.pool, namespace=lab.namespace) in said(waits, "ReadyForWork").message
        assert waits.status.phase is MaintenancePhase.ISOLATED
        await lab.let_go(claim)
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await deleted(lab, key)


async def test_a_device_that_moves_within_its_pool_has_not_vanished(served: ControlPlane, lab: GatedLab) -> None:
    """While a driver replaces its slices one by one, an older slice has the device for a moment."""
    async with an_operator(served):
        key = await lab.ask_for("work", "gpu-3")
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        newer = a_slice(lab.pool, ["gpu-0"], driver=lab.driver, name=f"{lab.pool}-1", generation=2, of=2)
        await lab.client.create(SLICES, newer)
        busy = await lab.hold("train", "gpu-3")  # seen after the slice, so the slice is known, too
        await lab.reason(key, "InUse")
        await lab.let_go(busy)
        assert (await lab.reason(key, "Free")).status.phase is MaintenancePhase.IN_MAINTENANCE


async def test_clocks_of_operators_may_be_wrong_by_minutes(served: ControlPlane, lab: GatedLab) -> None:
    """Each continues where the previous one stopped, however much their clocks differ."""
    busy = await lab.hold("train", "gpu-3")
    async with an_operator(served, clock=WrongClock(10)):
        key = await lab.ask_for("work", "gpu-3")
        isolated = await lab.phase(key, MaintenancePhase.ISOLATED)
        assert isolated.status.isolated_at is not None
    async with an_operator(served):
        await lab.let_go(busy)
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
    async with an_operator(served, clock=WrongClock(-10)):
        (rule,) = await lab.rules()
        await lab.client.delete(RULES, rule.metadata.key)
        await until(lambda: has_another(lab, rule.metadata.uid), what="the rule again")
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.finish(key)
        await lab.phase(key, MaintenancePhase.COMPLETED)
        assert await lab.rules() == []


async def has_another(lab: Lab, uid: str) -> bool:
    return any(each.metadata.uid != uid for each in await lab.rules())
