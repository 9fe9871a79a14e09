"""Shares that MPS holds to their memory: one daemon for those of a GPU, a limit for each claim, and what is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from draco.agent.claims.memory_limits import Holding, PublishedShares
from draco.agent.errors import PrepareError
from draco.agent.mps.folder import MpsFolder, daemon_name
from draco.agent.record.contents import PreparationState, ShareLimit
from draco.allocation.share_limits import ShareRoom
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.api.sharing import Enforcement
from draco.resources.names import ClaimUid
from tests.builders import a_claim, as_shares, configured
from tests.doubles.dying import Fuse, Killed, KilledFiles
from tests.doubles.mps import MpsNode
from tests.unit.agent.claims.test_mps import given, modes
from tests.unit.agent.mig_node import MigNode, build

EXCLUSIVE = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
BY_MPS = Holding(lambda _: PublishedShares(Enforcement.MPS))


def a_share(name: str, memory: str = "10Gi", *more: str) -> ResourceClaim:
    """A claim with a share of gpu-0, and more of them."""
    return as_shares(a_claim(name, on=["node-0/gpu-0"]), f"{name}-1", *more, memory=memory)


def beside(share: ResourceClaim, other: ResourceClaim) -> ResourceClaim:
    """The first claim with the devices of the other, too."""
    allocation, more = share.status.allocation, other.status.allocation
    assert allocation is not None
    assert more is not None
    devices = msgspec.structs.replace(allocation.devices, results=[*share.results, *other.results])
    status = msgspec.structs.replace(share.status, allocation=msgspec.structs.replace(allocation, devices=devices))
    return msgspec.structs.replace(share, status=status)


FIRST, SECOND = a_share("first"), a_share("second", "20Gi")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return build(tmp_path, gpus=2, mig=False)


@pytest.fixture
def node(path: Path, mps: MpsNode) -> MigNode:
    return MigNode(path.parent, mps=mps, holding=BY_MPS)


def edits(node: MigNode, claim: ResourceClaim) -> list[dict[str, Any]]:
    devices = json.loads(node.cdi.path(ClaimUid(claim.metadata.uid)).read_text())["devices"]
    return [each["containerEdits"] for each in devices]


def test_the_shares_of_a_gpu_are_clients_of_one_daemon_each_with_its_own_limit(
    node: MigNode, mps: MpsNode, path: Path
) -> None:
    given(node, mps, FIRST)
    node.prepare(SECOND)
    assert modes(path) == [EXCLUSIVE, 0]
    [name] = [each for each in mps.folder.names() if mps.folder.wanted(each)]
    wanted = mps.folder.wanted(name)
    assert wanted is not None
    assert (wanted.devices, wanted.limits_mib, wanted.percentage) == ([node.uuid], [], None)
    assert wanted.multi_user, "sharers with other users would wait for each other"
    pipe = {"hostPath": str(mps.folder.pipe(name)), "containerPath": "/tmp/nvidia-mps"}
    for claim, mib in ((FIRST, 10240), (SECOND, 20480)):
        [given_] = edits(node, claim)
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in given_["env"]
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={mib}M" in given_["env"]
        assert pipe in [{key: each[key] for key in pipe} for each in given_["mounts"]]
    [device] = node.record.claims[ClaimUid(SECOND.metadata.uid)].devices
    assert device.limit == ShareLimit(by=MemoryLimitBy.MPS, mib=20480)


def test_several_shares_of_one_claim_have_the_sum_of_their_limits(node: MigNode, mps: MpsNode) -> None:
    claim = a_share("several", "10Gi", "several-2")
    given(node, mps, claim)
    assert len(edits(node, claim)) == 2
    for each in edits(node, claim):
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M" in each["env"]


def test_the_daemon_ends_with_the_last_share(node: MigNode, mps: MpsNode, path: Path) -> None:
    given(node, mps, FIRST)
    node.prepare(SECOND)
    node.unprepare(FIRST)
    node.settle_mps()
    assert modes(path) == [EXCLUSIVE, 0]
    assert mps.folder.wanted(daemon_name([node.uuid])) is not None
    node.unprepare(SECOND)
    node.settle_mps()
    assert modes(path) == [0, 0]
    assert mps.folder.wanted(daemon_name([node.uuid])) is None


OTHER = as_shares(a_claim("other", on=["node-0/gpu-1"]), "other-1", memory="10Gi")
WHOLE = a_claim("other", on=["node-0/gpu-1"])
HALF = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}},
}
SLICES = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        (
            beside(FIRST, OTHER),
            "it has gpu-0, gpu-1 with MPS, and a container can be the client of only one MPS daemon",
        ),
        (
            beside(FIRST, WHOLE),
            "it has gpu-0 with MPS and gpu-1 without, and a container can be the client of only one",
        ),
        (configured(FIRST, SLICES), "its configuration asks for time slices of Long on gpu-0, whose shares use MPS"),
    ],
    ids=["two GPUs", "beside a whole one", "time slices"],
)
def test_what_no_container_could_use_is_refused_before_anything_is_done(
    node: MigNode, mps: MpsNode, path: Path, claim: ResourceClaim, why: str
) -> None:
    with pytest.raises(PrepareError) as refusal:
        node.prepare(claim)
    assert why in str(refusal.value)
    assert modes(path) == [0, 0]
    assert not node.record.claims
    assert not mps.folder.names()


def test_administrative_access_to_another_gpu_is_no_client(node: MigNode, mps: MpsNode) -> None:
    monitor = a_claim("monitor", on=["node-0/gpu-1"], admin_access=True)
    given(node, mps, beside(FIRST, monitor))
    assert [("CUDA_MPS_PIPE_DIRECTORY" in str(each)) for each in edits(node, FIRST)] == [True, False]


def test_a_node_without_mps_refuses_before_anything_is_done(path: Path) -> None:
    none = MigNode(path.parent, holding=BY_MPS._replace(has_mps=lambda _: False))
    with pytest.raises(PrepareError, match="MPS is to hold its share of gpu-0 to its memory, and the node has none"):
        none.prepare(FIRST)
    assert modes(path) == [0, 0]
    assert not none.record.claims


def test_a_percentage_is_the_daemons_so_all_sharers_must_ask_for_it(node: MigNode, mps: MpsNode) -> None:
    half = configured(FIRST, HALF)
    given(node, mps, half)
    wanted = mps.folder.wanted(daemon_name([node.uuid]))
    assert wanted is not None
    assert (wanted.percentage, wanted.multi_user) == (50, True)
    with pytest.raises(
        PrepareError, match=r"claim default/first has another share of it with MPS \(50 % of the threads"
    ):
        node.prepare(SECOND)


def test_a_share_that_leaves_no_room_for_another_has_its_gpus_alone(node: MigNode, path: Path, mps: MpsNode) -> None:
    room = ShareRoom(81559 << 20, 1 << 30, 1 << 30)
    whole = MigNode(path.parent, mps=mps, holding=Holding(lambda _: PublishedShares(Enforcement.MPS, room)))
    both = beside(
        as_shares(a_claim("both", on=["node-0/gpu-0"]), "a", memory="79Gi"),
        as_shares(a_claim("both", on=["node-0/gpu-1"]), "b", memory="79Gi"),
    )
    claim = whole.prepare(both)
    assert [(each.mps, each.limit) for each in claim.devices] == [(None, None)] * 2
    assert modes(path) == [0, 0]
    whole.unprepare(both)
    given(whole, mps, a_share("small", "78Gi"))
    with pytest.raises(PrepareError, match="has another share of it with MPS"):
        whole.prepare(both)  # the other has not ended yet


def course(folder: Path, at: int) -> bool:
    """Two shares, of which the first ends and a third comes, with an agent that dies at a point; whether it has died."""
    path = build(folder, gpus=2, mig=False)
    fuse = Fuse(0)
    died = False
    shares = {each.metadata.uid: each for each in (FIRST, SECOND, a_share("third"))}
    with MpsNode(folder) as mps:
        files = KilledFiles(fuse)
        mps.folder, kept = MpsFolder(mps.folder.root, files), mps.folder
        try:
            node = MigNode(folder, step=fuse, files=files, mps=mps, holding=BY_MPS)
            fuse.left = at
            given(node, mps, FIRST)
            node.prepare(SECOND)
            node.unprepare(FIRST)
            node.settle_mps()
            node.prepare(shares[a_share("third").metadata.uid])
            node.unprepare(SECOND)
            node.settle_mps()
        except Killed:
            died = True
        mps.folder = kept
        after = MigNode(folder, mps=mps, holding=BY_MPS)
        after.settle_mps()
        used = bool(after.record.claims)
        assert modes(path) == [EXCLUSIVE if used else 0, 0], at
        assert bool(after.record.modes) is used
        assert [name for name in mps.folder.names() if mps.folder.wanted(name)] == [daemon_name([after.uuid])] * used
        assert {*after.specs()} == {*after.record.claims}
        for uid, claim in list(after.record.claims.items()):
            assert claim.state is PreparationState.PREPARED
            [device] = claim.devices
            assert device.limit is not None
            assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={device.limit.mib}M" in str(after.specs()[uid])
            after.unprepare(shares[uid])
        after.settle_mps()
        assert modes(path) == [0, 0], at
        assert not any(map(mps.folder.wanted, mps.folder.names())), at
    return died


def test_an_agent_that_dies_at_any_step_leaves_each_share_with_its_limit_or_nothing(tmp_path: Path) -> None:
    at = 1
    while course(tmp_path / str(at), at):
        at += 1
    assert at > 20, "every write and every call is a point"
