"""What is remembered of the fleet for maintenance is right after every change, and is deleted with its object."""

from typing import cast

from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.resources.kinds import TAINT_RULES
from tests.builders import a_device, a_device_class, a_slice
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
