"""Gives notice of devices before they are published no more.

The scheduler counts what is taken by the devices that are published: a device that it gives to a claim in the moment of its
withdrawal would be counted no more, and its units be given out a second time. So a GPU is offered as before for a while, and what
goes is tainted. A claim that was allocated in that moment is promised its place meanwhile, and that stays. A GPU of which nothing
goes is offered anew at once. Pure: it is told when the notice has been written. What an agent before this one offered is unknown.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from draco.agent.hardware.gpus import GpuMigView, LocatedGpu, device_name
from draco.agent.publish.partitions import Divisible, partition_name
from draco.resources.names import GpuUuid

NOTICE_S: Final = 3.0
"""How long what goes stays published with its taint: time for the scheduler to see that, and for the operator to see what it
allocated before and to promise it."""
LOOK_S: Final = 0.5
"""How often to look whether the notice has been written."""


class Offered(msgspec.Struct, frozen=True):
    """How a GPU is offered for now: divided, or whole (None); which of its devices are about to go; when to look again."""

    divided: Divisible | None
    going: frozenset[str] = frozenset()
    again_in_s: float | None = None


class _Shown(msgspec.Struct, frozen=True):
    """What is offered of one GPU; which devices of it are about to go, and since when the API server says so."""

    divided: Divisible | None
    names: frozenset[str]
    going: Mapping[str, float | None] = {}


class Withdrawals:
    """What one node offers, and is about to offer no more."""

    def __init__(self) -> None:
        self._shown: dict[GpuUuid, _Shown] = {}

    def keep_only(self, uuids: Collection[GpuUuid]) -> None:
        """Forget the GPUs that are not there any more."""
        self._shown = {uuid: each for uuid, each in self._shown.items() if uuid in uuids}

    def offer(
        self, located: LocatedGpu, mig: GpuMigView, divided: Divisible | None, *, written: bool, now_s: float
    ) -> Offered:
        """How to offer a GPU that is to be offered `divided`, or whole (None).

        `written` says whether the API server has what was offered last. `now_s` is monotonic.
        """
        uuid = located.gpu.uuid
        names, before = _names(located, divided), self._shown.get(uuid)
        if before is None or not _is_of(before.divided, mig) or before.names <= names:
            self._shown[uuid] = _Shown(divided, names)
            return Offered(divided)
        going = {name: before.going.get(name) for name in before.names - names}
        if written:  # what was already going then is known to be
            going |= {name: now_s for name, since in going.items() if name in before.going and since is None}
        left = [NOTICE_S if since is None else since + NOTICE_S - now_s for since in going.values()]
        if max(left) <= 0:
            self._shown[uuid] = _Shown(divided, names)
            return Offered(divided)
        kept = before.divided
        if kept is not None:
            kept = msgspec.structs.replace(kept, located=located, mig=mig)
        self._shown[uuid] = _Shown(kept, before.names, going)
        return Offered(kept, frozenset(going), LOOK_S if None in going.values() else max(left))


def _names(located: LocatedGpu, divided: Divisible | None) -> frozenset[str]:
    """Those of the devices that are offered of a GPU."""
    whole = device_name(located.gpu)
    if divided is None:
        return frozenset({whole})
    parts = {partition_name(whole, one) for one in divided.placements}
    return frozenset(parts | {whole} if divided.whole else parts)


def _is_of(divided: Divisible | None, mig: GpuMigView) -> bool:
    """Whether the GPU can still be offered so."""
    return divided is None or divided.board == mig.board
