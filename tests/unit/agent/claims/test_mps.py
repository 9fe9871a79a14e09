"""MPS: GPUs are exclusive while a claim has its daemon, on record, and given back whatever happens in between."""

from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from draco.agent.claims.preparer import DaemonNotReady
from draco.agent.errors import PrepareError
from draco.agent.mps.folder import MpsFolder, daemon_name
from draco.agent.record.contents import PreparationState
from draco.allocation.configurations import VERSION
from draco.resources.api.claims import ResourceClaim
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus import state
from tests.builders import a_claim, configured
from tests.doubles.dying import Fuse, Killed, KilledFiles
from tests.doubles.mps import MpsNode
from tests.unit.agent.mig_node import MigNode, build

EXCLUSIVE = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
PROHIBITED = pynvml.NVML_COMPUTEMODE_PROHIBITED


def asking(name: str, *devices: str, **config: Any) -> ResourceClaim:
    """A claim that was allocated GPUs and asks for MPS on them."""
    parameters = {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS", "mpsConfig": config}}
    return configured(a_claim(name, on=[f"node-0/{each}" for each in devices or ("gpu-0",)]), parameters)


def sharing(claim: ResourceClaim) -> ResourceClaim:
    """The claim with a share of its device."""
    assert claim.status.allocation is not None
    results = [msgspec.structs.replace(each, share_id=f"of-{claim.metadata.name}") for each in claim.results]
    devices = msgspec.structs.replace(claim.status.allocation.devices, results=results)
    allocation = msgspec.structs.replace(claim.status.allocation, devices=devices)
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))


