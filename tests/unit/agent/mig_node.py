"""The part of an agent that keeps claims and instances, in a folder with simulated NVML. Another one there is a restart."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from draco.agent.claims import rebuilding, recovery
from draco.agent.claims.cdi import CdiFolder
from draco.agent.claims.memory_limits import UNLIMITED, Holding
from draco.agent.claims.mps import MpsDaemons
from draco.agent.claims.time_slices import TimeSlices
from draco.agent.files import Files
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.compute_mode import ComputeModes
from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.gpus import Gpu, Use
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_instances import NvmlInstances
from draco.agent.hardware.time_slicing import TimeSliceSetter
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.mig.holders import Holders
from draco.agent.mig.instance_manager import FindHolder, InstanceManager
from draco.agent.mig.inventory import MigInventory
from draco.agent.mig.layout import LayoutApplier
from draco.agent.mig.users import DeviceUsers
from draco.agent.mps.control import MpsControl
from draco.agent.mps.folder import MpsFolder
from draco.agent.record.checkpoint import Checkpoint, RecordState
from draco.agent.record.contents import InstanceState, PreparedClaim
from draco.mig.keeping import KeptInstances
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import NVIDIA_DRIVER, ClaimUid, GpuUuid
from draco_local.simulator.gpus import procfs, state
from draco_local.simulator.gpus.gpu_state import GpuState
from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.nvml.nvidia_smi import SimulatedSmi
from tests.builders import a_claim
from tests.doubles.judged import at_first_sight
from tests.doubles.mps import MpsNode
from tests.doubles.undivided import a_preparer

BOOT = "this boot"
NOTHING = KeptInstances()


def build(folder: Path, *, board: str = "H100-80GB", gpus: int = 1, mig: bool = True) -> Path:
    """Create a node in a folder; returns its state file."""
    path = folder / "gpus.json"
    state.create(path, board=board, gpus=gpus, node_name="node-0")
    with state.mutate(path) as node:
        for gpu in node.gpus:
            gpu.mig_current = gpu.mig_pending = int(mig)
    live = procfs.build(path, state.load(path))
    # A static copy: updating the tree on every change would take most of a test's time.
    live.rename(folder / "proc")
    return path


class MigNode:
    """Starts as the agent does: reads the record and the GPUs, recovers claims and instances, and updates the specs."""

    def __init__(
        self,
        folder: Path,
        *,
        step: Callable[[str], None] = lambda _point: None,
        files: Files | None = None,
        boot: str = BOOT,
        keeping: KeptInstances = NOTHING,
        holder: str = "",
        find: FindHolder | None = None,
        proc: Path | None = None,
        mps: MpsNode | None = None,
        holding: Holding = UNLIMITED,
    ) -> None:
        self.folder = folder
        self.path = folder / "gpus.json"
        self.now_s = 0.0
        self.keep = keeping
        self.files = files or Files()
        self.boot = boot
        self.nvml = Nvml(SimulatedNvml(self.path, step=step))
        self.edge = NvmlInstances(self.nvml)
        record = folder / "state" / "checkpoint.json"
        self.record = Checkpoint(record, self.files, boot_id="")
        self.mig = MigInventory(self.record, self.edge, boot_id=boot, monotonic=lambda: self.now_s)
        self.mps = MpsDaemons(
            self.record,
            MpsFolder(folder / "mps", self.files) if mps is None else mps.folder,
            MpsControl(DriverPrograms(None)) if mps is None else mps.control,
            ComputeModes(self.nvml),
            load=lambda: f"{boot}/{state.load(self.path).driver.generation}",
            aside=self.nvml.aside,
        )
        self.steps = InstanceManager(
            self.record, self.edge, self.mig, holder=find or (lambda *_: holder), end_on=self.mps.end_on
        )
        self.instances = ClaimInstances(
            self.record,
            self.mig,
            self.steps,
            keeping=lambda _uuid: self.keep,
            monotonic=lambda: self.now_s,
            users=DeviceUsers(self.record, Holders(proc or folder / "proc"), monotonic=lambda: self.now_s),
        )
        self.cdi = CdiFolder(
            folder / "cdi", self.files, driver=NVIDIA_DRIVER, node=Capabilities(proc=folder / "proc"), boot_id=boot
        )
        self.slices = TimeSlices(
            self.record,
            TimeSliceSetter(self.nvml, SimulatedSmi(SimulatedNvml(self.path, step=step))),
            driver_version=lambda: self.nvml.driver().driver_version,
            load=lambda: f"{boot}/{state.load(self.path).driver.generation}",
        )
        self.desk = a_preparer(
            self.record, self.cdi, instances=self.instances, slices=self.slices, mps=self.mps, holding=holding
        )
        self.layouts = LayoutApplier(self.record, self.mig, self.steps, self.instances)
        self.nvml.open()
        found = recovery.read_record(record, self.files)
        assert isinstance(found, RecordState), found
        self.record.restore(found)
        self.forgotten = rebuilding.forgotten(found.claims.values(), self.cdi.claims())
        self.gpus = self.scan()
        self.at_first = self.mig.divisions
        self.left_open = {one.gpu for one in self.record.instances.values() if one.state is not InstanceState.MADE}
        self.converged = recovery.converge(
            self.record, self.cdi, gpus=self.gpus, boot_id=boot, instances=self.instances
        )

    def scan(self) -> list[Gpu]:
        return self.mig.look(at_first_sight(self.nvml.gpus()))

    def settle_slices(self) -> None:
        """What the reconciler of time slices does."""
        for gpu in self.gpus:
            if not self.slices.is_settled(gpu):
                self.slices.set(gpu.uuid, self.slices.wanted(gpu.uuid))

    def settle_mps(self) -> None:
        """What the reconciler of MPS does."""
        for unit in {gpu.uuid for gpu in self.gpus} | self.mps.units():
            if (claim := self.mps.user(unit)) is not None:
                self.mps.restore(claim)
            else:
                assert self.mps.take_back(unit) == ""

    @property
    def uuid(self) -> GpuUuid:
        return self.gpus[0].uuid

    @property
    def named(self) -> dict[str, Gpu]:
        return {f"gpu-{gpu.minor}": gpu for gpu in self.gpus}

    def prepare(self, claim: ResourceClaim) -> PreparedClaim:
        return self.desk.prepare(claim, self.named)

    def unprepare(self, claim: ResourceClaim) -> None:
        self.desk.unprepare(ClaimUid(claim.metadata.uid))

    def uses(self, gpu: int = 0) -> list[tuple[int, int, Use]]:
        """Profile, start and use of every instance."""
        division = self.mig.divisions[self.gpus[gpu].uuid]
        return [(one.instance.profile_id, one.instance.start, one.use) for one in division.held]

    def hardware(self, gpu: int = 0) -> GpuState:
        return state.load(self.path).gpus[gpu]

    def real(self, gpu: int = 0) -> list[tuple[int, int, int]]:
        """Profile, start and number of compute instances of every instance on the GPU."""
        return [(one.profile_id, one.start, len(one.compute)) for one in self.hardware(gpu).instances]

    def specs(self) -> dict[str, Any]:
        return {uid: self.cdi.path(uid).read_text() for uid in self.cdi.uids()}


def a_mig_claim(name: str, *devices: str, admin_access: bool | None = None) -> ResourceClaim:
    """A claim allocated partitions of node-0, such as "gpu-0-mig-1g10gb-19-4"."""
    return a_claim(name, on=[f"node-0/{device}" for device in devices], admin_access=admin_access)


def names(places: Iterable[tuple[int, int]], *, gpu: int = 0) -> list[str]:
    """Device names of these profile ids and starts on an H100."""
    text = {19: "1g10gb", 14: "2g20gb", 9: "3g40gb", 5: "4g40gb", 0: "7g80gb", 15: "1g20gb", 20: "1g10gb-me"}
    return [f"gpu-{gpu}-mig-{text[profile]}-{profile}-{start}" for profile, start in places]
