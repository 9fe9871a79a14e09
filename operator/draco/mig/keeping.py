"""Which idle instances of a GPU stay, and which places are kept free for claims to come. Pure. `gpu_plan` plans the rest."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from draco.mig.board import Board, Placement, PlacementId
from draco.resources.api.draco import MigMode, PromisedDevice, WantedGpu
from draco.resources.names import read_partition_name


class Promise(NamedTuple):
    """A place that a claim ("namespace/name") has been allocated."""

    placement: Placement
    claim: str


class KeptInstances(msgspec.Struct, frozen=True, kw_only=True):
    """Which idle instances of a GPU stay: all of `places` and `promised`, and a number of each profile in `counts`.

    A promised place is kept free for its claim without an instance, too; `whole` is the claim that all of the GPU is promised.
    """

    places: frozenset[PlacementId] = frozenset()
    counts: Mapping[int, int] = {}
    promised: Mapping[PlacementId, Promise] = {}
    whole: str = ""


def keeping(wanted: WantedGpu | None, board: Board | None, promised: Iterable[PromisedDevice] = ()) -> KeptInstances:
    """What a policy, and allocated but unprepared claims (`promised`), keep. Places that the board lacks are ignored."""
    if board is None:
        return KeptInstances()
    places = {}
    whole = ""
    for each in promised:
        part = read_partition_name(each.device)
        if part is None:
            whole = whole or each.claim
        elif (profile := board.by_id(part.profile_id)) is not None and part.start in profile.starts:
            places[PlacementId(profile.id, part.start)] = Promise(Placement(profile, part.start), each.claim)
    return msgspec.structs.replace(_by_policy(wanted, board), promised=places, whole=whole)


def _by_policy(wanted: WantedGpu | None, board: Board) -> KeptInstances:
    if wanted is None or wanted.mode is MigMode.DISABLED:
        return KeptInstances()
    layout = layout_of(wanted, board) if wanted.mode is MigMode.STATIC else ()
    counts: dict[int, int] = {}
    for one in wanted.warm:
        profile = board.profile(one.profile)
        if profile is not None and wanted.mode is MigMode.DYNAMIC:
            counts[profile.id] = counts.get(profile.id, 0) + one.count
    return KeptInstances(places=frozenset(one.id for one in layout), counts=counts)


def layout_of(wanted: WantedGpu, board: Board) -> tuple[Placement, ...]:
    """The placements of a static layout that the board has."""
    return tuple(
        Placement(profile, one.start)
        for one in wanted.layout
        if (profile := board.profile(one.profile)) is not None and one.start in profile.starts
    )


def kept(idle: Sequence[PlacementId], keeping: KeptInstances) -> frozenset[PlacementId]:
    """Which of the idle instances stay; the first ones, if several would do. Warm ones have no promise."""
    left = dict(keeping.counts)
    stay = set()
    for one in idle:
        if one in keeping.places or one in keeping.promised:
            stay.add(one)
        elif left.get(one.profile_id, 0) > 0:
            left[one.profile_id] -= 1
            stay.add(one)
    return frozenset(stay)
