"""What is published, and what is written if the API server has something else."""

import msgspec
import pytest

from draco.agent.hardware.gpus import DriverInfo, FabricPlace
from draco.agent.publish import slices
from draco.agent.publish.offering import Offering
from draco.agent.publish.slices import Publisher
from draco.resources.api.slices import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    ResourcePool,
    ResourceSlice,
)
from draco.resources.api.taints import DeviceTaint
from draco.selectors import known_names
from tests.builders import MOMENT, a_device, a_gpu, a_slice

DRIVER = DriverInfo("580.65.06", "13.0", "13.580.65.06")
BY = Publisher(node="node-0", uid="uid-0", driver="gpu.nvidia.com")


def some_devices(count: int) -> list[Device]:
    return [slices.device(a_gpu(minor), DRIVER) for minor in range(count)]


def stored(plan: slices.SlicePlan, observed: list[ResourceSlice] | None = None) -> list[ResourceSlice]:
    """The API server's slices after the plan was executed."""
    gone = {one.metadata.name for one in (*plan.delete, *plan.replace)}
    kept = [one for one in observed or [] if one.metadata.name not in gone]
    return [
        *kept,
        *(
            msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, uid="u", resource_version="7"))
            for one in (*plan.replace, *plan.create)
        ),
    ]


def published(devices: list[Device]) -> list[ResourceSlice]:
    return stored(slices.plan(devices, [], by=BY))


def test_a_gpu_has_nvidias_names_and_the_standard_attributes() -> None:
    gpu = a_gpu(3, addressing_mode="HMM", pcie_root="pci0000:15", numa_node=0)
    assert slices.device(gpu, DRIVER) == Device(
        name="gpu-3",
        attributes={
            "type": DeviceAttribute(string="gpu"),
            "uuid": DeviceAttribute(string=gpu.uuid),
            "productName": DeviceAttribute(string="NVIDIA H100 80GB HBM3"),
            "brand": DeviceAttribute(string="Nvidia"),
            "architecture": DeviceAttribute(string="Hopper"),
            "addressingMode": DeviceAttribute(string="HMM"),
            "cudaComputeCapability": DeviceAttribute(version="9.0.0"),
            "driverVersion": DeviceAttribute(version="580.65.6"),
            "cudaDriverVersion": DeviceAttribute(version="13.0.0"),
            "resource.kubernetes.io/pciBusID": DeviceAttribute(string="0000:1e:00.0"),
            "resource.kubernetes.io/pcieRoot": DeviceAttribute(string="pci0000:15"),
            "resource.kubernetes.io/numaNode": DeviceAttribute(int_=0),
        },
        capacity={"memory": DeviceCapacity(value="81559Mi")},
    )


def test_whatever_is_published_is_known_to_the_linter() -> None:
    gpu = a_gpu(addressing_mode="HMM", fabric=FabricPlace("c1c1c1c1-0000-4000-8000-000000000001", 3))
    device = slices.device(msgspec.structs.replace(gpu, pcie_root="pci0000:15", numa_node=0), DRIVER)
    for name in device.attributes:
        domain, _, plain = name.rpartition("/")
        assert plain in (known_names.STANDARD if domain else known_names.ATTRIBUTES), name
    assert device.capacity.keys() <= known_names.CAPACITIES


def test_what_is_unknown_is_not_published() -> None:
    attributes = slices.device(a_gpu(0), DriverInfo("unknown", "13.0", "13")).attributes
    assert not {"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode", "addressingMode"} & set(
        attributes
    )
    assert "driverVersion" not in attributes


@pytest.mark.parametrize(
    ("text", "semantic"),
    [
        ("580.65.06", "580.65.6"),
        ("12.8", "12.8.0"),
        ("550.54.15", "550.54.15"),
        ("535", "535.0.0"),
        ("", None),
        ("x.y", None),
    ],
)
def test_driver_versions_become_semantic_ones(text: str, semantic: str | None) -> None:
    assert slices.version(text) == semantic


