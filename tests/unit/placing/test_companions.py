"""Pods that also have kube-scheduler's claims: Draco takes a node with devices for all, and there the nearest devices."""

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.placing.groups.group import ClaimGroup, GroupMember
from draco.placing.groups.place import place
from draco.resources.api.slices import Device, DeviceAttribute, ResourceSlice
from draco.resources.names import STANDARD_PCIE_ROOT
from tests.builders import a_claim, a_device_class, a_node, a_pod, a_slice
from tests.doubles.placing import a_placer
from tests.unit.placing.test_place import CLASS, ours

NICS = "nic.example.com"
ROOTS = ("pci0000:15", "pci0000:26", "pci0000:37")
Where = list[str]


def on(device: Device, root: str) -> Device:
    attributes = {**device.attributes, STANDARD_PCIE_ROOT: DeviceAttribute(string=root)}
    return msgspec.structs.replace(device, attributes=attributes)


def cards(node: str, *roots: str) -> ResourceSlice:
    """Network cards on these PCIe roots, in this order."""
    found = [on(Device(name=f"nic-{number}"), root) for number, root in enumerate(roots)]
    return a_slice(node, found, driver=NICS)


def a_fleet(*slices: ResourceSlice) -> Fleet:
    """Two nodes, each with three GPUs that Draco allocates, and the slices of network cards."""
    device_class = a_device_class(CLASS)
    labels = {"draco.dev/allocator": "operator"}
    meta = msgspec.structs.replace(device_class.metadata, labels=labels)
    names = [f"node-{number}" for number in range(2)]
    gpus = [on(ours(f"gpu-{number}"), root) for number, root in enumerate(ROOTS)]
    return Fleet.of(
        nodes=[a_node(name) for name in names],
        slices=[*(a_slice(name, gpus) for name in names), *slices],
        classes=[
            msgspec.structs.replace(device_class, metadata=meta),
            a_device_class(NICS, selector=f"device.driver == '{NICS}'"),
        ],
    )


def sender(name: str) -> GroupMember:
    """A pod that wants a GPU and a network card."""
    card = a_claim(f"{name}-card", device_class=NICS)
    return GroupMember([a_claim(name, device_class=CLASS)], [a_pod(name)], others=[card])


def places(fleet: Fleet, *groups: ClaimGroup) -> list[Where]:
    return [
        [f"{each.pool}/{each.device}" for results in found.results for one in results for each in one.devices.results]
        for found in place(a_placer(fleet), groups, [])
    ]


def test_a_pod_gets_the_gpu_that_is_nearest_to_the_card_that_the_scheduler_will_give_it() -> None:
    fleet = a_fleet(cards("node-0", ROOTS[2], ROOTS[0]))
    assert places(fleet, ClaimGroup([sender("a")])) == [["node-0/gpu-2"]]


def test_a_node_without_a_card_is_left_out() -> None:
    fleet = a_fleet(cards("node-1", ROOTS[1]))
    assert places(fleet, ClaimGroup([sender("a")])) == [["node-1/gpu-1"]]


def test_pods_that_are_placed_together_do_not_count_on_the_same_card() -> None:
    fleet = a_fleet(cards("node-0", ROOTS[2]), cards("node-1", ROOTS[1]))
    assert places(fleet, ClaimGroup([sender("a"), sender("b")], 2)) == [["node-0/gpu-2", "node-1/gpu-1"]]
    assert places(fleet, ClaimGroup([sender("a")]), ClaimGroup([sender("b")])) == [["node-0/gpu-2"], ["node-1/gpu-1"]]


def test_a_group_of_which_one_finds_no_card_gets_nothing_and_what_was_foreseen_for_it_is_free_again() -> None:
    fleet = a_fleet(cards("node-0", ROOTS[2]))
    group = ClaimGroup([sender("a"), sender("b")], 2, name="PodGroup default/train")
    (whole, alone) = place(a_placer(fleet), [group, ClaimGroup([sender("c")])], [])
    assert whole.results == []
    assert whole.why_not.endswith(
        "No node with Draco's devices also has devices for default/b-card, which kube-scheduler allocates."
    )
    assert not whole.is_hopeless
    assert [each.device for one in alone.results[0] for each in one.devices.results] == ["gpu-2"]
    assert place(a_placer(fleet), [ClaimGroup([sender("c")])], [])[0].results


def test_the_card_that_is_missing_is_named() -> None:
    (found,) = place(a_placer(a_fleet()), [ClaimGroup([sender("a")])], [])
    assert (found.results, found.why_not) == (
        [],
        "No node with Draco's devices also has devices for default/a-card, which kube-scheduler allocates.",
    )


def test_a_card_of_no_known_class_is_said() -> None:
    member = msgspec.structs.replace(sender("a"), others=[a_claim("card", device_class="typo.example.com")])
    (found,) = place(a_placer(a_fleet()), [ClaimGroup([member])], [])
    assert found.results == []
    assert "typo.example.com" in found.why_not


def test_members_that_share_a_claim_of_the_schedulers_are_where_its_device_is() -> None:
    fleet = a_fleet(cards("node-1", ROOTS[1]))
    card = a_claim("card", device_class=NICS)
    one, other = (msgspec.structs.replace(sender(name), others=[card]) for name in ("a", "b"))
    (found,) = places(fleet, ClaimGroup([one, other], 2))
    assert found[0] == "node-1/gpu-1"
    assert found[1].startswith("node-1/")