HALF = asking("half", defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi")
PLAIN = a_claim("plain", on=["node-0/gpu-0"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return build(tmp_path, gpus=2, mig=False)


@pytest.fixture
def node(path: Path, mps: MpsNode) -> MigNode:
    return MigNode(path.parent, mps=mps)


def modes(path: Path) -> list[int]:
    return [gpu.compute_mode for gpu in state.load(path).gpus]


def given(node: MigNode, mps: MpsNode, claim: ResourceClaim) -> None:
    """Prepare as the agent does: again, when the keeper has started the daemons."""
    with pytest.raises(DaemonNotReady, match=r"its MPS daemon is not ready, because .*Kubelet tries again"):
        node.prepare(claim)
    for name in mps.folder.names():
        mps.keeper.keep(name)
    node.prepare(claim)


def test_a_gpu_is_exclusive_for_its_daemon_and_gets_the_mode_back_that_it_had(
    node: MigNode, mps: MpsNode, path: Path
) -> None:
    with state.mutate(path) as simulated:
        simulated.gpus[0].compute_mode = PROHIBITED
    given(node, mps, HALF)
    assert modes(path) == [EXCLUSIVE, 0]
    node.unprepare(HALF)
    assert modes(path) == [EXCLUSIVE, 0], "unprepare waits for no program"
    node.settle_mps()
    assert modes(path) == [PROHIBITED, 0]
    assert node.record.modes == {}
    assert mps.folder.wanted(daemon_name([node.uuid])) is None


def test_the_devices_of_a_configuration_share_a_daemon_with_a_limit_for_each(node: MigNode, mps: MpsNode) -> None:
    uuids = sorted(gpu.uuid for gpu in node.gpus)
    limits = {"0": "3Gi", uuids[1]: "5Gi"}
    given(node, mps, asking("both", "gpu-0", "gpu-1", defaultPerDevicePinnedMemoryLimit=limits, multiUser=True))
    wanted = mps.folder.wanted(daemon_name(uuids))
    assert wanted is not None
    assert (wanted.devices, wanted.limits_mib, wanted.multi_user) == (uuids, [3072, 5120], True)
    assert [name for name in mps.folder.names() if mps.folder.wanted(name)] == [daemon_name(uuids)]


def test_a_limit_for_a_device_that_the_claim_has_not_is_refused_before_anything_is_done(
    node: MigNode, path: Path
) -> None:
    with pytest.raises(PrepareError, match=r"Limit names 7, and the configuration is for one device .* Correct it"):
        node.prepare(asking("wrong", defaultPerDevicePinnedMemoryLimit={"7": "1Gi"}))
    assert modes(path) == [0, 0]
    assert not node.record.claims


def test_the_next_claim_gets_the_gpu_only_when_the_daemon_has_ended(node: MigNode, mps: MpsNode, path: Path) -> None:
    given(node, mps, HALF)
    node.unprepare(HALF)
    node.prepare(PLAIN)
    assert modes(path) == [0, 0]
    assert node.mps.problem(node.record.claims[next(iter(node.record.claims))], node.uuid) == ""


def test_the_daemon_of_an_earlier_claim_is_not_taken_for_that_of_the_next(node: MigNode, mps: MpsNode) -> None:
    given(node, mps, HALF)
    node.unprepare(HALF)
    without_limits = asking("without-limits")
    given(node, mps, without_limits)
    assert mps.control.ask(mps.folder.pipe(daemon_name([node.uuid])), "get_default_active_thread_percentage") == "100.0"


def test_the_daemon_of_a_gpu_that_is_gone_is_ended_when_no_claim_has_it(node: MigNode, mps: MpsNode) -> None:
    given(node, mps, HALF)
    assert node.mps.unused() == []
    node.mps.end_unused(node.uuid)
    assert mps.folder.wanted(daemon_name([node.uuid])) is not None
    node.unprepare(HALF)
    assert node.mps.unused() == [node.uuid]
    node.mps.end_unused(node.uuid)
    assert mps.folder.wanted(daemon_name([node.uuid])) is None


def test_a_claim_that_never_got_its_daemon_leaves_nothing(node: MigNode, mps: MpsNode, path: Path) -> None:
    with pytest.raises(PrepareError):
        node.prepare(HALF)
    assert modes(path) == [EXCLUSIVE, 0]
    assert not node.record.claims
    node.settle_mps()
    assert modes(path) == [0, 0]
    assert not any(map(mps.folder.wanted, mps.folder.names()))


def test_administrative_access_and_time_slices_change_nothing_of_it(node: MigNode, mps: MpsNode, path: Path) -> None:
    given(node, mps, HALF)
    node.prepare(a_claim("monitor", on=["node-0/gpu-0"], admin_access=True))
    assert modes(path) == [EXCLUSIVE, 0]
    assert mps.folder.wanted(daemon_name([node.uuid])) is not None


def test_shares_of_a_gpu_have_one_daemon_if_they_ask_for_the_same(node: MigNode, mps: MpsNode, path: Path) -> None:
    first, second = (
        sharing(HALF),
        sharing(asking("second", defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi")),
    )
    given(node, mps, first)
    node.prepare(second)
    for other in (sharing(asking("other", defaultActiveThreadPercentage=20)), sharing(PLAIN)):
        with pytest.raises(PrepareError, match=r"another share of it with MPS \(50 % of the threads, 10240Mi for each"):
            node.prepare(other)
    assert modes(path) == [EXCLUSIVE, 0]
    node.unprepare(first)
    node.settle_mps()
    assert modes(path) == [EXCLUSIVE, 0], "the last user takes it back"
    node.unprepare(second)
    node.settle_mps()
    assert modes(path) == [0, 0]


def test_it_is_given_again_after_the_driver_was_loaded_anew_and_nothing_is_taken_back_twice(
    node: MigNode, mps: MpsNode, path: Path
) -> None:
    given(node, mps, HALF)
    faults.reload_driver(path)
    assert modes(path) == [0, 0]
    again = MigNode(path.parent, mps=mps)
    assert not again.mps.is_settled(again.uuid)
    again.settle_mps()
    assert modes(path) == [EXCLUSIVE, 0]
    again.unprepare(HALF)
    faults.reload_driver(path)
    with state.mutate(path) as simulated:
        simulated.gpus[0].compute_mode = EXCLUSIVE
    last = MigNode(path.parent, mps=mps)
    last.settle_mps()
    assert modes(path) == [EXCLUSIVE, 0], "somebody set it since"
    assert last.record.modes == {}


def test_what_a_lost_record_left_is_taken_back(node: MigNode, mps: MpsNode, path: Path) -> None:
    given(node, mps, HALF)
    (path.parent / "state" / "checkpoint.json").unlink()
    again = MigNode(path.parent, mps=mps)
    assert not again.record.claims
    again.settle_mps()
    assert modes(path) == [0, 0]


def test_a_claim_whose_record_was_rebuilt_takes_its_own_mode_for_nobody_elses(
    node: MigNode, mps: MpsNode, path: Path
) -> None:
    given(node, mps, HALF)
    [claim] = node.cdi.claims()
    (path.parent / "state" / "checkpoint.json").unlink()
    again = MigNode(path.parent, mps=mps)
    again.record.put(claim)
    again.settle_mps()
    assert modes(path) == [EXCLUSIVE, 0]
    again.unprepare(HALF)
    again.settle_mps()
    assert modes(path) == [0, 0]


def test_without_the_driver_a_claim_is_prepared_only_if_its_daemon_has_answered(node: MigNode, mps: MpsNode) -> None:
    with pytest.raises(PrepareError, match="the MPS daemon of gpu-0 does not answer"):
        node.desk.prepare_unasked(HALF, node.named)
    cleared = node.desk.clear(HALF, node.named)
    assert node.desk.waits(cleared)
    assert node.desk.lacking(cleared)
    mps.keeper.keep(daemon_name([node.uuid]))
    assert node.desk.lacking(cleared) == ""
    node.desk.prepare_unasked(HALF, node.named)
    assert node.record.claims


def test_a_gpu_in_mig_mode_has_no_mode_to_give_back(node: MigNode, mps: MpsNode, path: Path) -> None:
    given(node, mps, HALF)
    node.unprepare(HALF)
    by_hand.set_mode(path, 0, 1)
    node.settle_mps()
    assert node.record.modes == {}


def course(folder: Path, at: int) -> bool:
    """Prepare, use and release with an agent that dies at a point; whether it has died. Another agent then takes over."""
    path = build(folder, gpus=2, mig=False)
    fuse = Fuse(0)
    died = False
    with MpsNode(folder) as mps:
        try:
            files = KilledFiles(fuse)
            dying = MpsFolder(mps.folder.root, files)
            mps.folder, kept = dying, mps.folder
            node = MigNode(folder, step=fuse, files=files, mps=mps)
            fuse.left = at
            given(node, mps, HALF)
            node.unprepare(HALF)
            node.settle_mps()
            given(node, mps, asking("whole"))
        except Killed:
            died = True
        mps.folder = kept
        after = MigNode(folder, mps=mps)
        after.settle_mps()
        uses = [after.mps.user(gpu.uuid) is not None for gpu in after.gpus]
        assert modes(path) == [EXCLUSIVE if used else 0 for used in uses], at
        assert {*after.record.modes} == {gpu.uuid for gpu, used in zip(after.gpus, uses, strict=True) if used}
        assert sum(mps.folder.wanted(name) is not None for name in mps.folder.names()) == sum(uses)
        for claim in after.record.claims.values():
            assert claim.state is PreparationState.PREPARED
            after.unprepare(asking(claim.name))
        after.settle_mps()
        assert modes(path) == [0, 0], at
    return died


def test_an_agent_that_dies_at_any_step_leaves_no_gpu_exclusive(tmp_path: Path) -> None:
    at = 1
    while course(tmp_path / str(at), at):
        at += 1
    assert at > 20, "every write and every call is a point"
