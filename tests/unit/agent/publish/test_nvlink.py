"""NVLink neighbours as NVML reports them, and what is published: neighbours inside the node, and the fabric beyond it."""

import itertools
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from draco.agent.hardware.faults import FABRIC_FAILED, with_fault
from draco.agent.hardware.gpus import ABSENT, DriverInfo, FabricPlace, Gpu, GpuMigView, KnownGpu, LinkEnds
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import GpuLost
from draco.agent.publish.device_names import remembered, shown
from draco.agent.publish.nvlink import NvLinks, nvlinks
from draco.agent.publish.offering import Offering
from draco.allocation.fleet.inventory import Inventory
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.allocate import allocate
from draco.health.ledger import DriverLoad, FaultLedger, looked
from draco.mig.known_boards import BOARDS
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.draco import MigMode, WantedGpu
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import Device
from draco.resources.names import GpuUuid
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import wiring
from draco_local.simulator.gpus.state import create, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.builders import MOMENT, a_gpu, a_node, a_slice

CLUSTER = uuid.UUID("c1c1c1c1-0000-4000-8000-000000000001")
DRIVER = DriverInfo("580.65.06", "13.0", "13.580.65.06")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create(tmp_path / "state.json", gpus=4, node_name="node-1")
    return tmp_path / "state.json"


def opened(path: Path, board: str = "", gpus: int = 4) -> Nvml:
    if board:
        create(path, board=board, gpus=gpus, node_name="node-1")
    nvml = Nvml(SimulatedNvml(path))
    nvml.open()
    return nvml


def a_linked(minor: int, *to: int, switched: bool = False, **fields: Any) -> Gpu:
    ends = LinkEnds(switched=switched, gpus=tuple(a_gpu(other).pci_bus_id for other in to))
    return a_gpu(minor, links=ends, **fields)


def test_gpus_behind_switches_reach_all_of_the_node(path: Path) -> None:
    found = nvlinks(opened(path).gpus())
    assert found == {
        f"gpu-{one}": NvLinks(tuple(other for other in range(4) if other != one), group=0) for one in range(4)
    }


def test_cards_with_bridges_reach_their_pair(path: Path) -> None:
    nvml = opened(path, board="A30", gpus=5)
    assert nvlinks(nvml.gpus()) == {}
    wiring.bridge_pairs(path)
    nvml = opened(path)
    found = {name: (one.peers, one.group) for name, one in nvlinks(nvml.gpus()).items()}
    assert found == {"gpu-0": ((1,), 0), "gpu-1": ((0,), 0), "gpu-2": ((3,), 2), "gpu-3": ((2,), 2)}


@pytest.mark.parametrize("board", ["L40S", "T4"])
def test_boards_without_nvlink_say_nothing(path: Path, board: str) -> None:
    [first, *_] = opened(path, board).gpus()
    assert (nvlinks([first]), first.fabric) == ({}, None)


def test_a_pair_whose_last_link_goes_down_is_none_any_more_until_it_is_up_again(path: Path) -> None:
    create(path, board="A30", gpus=2, node_name="node-1")
    wiring.bridge_pairs(path)
    nvml = opened(path)
    assert nvlinks(nvml.gpus())
    for link in range(3):
        faults.nvlink(path, 0, link, down=True)
        faults.nvlink(path, 1, link, down=True)
    assert nvlinks(nvml.gpus()), "one of four links is enough"
    for gpu in (0, 1):
        faults.nvlink(path, gpu, 3, down=True)
    assert nvlinks(nvml.gpus()) == {}
    for gpu in (0, 1):
        faults.nvlink(path, gpu, 3, down=False)
    assert set(nvlinks(nvml.gpus())) == {"gpu-0", "gpu-1"}


def test_where_links_lead_is_asked_again_only_when_others_are_up(path: Path) -> None:
    asked: list[str] = []

    class Counting(SimulatedNvml):
        def __getattribute__(self, name: str) -> Any:
            if name == "nvmlDeviceGetNvLinkRemoteDeviceType":
                asked.append(name)
            return super().__getattribute__(name)

        __getattr__ = SimulatedNvml.__getattr__

    nvml = Nvml(Counting(path))
    nvml.open()
    nvml.gpus()
    assert len(asked) == 4 * 18
    nvml.gpus()
    assert len(asked) == 4 * 18
    faults.nvlink(path, 0, 0, down=True)
    nvml.gpus()
    assert len(asked) == 4 * 18 + 17


