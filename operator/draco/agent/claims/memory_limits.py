"""Memory limits of claims, which the driver holds for a container's cgroup, against all its processes together.

The claim's spec names NVIDIA's hook, which the runtime runs when the container is there and nothing runs in it yet: no process is
ever without the limit, and if the hook fails, the container does not start. The hook takes one amount for all GPUs of a container
from the container's environment. Nothing has to be taken back, also after a crash: a hard limit goes with its cgroup. The soft
limit is 0, because the driver would leave one in the cgroups above.

Owns which limits a claim has, and which cannot be held so. Each container of a claim has the limit for itself.
"""

from collections import Counter
from collections.abc import Mapping

from draco.agent.hardware.gpus import Gpu
from draco.agent.record.contents import PreparedClaim
from draco.resources.names import GpuUuid
from draco.resources.texts import listed


def limits_mib(claim: PreparedClaim) -> dict[GpuUuid, int]:
    """The limits of a claim in MiB; GPUs without one are left out. Shares of one GPU add up."""
    found: Counter[GpuUuid] = Counter()
    for device in claim.devices:
        if device.memory_limit_mib and not device.admin:
            found[device.gpu] += device.memory_limit_mib
    return dict(found)


def unlimitable(claim: PreparedClaim, gpus: Mapping[GpuUuid, Gpu]) -> str:
    """Why a claim's limits cannot be held, as a sentence; "" if they can, as far as known."""
    limits = limits_mib(claim)
    if len(set(limits.values())) > 1:
        amounts = listed(f"{each} MiB" for each in sorted(set(limits.values())))
        return (
            f"Claim {claim} cannot be prepared: its memory limits differ ({amounts}), and NVIDIA's container toolkit sets one "
            "for all GPUs of a container; ask for equal shares, or use several pods with a claim each."
        )
    able = {uuid for uuid, gpu in gpus.items() if gpu.memory_limits is not False}
    without = {one.device for one in claim.devices if one.gpu in limits and (one.partition or one.gpu not in able)}
    if without:
        return (
            f"Claim {claim} cannot be prepared: the driver holds no memory limit on {listed(sorted(without))}, which takes "
            "NVIDIA's driver 615 or newer, cgroup v2 and a whole GPU; select GPUs whose attribute draco.dev/memoryLimit is "
            '"driver".'
        )
    return ""
