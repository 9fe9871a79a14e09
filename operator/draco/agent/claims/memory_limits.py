"""Memory limits of claims: what holds a claim's containers to the memory of its shares.

- The driver: for a cgroup, against all processes of a container together. The claim's spec names NVIDIA's hook, which the runtime
  runs when the container is there and nothing runs in it yet: no process is ever without the limit, and if the hook fails, the
  container does not start. It takes one amount for all GPUs of a container from the container's environment. Nothing has to be
  taken back, also after a crash: a hard limit goes with its cgroup. The soft limit is 0, because the driver would leave one in
  the cgroups above.
- A library (`containers.limit_library`): in every process that loads it, with one amount for all GPUs of a container.
- MPS: for each client of the GPU's daemon (`mps`), which all shares of the GPU have. A container can be the client of one daemon,
  and sees only that daemon's GPU.

Owns which limits a claim has, and on which GPUs they can be held; `allocation.share_limits` has what goes together. Each
container of a claim has the limit for itself.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from draco.agent.claims.mps import MpsUnit
from draco.agent.containers.limit_library import LimitLibrary
from draco.agent.errors import PrepareError
from draco.agent.hardware.gpus import Gpu
from draco.agent.mps.folder import DaemonName
from draco.agent.record.contents import DeviceMps, PreparedClaim, PreparedDevice, ShareLimit
from draco.allocation.configurations import NEEDS_OF_MPS, TimeSlice
from draco.allocation.share_limits import NEEDLESS_ALONE, LimitedDevice, ShareRoom, refused_shares
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.api.sharing import Enforcement
from draco.resources.names import GpuUuid
from draco.resources.texts import listed
from draco.sharing.enforcement import HELD_BY
from draco.sharing.terms import MEMORY, consumed

MpsPlace = Callable[[Sequence[MpsUnit]], tuple[DaemonName, str]]
"""The name and folder of the MPS daemon of some whole GPUs, or of a MIG device."""


class PublishedShares(NamedTuple):
    """On which terms the shares of a GPU are published."""

    enforcement: Enforcement
    room: ShareRoom = ShareRoom(0, 0, 0)


class Holding(NamedTuple):
    """What a node holds shares to their memory with: how those of a GPU are published, None if unknown; its library; MPS.

    `has_mps`: whether a GPU can have a daemon, None if unknown. `mps_place`: see MpsPlace.
    """

    published: Callable[[GpuUuid], PublishedShares | None] = lambda _: PublishedShares(Enforcement.NONE)
    library: LimitLibrary = LimitLibrary()
    has_mps: Callable[[GpuUuid], bool | None] = lambda _: None
    mps_place: MpsPlace = lambda _: (DaemonName(""), "")


UNLIMITED: Final = Holding()


def limited(claim: str, device: PreparedDevice, driver: str, holding: Holding) -> PreparedDevice:
    """The device, with its memory as a limit if it is a share that is held to it. Raises PrepareError."""
    if not device.share_id or device.admin:
        return device
    if (shares := holding.published(device.gpu)) is None:
        raise PrepareError(
            f"Claim {claim} cannot be prepared now: it has a share of {device.device}, whose published terms are not known "
            "yet. Kubelet tries again."
        )
    enforcement, by = shares.enforcement, HELD_BY[shares.enforcement]
    taken = consumed(device.consumed, MEMORY, driver) or 0
    if enforcement is Enforcement.NONE or (by in NEEDLESS_ALONE and shares.room.memory and shares.room.is_all(taken)):
        return device
    if enforcement is Enforcement.LIBRARY and (problem := holding.library.problem()):
        raise PrepareError(
            f"Claim {claim} cannot be prepared: a library is to hold its share of {device.device} to its memory, and {problem}. "
            "Kubelet tries again."
        )
    if enforcement is Enforcement.MPS:
        _refuse_client(claim, device, holding)
        device = as_client(device, holding.mps_place)
    library = holding.library.path if enforcement is Enforcement.LIBRARY else ""
    return with_limit(device, ShareLimit(by=by, mib=max(1, taken >> 20), library=library))  # 0 would be no limit


def with_limit(device: PreparedDevice, limit: ShareLimit) -> PreparedDevice:
    """The device with a limit."""
    if limit.by is MemoryLimitBy.DRIVER:
        return msgspec.structs.replace(device, memory_limit_mib=limit.mib)
    return msgspec.structs.replace(device, soft_limit=limit)


def as_client(device: PreparedDevice, mps_place: MpsPlace) -> PreparedDevice:
    """The share as a client of its GPU's daemon, with what the claim's configuration asks of that.

    The sharers may run as different users, who would have to wait for each other.
    """
    daemon, folder = mps_place([device.gpu])
    mps = device.mps or DeviceMps(daemon=daemon, folder=folder, gpus=(device.gpu,))
    return msgspec.structs.replace(device, mps=msgspec.structs.replace(mps, multi_user=True))


def _refuse_client(claim: str, device: PreparedDevice, holding: Holding) -> None:
    if holding.has_mps(device.gpu) is False:
        raise PrepareError(
            f"Claim {claim} cannot be prepared: MPS is to hold its share of {device.device} to its memory, and the node has "
            f"none: {NEEDS_OF_MPS}. Kubelet tries again."
        )
    if device.time_slice is not TimeSlice.DEFAULT:
        raise PrepareError(
            f"Claim {claim} cannot be prepared: its configuration asks for time slices of {device.time_slice} on "
            f"{device.device}, whose shares use MPS. Remove that configuration, or override it in a new claim."
        )


def limits_mib(claim: PreparedClaim, by: MemoryLimitBy = MemoryLimitBy.DRIVER) -> dict[GpuUuid, int]:
    """The limits of a claim in MiB that this one holds; GPUs without one are left out. Shares of one GPU add up."""
    found: Counter[GpuUuid] = Counter()
    for device in claim.devices:
        if (limit := device.limit) is not None and limit.by is by and not device.admin:
            found[device.gpu] += limit.mib
    return dict(found)


def unlimitable(claim: PreparedClaim, gpus: Mapping[GpuUuid, Gpu]) -> str:
    """Why a claim's limits cannot be held, as a sentence; "" if they can, as far as known."""
    devices = [
        LimitedDevice(one.device, is_admin=one.admin)
        if one.limit is None
        else LimitedDevice(one.device, one.limit.by, one.limit.mib, one.admin)
        for one in claim.devices
    ]
    if (refused := refused_shares(devices)) is not None:
        return f"Claim {claim} cannot be prepared: {refused.why}; {refused.remedy}."
    limits = limits_mib(claim)
    able = {uuid for uuid, gpu in gpus.items() if gpu.memory_limits is not False}
    without = {one.device for one in claim.devices if one.gpu in limits and (one.partition or one.gpu not in able)}
    if without:
        return (
            f"Claim {claim} cannot be prepared: the driver holds no memory limit on {listed(sorted(without))}, which takes "
            "NVIDIA's driver 615 or newer, cgroup v2 and a whole GPU; select GPUs whose attribute draco.dev/memoryLimit is "
            '"driver".'
        )
    return ""
