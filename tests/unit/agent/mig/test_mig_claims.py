"""Claims of partitions on simulated NVML: what is created, what is refused, and what stays or goes when they end."""

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from draco.agent.errors import InstanceHeld, PrepareError
from draco.agent.hardware.gpus import Gpu, Instance, Use
from draco.agent.mig.claim_instances import PATIENCE_S
from draco.agent.mig.inventory import GpuInventory
from draco.agent.mig.ownership import recognised
from draco.agent.record.contents import InstanceState, OwnedInstance
from draco.mig.keeping import KeptInstances
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import ClaimUid, GpuUuid
from draco_local.simulator.accidents import by_hand, faults, hotplug
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.gpu_state import GpuProcess
from tests.builders import a_claim
from tests.doubles.files import FullCopyOnWriteDisk
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

ONE = a_mig_claim("one", *names([(9, 4)]))
TWO = a_mig_claim("two", *names([(9, 0), (19, 4)]))
WHOLE = a_claim("whole", on=["node-0/gpu-0"])


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path)


def uid(claim: ResourceClaim) -> ClaimUid:
    return ClaimUid(claim.metadata.uid)


def spec(node: MigNode, claim: ResourceClaim) -> Any:
    return json.loads(node.specs()[claim.metadata.uid])


# Preparing


def test_a_partition_is_made_where_it_was_allocated_and_given_with_the_nodes_that_open_it(node: MigNode) -> None:
    prepared = node.prepare(ONE)
    assert node.real() == [(9, 4, 1)]
    [made] = node.hardware().instances
    [device] = prepared.devices
    assert device.partition
    assert device.partition.uuid == made.compute[0].uuid
    [edits] = [one["containerEdits"] for one in spec(node, ONE)["devices"]]
    first = 3 + made.id * 9  # the driver numbers nine device nodes for each GPU instance
    assert edits == {
        "env": [f"DRACO_DEVICE_GPU_0_MIG_3G40GB_9_4={made.compute[0].uuid}"],
        "deviceNodes": [
            {"path": "/dev/nvidia0"},
            {"path": f"/dev/nvidia-caps/nvidia-cap{first}"},
            {"path": f"/dev/nvidia-caps/nvidia-cap{first + 1}"},
        ],
    }


def test_the_largest_instance_of_a_claim_is_made_first(node: MigNode) -> None:
    node.prepare(a_mig_claim("mixed", *names([(19, 6), (14, 4), (9, 0)])))
    assert node.real() == [(9, 0, 1), (14, 4, 1), (19, 6, 1)]


def test_preparing_again_makes_nothing_more(node: MigNode) -> None:
    first = node.prepare(TWO)
    assert node.prepare(TWO) == first
    assert len(node.real()) == 2


def test_partitions_that_share_units_are_never_given_to_two_claims(node: MigNode) -> None:
    node.prepare(TWO)
    with pytest.raises(PrepareError, match="gpu-0-mig-1g10gb-19-4 is still prepared for claim default/two"):
        node.prepare(ONE)
    node.unprepare(TWO)
    node.prepare(ONE)
    assert node.real() == [(9, 4, 1)]


def test_partitions_beside_each_other_are(node: MigNode) -> None:
    node.prepare(ONE)
    node.prepare(a_mig_claim("left", *names([(9, 0)])))
    assert node.real() == [(9, 4, 1), (9, 0, 1)]


def test_a_whole_gpu_and_its_partitions_exclude_each_other(node: MigNode) -> None:
    node.prepare(ONE)
    with pytest.raises(PrepareError, match="gpu-0-mig-3g40gb-9-4 is still prepared for claim default/one"):
        node.prepare(WHOLE)
    node.unprepare(ONE)
    node.prepare(WHOLE)
    assert node.hardware().mig_current == 0
    with pytest.raises(PrepareError, match="gpu-0 is still prepared for claim default/whole"):
        node.prepare(ONE)


