"""What holds a maintenance request back, on a real API server: selection, approval, schedule, and budgets."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceBudget, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_CLASSES, DEVICE_MAINTENANCES, MAINTENANCE_BUDGETS, SLICES
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_slice
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_maintenance import Lab, as_json

pytestmark = pytest.mark.usefixtures("crds")


class GatedLab(Lab):
    """A lab with classes and budgets."""

    async def ask(self, name: str, selector: dict[str, Any], **spec: Any) -> ObjectKey:
        key = ObjectKey("", f"{name}-{self.pool}")
        wanted = {"deviceSelector": selector, **spec}
        await self.client.create(DEVICE_MAINTENANCES, {"metadata": {"name": key.name}, "spec": wanted})
        self.requests.append(key.name)
        return key

    async def ask_for(self, name: str, device: str, **spec: Any) -> ObjectKey:
        return await self.ask(name, {"driver": self.driver, "pool": self.pool, "device": device}, **spec)

    async def a_class(self) -> str:
        """A class with all devices of the pool."""
        key = ObjectKey("", f"class-{self.pool}")
        cel = {"cel": {"expression": f'device.driver == "{self.driver}"'}}
        await self.client.create(DEVICE_CLASSES, {"metadata": {"name": key.name}, "spec": {"selectors": [cel]}})
        return key.name

    async def budget(self, **spec: Any) -> ObjectKey:
        key = ObjectKey("", f"budget-{self.pool}")
        await self.client.create(MAINTENANCE_BUDGETS, {"metadata": {"name": key.name}, "spec": spec})
        return key

    async def reason(self, key: ObjectKey, reason: str) -> DeviceMaintenance:
        """The request once its condition Isolated has this reason."""

        async def look() -> DeviceMaintenance | None:
            request = await self.client.get(DEVICE_MAINTENANCES, key)
            return request if any(each.reason == reason for each in request.status.conditions) else None

        return await until(look, what=f"{key} to say {reason}")

    async def budget_says(self, key: ObjectKey, **status: Any) -> MaintenanceBudget:
        async def look() -> MaintenanceBudget | None:
            budget = await self.client.get(MAINTENANCE_BUDGETS, key)
            return budget if all(getattr(budget.status, name) == value for name, value in status.items()) else None

        return await until(look, what=f"{key} to say {status}")


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[GatedLab]:
    made = GatedLab(client, namespace)
    await made.publish()
    yield made
    await made.clean()


async def test_what_cel_selects_is_rehearsed_then_isolated_after_approval(served: ControlPlane, lab: GatedLab) -> None:
    await lab.hold("train", "gpu-3")
    async with an_operator(served):
        cel = {"cel": {"expression": f'device.driver == "{lab.driver}"'}}
        key = await lab.ask("cel", {"pool": lab.pool, "selectors": [cel]}, approval="Required", allowMostOfClass=True)
        waits = await lab.reason(key, "NotApproved")
        assert waits.status.phase is MaintenancePhase.REHEARSED
        assert waits.status.rehearsal is not None
        assert (waits.status.rehearsal.devices, waits.status.rehearsal.claims) == (8, 1)
        assert await lab.rules() == []
        await lab.client.patch(DEVICE_MAINTENANCES, key, {"spec": {"approved": True}})
        begun = await lab.phase(key, MaintenancePhase.ISOLATED)
        assert len(begun.status.devices) == len(await lab.rules()) == 8
        assert begun.status.isolated_at is not None


async def test_what_does_not_compile_says_where(served: ControlPlane, lab: GatedLab) -> None:
    async with an_operator(served):
        key = await lab.ask("typo", {"selectors": [{"cel": {"expression": "device.drivr == 1"}}]})
        wrong = await lab.reason(key, "InvalidSelector")
        assert wrong.status.phase is MaintenancePhase.PENDING
        assert "selectors[0] does not compile: at 1:7" in wrong.status.message


async def test_most_of_a_class_is_taken_only_with_a_permit(served: ControlPlane, lab: GatedLab) -> None:
    name = await lab.a_class()
    async with an_operator(served):
        key = await lab.ask("most", {"pool": lab.pool, "deviceClassName": name})
        refused = await lab.reason(key, "MostOfClass")
        assert f"of DeviceClass {name}, which is more than half" in refused.status.message
        assert await lab.rules() == []
        await lab.client.patch(DEVICE_MAINTENANCES, key, {"spec": {"allowMostOfClass": True}})
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)


async def test_a_budget_lets_one_after_the_other_begin_the_oldest_first(served: ControlPlane, lab: GatedLab) -> None:
    budget = await lab.budget(maxDevices=1)
    async with an_operator(served):
        first = await lab.ask_for("one", "gpu-1")
        await lab.phase(first, MaintenancePhase.IN_MAINTENANCE)
        second = await lab.ask_for("two", "gpu-2")
        waits = await lab.reason(second, "BudgetUsedUp")
        assert waits.status.phase is MaintenancePhase.REHEARSED
        assert budget.name in waits.status.message
        said = await lab.budget_says(budget, out_of_service=1, waiting=1)
        assert said.status.devices
        await lab.finish(first)
        await lab.phase(second, MaintenancePhase.IN_MAINTENANCE)
        assert len(await lab.rules()) == 1
        await lab.client.patch(DEVICE_MAINTENANCES, second, {"spec": {"cancelled": True}})
        await lab.phase(second, MaintenancePhase.CANCELLED)
        await lab.budget_says(budget, out_of_service=0, waiting=0)


async def test_a_paused_budget_stops_what_has_not_begun(served: ControlPlane, lab: GatedLab) -> None:
    budget = await lab.budget(paused=True)
    async with an_operator(served):
        key = await lab.ask_for("one", "gpu-1")
        await lab.reason(key, "Paused")
        await lab.client.patch(MAINTENANCE_BUDGETS, budget, {"spec": {"paused": False}})
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)


async def test_two_operators_never_let_more_begin_than_the_budget_allows(served: ControlPlane, lab: GatedLab) -> None:
    await lab.budget(maxDevices=2)
    async with an_operator(served), an_operator(served):
        keys = [await lab.ask_for(f"many-{number}", f"gpu-{number}") for number in range(6)]
        most = 0

        async def done() -> bool:
            nonlocal most
            most = max(most, len(await lab.rules()))
            # Requests of the same second have the same age: any of them may be first.
            requests = [await lab.client.get(DEVICE_MAINTENANCES, key) for key in keys]
            for key, request in zip(keys, requests, strict=True):
                if request.status.phase is MaintenancePhase.IN_MAINTENANCE:
                    await lab.finish(key)
            return all(request.status.phase is MaintenancePhase.COMPLETED for request in requests)

        await until(done, what="all to be completed")
        assert most == 2


async def test_nothing_is_begun_with_while_a_pool_is_between_two_generations(
    served: ControlPlane, lab: GatedLab
) -> None:
    await lab.budget(maxDevices=2, per="Node")
    await lab.hold("train", "gpu-3")
    newer = [
        a_slice(lab.pool, devices, driver=lab.driver, name=name, generation=2, of=2)
        for name, devices in ((lab.pool, ["gpu-0"]), (f"{lab.pool}-1", [f"gpu-{number}" for number in range(1, 8)]))
    ]
    await lab.client.patch(SLICES, ObjectKey("", lab.pool), {"spec": as_json(newer[0].spec)})
    async with an_operator(served):
        key = await lab.ask("pool", {"driver": lab.driver, "pool": lab.pool}, allowMostOfClass=True)
        await lab.reason(key, "PoolIncomplete")
        assert await lab.rules() == []
        await lab.client.create(SLICES, newer[1])
        waits = await lab.reason(key, "NeverFits")
        assert (waits.status.phase, await lab.rules()) == (MaintenancePhase.REHEARSED, [])