def test_devices_stand_in_the_order_of_their_minor_numbers() -> None:
    gpus = [a_gpu(minor) for minor in (10, 2, 0)]
    offer = Offering().offer(gpus, DRIVER, migs={}, wanted={}, now_s=0.0)
    assert [one.name for one in offer.devices] == ["gpu-0", "gpu-2", "gpu-10"]


def test_a_slice_holds_128_devices_and_64_when_any_has_a_taint() -> None:
    devices = some_devices(130)
    assert [len(part.devices) for part in slices.split(devices)] == [128, 2]
    devices[5] = msgspec.structs.replace(devices[5], taints=[DeviceTaint(key="example.com/x", effect="NoSchedule")])
    assert [len(part.devices) for part in slices.split(devices)] == [64, 64, 2]


def test_a_slice_holds_64_devices_when_any_draws_from_counters_and_counters_come_first_in_slices_of_their_own() -> None:
    drawn = {"memory-slice-0": Counter(value="1")}
    draws = [DeviceCounterConsumption(counter_set="gpu-0-counter-set", counters=drawn)]
    devices = [*some_devices(129), a_device("part", consumes_counters=draws)]
    counters = [CounterSet(name=f"gpu-{minor}-counter-set", counters=drawn) for minor in range(9)]
    parts = slices.split(devices, counters)
    assert [(len(part.shared_counters), len(part.devices)) for part in parts] == [
        (8, 0),
        (1, 0),
        (0, 64),
        (0, 64),
        (0, 2),
    ]


def test_no_gpus_is_one_empty_slice() -> None:
    [only] = published([])
    assert only.spec.devices == []
    assert only.spec.pool == ResourcePool(name="node-0", generation=1, resource_slice_count=1)


def test_slice_names_are_in_the_order_of_the_devices_and_never_too_long() -> None:
    for node in ("node-0", "n" * 253):
        names = [slices.slice_name(node, "gpu.nvidia.com", index) for index in range(12)]
        assert names == sorted(names)
        assert len(set(names)) == 12
        assert max(map(len, names)) <= 253
    assert slices.slice_name("n" * 252, "d", 0) != slices.slice_name("n" * 253, "d", 0)


def test_nothing_is_written_when_nothing_changed() -> None:
    devices = some_devices(130)
    observed = published(devices)
    plan = slices.plan(devices, observed, by=BY, last_generation=1)
    assert plan.empty
    assert plan.generation == 1


def test_the_generation_grows_when_a_device_changes_and_all_slices_get_it() -> None:
    observed = published(some_devices(130))
    plan = slices.plan(some_devices(129), observed, by=BY)
    assert [one.spec.pool.generation for one in plan.replace] == [2, 2]
    assert [one.metadata.resource_version for one in plan.replace] == ["7", "7"]
    assert slices.plan(some_devices(129), stored(plan, observed), by=BY).empty


def test_slices_that_are_no_longer_needed_are_deleted() -> None:
    observed = published(some_devices(130))
    plan = slices.plan(some_devices(2), observed, by=BY)
    assert [one.metadata.name for one in plan.delete] == [slices.slice_name("node-0", "gpu.nvidia.com", 1)]
    assert {one.spec.pool.generation for one in stored(plan, observed)} == {2}


def test_a_slice_that_somebody_deleted_comes_back_in_the_same_generation() -> None:
    devices = some_devices(130)
    first, second = published(devices)
    plan = slices.plan(devices, [first], by=BY, last_generation=1)
    assert [one.metadata.name for one in plan.create] == [second.metadata.name]
    assert not plan.replace
    assert plan.generation == 1
    everything = slices.plan(devices, [], by=BY, last_generation=5)
    assert everything.generation == 5


def test_a_change_that_was_interrupted_is_completed_in_its_generation() -> None:
    devices = some_devices(129)
    observed = published(some_devices(130))
    half = slices.plan(devices, observed, by=BY)
    after = stored(msgspec.structs.replace(half, replace=half.replace[:1]), observed)
    rest = slices.plan(devices, after, by=BY)
    assert rest.generation == 2
    assert [one.metadata.name for one in rest.replace] == [half.replace[1].metadata.name]


