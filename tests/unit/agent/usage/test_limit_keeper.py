"""A memory limit that the driver does not hold any more is set again, and people are told."""

import shutil
from pathlib import Path

import msgspec
import pynvml
import pytest

from draco.agent.hardware.gpus import Instance
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_limits import NvmlMemory
from draco.agent.hardware.nvml_memory import MARK
from draco.agent.hardware.nvml_usage import DeviceUse, ProcessUse
from draco.agent.mig.holders import Holders
from draco.agent.record.contents import PreparedClaim, PreparedDevice
from draco.agent.threads import DaemonExecutor
from draco.agent.usage.attribution import ContainerUse, ProcessPlace
from draco.agent.usage.limit_keeper import LimitKeeper
from draco.resources.names import GpuUuid
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import procfs
from draco_local.simulator.gpus.procfs import cgroup_of
from draco_local.simulator.gpus.state import CgroupMemoryLimit, GpuProcess, create, load, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.doubles.clock import ManualClock
from tests.unit.agent.claims.test_containers import CLAIM

POD = "0b5f1a6e-2d0f-4c5e-9f0a-1d2c3b4a5f60"
GIB = 1 << 30
SCOPE = cgroup_of(POD, "main")
CONTAINER = SCOPE.rpartition("-")[2].removesuffix(".scope")


class Bench:
    """A node with one process of a container on its GPU, in a cgroup below the container's, and the limits of that."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.json"
        self.gpu = GpuUuid(create(self.path, node_name="node", gpus=1).gpus[0].uuid)
        faults.reload_driver(self.path, version="615")
        faults.hold(self.path, 0, GpuProcess(7, memory_mib=512, cgroup=f"{SCOPE}/inner"))
        procfs.build(self.path, load(self.path))
        self.cgroups = folder / "cgroup"
        for each in (Path(f"{SCOPE}/inner"), *Path(f"{SCOPE}/inner").parents):
            place = self.cgroups / str(each).lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            (place / MARK).touch()
        self.nvml = Nvml(SimulatedNvml(self.path))
        self.nvml.open()
        self.nvml.gpus()
        self.told: list[str] = []

    @property
    def scope(self) -> str:
        return str(self.cgroups / SCOPE.lstrip("/"))

    def lose_account(self) -> None:
        """Let the container's cgroup be one of which the kernel keeps no account."""
        shutil.rmtree(self.scope)
        Path(self.scope, "inner").mkdir(parents=True)

    def limits(self) -> dict[str, int]:
        """The hard limits in GiB, by the end of the cgroup's path."""
        found = load(self.path).gpus[0].memory_limits
        return {Path(name).name: each.hard // GIB for name, each in found.items() if each.hard < 1 << 60}

    def limit(self, folder: str, gib: int) -> None:
        with mutate(self.path) as state:
            state.gpus[0].memory_limits[folder] = CgroupMemoryLimit(0, gib * GIB)

    def use(self, mib: int, *, container: str = CONTAINER) -> ContainerUse:
        device = PreparedDevice(device="gpu-0", gpu=self.gpu, minor=0, request="gpu", pool="node", memory_limit_mib=mib)
        claim: PreparedClaim = msgspec.structs.replace(CLAIM, devices=[device])
        return ContainerUse(
            device=DeviceUse(gpu=self.gpu, processes=(ProcessUse(7, 512 << 20, None), ProcessUse(8, 1, None))),
            place=ProcessPlace(POD, container, "main"),
            namespace="default",
            pod="trainer",
            claims=(claim,),
        )

    async def checked(self, *uses: ContainerUse) -> None:
        """Check twice; who was told once is not told again."""

        def tell(reason: str, action: str, note: str, about: str = "") -> None:
            del action, about
            self.told.append(f"{reason}: {note}")

        holders, clock = Holders(procfs.tree(self.path)), ManualClock()
        keeper = LimitKeeper(NvmlMemory(self.nvml), holders, tell=tell, clock=clock, cgroups=self.cgroups)
        thread = DaemonExecutor("limits", monotonic=clock.monotonic)
        for _ in range(2):
            await keeper.check(uses, thread)
        thread.close()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_a_limit_that_the_driver_has_forgotten_is_set_again_and_told_once(bench: Bench) -> None:
    await bench.checked(bench.use(10 * 1024))
    assert bench.limits() == {Path(SCOPE).name: 10}
    [told] = bench.told
    assert told == (
        f"MemoryLimitMissing: The driver did not hold container main of pod default/trainer to its 10240 MiB of GPU {bench.gpu}, "
        "and does so now; what is above it stays until it is freed."
    )
    await bench.checked(bench.use(10 * 1024))
    assert len(bench.told) == 1


@pytest.mark.parametrize("folder", [SCOPE, f"{SCOPE}/inner"])
async def test_a_limit_that_holds_is_left_alone_also_where_it_is_below_the_containers_cgroup(
    bench: Bench, folder: str
) -> None:
    place = str(bench.cgroups / folder.lstrip("/"))
    for gib in (10, 8):
        bench.limit(place, gib)
        await bench.checked(bench.use(10 * 1024))
        assert (bench.told, bench.limits()) == ([], {Path(folder).name: gib})


async def test_a_limit_that_is_too_high_is_lowered(bench: Bench) -> None:
    bench.limit(bench.scope, 20)
    await bench.checked(bench.use(10 * 1024))
    assert (len(bench.told), bench.limits()) == (1, {Path(SCOPE).name: 10})


async def test_a_limit_of_the_pod_is_none_of_its_container(bench: Bench) -> None:
    bench.limit(str(Path(bench.scope).parent), 10)
    await bench.checked(bench.use(10 * 1024))
    assert bench.limits()[Path(SCOPE).name] == 10


@pytest.mark.parametrize("why", ["no limit", "another container", "on the node", "a MIG device"])
async def test_nothing_is_asked_for_others(bench: Bench, why: str) -> None:
    instance = Instance(gpu=bench.gpu, gi=1, profile_id=9, start=0, size=4)
    whole = bench.use(1024)
    on_instance = msgspec.structs.replace(whole, device=msgspec.structs.replace(whole.device, instance=instance))
    uses = {
        "no limit": bench.use(0),
        "another container": bench.use(1024, container="f" * 64),
        "on the node": bench.use(1024, container=""),
        "a MIG device": on_instance,
    }
    await bench.checked(uses[why])
    assert (bench.limits(), bench.told) == ({}, [])


async def test_a_driver_that_refuses_is_told(bench: Bench) -> None:
    faults.fail(bench.path, "nvmlDeviceSetMemoryLimits_v1", pynvml.NVML_ERROR_NO_PERMISSION)
    await bench.checked(bench.use(1024))
    assert len(bench.told) == 1
    assert "and it cannot be set: NVML's nvmlDeviceSetMemoryLimits_v1 needs more rights" in bench.told[0]


async def test_a_container_that_has_ended_is_nobodys_fault_and_a_cgroup_without_an_account_is_told(
    bench: Bench,
) -> None:
    shutil.rmtree(bench.scope)
    await bench.checked(bench.use(1024))
    assert bench.told == []


async def test_a_cgroup_of_which_the_kernel_keeps_no_account_is_told(bench: Bench) -> None:
    bench.lose_account()
    await bench.checked(bench.use(1024))
    assert "and keeps no account of its cgroup" in bench.told[0]