def test_a_fabric_of_several_nodes_is_known_once_the_gpu_has_joined_it(path: Path) -> None:
    nvml = opened(path)
    assert [gpu.fabric for gpu in nvml.gpus()] == [None] * 4, "a single server has no cluster"
    wiring.join_fabric(path, cluster=CLUSTER, clique=7, joined=False)
    gpus = nvml.gpus()
    assert ([gpu.fabric for gpu in gpus], nvlinks(gpus)) == ([None] * 4, {}), "nothing goes through switches yet"
    wiring.join_fabric(path, cluster=CLUSTER, clique=7)
    gpus = nvml.gpus()
    assert [gpu.fabric for gpu in gpus] == [FabricPlace(str(CLUSTER), 7)] * 4
    assert set(nvlinks(gpus)) == {f"gpu-{number}" for number in range(4)}


class Old(SimulatedNvml):
    """A library without some functions."""

    lacking: frozenset[str] = frozenset()

    def __getattribute__(self, name: str) -> Any:
        if name in type(self).lacking:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return super().__getattribute__(name)


NEWER = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetNvLinkRemoteDeviceType")


@pytest.mark.parametrize("lacking", [NEWER[:1], NEWER, ("nvmlDeviceGetNvLinkRemotePciInfo",)])
def test_a_driver_without_the_functions_says_less_and_breaks_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...]
) -> None:
    wiring.join_fabric(path, cluster=CLUSTER, clique=7)
    monkeypatch.setattr(Old, "lacking", frozenset(lacking))
    nvml = Nvml(Old(path))
    nvml.open()
    gpus = nvml.gpus()
    assert len(gpus) == 4
    known = len(lacking) == 1
    assert [gpu.fabric for gpu in gpus] == ([FabricPlace(str(CLUSTER), 7)] * 4 if known else [None] * 4)
    assert bool(nvlinks(gpus)) == known


def test_a_gpu_that_is_lost_while_it_is_asked_says_so(path: Path) -> None:
    nvml = opened(path)
    nvml.gpus()
    with mutate(path) as state:
        state.gpus[1].error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.gpus()[1].reading.signs[0].name == GpuLost.fault


def test_a_divided_gpu_keeps_the_links_that_it_had_also_for_an_agent_that_starts(path: Path) -> None:
    nvml = opened(path)
    before = nvml.gpus()
    known = remembered({}, before)
    with mutate(path) as state:
        state.gpus[0].mig_current = state.gpus[0].mig_pending = 1
    assert nvml.gpus()[0].links == before[0].links
    started = opened(path).gpus()
    assert started[0].links is None
    again = msgspec.json.decode(msgspec.json.encode(remembered(known, started)), type=dict[GpuUuid, KnownGpu])
    assert nvlinks(shown(again, started)) == nvlinks(before)


def test_an_absent_gpu_has_no_neighbours_and_is_none() -> None:
    gone = with_fault(a_linked(1, switched=True), ABSENT, "Gone.")
    gpus = [a_linked(0, switched=True), gone, a_linked(2, switched=True)]
    assert nvlinks(gpus) == {"gpu-0": NvLinks((2,), 0), "gpu-2": NvLinks((0,), 0)}


def test_a_link_has_two_ends_also_where_one_of_them_cannot_be_asked() -> None:
    assert nvlinks([a_linked(0, 1), a_gpu(1)]) == {"gpu-0": NvLinks((1,), 0), "gpu-1": NvLinks((0,), 0)}
    assert nvlinks([a_linked(0, 9)]) == {}, "the other end belongs to somebody else, such as another virtual machine"


def test_gpus_in_a_chain_are_neighbours_and_no_group() -> None:
    found = nvlinks([a_linked(0, 1), a_linked(1, 0, 2), a_linked(2, 1)])
    assert {name: (one.peers, one.group) for name, one in found.items()} == {
        "gpu-0": ((1,), None),
        "gpu-1": ((0, 2), None),
        "gpu-2": ((1,), None),
    }


def test_sixteen_gpus_fit_and_a_list_that_does_not_is_left_out() -> None:
    def values(count: int) -> dict[str, Any]:
        found = nvlinks([a_linked(minor, switched=True) for minor in range(count)])["gpu-0"].attributes()
        return {name: one.value for name, one in found.items()}

    assert values(16) == {
        "draco.dev/nvlinkPeers": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
        "draco.dev/nvlinkGroup": 0,
    }
    assert values(40) == {"draco.dev/nvlinkGroup": 0}


def published(gpus: Sequence[Gpu], mode: MigMode | None = None) -> list[Device]:
    board = BOARDS["H100-80GB"]
    migs = {each.uuid: GpuMigView(gpu=each.uuid, capable=True, board=board) for each in gpus if mode}
    wanted = {each.uuid: WantedGpu(uuid=each.uuid, policy="p", mode=mode) for each in gpus if mode}
    return Offering().offer(gpus, DRIVER, migs=migs, wanted=wanted, now_s=0.0).devices