def test_slices_of_an_earlier_installation_are_superseded_and_deleted() -> None:
    old = a_slice("node-0", ["gpu-0"], name="node-0-gpu.nvidia.com-x7k2p", generation=41)
    plan = slices.plan(some_devices(1), [old], by=BY)
    assert plan.create[0].spec.pool.generation == 42
    assert plan.delete == [old]
    assert slices.plan(some_devices(1), stored(plan, [old]), by=BY).empty


def test_a_slice_of_ours_that_somebody_edited_is_put_right_in_a_new_generation() -> None:
    devices = some_devices(2)
    [ours] = published(devices)
    edited = msgspec.structs.replace(ours, spec=msgspec.structs.replace(ours.spec, devices=devices[:1]))
    plan = slices.plan(devices, [edited], by=BY)
    assert plan.replace[0].spec.devices == devices
    assert plan.generation == 2


def test_a_new_node_of_the_old_name_becomes_the_owner_without_a_new_generation() -> None:
    devices = some_devices(2)
    plan = slices.plan(devices, published(devices), by=Publisher(node="node-0", uid="uid-1", driver="gpu.nvidia.com"))
    assert [owner.uid for owner in plan.replace[0].metadata.owner_references] == ["uid-1"]
    assert plan.generation == 1


def test_a_slice_of_another_pool_under_our_name_is_deleted_before_ours_is_made() -> None:
    name = slices.slice_name("node-0", "gpu.nvidia.com", 0)
    foreign = a_slice("node-0", ["gpu-0"], pool="elsewhere", name=name)
    plan = slices.plan(some_devices(1), [foreign], by=BY)
    assert plan.delete == [foreign]
    assert not plan.create
    assert slices.plan(some_devices(1), [], by=BY).create


def test_the_time_the_server_adds_to_a_taint_is_no_change() -> None:
    def tainted(**time: object) -> list[Device]:
        taint = DeviceTaint(key="example.com/x", effect="NoSchedule", **time)  # type: ignore[arg-type]
        return [msgspec.structs.replace(some_devices(1)[0], taints=[taint])]

    [ours] = published(tainted())
    seen = msgspec.structs.replace(ours, spec=msgspec.structs.replace(ours.spec, devices=tainted(time_added=MOMENT)))
    assert slices.plan(tainted(), [seen], by=BY).empty


def test_a_plan_reads_as_a_sentence() -> None:
    assert str(slices.plan(some_devices(1), [], by=BY)) == "generation 1: replace 0, create 1, delete 0"


def test_a_gpu_of_which_little_is_known_is_published_with_that() -> None:
    bare = a_gpu(
        0,
        product_name="",
        brand="",
        architecture="",
        compute_major=None,
        compute_minor=None,
        memory_bytes=None,
        pci_bus_id="000f:01:00.0",
    )
    device = slices.device(bare, DriverInfo("r590-beta", "", ""))
    assert device.capacity == {}
    assert {name: one.value for name, one in device.attributes.items()} == {
        "type": "gpu",
        "uuid": bare.uuid,
        "resource.kubernetes.io/pciBusID": "000f:01:00.0",
    }


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("580.95.05", "580.95.5"),
        ("610.43", "610.43.0"),
        ("570.86.16-grid", "570.86.16-grid"),
        ("535.129.03.01", None),
        ("r590-beta", None),
        ("18446744073709551616.1.1", None),
        ("5" * 80, None),
        ("", None),
    ],
)
def test_a_version_that_kubernetes_cannot_keep_is_left_out_and_that_is_said(text: str, published: str | None) -> None:
    assert slices.version(text) == published
    said = slices.unpublishable(DriverInfo(text, "13.0", ""))
    assert (
        said == []
        if published
        else [each.partition(": ")[2].startswith(text or "an empty text is") for each in said] == [True]
    )
