"""MPS on MIG devices: each has a daemon of its own, which has ended before its instance is destroyed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.agent.claims.mps import name_of
from draco.agent.claims.preparer import DaemonNotReady
from draco.agent.errors import PrepareError
from draco.agent.hardware.gpus import PlacementKey
from draco.agent.mps.folder import DaemonName, MpsFolder
from draco.agent.record.contents import PreparationState
from draco.allocation.configurations import VERSION
from draco.mig.keeping import KeptInstances
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import MigMode, WantedGpu
from draco.resources.names import ClaimUid
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state
from tests.builders import configured
from tests.doubles.dying import Fuse, Killed, KilledFiles
from tests.doubles.mps import MpsClient, MpsNode
from tests.unit.agent.claims.test_mps import given
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

SMALL, BIG, OTHER = names([(19, 0), (9, 4), (19, 1)])


def asking(name: str, *devices: str, **config: Any) -> ResourceClaim:
    """A claim that was allocated MIG devices, a request each, and asks for MPS on them."""
    parameters = {"apiVersion": VERSION, "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS", "mpsConfig": config}}
    claim = configured(a_mig_claim(name, *devices), parameters)
    assert claim.status.allocation is not None
    results = [msgspec.structs.replace(each, request=f"r{at}") for at, each in enumerate(claim.results)]
    found = msgspec.structs.replace(claim.status.allocation.devices, results=results)
    allocation = msgspec.structs.replace(claim.status.allocation, devices=found)
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))


HALF = asking("half", SMALL, defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="4Gi")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return build(tmp_path)


@pytest.fixture
def node(path: Path, mps: MpsNode) -> MigNode:
    return MigNode(path.parent, mps=mps)


def daemon(node: MigNode, profile: int = 19, start: int = 0) -> DaemonName:
    return name_of(PlacementKey(node.uuid, profile, start))


def uuids(path: Path) -> set[str]:
    return {compute.uuid for one in state.load(path).gpus[0].instances for compute in one.compute}


def test_each_mig_device_of_a_claim_has_its_own_daemon_and_no_mode_is_set(
    node: MigNode, mps: MpsNode, path: Path
) -> None:
    limits = {"0": "1Gi", "1": "3Gi"}  # by number of the sorted device names
    given(node, mps, asking("both", BIG, SMALL, defaultPerDevicePinnedMemoryLimit=limits))
    wanted = [mps.folder.wanted(daemon(node, *place)) for place in ((19, 0), (9, 4))]
    assert {each.devices[0] for each in wanted if each} == uuids(path)
    assert [(len(each.devices), each.limits_mib) for each in wanted if each] == [(1, [1024]), (1, [3072])]
    assert state.load(path).gpus[0].compute_mode == 0
    assert node.record.modes == {}
    [text] = node.specs().values()
    assert all(f"/{daemon(node, *place)}/pipe" in text for place in ((19, 0), (9, 4)))


def test_the_instance_of_a_waiting_claim_is_kept_and_undone_when_it_is_given_up(
    node: MigNode, mps: MpsNode, path: Path
) -> None:
    with pytest.raises(DaemonNotReady) as waiting:
        node.prepare(HALF)
    before = uuids(path)
    node.layouts.apply(node.uuid, NO_INSTANCES)
    with pytest.raises(DaemonNotReady) as again:
        node.prepare(HALF)
    assert uuids(path) == before
    assert (len(waiting.value.created), len(again.value.created)) == (1, 0)
    assert node.mps.is_awaited(PlacementKey(node.uuid, 19, 0))
    mps.keeper.keep(daemon(node))
    node.desk.give_up(again.value.claim, waiting.value.created)
    assert node.real() == []
    assert not node.record.claims
    assert mps.folder.wanted(daemon(node)) is None


def test_a_claim_that_is_prepared_is_not_given_up(node: MigNode, mps: MpsNode) -> None:
    with pytest.raises(DaemonNotReady) as waiting:
        node.prepare(HALF)
    mps.keeper.keep(daemon(node))
    node.prepare(HALF)
    node.desk.give_up(waiting.value.claim, waiting.value.created)
    assert len(node.record.claims) == len(node.real()) == 1


def checking(path: Path, mps: MpsNode) -> tuple[Callable[[str], None], list[int]]:
    """A step of NVML that counts, after each destroy of an instance, the daemons that run on none."""
    counts: list[int] = []

    def step(point: str) -> None:
        if point == "after nvmlComputeInstanceDestroy":
            running = [each for name in mps.folder.names() for each in mps.processes.of(name)]
            devices = [_environment(each.pid)["CUDA_VISIBLE_DEVICES"] for each in running]
            counts.append(len(set(devices) - uuids(path)))

    return step, counts


def _environment(pid: int) -> dict[str, str]:
    return dict(each.split("=", 1) for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if each)


def test_the_daemon_has_ended_before_its_instance_is_destroyed(path: Path, mps: MpsNode) -> None:
    step, running = checking(path, mps)
    node = MigNode(path.parent, mps=mps, step=step)
    given(node, mps, HALF)
    assert mps.processes.of(daemon(node))
    node.unprepare(HALF)
    assert (node.real(), running) == ([], [0])
    assert not node.record.claims


def test_an_instance_stays_while_its_daemon_does_not_end(node: MigNode, mps: MpsNode, path: Path) -> None:
    given(node, mps, HALF)
    with mps.hanging(daemon(node)):
        with pytest.raises(
            PrepareError, match=r"1g\.10gb at 0 is in use by its MPS daemon \(\w+\), which has not ended"
        ):
            node.unprepare(HALF)
        assert len(node.real()) == 1
    mps.keeper.keep(daemon(node))
    node.unprepare(HALF)
    assert node.real() == []


def test_the_daemon_of_a_kept_instance_ends_and_the_next_claim_waits_for_that(path: Path, mps: MpsNode) -> None:
    node = MigNode(path.parent, mps=mps, keeping=KeptInstances(counts={19: 2}))
    given(node, mps, HALF)
    node.unprepare(HALF)
    assert len(node.real()) == 1
    with mps.hanging(daemon(node)), pytest.raises(DaemonNotReady, match="MPS daemon of an earlier claim has not ended"):
        node.prepare(a_mig_claim("plain", SMALL))
    node.prepare(a_mig_claim("plain", SMALL))
    [text] = node.specs().values()
    assert "MPS" not in text


def test_a_change_of_the_layout_leaves_the_instance_and_its_daemon(node: MigNode, mps: MpsNode) -> None:
    given(node, mps, HALF)
    client = MpsClient(mps.folder.pipe(daemon(node)))
    node.layouts.apply(node.uuid, NO_INSTANCES)
    assert len(node.real()) == 1
    assert client.say("busy") == "ok"


def test_an_instance_that_is_made_again_gets_its_daemon_again_under_the_new_uuid(
    node: MigNode, mps: MpsNode, path: Path
) -> None:
    given(node, mps, HALF)
    before = uuids(path)
    faults.reload_driver(path)
    again = MigNode(path.parent, mps=mps)
    assert uuids(path).isdisjoint(before)
    assert not again.mps.is_settled(PlacementKey(node.uuid, 19, 0))
    again.settle_mps()
    with pytest.raises(DaemonNotReady):  # not the daemon of the instance that is gone
        again.prepare(HALF)
    mps.keeper.keep(daemon(node))
    wanted = mps.folder.wanted(daemon(node))
    assert wanted is not None
    assert set(wanted.devices) == uuids(path)
    again.prepare(HALF)


def test_what_a_lost_record_left_is_ended(node: MigNode, mps: MpsNode, path: Path) -> None:
    given(node, mps, HALF)
    (path.parent / "state" / "checkpoint.json").unlink()
    again = MigNode(path.parent, mps=mps)
    assert again.mps.units() == {PlacementKey(node.uuid, 19, 0)}
    again.settle_mps()
    assert mps.folder.wanted(daemon(node)) is None


def test_several_mig_devices_of_one_request_are_refused(node: MigNode, mps: MpsNode) -> None:
    claim = asking("both", SMALL, OTHER)
    assert claim.status.allocation is not None
    results = [msgspec.structs.replace(each, request="gpu") for each in claim.results]
    found = msgspec.structs.replace(claim.status.allocation.devices, results=results)
    allocation = msgspec.structs.replace(claim.status.allocation, devices=found)
    both = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))
    with pytest.raises(
        PrepareError, match=r"MPS on 2 MIG devices of one request.* a container can be the client of only"
    ):
        node.prepare(both)
    assert node.real() == []
    assert not mps.folder.names()


NO_INSTANCES = WantedGpu(uuid="", policy="other", mode=MigMode.STATIC)
KEEPING = KeptInstances(counts={19: 1})
_CHANGES = re.compile("Create|Destroy|Set")
BOTH = asking("both", SMALL, BIG, defaultActiveThreadPercentage=50)
"""One of its instances stays when it is released."""


def course(folder: Path, at: int) -> bool:
    """Prepare, use and release with an agent that dies at a point; whether it has died. Another agent then takes over."""
    build(folder)
    fuse = Fuse(0)
    died = False
    with MpsNode(folder) as mps:
        try:
            files = KilledFiles(fuse)
            dying = MpsFolder(mps.folder.root, files)
            mps.folder, kept = dying, mps.folder

            def dies(point: str) -> None:
                if _CHANGES.search(point):
                    fuse(point)

            node = MigNode(folder, step=dies, files=files, mps=mps, keeping=KEEPING)
            fuse.left = at
            given(node, mps, BOTH)
            node.unprepare(BOTH)
            node.settle_mps()
        except Killed:
            died = True
        mps.folder = kept
        step, running = checking(folder / "gpus.json", mps)
        after = MigNode(folder, step=step, mps=mps, keeping=KEEPING)
        after.settle_mps()
        claims = list(after.record.claims.values())
        assert all(each.state is PreparationState.PREPARED for each in claims)
        wanted = {name for name in mps.folder.names() if mps.folder.wanted(name)}
        assert wanted == {name_of(key) for each in claims for device in each.devices if (key := device.key)}, at
        for claim in claims:
            after.desk.unprepare(ClaimUid(claim.uid))
        after.settle_mps()
        for name in mps.folder.names():
            mps.keeper.keep(name)
        assert not mps.folder.names()
        after.layouts.apply(after.uuid, NO_INSTANCES)
        assert [one for one in after.real() if one[2]] == [], at  # whose the others are is not known at first
        assert not any(running), at
    return died


def test_an_agent_that_dies_at_any_step_leaves_no_daemon(tmp_path: Path) -> None:
    at = 1
    while course(tmp_path / str(at), at):
        at += 1
    assert at > 30, "every write and every call that changes something is a point"