def test_partitions_say_which_fabric_their_gpu_is_in_and_only_the_whole_what_it_is_linked_to(path: Path) -> None:
    wiring.join_fabric(path, cluster=CLUSTER, clique=7)
    devices = published(opened(path).gpus(), MigMode.DYNAMIC)
    kinds = {one.name: {name: value.value for name, value in one.attributes.items()} for one in devices}
    assert {said["clusterUUID"] for said in kinds.values()} == {str(CLUSTER)}
    assert {said["cliqueID"] for said in kinds.values()} == {7}
    assert {name for name, said in kinds.items() if "draco.dev/nvlinkPeers" in said} == {f"gpu-{n}" for n in range(4)}
    assert len(kinds) > 4


def test_two_gpus_with_an_nvlink_between_them_can_be_asked_for(path: Path) -> None:
    create(path, board="A30", gpus=4, node_name="node-1")
    wiring.bridge_pairs(path)
    with mutate(path) as state:
        state.gpus[1].error = pynvml.NVML_ERROR_GPU_IS_LOST  # gpu-0 is alone: its pair cannot be read
    devices = published([gpu for gpu in opened(path).gpus() if gpu.uuid != load(path).gpus[1].uuid])
    fleet = Inventory()
    one = a_slice("node-0", [])
    fleet.put_slice(msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, devices=devices)))
    claim = {
        "metadata": {"name": "pair", "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": 2}}],
                "constraints": [{"matchAttribute": "draco.dev/nvlinkGroup"}],
            }
        },
    }
    results = allocate(
        fleet,
        AllocatedState.of([]),
        a_node("node-0"),
        [msgspec.convert(claim, ResourceClaim)],
        {"gpu": DeviceClass(metadata=ObjectMeta(name="gpu"))},
        share_ids=map("share-{}".format, itertools.count()),
    )
    assert results is not None
    assert [each.device for each in results[0].devices.results] == ["gpu-2", "gpu-3"]


def test_a_gpu_joins_its_fabric_has_joined_or_could_not(path: Path) -> None:
    nvml = opened(path)
    faults.fabric(path, 0, "joining")
    faults.fabric(path, 1, "failed")
    joining, failed, *joined = nvml.gpus()
    assert [gpu.joining for gpu in (joining, failed, *joined)] == [True, False, False, False]
    assert joining.reading.signs == ()
    [sign] = failed.reading.signs
    assert sign.name == FABRIC_FAILED
    assert "(GPU requires restart, status 16)" in sign.message
    assert nvlinks([joining, failed]) == {}, "nothing goes through switches"
    assert not any(gpu.joining or gpu.reading.signs for gpu in joined)
    for gpu in (0, 1):
        faults.fabric(path, gpu, "joined")
    assert not any(gpu.joining or gpu.reading.signs for gpu in nvml.gpus())


def test_a_divided_gpu_does_not_need_its_fabric(path: Path) -> None:
    nvml = opened(path)
    for gpu, how in enumerate(("joining", "failed")):
        faults.fabric(path, gpu, how)  # type: ignore[arg-type] # both are states
        with mutate(path) as state:
            state.gpus[gpu].mig_current = state.gpus[gpu].mig_pending = 1
    assert not any(gpu.joining or gpu.reading.signs for gpu in nvml.gpus())


def test_whether_a_gpu_has_joined_stays_what_it_was_while_that_cannot_be_read(path: Path) -> None:
    nvml = opened(path)
    faults.fabric(path, 0, "joining")
    faults.fabric(path, 1, "failed")
    before = nvml.gpus()
    for gpu in (0, 1):
        faults.fail(path, "nvmlDeviceGetGpuFabricInfoV", pynvml.NVML_ERROR_UNKNOWN, gpu=gpu)
    joining, failed, *_ = nvml.gpus()
    assert (joining.joining, joining.unread[0].name) == (True, "fabric")
    known = looked(FaultLedger(), [before[1].reading], now=MOMENT, load=DriverLoad("boot"))
    still = looked(known, [failed.reading], now=MOMENT, load=DriverLoad("boot"))
    assert FABRIC_FAILED in {one.name for one in still.entries}
    faults.stop_failing(path)
    faults.fabric(path, 1, "joined")
    over = looked(still, [nvml.gpus()[1].reading], now=MOMENT, load=DriverLoad("boot"))
    assert FABRIC_FAILED not in {one.name for one in over.entries}, "it is free with the first reading that says so"


@pytest.mark.parametrize("code", ["ARGUMENT_VERSION_MISMATCH", "FUNCTION_NOT_FOUND", "NOT_SUPPORTED"])
def test_a_driver_that_knows_an_older_way_to_ask_for_the_fabric_is_asked_that_way(path: Path, code: str) -> None:
    wiring.join_fabric(path, cluster=CLUSTER, clique=7, joined=False)
    faults.fail(path, "nvmlDeviceGetGpuFabricInfoV", faults.ERRORS[code])
    nvml = opened(path)
    assert [(gpu.joining, gpu.unread) for gpu in nvml.gpus()] == [(True, ())] * 4
