"""Which slices of a pool count when several nodes publish under its name."""

import random

import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.hardware import PoolHardware
from draco.allocation.fleet.pools import SliceState
from draco.allocation.fleet.supply import SupplyState, count_supply
from draco.maintenance.selecting.matching import scope_of
from draco.resources.api.maintenance import MaintenanceSelector
from draco.resources.api.slices import (
    Device,
    DeviceAttribute,
    ResourceSlice,
    current_slices,
    own_slices,
    publications,
    strangers,
)
from draco.resources.names import NVIDIA_DRIVER, DeviceKey, PoolKey
from tests.builders import a_node, a_slice

NEWEST = 10**9
POOL = PoolKey(NVIDIA_DRIVER, "node-a")
REAL = a_slice("node-a", ["gpu-0", "gpu-1"], generation=3)


def an_intruder(generation: int = NEWEST, of: int = 1, devices: tuple[str, ...] = ("gpu-0",)) -> ResourceSlice:
    """A slice that node-b publishes under the name of node-a's pool."""
    return a_slice("node-b", devices, pool="node-a", name="intruder", generation=generation, of=of)


def names(slices: list[ResourceSlice]) -> set[str]:
    return {item.metadata.name for item in slices}


@pytest.mark.parametrize("intruder", [an_intruder(), an_intruder(generation=3), an_intruder(of=2), an_intruder(1)])
def test_a_pool_is_not_hidden_by_another_node_that_publishes_under_its_name(intruder: ResourceSlice) -> None:
    slices = [REAL, intruder]
    assert REAL.metadata.name in names(current_slices(slices)[POOL])
    scope = scope_of(MaintenanceSelector(pool="node-a", device="gpu-1"), {POOL: PoolHardware(slices)})
    assert scope.named == {DeviceKey(*POOL, "gpu-1")}
    nodes = {name: a_node(name) for name in ("node-a", "node-b")}
    assert count_supply(slices, [], [], nodes)[NVIDIA_DRIVER, SupplyState.FREE] >= 2
    fleet = Fleet.of(slices=slices, nodes=nodes.values())
    inventory = fleet.inventory
    slice_states = {inventory.entry(row).name: inventory.slice_states[row] for row in range(3)}
    assert slice_states[REAL.metadata.name] == SliceState.CURRENT
    (view,) = inventory.views(nodes["node-a"])
    assert [candidate.key.device for candidate in view.candidates] == ["gpu-0", "gpu-1"]


def test_a_gpu_is_what_its_own_node_says_and_not_what_another_says_under_its_name() -> None:
    def gpu(uuid: str) -> Device:
        return Device(name="gpu-0", attributes={"uuid": DeviceAttribute(string=uuid)})

    intruder = a_slice("node-b", [gpu("GPU-false")], pool="node-a", name="intruder", generation=NEWEST)
    assert PoolHardware([a_slice("node-a", [gpu("GPU-true")]), intruder]).board("gpu-0") == "GPU-true"


def test_a_slice_of_a_pool_in_parts_counts_for_its_node_although_another_is_newer() -> None:
    parts = [a_slice("node-a", [f"gpu-{n}"], name=f"part-{n}", generation=3, of=2) for n in range(2)]
    assert names(current_slices([*parts, an_intruder()])[POOL]) == {"part-0", "part-1", "intruder"}
    # While the pool is republished, the scheduler uses the intruder's slice.
    assert names(current_slices([parts[0], an_intruder()])[POOL]) == {"intruder"}


def test_a_pool_over_several_nodes_has_one_publication() -> None:
    def on(node: str, generation: int) -> ResourceSlice:
        return a_slice(node, pool="fabric", name=f"{node}-{generation}", generation=generation, of=3)

    pool = PoolKey(NVIDIA_DRIVER, "fabric")
    whole = [on(f"node-{n}", 1) for n in range(3)]
    (publication,) = publications(whole)[pool]
    assert (len(publication.slices), publication.complete) == (3, True)
    half_updated = [on("node-0", 1), on("node-1", 1), on("node-2", 2)]
    (publication,) = publications(half_updated)[pool]
    assert (names(publication.slices), publication.complete) == ({"node-2-2"}, False)


def test_who_publishes_under_a_nodes_name_is_a_stranger() -> None:
    assert names(strangers([REAL, an_intruder()])) == {"intruder"}
    everywhere = a_slice("", pool="node-a", name="everywhere", all_nodes=True)
    assert names(strangers([REAL, everywhere])) == {"everywhere"}
    assert strangers([a_slice("node-a", pool="fabric"), a_slice("node-b", pool="fabric")]) == []


def test_a_nodes_own_slices_are_its_newest() -> None:
    older = a_slice("node-a", generation=2)
    assert own_slices([older, REAL, an_intruder()], "node-a") == [REAL]
    assert own_slices([an_intruder()], "node-a") == []


@pytest.mark.parametrize("number", range(300))
def test_what_some_node_sees_counts_and_nothing_is_both_counted_and_obsolete(number: int) -> None:
    source = random.Random(number)
    nodes = [a_node(f"node-{n}") for n in range(3)]
    slices = [
        a_slice(
            node := source.choice(["node-0", "node-1", "node-2", ""]),
            [f"gpu-{place}"],
            pool="p",
            name=f"slice-{place}",
            generation=source.randint(1, 2),
            of=source.randint(1, 2),
            all_nodes=None if node else True,
        )
        for place in range(source.randint(1, 4))
    ]
    fleet = Fleet.of(slices=slices, nodes=nodes)
    seen = {
        candidate.key.device for node in nodes for view in fleet.inventory.views(node) for candidate in view.candidates
    }
    current = {
        device.name
        for published in publications(slices).values()
        for each in published
        if each.complete
        for item in each.slices
        for device in item.spec.devices
    }
    assert seen <= current
    slice_states = fleet.inventory.slice_states
    rows = [row for row in range(len(slice_states)) if fleet.inventory.columns.live[row]]
    assert current == {fleet.inventory.key(row).device for row in rows if slice_states[row] == SliceState.CURRENT}