def test_mig_mode_is_turned_on_for_a_partition_where_that_needs_no_reset(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path)
    node.prepare(ONE)
    assert node.real() == [(9, 4, 1)]


def test_mig_mode_that_needs_a_reset_is_left_alone_and_the_reason_told(tmp_path: Path) -> None:
    build(tmp_path, board="A100-80GB", mig=False)
    node = MigNode(tmp_path)
    with pytest.raises(PrepareError, match="whose MIG mode is off, and turning it on needs a reset"):
        node.prepare(a_mig_claim("one", *names([(9, 4)], gpu=node.gpus[0].minor)))
    assert (node.hardware().mig_current, node.hardware().mig_pending) == (0, 0)
    assert not node.record.claims


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("gpu-7-mig-3g40gb-9-4", "gpu-7-mig-3g40gb-9-4, which this node does not have"),
        ("gpu-0-mig-3g40gb-9-2", r"GPU gpu-0 \(NVIDIA H100 80GB HBM3\) has no such MIG partition"),
        ("gpu-0-mig-9g-99-0", "has no such MIG partition"),
    ],
)
def test_a_partition_that_cannot_exist_is_refused_with_a_reason(node: MigNode, device: str, sentence: str) -> None:
    with pytest.raises(PrepareError, match=sentence):
        node.prepare(a_mig_claim("c", device))
    assert not node.record.claims


# Unpreparing


def test_giving_up_destroys_the_instances_and_leaves_nothing(node: MigNode) -> None:
    node.prepare(TWO)
    node.unprepare(TWO)
    assert (node.real(), node.specs(), dict(node.record.claims), dict(node.record.instances)) == ([], {}, {}, {})


def test_a_warm_instance_is_kept_and_given_to_the_next_claim(node: MigNode) -> None:
    node.keep = KeptInstances(counts={9: 1})
    uuid = node.prepare(ONE).devices[0].partition
    node.unprepare(ONE)
    assert node.uses() == [(9, 4, Use.WARM)]
    assert node.prepare(a_mig_claim("next", *names([(9, 4)]))).devices[0].partition == uuid


def test_a_warm_instance_gives_way_to_another_partition(node: MigNode) -> None:
    node.keep = KeptInstances(counts={9: 1})
    node.prepare(ONE)
    node.unprepare(ONE)
    node.prepare(a_mig_claim("small", *names([(19, 5)])))
    assert node.real() == [(19, 5, 1)]


# In use


def a_holder(node: MigNode, **fields: Any) -> None:
    instance = node.hardware().instances[0]
    faults.hold(node.path, 0, GpuProcess(pid=4711, gpu_instance=instance.id, **fields))


def test_a_claim_whose_instance_is_in_use_is_given_up_only_when_that_was_published_for_long(node: MigNode) -> None:
    node.prepare(ONE)
    a_holder(node, listed=False)
    for _ in range(2):
        with pytest.raises(InstanceHeld, match="is in use by a process that NVML does not list"):
            node.unprepare(ONE)
        assert node.specs() == {}
        assert node.mig.divisions[node.uuid].dirty
        node.now_s += PATIENCE_S * 0.6
    node.unprepare(ONE)  # kubelet need not wait longer, and the memory slices stay blocked
    assert not node.record.claims
    assert node.uses() == [(9, 4, Use.ORPHAN)]
    with pytest.raises(PrepareError, match="no claim uses it any more, but it is in use"):
        node.prepare(a_mig_claim("next", *names([(9, 4)])))
    faults.release(node.path, 4711)
    node.layouts.keep(node.uuid)
    assert (node.real(), node.mig.divisions[node.uuid].dirty) == ([], False)


