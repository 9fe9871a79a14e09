"""What has to happen on one GPU until it is as a policy wants it.

Owns the comparison of what is there with what is wanted, instance by instance. Which idle instances stay is decided as the agent
decides it (`agent.holdings`), what is wanted and how a GPU stands by `mig_policy`. Pure.
"""

from collections.abc import Sequence

import msgspec

from draco.agent.holdings import keeping, kept
from draco.agent.instances import PlacementKey
from draco.cli.layout_schema import PartView, PlaceView, Use, WaitView
from draco.cli.layout_view import state_of
from draco.mig.board import Board, Placement
from draco.mig.geometry import geometry
from draco.mig_policy.promises import offers
from draco.mig_policy.standing import switched_by_reset
from draco.resources.draco import (
    GpuMig,
    GpuStatus,
    InstanceUse,
    MigInstance,
    MigMode,
    MigState,
    WantedGpu,
    WantedInstance,
)
from draco.resources.names import GpuUuid

WHOLE = "the whole GPU"
_IDLE = frozenset({Use.WARM, Use.LAYOUT})
_OURS = frozenset({Use.WARM, Use.LAYOUT, Use.CLAIM})


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """What happens, in the order in which it does: instances go, the mode changes, instances are made. `no_room`: warm ones.

    `promised` are places that are kept for claims to come, and that nothing waits for.
    """

    keeps: list[PlaceView] = []
    promised: list[WaitView] = []
    destroys: list[PlaceView] = []
    waits: list[WaitView] = []
    mode_change: str = ""
    needs_reset: bool = False
    makes: list[PlaceView] = []
    makes_later: list[PlaceView] = []
    no_room: list[str] = []


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as it is: its parts, and the claims that have it as a whole."""

    gpu: GpuStatus
    board: Board
    parts: Sequence[PartView]
    whole: Sequence[str] = ()

    @property
    def enabled(self) -> bool:
        """Whether MIG is on."""
        return self.gpu.mig is not None and self.gpu.mig.enabled

    def key(self, part: PartView) -> PlacementKey:
        """As the agent names the place. Profiles that the board lacks have no id."""
        profile = self.board.profile(part.profile)
        return PlacementKey(GpuUuid(self.gpu.uuid), profile.id if profile else -1, part.start)


def steps(scene: Scene, wanted: WantedGpu | None) -> Steps:
    """All that is to happen. None is wanted of a GPU that no policy has."""
    scene = _as_its_agent_knows(scene, wanted)
    idle = [part for part in scene.parts if part.use in _IDLE and not part.claims]
    stay = kept([scene.key(part) for part in idle], keeping(wanted, scene.board))
    leaving = [part for part in scene.parts if part.use is Use.ORPHAN or (part in idle and scene.key(part) not in stay)]
    staying = [part for part in scene.parts if part not in leaving]
    surplus = [part for part in staying if _in_the_way(part, wanted, scene.board)]
    waits = [_waits(part) for part in (*leaving, *surplus) if part in surplus or part.holder]
    mode_change = _mode_change(scene, wanted)
    if scene.whole and wanted is not None and wanted.mode is MigMode.STATIC:
        waits.append(WaitView(what=WHOLE, claims=list(scene.whole)))
    made = Steps(
        keeps=[_place(part) for part in staying if part.use is not Use.COMING and part not in surplus],
        promised=[_waits(part) for part in staying if part.use is Use.COMING and part not in surplus],
        destroys=[_place(part) for part in leaving if not part.holder],
        waits=waits,
        mode_change=mode_change,
        needs_reset=bool(mode_change) and switched_by_reset(scene.gpu),
    )
    if wanted is None or wanted.mode is MigMode.DISABLED:
        return made
    blocking = staying + [part for part in leaving if part.holder]
    if wanted.mode is MigMode.STATIC:
        return _laid_out(made, scene, wanted, blocking)
    return _warm(made, scene, wanted, idle=[part for part in idle if part in staying], blocking=blocking)


def _as_its_agent_knows(scene: Scene, wanted: WantedGpu | None) -> Scene:
    """Without claims whose pods have not started, where they hold what is offered anyway: nobody tells the agent of those."""
    parts = []
    laid_out = _places(wanted) if wanted else set()
    for part in scene.parts:
        place = (part.profile, part.start)
        offered = place in laid_out or offers(scene.gpu, wanted, *place)
        if not offered or part.use not in {*_IDLE, Use.COMING}:
            parts.append(part)
        elif part.use is not Use.COMING:
            parts.append(msgspec.structs.replace(part, claims=[]))
    return msgspec.structs.replace(scene, parts=parts)


def _in_the_way(part: PartView, wanted: WantedGpu | None, board: Board) -> bool:
    """Whether something that is not ours to destroy now has no place beside what is wanted."""
    if wanted is None or wanted.mode is MigMode.DYNAMIC:
        return False
    if wanted.mode is MigMode.DISABLED:
        return True
    if part.use is Use.FOREIGN:  # others may have what the layout leaves free
        return not all(_beside(board, [part], each) for each in wanted.layout)
    return (part.profile, part.start) not in _places(wanted)


def _beside(board: Board, parts: Sequence[PartView], wanted: WantedInstance | PlaceView) -> bool:
    """Whether it can be made beside these, by units and by engines."""
    profile = board.profile(wanted.profile)
    shape = geometry(board)
    return profile is not None and shape.fits_at(state_of(shape, board, parts), Placement(profile, wanted.start))


def _places(wanted: WantedGpu) -> set[tuple[str, int]]:
    return {(each.profile, each.start) for each in wanted.layout}


def _mode_change(scene: Scene, wanted: WantedGpu | None) -> str:
    if wanted is None or scene.gpu.mig is None or not scene.gpu.mig.capable:
        return ""
    if wanted.mode is MigMode.DISABLED:
        return "off" if scene.enabled else ""
    # Where partitions are made on demand, a GPU that is in use as a whole is just that.
    in_use_whole = bool(scene.whole) and wanted.mode is MigMode.DYNAMIC
    return "" if scene.enabled or in_use_whole else "on"


def _laid_out(made: Steps, scene: Scene, wanted: WantedGpu, blocking: Sequence[PartView]) -> Steps:
    done = {(part.profile, part.start) for part in blocking if part.use in _OURS}
    settled = scene.gpu.mig is not None and scene.gpu.mig.state is not MigState.DIRTY and not scene.whole
    shape = geometry(scene.board)
    state = state_of(shape, scene.board, blocking)
    now: list[PlaceView] = []
    later: list[PlaceView] = []
    for each in wanted.layout:
        if (each.profile, each.start) in done:
            continue
        profile = scene.board.profile(each.profile)
        placement = Placement(profile, each.start) if profile else None
        if settled and placement is not None and shape.fits_at(state, placement):
            state = shape.add(state, placement)
            now.append(PlaceView(profile=each.profile, start=each.start))
        else:
            later.append(PlaceView(profile=each.profile, start=each.start))
    return msgspec.structs.replace(made, makes=now, makes_later=later)


def at_last(scene: Scene, made: Steps) -> GpuStatus:
    """The GPU once all is done and everything that is waited for is gone, but for what others made, who know nothing of it."""
    mig = scene.gpu.mig or GpuMig()
    foreign = [part for part in scene.parts if part.use is Use.FOREIGN]
    fresh = [each for each in (*made.makes, *made.makes_later) if _beside(scene.board, foreign, each)]
    places = {(each.profile, each.start) for each in made.keeps}
    stay = [each for each in mig.instances if each.use is InstanceUse.FOREIGN or (each.profile, each.start) in places]
    come = [MigInstance(profile=each.profile, start=each.start, size=1, use=InstanceUse.LAYOUT) for each in fresh]
    settled = mig.state in {MigState.READY, MigState.CHANGING} and not mig.pending
    done = msgspec.structs.replace(
        mig,
        enabled=made.mode_change == "on" or (mig.enabled and not made.mode_change),
        instances=[*stay, *come],
        state=MigState.READY if settled else mig.state,
        message="" if settled else mig.message,
    )
    return msgspec.structs.replace(scene.gpu, mig=done)


def _warm(
    made: Steps, scene: Scene, wanted: WantedGpu, *, idle: Sequence[PartView], blocking: Sequence[PartView]
) -> Steps:
    """Warm instances as the agent makes them: the largest first, each where it costs least."""
    if scene.whole or (scene.gpu.mig is not None and scene.gpu.mig.state is MigState.DIRTY):
        return made
    shape = geometry(scene.board)
    state = state_of(shape, scene.board, blocking)
    counts = keeping(wanted, scene.board).counts
    makes, no_room = [], []
    for profile in sorted(scene.board.profiles, key=lambda each: -each.size):
        lacking = counts.get(profile.id, 0) - sum(part.profile == profile.name for part in idle)
        for index in range(lacking):
            best = shape.best(state, profile)
            if best is None:
                no_room.append(f"{lacking - index} x {profile.name}")
                break
            state = shape.add(state, best.placement)
            makes.append(PlaceView(profile=profile.name, start=best.placement.start))
    return msgspec.structs.replace(made, makes=makes, no_room=no_room)


def _place(part: PartView) -> PlaceView:
    return PlaceView(profile=part.profile, start=part.start)


def _waits(part: PartView) -> WaitView:
    what = f"{part.profile} at {part.start}"
    if part.claims:
        return WaitView(what=what, claims=part.claims)
    return WaitView(what=what, holder="" if part.use is Use.FOREIGN else part.holder)
