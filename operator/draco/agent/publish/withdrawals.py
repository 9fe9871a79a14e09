"""Delays the withdrawal of devices, and of the form in which they can be allocated, with a taint as notice.

The scheduler counts used units by published devices: a device that it allocates at the moment of its withdrawal would not be
counted, and its units could be allocated twice. Nor does it count the holder of a whole device against its shares, or shares
against a whole device. So a GPU is first offered unchanged for a while, with a taint on the devices that will go or change. A
claim that was allocated at that moment gets a promise of its place meanwhile, or the operator asks for the old form again, so
that both stay. A form changes only once the operator has cleared the GPU, too (`sharing.clearance`): until then it stays tainted.
A change that withdraws nothing is offered immediately. Pure: the caller says when the notice has been written. Of the offer of a
previous agent only the form is known.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from draco.agent.hardware.gpus import Gpu, GpuMigView, device_name
from draco.agent.publish.partitions import Divisible, partition_name
from draco.resources.api.sharing import SharedGpu
from draco.resources.names import GpuUuid
from draco.sharing.clearance import NOTICE_S, is_cleared
from draco.sharing.terms import continues

LOOK_S: Final = 0.5
"""How often to check whether the notice has been written."""


class Offered(msgspec.Struct, frozen=True):
    """The current offer of a GPU: divided, or whole (None); how it is shared; devices about to go; when to look again."""

    divided: Divisible | None
    shared: SharedGpu | None = None
    going: frozenset[str] = frozenset()
    again_in_s: float | None = None


class _Shown(msgspec.Struct, frozen=True):
    """What is offered of one GPU; its devices about to go, and since when the API server says so."""

    divided: Divisible | None
    shared: SharedGpu | None
    names: frozenset[str]
    going: Mapping[str, float | None] = {}
    noticed: int | None = None
    """A pool generation that has them all as going, and so have all later ones."""


class Withdrawals:
    """What one node offers, and is about to withdraw."""

    def __init__(self) -> None:
        self._shown: dict[GpuUuid, _Shown] = {}
        self._recalled: dict[GpuUuid, SharedGpu | None] = {}

    def recall(self, forms: Mapping[GpuUuid, SharedGpu | None]) -> None:
        """How GPUs are shared that a previous agent has published; None for one claim alone."""
        self._recalled = dict(forms)

    @property
    def forms(self) -> Mapping[GpuUuid, SharedGpu | None]:
        """How published GPUs are shared."""
        return self._recalled | {uuid: each.shared for uuid, each in self._shown.items()}

    def keep_only(self, uuids: Collection[GpuUuid]) -> None:
        """Forget GPUs that are gone."""
        self._shown = {uuid: each for uuid, each in self._shown.items() if uuid in uuids}

    def offer(
        self,
        gpu: Gpu,
        mig: GpuMigView,
        divided: Divisible | None,
        shared: SharedGpu | None = None,
        *,
        written: bool,
        generation: int = 0,
        cleared: int | None = None,
        now_s: float,
    ) -> Offered:
        """How to offer a GPU that should be `divided`, or whole (None), and `shared`, or not (None).

        `written`: the API server has the last offer, as this `generation` of the pool. `cleared`: the generation at which the
        operator cleared the GPU for the wanted form.
        """
        uuid = gpu.uuid
        names, before = _names(gpu, divided), self._shown.get(uuid)
        if before is None and uuid in self._recalled:
            before = _Shown(divided, self._recalled[uuid], names)
        changed = before is not None and not continues(before.shared, shared)
        if before is None or not _is_of(before.divided, mig) or (before.names <= names and not changed):
            self._shown[uuid] = _Shown(divided, shared, names)
            return Offered(divided, shared)
        going = {name: before.going.get(name) for name in (before.names if changed else before.names - names)}
        if written:  # devices that were going in the written offer are known to be
            going |= {name: now_s for name, since in going.items() if name in before.going and since is None}
        left = [NOTICE_S if since is None else since + NOTICE_S - now_s for since in going.values()]
        noticed = None if None in going.values() else generation if before.noticed is None else before.noticed
        if max(left) <= 0 and (not changed or is_cleared(noticed, cleared)):
            self._shown[uuid] = _Shown(divided, shared, names)
            return Offered(divided, shared)
        kept = before.divided
        if kept is not None:
            kept = msgspec.structs.replace(kept, gpu=gpu, mig=mig)
        now = before.shared if changed else shared
        self._shown[uuid] = _Shown(kept, now, before.names, going, noticed)
        again_s = LOOK_S if None in going.values() else max(left)
        return Offered(kept, now, frozenset(going), again_s if again_s > 0 else None)


def _names(gpu: Gpu, divided: Divisible | None) -> frozenset[str]:
    whole = device_name(gpu)
    if divided is None:
        return frozenset({whole})
    parts = {partition_name(whole, one) for one in divided.placements}
    return frozenset(parts | {whole} if divided.whole else parts)


def _is_of(divided: Divisible | None, mig: GpuMigView) -> bool:
    return divided is None or divided.board == mig.board