def test_a_claim_of_which_one_instance_is_in_use_is_not_forgotten_for_those_that_are_gone(node: MigNode) -> None:
    node.prepare(TWO)
    [small] = [one for one in node.hardware().instances if one.start == 4]
    faults.hold(node.path, 0, GpuProcess(pid=4711, gpu_instance=small.id, listed=False))
    for _ in range(2):
        with pytest.raises(InstanceHeld, match=r"its instance 1g\.10gb at 4 is in use"):
            node.unprepare(TWO)
    assert node.real() == [(19, 4, 0)]
    faults.release(node.path, 4711)
    node.unprepare(TWO)
    assert (node.real(), dict(node.record.claims)) == ([], {})


def test_who_held_an_instance_is_not_said_of_the_next_one_there(tmp_path: Path) -> None:
    build(tmp_path)
    node = MigNode(tmp_path, holder="process 4711 (train)")
    node.prepare(ONE)
    a_holder(node, listed=False)
    with pytest.raises(InstanceHeld, match=r"in use by process 4711 \(train\)"):
        node.unprepare(ONE)
    assert [one.holder for one in node.mig.divisions[node.uuid].held] == ["process 4711 (train)"]
    faults.release(node.path, 4711)
    node.prepare(ONE)
    assert [(one.use, one.holder) for one in node.mig.divisions[node.uuid].held] == [(Use.CLAIM, "")]


def test_a_claim_that_is_being_given_up_is_not_forgotten_over_a_restart(node: MigNode) -> None:
    node.prepare(ONE)
    a_holder(node, listed=False)
    with pytest.raises(InstanceHeld):
        node.unprepare(ONE)
    again = MigNode(node.folder)
    assert again.specs() == {}
    with pytest.raises(InstanceHeld):
        again.unprepare(ONE)
    faults.release(node.path, 4711)
    again.unprepare(ONE)
    assert again.real() == []


def test_a_claim_that_is_being_given_up_can_be_prepared_again(node: MigNode) -> None:
    first = node.prepare(ONE)
    a_holder(node, listed=False)
    with pytest.raises(InstanceHeld):
        node.unprepare(ONE)
    with pytest.raises(InstanceHeld):
        node.prepare(ONE)
    faults.release(node.path, 4711)
    assert node.prepare(ONE).devices[0].partition != first.devices[0].partition
    assert node.real() == [(9, 4, 1)]


def test_a_warm_instance_on_which_somebody_still_computes_is_not_given_away(node: MigNode) -> None:
    node.keep = KeptInstances(counts={9: 1})
    node.prepare(ONE)
    node.unprepare(ONE)
    a_holder(node, compute_instance=0)
    with pytest.raises(PrepareError, match="process 4711 of an earlier user still runs on it"):
        node.prepare(a_mig_claim("next", *names([(9, 4)])))


# What NVML refuses


