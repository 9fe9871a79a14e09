"""A claim is prepared only while its devices are present: its spec exists only while each device is where the spec says."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from draco.agent.claims import recovery
from draco.agent.claims.cdi import CdiFolder
from draco.agent.claims.presence import NodeHardware, as_it_is, moved
from draco.agent.containers.common_edits import CommonEdits
from draco.agent.containers.edits import ContainerEdits
from draco.agent.errors import DeviceMissing, PrepareError
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.hardware.faults import with_fault
from draco.agent.hardware.gpus import Gpu, Instance
from draco.agent.hardware.monitor import HardwareView
from draco.agent.record.contents import Partition, PreparationState, PreparedClaim, PreparedDevice
from draco.agent.settings import AgentSettings
from draco.agent.startup import Startup
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import NVIDIA_DRIVER, ClaimUid
from draco_local.simulator.accidents import by_hand, faults, hotplug
from draco_local.simulator.gpus import state
from tests.builders import a_claim, a_gpu
from tests.unit.agent.driver_on_disk import FOLDER, VERSION, a_driver
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

# The rule

A, B = a_gpu(0), a_gpu(1)
PLACE = Instance(gpu=A.uuid, gi=2, profile_id=19, start=3, size=1, ci=0, uuid="MIG-1", parts=1)


def a_device(gpu: Gpu = A, **fields: Any) -> PreparedDevice:
    plain: dict[str, Any] = {"minor": gpu.minor, "pci_bus_id": gpu.pci_bus_id, "device": f"gpu-{gpu.minor}"}
    return PreparedDevice(request="r", pool="node-0", gpu=gpu.uuid, **{**plain, **fields})


def a_part() -> PreparedDevice:
    part = Partition(profile_id=19, start=3, size=1, gi=2, ci=0, uuid="MIG-1", profile="1g.10gb")
    return a_device(device="gpu-0-mig-1g10gb-19-3", partition=part, capabilities=(21, 22))


def claim(*devices: PreparedDevice) -> PreparedClaim:
    return PreparedClaim(
        uid=ClaimUid("1"), namespace="n", name="c", state=PreparationState.PREPARED, devices=list(devices)
    )


def hardware(
    *gpus: Gpu, instances: tuple[Instance, ...] = (PLACE,), numbers: tuple[int, ...] = (21, 22)
) -> NodeHardware:
    return NodeHardware(
        gpus={gpu.uuid: gpu for gpu in gpus},
        instances={one.key: one for one in instances},
        numbers=lambda _minor, _gi, _ci: numbers,
    )


def test_what_is_there_as_it_was_stays_as_it_is() -> None:
    mine = claim(a_device(B), a_part())
    assert as_it_is(mine, hardware(A, B)) is mine


@pytest.mark.parametrize("fault", ["Absent", "Lost", "NotFound"])
def test_a_gpu_that_cannot_be_asked_who_it_is_is_gone_for_every_claim(fault: str) -> None:
    silent = with_fault(A, fault, "It is away.")
    for mine in (claim(a_device()), claim(a_device(admin=True)), claim(a_part()), claim(a_device(B), a_device())):
        with pytest.raises(DeviceMissing, match=f"n/c has gpu-0.*, which is not there: {fault}: It is away."):
            as_it_is(mine, hardware(silent, B))
        with pytest.raises(DeviceMissing, match=f"this node has no GPU {A.uuid} any more"):
            as_it_is(mine, hardware(B))


def test_a_gpu_with_a_fault_that_can_be_asked_is_there() -> None:
    ill = with_fault(A, "Xid119", "Its GSP does not answer.")
    mine = claim(a_device())
    assert as_it_is(mine, hardware(ill)) is mine


def test_two_gpus_of_one_minor_number_are_given_to_nobody() -> None:
    with pytest.raises(DeviceMissing, match=f"NVML reports /dev/nvidia0 for GPU {B.uuid} too"):
        as_it_is(claim(a_device()), hardware(A, msgspec.structs.replace(B, minor=0)))


def test_an_instance_that_was_not_seen_is_missing() -> None:
    with pytest.raises(DeviceMissing, match="n/c has lost the GPU instance of gpu-0-mig-1g10gb-19-3"):
        as_it_is(claim(a_part()), hardware(A, instances=()))


def test_what_has_moved_is_said_and_followed() -> None:
    mine = claim(a_device(), a_part())
    other = msgspec.structs.replace(A, minor=3, pci_bus_id="0000:aa:00.0")
    now = as_it_is(
        mine, hardware(other, instances=(msgspec.structs.replace(PLACE, gi=5, uuid="MIG-2"),), numbers=(31, 32))
    )
    assert [one.minor for one in now.devices] == [3, 3]
    assert now.devices[1].capabilities == (31, 32)
    part = now.devices[1].partition
    assert part is not None
    assert (part.gi, part.uuid) == (5, "MIG-2")
    assert moved(mine, now) == f"GPU {A.uuid} has moved from /dev/nvidia0 to /dev/nvidia3."
    address = as_it_is(mine, hardware(msgspec.structs.replace(A, pci_bus_id="0000:aa:00.0")))
    assert "has moved from PCI address 0000:1b:00.0 to 0000:aa:00.0." in moved(mine, address)


# On simulated hardware


WHOLE = a_claim("whole", on=["node-0/gpu-0"])
OTHER = a_claim("other", on=["node-0/gpu-1"])
ADMIN = a_claim("admin", on=["node-0/gpu-0"], admin_access=True)
PART = a_mig_claim("part", *names([(19, 3)]))


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    """Two H100s; MIG mode is off."""
    build(tmp_path, gpus=2, mig=False)
    return MigNode(tmp_path)


@pytest.fixture
def divided(tmp_path: Path) -> MigNode:
    """Two H100s in MIG mode."""
    build(tmp_path, gpus=2)
    return MigNode(tmp_path)


def uid(claim: ResourceClaim) -> ClaimUid:
    return ClaimUid(claim.metadata.uid)


def opened(node: MigNode, claim: ResourceClaim) -> list[str]:
    """The device nodes that the claim's spec gives to a container; none without a spec."""
    path = node.cdi.path(uid(claim))
    if not path.exists():
        return []
    return [
        one["path"]
        for device in json.loads(path.read_text())["devices"]
        for one in device["containerEdits"]["deviceNodes"]
    ]


