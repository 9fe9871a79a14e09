"""GPUs to plan for, in short notation: "3g.40gb@4" on an H100."""

from collections.abc import Iterable
from typing import Any

from draco.mig.board import Placement
from draco.mig.known_boards import BOARDS
from draco.mig.observed import ObservedGpu, ObservedInstance
from draco.resources.api.draco import InstanceUse
from draco.resources.names import GpuUuid

H100 = BOARDS["H100-80GB"]
UUID = GpuUuid("GPU-1")


def instance(text: str, use: InstanceUse | None = InstanceUse.CLAIM, **fields: Any) -> ObservedInstance:
    """An instance such as "3g.40gb@4"; with use CLAIM, it belongs to claim default/one."""
    name, _, start = text.partition("@")
    profile = H100.profile(name)
    plain = {
        "profile": name,
        "profile_id": profile.id if profile else -1,
        "start": int(start),
        "size": profile.size if profile else 1,
        "use": use,
        "claims": ("default/one",) if use is InstanceUse.CLAIM else (),
    }
    return ObservedInstance(**{**plain, **fields})


def warm(text: str, **fields: Any) -> ObservedInstance:
    return instance(text, InstanceUse.WARM, **fields)


def foreign(text: str) -> ObservedInstance:
    return instance(text, InstanceUse.FOREIGN, number=7)


def gpu(*instances: ObservedInstance, **fields: Any) -> ObservedGpu:
    return ObservedGpu(**{"uuid": UUID, "board": H100, "instances": instances, **fields})


def texts(things: Iterable[ObservedInstance | Placement | Any]) -> list[str]:
    return [f"{each.profile.name if isinstance(each, Placement) else each.profile}@{each.start}" for each in things]
