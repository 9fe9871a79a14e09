"""The handshake before a GPU is published in another form: whole instead of shared, or shared otherwise.

kube-scheduler does not count the holder of a whole device against its shares, nor the other way round. So the agent first
publishes the GPU unchanged with a taint, and the new form only once the operator has cleared the GPU: the taint had been there
for as long as a scheduler may take to see it, and then the API server knew of no claim that the new form would not count. Without
an operator the GPU stays as it is, tainted. Owns what clears a GPU and what a clearance is good for. Pure: the caller reads and
tells the time.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from draco.resources.api.slices import Device
from draco.resources.names import TAINT_UNSETTLED, UNSETTLED_WITHDRAWN

NOTICE_S: Final = 3.0
"""How long a tainted device stays published: schedulers must see the taint, and the operator what was allocated meanwhile."""


class Notice(msgspec.Struct, frozen=True):
    """A GPU with the taint in all slices seen since `since_s`, the last of this pool generation."""

    generation: int
    since_s: float

    @property
    def due_s(self) -> float:
        """From when claims that are allocated tell that no further one will be."""
        return self.since_s + NOTICE_S


def withdrawn(devices: Iterable[Device], driver: str) -> set[str]:
    """UUIDs of the GPUs of which every published device has the taint."""
    found: dict[str, bool] = {}
    devices = list(devices)
    if not any(map(_is_going, devices)):
        return set()
    for each in devices:
        if uuid := each.gpu_uuid(driver):
            found[uuid] = found.get(uuid, True) and _is_going(each)
    return {uuid for uuid, is_going in found.items() if is_going}


def noticed(before: Mapping[str, Notice], going: Iterable[str], generation: int, now_s: float) -> dict[str, Notice]:
    """The notices now, when the pool of this generation has the taint on all of these GPUs.

    A generation that was not seen may have lacked the taint: the notice begins again.
    """
    found = {}
    for uuid in going:
        known = before.get(uuid)
        is_continued = known is not None and generation <= known.generation + 1
        found[uuid] = Notice(generation, known.since_s if known is not None and is_continued else now_s)
    return found


def is_cleared(shown: int | None, cleared: int | None) -> bool:
    """Whether a clearance is for the taint that the agent has published since pool generation `shown`; None for neither."""
    return shown is not None and cleared is not None and cleared >= shown


def _is_going(device: Device) -> bool:
    return any(each.key == TAINT_UNSETTLED and each.value == UNSETTLED_WITHDRAWN for each in device.taints)