def ask(node: MigNode, claim: ResourceClaim, gpus: list[Gpu]) -> str:
    """Let kubelet ask again with these GPUs present. Returns why the claim is not prepared, or ""."""
    try:
        node.desk.prepare(claim, {f"gpu-{index}": gpu for index, gpu in enumerate(gpus)})
    except PrepareError as error:
        return str(error)
    return ""


def look(node: MigNode) -> recovery.RecoveryResult:
    """Read the GPUs, and do what follows each reading."""
    node.gpus = node.scan()
    return recovery.respec(node.record, node.cdi, node.instances, gpus=node.gpus)


def reopened(node: MigNode) -> MigNode:
    """The node after its session ended with the driver and was opened again."""
    node.nvml.close()
    node.nvml.open()
    return node


def test_a_spec_whose_driver_is_replaced_while_it_is_judged_stays_until_it_can_be_written_again(
    node: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = DriverRoot(Path("/driver"), node.folder / "driver")
    a_driver(root.view)
    common = CommonEdits(root, hook_folder=node.folder, loaded=lambda: VERSION)
    files = Capabilities(proc=node.folder / "proc")
    node.cdi = CdiFolder(node.folder / "cdi", node.files, driver=NVIDIA_DRIVER, node=files, common=common)
    node.cdi.write(node.prepare(WHOLE))
    all_there = common.all_there

    def and_then_the_packages_are_upgraded(edits: ContainerEdits) -> bool:
        there = all_there(edits)
        a_driver(root.view, version="595.58.03")
        return there

    monkeypatch.setattr(common, "all_there", and_then_the_packages_are_upgraded)
    (root.view / FOLDER / f"libcuda.so.{VERSION}").unlink()
    done = look(node)
    assert "Reload the driver or reboot the node." in node.cdi.common.lacking()
    assert opened(node, WHOLE) == ["/dev/nvidia0"]
    assert (done.swept, done.rewritten) == ([], [])


def absent(gpu: Gpu) -> Gpu:
    return with_fault(gpu, "Absent", "NVML does not list it.")


def test_asked_again_for_a_gpu_that_is_gone_the_spec_goes_and_the_claim_stays(node: MigNode) -> None:
    for claim in (WHOLE, ADMIN, OTHER):
        node.prepare(claim)
    gone, other = node.gpus
    for claim in (WHOLE, ADMIN):
        assert "which is not there: Absent: NVML does not list it." in ask(node, claim, [absent(gone), other])
        assert opened(node, claim) == []
        assert uid(claim) in node.record.claims
    assert ask(node, OTHER, [absent(gone), other]) == ""
    assert opened(node, OTHER) == ["/dev/nvidia1"]
    assert ask(node, WHOLE, [gone, other]) == ""
    assert opened(node, WHOLE) == ["/dev/nvidia0"]


def test_a_claim_of_a_gpu_that_is_gone_is_not_prepared_even_to_look_at_it(node: MigNode) -> None:
    for claim in (WHOLE, ADMIN):
        before = node.files.read(node.folder / "state" / "checkpoint.json")
        assert "Absent" in ask(node, claim, [absent(node.gpus[0]), node.gpus[1]])
        assert node.files.read(node.folder / "state" / "checkpoint.json") == before


def test_asked_again_after_a_move_the_move_is_said_once_and_the_spec_follows(node: MigNode) -> None:
    for claim in (WHOLE, OTHER):
        node.prepare(claim)
    faults.reload_driver(node.path)
    with state.mutate(node.path) as known:
        _permute(known, [1, 0])
    gpus = reopened(node).scan()
    assert "has moved from /dev/nvidia0 to /dev/nvidia1. Kubelet tries again." in ask(node, WHOLE, gpus)
    assert opened(node, WHOLE) == ["/dev/nvidia1"]
    assert ask(node, WHOLE, gpus) == ""


def _permute(known: state.SimulatedNodeState, minors: list[int]) -> None:
    for gpu, minor in zip(known.gpus, minors, strict=True):
        gpu.minor = minor


@pytest.mark.parametrize("again", [False, True])
def test_what_was_read_before_the_driver_was_loaded_anew_is_not_relied_on(node: MigNode, again: bool) -> None:
    if again:
        for claim in (WHOLE, ADMIN):
            node.prepare(claim)
    faults.reload_driver(node.path)
    with state.mutate(node.path) as known:
        _permute(known, [1, 0])
    for claim in (WHOLE, ADMIN):
        assert "cannot be prepared: " in ask(node, claim, node.gpus)
    old = node.gpus
    reopened(node)
    for claim in (WHOLE, ADMIN):
        assert "has moved from /dev/nvidia0" in ask(node, claim, old)
        assert opened(node, claim) == []
    look(node)
    for claim in (WHOLE, ADMIN):
        assert opened(node, claim) == ["/dev/nvidia1"][: int(again)]


def test_after_every_look_specs_are_those_of_what_is_there(node: MigNode) -> None:
    for claim in (WHOLE, ADMIN, OTHER):
        node.prepare(claim)
    faults.reload_driver(node.path)
    with state.mutate(node.path) as known:
        _permute(known, [1, 0])
    reopened(node)
    done = look(node)
    assert set(done.rewritten) == {uid(claim) for claim in (WHOLE, ADMIN, OTHER)}
    assert [opened(node, claim) for claim in (WHOLE, ADMIN, OTHER)] == [
        ["/dev/nvidia1"],
        ["/dev/nvidia1"],
        ["/dev/nvidia0"],
    ]
    assert look(node) == recovery.RecoveryResult()


def test_a_lost_gpu_has_no_spec_in_the_same_boot_either_and_gets_it_back(node: MigNode) -> None:
    for claim in (WHOLE, OTHER):
        node.prepare(claim)
    faults.lose(node.path, 0)
    assert look(node).without_gpu == [uid(WHOLE)]
    assert (opened(node, WHOLE), opened(node, OTHER)) == ([], ["/dev/nvidia1"])
    assert "which is not there: Lost" in ask(node, WHOLE, node.gpus)
    hotplug.reseat(node.path, 0)
    faults.reload_driver(node.path)
    reopened(node)
    assert uid(WHOLE) in look(node).rewritten


def test_a_reboot_without_a_dead_gpu_gives_nobody_its_number(node: MigNode, tmp_path: Path) -> None:
    for claim in (WHOLE, OTHER):
        node.prepare(claim)
    hotplug.remove(node.path, 0)
    faults.reboot(node.path)
    after = MigNode(tmp_path, boot="next boot")
    assert (opened(after, WHOLE), opened(after, OTHER)) == ([], ["/dev/nvidia0"])
    assert "this node has no GPU" in ask(after, WHOLE, [a_gpu(9), *after.gpus])
    after.unprepare(WHOLE)
    assert list(after.specs()) == [uid(OTHER)]


def test_parts_of_a_gpu_that_left_the_node_are_given_up_at_once_and_gone_when_it_is_back(
    divided: MigNode, tmp_path: Path
) -> None:
    divided.prepare(PART)
    gone = divided.uuid
    hotplug.remove(divided.path, 0)
    faults.reboot(divided.path)
    after = MigNode(tmp_path, boot="next boot")
    after.unprepare(PART)
    assert after.record.claims == {}
    hotplug.reseat(divided.path, gone)
    faults.reboot(divided.path)
    back = MigNode(tmp_path, boot="the boot after that")
    assert back.record.instances == {}


def test_what_points_elsewhere_goes_before_anything_else_is_done(divided: MigNode, tmp_path: Path) -> None:
    divided.prepare(PART)
    divided.prepare(a_claim("whole", on=["node-0/gpu-1"]))
    before = divided.cdi.path(uid(WHOLE))
    faults.reboot(divided.path, minors=[1, 0])
    seen: list[bool] = []

    class Spying(MigNode):
        def scan(self) -> list[Gpu]:
            found = super().scan()
            self.instances.restore = self._restored(self.instances.restore)  # type: ignore[method-assign]
            return found

        def _restored(self, real: Callable[..., list[str]]) -> Callable[..., list[str]]:
            def restore(*args: Any) -> list[str]:
                seen.append(before.exists() or bool(opened(self, PART)))
                return real(*args)

            return restore

    after = Spying(tmp_path, boot="next boot")
    assert seen == [False]
    assert opened(after, PART)[0] == "/dev/nvidia1"


def test_an_instance_that_cannot_be_observed_counts_as_missing(divided: MigNode) -> None:
    divided.prepare(PART)
    divided.prepare(a_mig_claim("admin", *names([(19, 3)]), admin_access=True))
    assert len(divided.specs()) == 2
    faults.fail(divided.path, "nvmlDeviceGetGpuInstances", faults.ERRORS["UNKNOWN"], gpu=0)
    assert len(look(divided).without_instance) == 2
    assert divided.specs() == {}
    assert "default/part has lost the GPU instance" in ask(divided, PART, divided.gpus)
    assert opened(divided, PART) == []
    faults.stop_failing(divided.path)
    assert len(look(divided).rewritten) == 2
    assert ask(divided, PART, divided.gpus) == ""


def test_a_reset_takes_specs_of_instances_with_it_until_they_are_made_again(divided: MigNode) -> None:
    divided.prepare(PART)
    faults.reset(divided.path, 0)
    assert look(divided).without_instance == [uid(PART)]
    assert opened(divided, PART) == []
    assert ask(divided, PART, divided.gpus) == ""
    assert opened(divided, PART)[0] == "/dev/nvidia0"


def test_an_instance_that_somebody_put_in_the_place_of_a_claims_is_opened_by_no_spec(divided: MigNode) -> None:
    divided.prepare(PART)
    by_hand.destroy_instance(divided.path, 0, divided.hardware().instances[0].id)
    by_hand.create_instance(divided.path, 0, "1g.10gb", start=3)
    look(divided)
    assert opened(divided, PART) == []
    assert "somebody else" in ask(divided, PART, divided.gpus)
    assert opened(divided, PART) == []


def test_capability_numbers_that_changed_are_followed(divided: MigNode, tmp_path: Path) -> None:
    divided.prepare(PART)
    before = opened(divided, PART)
    table = tmp_path / "proc" / "driver" / "nvidia-caps" / "mig-minors"
    lines = [line.rpartition(" ") for line in table.read_text().splitlines()]
    table.write_text("".join(f"{name} {int(number) + 100}\n" for name, _, number in lines))
    assert look(divided).rewritten == [uid(PART)]
    after = opened(divided, PART)
    assert [int(one.rpartition("cap")[2]) - 100 for one in after[1:]] == [
        int(one.rpartition("cap")[2]) for one in before[1:]
    ]
    device = divided.record.claims[uid(PART)].devices[0]
    assert [f"/dev/nvidia-caps/nvidia-cap{number}" for number in device.capabilities] == after[1:]


def test_without_the_gpus_nothing_is_written_in_the_same_boot(node: MigNode, tmp_path: Path) -> None:
    for claim in (WHOLE, OTHER):
        node.prepare(claim)
    node.cdi.remove(uid(OTHER))
    done = recovery.converge(node.record, node.cdi, gpus=None, boot_id=node.boot, instances=node.instances)
    assert (done.rewritten, list(node.specs())) == ([], [uid(WHOLE)])


async def test_while_nothing_is_known_of_the_gpus_no_spec_goes(divided: MigNode) -> None:
    divided.prepare(PART)
    parts: dict[str, Any] = dict.fromkeys(inspect.signature(Startup).parameters)
    view = HardwareView(fault="It is not known yet what they are called.")
    parts |= {"record": divided.record, "hardware": SimpleNamespace(view=view)}
    parts["settings"] = AgentSettings(node_name="node-0")
    startup = Startup(**parts)
    await startup._respec()
    assert opened(divided, PART)