def test_a_gpu_that_cannot_be_listed_after_a_failure_is_dirty_until_it_can(node: MigNode) -> None:
    faults.fail(node.path, "nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_UNKNOWN, effect="done")
    faults.fail(node.path, "nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_INVALID_STATE)
    with pytest.raises(PrepareError):
        node.prepare(ONE)
    assert node.mig.divisions[node.uuid].dirty
    assert node.uses() == [(9, 4, Use.ORPHAN)]
    assert "nvmlGpuInstanceDestroy" in node.mig.divisions[node.uuid].message
    faults.stop_failing(node.path)
    node.scan()
    assert node.mig.divisions[node.uuid].dirty, "what is half made is still there"
    assert "nvmlGpuInstanceDestroy" in node.mig.divisions[node.uuid].message
    node.layouts.keep(node.uuid)
    assert (node.real(), node.mig.divisions[node.uuid].dirty) == ([], False)


def test_what_is_made_and_gets_no_compute_instance_is_undone(node: MigNode) -> None:
    function, refused = "nvmlGpuInstanceCreateComputeInstance", pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    faults.fail(node.path, function, refused, times=1)
    with pytest.raises(PrepareError):
        node.prepare(ONE)
    assert (node.real(), node.mig.divisions[node.uuid].dirty) == ([], False)
    assert (dict(node.record.instances), dict(node.record.claims)) == ({}, {})
    node.prepare(ONE)


def test_a_gpu_that_left_the_node_is_forgotten_with_its_trouble(node: MigNode) -> None:
    faults.fail(node.path, "nvmlDeviceGetGpuInstances", pynvml.NVML_ERROR_INVALID_STATE)
    there = node.scan()
    assert node.mig.divisions[node.uuid].dirty
    assert node.mig.look([]) == []
    assert node.mig.divisions == {}
    faults.stop_failing(node.path)
    node.mig.look(there)
    assert not node.mig.divisions[node.uuid].dirty


def test_an_instance_that_is_gone_already_is_given_up(node: MigNode) -> None:
    node.prepare(ONE)
    by_hand.destroy_instance(node.path, 0, node.hardware().instances[0].id)
    node.unprepare(ONE)
    assert (dict(node.record.claims), dict(node.record.instances)) == ({}, {})


# Disk and record


def test_a_full_disk_leaves_nothing_of_a_partition(tmp_path: Path) -> None:
    build(tmp_path)
    files = FullCopyOnWriteDisk()
    node = MigNode(tmp_path, files=files)
    for refused in ("/state/", "/cdi/"):
        files.refused = {refused}
        with pytest.raises(PrepareError, match="No space left on device"):
            node.prepare(ONE)
        assert node.real() == []
    files.refused = set()
    node.prepare(ONE)
    files.refused = {"/state/"}
    with pytest.raises(PrepareError, match="cannot be unprepared: No space left on device"):
        node.unprepare(ONE)
    assert node.real() == [(9, 4, 1)]
    files.refused = set()
    node.unprepare(ONE)
    assert node.real() == []


def test_a_disk_too_full_to_make_a_gpu_whole_is_one_sentence_and_passes(tmp_path: Path) -> None:
    build(tmp_path)
    files = FullCopyOnWriteDisk()
    node = MigNode(tmp_path, files=files, keeping=KeptInstances(counts={9: 1}))
    node.prepare(ONE)
    node.unprepare(ONE)
    settle = node.steps.settle

    def fill_up_then(uuid: GpuUuid) -> GpuInventory:
        files.refused = {"/state/"}
        return settle(uuid)

    node.steps.settle = fill_up_then  # type: ignore[method-assign]
    with pytest.raises(
        PrepareError, match=r"cannot get the whole of gpu-0: No space left on device \(\S+\); make room or fix"
    ):
        node.prepare(WHOLE)
    files.refused, node.steps.settle = set(), settle  # type: ignore[method-assign]
    node.prepare(WHOLE)
    assert (node.real(), node.hardware().mig_current) == ([], 0)


def test_without_the_numbers_of_device_nodes_a_claim_is_refused_and_its_instance_undone(node: MigNode) -> None:
    shutil.rmtree(node.folder / "proc" / "driver")
    with pytest.raises(PrepareError, match=r"does not say which device node opens instance 2 .*\(--proc-root\)"):
        node.prepare(ONE)
    assert node.real() == []


# Recognising the agent's own instances


OWN = OwnedInstance(gpu=GpuUuid("GPU-1"), profile_id=9, start=4, size=4, state=InstanceState.MADE, boot_id="b")
THERE = Instance(gpu=GpuUuid("GPU-1"), gi=2, profile_id=9, start=4, size=4, ci=0, uuid="MIG-1", parts=1)


@pytest.mark.parametrize(
    ("own", "there", "boot", "ours"),
    [
        ({"gi": 2, "ci": 0, "uuid": "MIG-1"}, {}, "b", True),
        ({"gi": 2, "ci": 0, "uuid": "MIG-1"}, {"uuid": "MIG-2"}, "b", False),
        ({"gi": 2, "ci": 0, "uuid": "MIG-1"}, {"start": 0}, "b", False),
        ({"gi": 2, "ci": 0, "uuid": "MIG-1"}, {"ci": None, "uuid": None}, "b", True),  # half destroyed
        ({"gi": 2, "ci": 0, "uuid": "MIG-1"}, {"ci": None, "uuid": None}, "next boot", False),
        ({"gi": 2}, {}, "b", True),  # killed before it recorded the UUID
        ({"gi": 2}, {}, "next boot", False),
        ({"gi": 2}, {"gi": 3}, "b", False),
        ({}, {"ci": None, "uuid": None}, "b", True),  # killed before it recorded the number
        ({}, {}, "b", False),  # the agent's own would have no compute instance yet
        ({}, {"ci": None, "uuid": None}, "next boot", False),
    ],
)
def test_an_instance_is_ours_only_if_the_record_proves_it(
    own: dict[str, Any], there: dict[str, Any], boot: str, ours: bool
) -> None:
    replace = msgspec.structs.replace
    assert recognised(replace(OWN, **own), replace(THERE, **there), boot_id=boot) is ours


# Losing instances


def test_after_a_reboot_claims_get_new_instances_and_nodes_by_the_new_minor_numbers(tmp_path: Path) -> None:
    build(tmp_path, gpus=2)
    node = MigNode(tmp_path)
    node.prepare(ONE)
    uuid = node.uuid
    faults.reboot(node.path, minors=[1, 0])
    again = MigNode(tmp_path, boot="the next boot")
    [there] = again.hardware(0).instances
    assert (again.gpus[0].uuid, again.gpus[0].minor) == (uuid, 1)
    [edits] = [one["containerEdits"] for one in spec(again, ONE)["devices"]]
    first = 3 + (15 + there.id) * 9
    assert [one["path"] for one in edits["deviceNodes"]] == [
        "/dev/nvidia1",
        f"/dev/nvidia-caps/nvidia-cap{first}",
        f"/dev/nvidia-caps/nvidia-cap{first + 1}",
    ]
    assert edits["env"] == [f"DRACO_DEVICE_GPU_0_MIG_3G40GB_9_4={there.compute[0].uuid}"]
    assert again.real(1) == []


def test_a_claim_that_is_prepared_again_is_given_no_instance_that_is_gone(node: MigNode) -> None:
    node.prepare(ONE)
    old = node.specs()[ONE.metadata.uid]
    by_hand.destroy_instance(node.path, 0, node.hardware().instances[0].id)
    by_hand.create_instance(node.path, 0, "1g.10gb", start=5)
    with pytest.raises(
        PrepareError, match=r"has lost the GPU instance of .* The instance 3g.40gb at 4, .* cannot be made again"
    ):
        node.prepare(ONE)
    by_hand.destroy_instance(node.path, 0, node.hardware().instances[0].id)
    again = node.prepare(ONE)
    [there] = node.hardware().instances
    assert again.devices[0].partition
    assert again.devices[0].partition.uuid == there.compute[0].uuid
    assert there.compute[0].uuid in node.specs()[ONE.metadata.uid] != old


def test_who_uses_a_gpu_whose_mode_has_to_change_is_named(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path, holder="process 4711 (nv-hostengine)")
    faults.hold(node.path, 0, GpuProcess(pid=4711, listed=False))
    with pytest.raises(PrepareError, match=r"The GPU is in use by process 4711 \(nv-hostengine\)"):
        node.prepare(ONE)
    faults.release(node.path, 4711)
    by_hand.set_mode(node.path, 0, 1)
    node.scan()
    faults.hold(node.path, 0, GpuProcess(pid=4711, listed=False))
    with pytest.raises(PrepareError, match=r"the whole of gpu-0: .* in use by process 4711 \(nv-hostengine\)"):
        node.prepare(WHOLE)
    assert not node.record.claims


def test_idle_instances_are_not_made_again(node: MigNode) -> None:
    node.keep = KeptInstances(counts={9: 2})
    node.prepare(ONE)
    node.unprepare(ONE)
    assert node.real() == [(9, 4, 1)]
    faults.reload_driver(node.path)
    assert MigNode(node.folder).real() == []


def test_a_claim_whose_place_somebody_took_meanwhile_has_no_spec_and_that_is_told(node: MigNode) -> None:
    node.prepare(ONE)
    faults.reload_driver(node.path)
    by_hand.set_mode(node.path, 0, 1)
    by_hand.create_instance(node.path, 0, "1g.10gb", start=5)
    again = MigNode(node.folder)
    assert again.real() == [(19, 5, 1)]
    assert again.specs() == {}
    assert again.converged.without_instance == [ONE.metadata.uid]
    division = again.mig.divisions[again.uuid]
    assert [key.start for key in division.missing] == [4]
    assert "which a claim needs, is gone and cannot be made again: GPU instance 12" in division.message
    by_hand.destroy_instance(node.path, 0, again.hardware().instances[0].id)
    assert again.layouts.keep(again.uuid) == ""
    assert again.real() == [(9, 4, 1)]


def test_an_instance_that_lost_its_compute_instance_to_somebody_is_made_anew_for_its_claim(node: MigNode) -> None:
    node.prepare(ONE)
    [there] = node.hardware().instances
    handle = node.nvml.call("nvmlDeviceGetGpuInstanceById", node.nvml.handle(node.uuid), there.id)
    compute = node.nvml.call("nvmlGpuInstanceGetComputeInstanceById", handle, 0)
    node.nvml.call("nvmlComputeInstanceDestroy", compute)
    again = MigNode(node.folder)
    [fresh] = again.hardware().instances
    assert fresh.compute[0].uuid in again.specs()[ONE.metadata.uid]


def test_a_claim_whose_broken_instance_is_in_use_is_not_given_it_again(node: MigNode) -> None:
    node.prepare(ONE)
    a_holder(node, listed=False)
    [there] = node.hardware().instances
    handle = node.nvml.call("nvmlDeviceGetGpuInstanceById", node.nvml.handle(node.uuid), there.id)
    node.nvml.call("nvmlComputeInstanceDestroy", node.nvml.call("nvmlGpuInstanceGetComputeInstanceById", handle, 0))
    with pytest.raises(PrepareError, match="Claim default/one has lost the GPU instance"):
        node.prepare(ONE)
    faults.release(node.path, 4711)
    assert node.prepare(ONE).devices[0].partition
    assert node.real() == [(9, 4, 1)]


def test_an_idle_instance_that_lost_its_compute_instance_goes(node: MigNode) -> None:
    node.keep = KeptInstances(counts={9: 1})
    node.prepare(ONE)
    node.unprepare(ONE)
    [there] = node.hardware().instances
    handle = node.nvml.call("nvmlDeviceGetGpuInstanceById", node.nvml.handle(node.uuid), there.id)
    node.nvml.call("nvmlComputeInstanceDestroy", node.nvml.call("nvmlGpuInstanceGetComputeInstanceById", handle, 0))
    assert MigNode(node.folder, keeping=node.keep).real() == []


def test_administrative_access_shares_a_partition_that_goes_with_the_last_claim(node: MigNode) -> None:
    watch = a_mig_claim("watch", *names([(9, 4)]), admin_access=True)
    node.prepare(ONE)
    assert node.prepare(watch).devices[0].partition == node.record.claims[uid(ONE)].devices[0].partition
    node.unprepare(ONE)
    assert node.real() == [(9, 4, 1)]
    node.unprepare(watch)
    assert node.real() == []


def test_administrative_access_to_a_whole_gpu_leaves_it_divided(node: MigNode) -> None:
    node.keep = KeptInstances(counts={9: 1})
    node.prepare(ONE)
    node.unprepare(ONE)
    node.prepare(a_claim("watch", on=["node-0/gpu-0"], admin_access=True))
    assert (node.real(), node.hardware().mig_current) == ([(9, 4, 1)], 1)


def test_administrative_access_to_a_partition_divides_no_gpu_that_somebody_has_whole(node: MigNode) -> None:
    look, work = a_mig_claim("look", *names([(9, 4)]), admin_access=True), a_claim("work", on=["node-0/gpu-0"])
    node.prepare(work)
    with pytest.raises(PrepareError, match="gpu-0 is still prepared for claim default/work"):
        node.prepare(look)
    node.unprepare(work)
    node.prepare(look)
    with pytest.raises(PrepareError, match="gpu-0-mig-3g40gb-9-4 is still prepared for claim default/look"):
        node.prepare(work)
    assert node.real() == [(9, 4, 1)]


@pytest.mark.parametrize("both", [["gpu-0", *names([(19, 5)])], names([(9, 4), (19, 5)])])
def test_a_claim_that_was_allocated_the_same_hardware_twice_is_refused(node: MigNode, both: list[str]) -> None:
    with pytest.raises(PrepareError, match=f"both {both[0]} and {both[1]}, which share hardware"):
        node.prepare(a_mig_claim("greedy", *both))
    assert (node.real(), node.specs()) == ([], {})


def test_administrative_access_cannot_put_a_partition_into_another(node: MigNode) -> None:
    node.prepare(ONE)
    with pytest.raises(PrepareError, match="gpu-0-mig-3g40gb-9-4 is still prepared"):
        node.prepare(a_mig_claim("watch", *names([(19, 5)]), admin_access=True))


def test_a_gpu_that_is_lost_keeps_its_claims_and_is_dirty(node: MigNode) -> None:
    node.prepare(ONE)
    faults.lose(node.path, 0)
    node.scan()
    division = node.mig.divisions[node.uuid]
    assert division.dirty
    assert "fallen off the PCI bus" in division.message
    with pytest.raises(InstanceHeld, match="fallen off the PCI bus"):
        node.unprepare(ONE)
    faults.reboot(node.path)
    hotplug.reseat(node.path, node.uuid)
    again = MigNode(node.folder, boot="the next boot")
    assert (again.real(), again.mig.divisions[again.uuid].dirty) == ([], False)
    assert not again.record.claims


def test_a_claim_on_a_gpu_that_left_the_node_is_given_up_after_a_restart(tmp_path: Path) -> None:
    """The record names a GPU that the restarted agent has never seen; nobody can hold an instance on it."""
    build(tmp_path, gpus=2)
    claim = a_mig_claim("gone", *names([(19, 0)], gpu=1))
    MigNode(tmp_path).prepare(claim)
    with state.mutate(tmp_path / "gpus.json") as hardware:
        del hardware.gpus[1]
    node = MigNode(tmp_path)
    node.unprepare(claim)
    assert not node.record.claims


def test_while_holders_are_looked_for_others_read_and_see_a_dirty_gpu(tmp_path: Path) -> None:
    build(tmp_path)
    seen: list[tuple[list[int], bool]] = []

    def walk(_one: Instance | None, _gpu: Gpu, listed: Sequence[int]) -> str:
        other.submit(node.scan).result(timeout=60)
        seen.append((list(listed), node.mig.divisions[node.uuid].dirty))
        return "process 4711 (train)"

    other = ThreadPoolExecutor(1)
    node = MigNode(tmp_path, find=walk)
    node.prepare(ONE)
    a_holder(node, compute_instance=0)
    with pytest.raises(InstanceHeld, match=r"is in use by process 4711 \(train\)"):
        node.unprepare(ONE)
    assert seen == [([4711], True)]
    assert node.mig.divisions[node.uuid].message.endswith("it is in use by process 4711 (train).")
    faults.release(node.path, 4711)
    node.unprepare(ONE)
    faults.hold(node.path, 0, GpuProcess(pid=4712, listed=False))
    with pytest.raises(PrepareError, match=r"cannot get the whole of gpu-0: .* The GPU is in use by process 4711"):
        node.prepare(WHOLE)
    assert [listed for listed, _dirty in seen] == [[4711], []]
