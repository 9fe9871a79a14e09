"""The GPU instances of a node without any: its GPUs are present, and none is divided."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from draco.agent.claims.cdi import CdiFolder
from draco.agent.claims.memory_limits import UNLIMITED, Holding
from draco.agent.claims.mps import MpsDaemons
from draco.agent.claims.preparer import ClaimPreparer
from draco.agent.claims.time_slices import TimeSlices
from draco.agent.files import Files
from draco.agent.hardware.compute_mode import ComputeModes
from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.nvidia_smi import NvidiaSmi
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.time_slicing import TimeSliceSetter
from draco.agent.mps.control import MpsControl
from draco.agent.mps.folder import MpsFolder
from draco.agent.record.checkpoint import Checkpoint
from draco.resources.names import NVIDIA_DRIVER


class NoInstances:
    """Stands for `ClaimInstances` where claims hold whole GPUs only."""

    lock = nullcontext()

    def observed(self) -> dict[Any, Any]:
        return {}

    def shown(self) -> None:
        """There is nothing to show."""

    def restore(self, _gpus: object) -> list[str]:
        return []

    def verify(self, _claim: object, _gpus: object) -> None:
        """Every GPU is where the claim says."""

    def whole(self, _claim: object) -> None:
        """Every GPU is undivided."""

    seen_whole = whole


UNDIVIDED: Any = NoInstances()


def a_preparer(
    record: Checkpoint,
    cdi: CdiFolder,
    *,
    instances: Any = UNDIVIDED,
    slices: TimeSlices | None = None,
    mps: MpsDaemons | None = None,
    holding: Holding = UNLIMITED,
) -> ClaimPreparer:
    """The preparer of node-0. Without `slices` and `mps` its claims ask for no time slices and no MPS."""
    if slices is None:
        slices = TimeSlices(
            record, TimeSliceSetter(Nvml(), NvidiaSmi(None)), driver_version=lambda: "", load=lambda: ""
        )
    if mps is None:
        folder = MpsFolder(Path("/nonexistent"), Files())
        mps = MpsDaemons(record, folder, MpsControl(DriverPrograms(None)), ComputeModes(Nvml()), load=lambda: "")
    return ClaimPreparer(
        record,
        cdi,
        driver=NVIDIA_DRIVER,
        pool="node-0",
        instances=instances,
        time_slices=slices,
        mps=mps,
        holding=holding,
    )
