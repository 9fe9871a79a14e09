"""What is remembered of the fleet for maintenance is right after every change, and is deleted with its object."""

from typing import cast

from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.maintenance.rehearsals import Rehearsals
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.resources.api.core import PodStatus
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_budget, a_claim, a_device, a_device_class, a_maintenance, a_pod, a_slice
from tests.doubles.clock import ManualClock
from tests.doubles.reached import grown, reached_from
from tests.unit.controller.watching import forget, tell


async def test_a_class_has_the_gpus_that_it_says_now_and_is_forgotten_with_its_object() -> None:
    clock = ManualClock()
    view = ClusterView(cast("Client", None), TAINT_RULES[1], clock=clock)
    fleet = MaintenanceFleet(view)
    tell(view, a_slice("node-0", [a_device("gpu-0")]))
    held = []
    for number in range(20):
        for expression, gpus in (("true", 1), ("false", 0), ("true", 1)):
            made = a_device_class(f"class-{number}", selector=expression)
            tell(view, made)
            assert len(await fleet.of_class(made.metadata.name)) == gpus
        forget(view, made)
        view.followed.next_changes(most=100)
        held.append(reached_from(fleet, but=(float, int)))
    assert grown(held[0], held[-1], by=0) == {}


async def test_a_rehearsal_names_budgets_that_change_all_the_time_only_every_30_seconds() -> None:
    """Each change would be a write."""
    clock = ManualClock()
    view = ClusterView(cast("Client", None), TAINT_RULES[1], clock=clock)
    rehearsals = Rehearsals(view, MaintenanceFleet(view))
    pod = a_pod("pod", node="node-0", claims=["claim"], status=PodStatus(phase="Running"))
    tell(view, a_slice("node-0"), a_claim("claim", on=["node-0/gpu-0"], reserved_for=["pod"]), pod, a_budget(allows=0))

    async def blocking() -> list[str]:
        found = await rehearsals.of(a_maintenance(driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0"))
        assert found.summary is not None
        return found.summary.blocking_budgets

    assert await blocking() == ["default/budget"]
    tell(view, a_budget(allows=1))
    await clock.advance(29)
    assert await blocking() == ["default/budget"]
    await clock.advance(1)
    assert await blocking() == []
