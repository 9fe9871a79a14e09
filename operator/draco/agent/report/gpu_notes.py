"""What is to be said of a GPU beside its health: what is not known of it, and what keeps it from claims without being a fault.

Owns the sentences, each of which names its remedy where there is one. Pure; `node_status` reports them.
"""

from draco.agent.hardware.gpus import Gpu, GpuMigView
from draco.resources.api.draco import MigState

JOINING = (
    "it is being registered with its NVLink fabric and takes no new claim until that is done; if it takes minutes, look into "
    "the fabric manager's log (`journalctl -u nvidia-fabricmanager`)."
)


def notes(gpu: Gpu, division: GpuMigView | None, *, wanted: bool) -> list[str]:
    """The sentences, to follow the GPU's name and a colon. `wanted`: a MigPolicy has the GPU. `division` is None if not known."""
    found = [one.message for one in gpu.unread]
    if gpu.joining:
        found.append(JOINING)
    if division is not None and not wanted and _left_in_mig_mode(gpu, division):
        found.append(
            "its MIG mode is on, it has no instances and no MigPolicy has it, so it takes no claim; turn the mode off "
            f"(`nvidia-smi -i {gpu.uuid} -mig 0`) and reset it (`nvidia-smi --gpu-reset -i {gpu.uuid}`), or select it with a "
            "MigPolicy."
        )
    return found


def _left_in_mig_mode(gpu: Gpu, division: GpuMigView) -> bool:
    """Whether it is of no use to anybody until a person resets it. Where the mode ends without a reset, Prepare turns it off."""
    return division.enabled and not division.held and division.state is MigState.READY and gpu.mig_needs_reset
