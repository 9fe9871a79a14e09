"""The steps that divide one GPU as its policy wants.

`plan_gpu` is a pure function from a GPU's instances, what is wanted of it, and what claims have been promised, to a plan. The
agent runs the plan, `draco layout plan` prints it. Instances of claims, places of claims whose pods have not started, and
instances that others made are waited for and never touched. Owns the steps, their order, and why some have to wait. `mig_policy`
decides which layout is wanted; the agent makes steps crash-safe.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from draco.allocation.exclusion import waits_for
from draco.mig.board import Board, Placement
from draco.mig.geometry import State, geometry
from draco.mig.keeping import KeptInstances, keeping, kept, layout_of
from draco.mig.observed import IDLE, IN_PLACE, ObservedGpu, ObservedInstance
from draco.resources.api.draco import InstanceUse, MigMode, PromisedDevice, WantedGpu
from draco.resources.names import GpuUuid
from draco.resources.texts import agreeing

_NAMED = 3
"""At most this many blockers are named; the others are counted."""


class DelayedInstance(NamedTuple):
    """An instance that cannot be created now. `why` is the reason; "" if it is that of the whole GPU."""

    profile: str
    start: int
    why: str = ""


class InstanceShortage(NamedTuple):
    """There is no room for `missing` of the `wanted` warm instances of a profile."""

    profile: str
    missing: int
    wanted: int


class Obstacle(StrEnum):
    """Why a claim cannot have an instance, other than an instance in its way."""

    NO_MIG = "the GPU does not support MIG"
    NEEDS_RESET = "turning MIG mode on needs a reset"
    NO_SUCH_PLACE = "the board has no such place"


class BlockedPlace(NamedTuple):
    """A place that its claim cannot have now, and the first obstacle."""

    place: ObservedInstance
    by: ObservedInstance | Obstacle

    def __str__(self) -> str:
        return (
            f"{self.place}: {f'it waits for {blame([self.by])}' if isinstance(self.by, ObservedInstance) else self.by}"
        )


class LayoutProgress(NamedTuple):
    """What a GPU still waits for, and what it has no room for, as sentences; "" for nothing."""

    waits: str = ""
    lacks: str = ""


class GpuPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What happens on a GPU, in this order: `destroys`, the change of MIG mode, `makes`; `makes_later` once possible.

    `mode_change` is "on", "off" or "". `waits` and `lacks` say in sentences why the rest cannot be done, and what has no room.
    `in_the_way` has to go first, without Draco; `keeps` stays; `promised` are the places of claims to come, with or without an
    instance; `blocked` those that claims need now and cannot have; `whole` the claims that have the undivided GPU.
    """

    uuid: GpuUuid
    policy: str = ""
    mode: MigMode | None = None
    layout: tuple[Placement, ...] = ()
    destroys: tuple[ObservedInstance, ...] = ()
    mode_change: str = ""
    needs_reset: bool = False
    switches_now: bool = False
    makes: tuple[Placement, ...] = ()
    makes_later: tuple[DelayedInstance, ...] = ()
    keeps: tuple[ObservedInstance, ...] = ()
    promised: tuple[ObservedInstance, ...] = ()
    blocked: tuple[BlockedPlace, ...] = ()
    in_the_way: tuple[ObservedInstance, ...] = ()
    whole: tuple[str, ...] = ()
    no_room: tuple[InstanceShortage, ...] = ()
    waits: str = ""
    lacks: str = ""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do now."""
        return not (self.destroys or self.switches_now or self.makes)

    def progress(self, hindrance: str = "") -> LayoutProgress:
        """The GPU's status once everything possible is done. `hindrance` is why a step was not taken."""
        waits, lacks = self.waits or hindrance, self.lacks
        if not self.promised:
            return LayoutProgress(waits, lacks)
        said = f"The GPU keeps {_few(f'{each} for claim {each.claims[0]}' for each in self.promised)}."
        if self.mode in {None, MigMode.DYNAMIC}:
            return LayoutProgress(waits, f"{lacks} {said}".strip())
        # With a static layout, or MIG off, the GPU waits for the claims to end.
        return LayoutProgress(f"{waits} {said}".strip(), lacks)

    def __str__(self) -> str:
        steps = [
            f"destroy {_list(self.destroys)}" if self.destroys else "",
            f"turn MIG mode {self.mode_change}{' with a reset' if self.needs_reset else ''}"
            if self.mode_change
            else "",
            f"make {_list(map(written, self.makes))}" if self.makes else "",
            f"make {_list(f'{one.profile} at {one.start}' for one in self.makes_later)} later"
            if self.makes_later
            else "",
            f"keep {_list(self.keeps)}" if self.keeps else "",
            *(f"cannot make {one}" for one in self.blocked),
        ]
        said = [*filter(None, steps)] or ["nothing to do"]
        return f"GPU {self.uuid}: {'; '.join(said)}. {' '.join(filter(None, self.progress()))}".rstrip()


def plan_gpu(gpu: ObservedGpu, wanted: WantedGpu | None, promised: Sequence[PromisedDevice] = ()) -> GpuPlan:
    """What to do on a GPU now. `wanted` None: no policy has it. `promised` is what claims have been allocated of it."""
    board = gpu.board
    if not gpu.capable or board is None:
        divided = wanted is not None and wanted.mode is not MigMode.DISABLED
        why = "divides this GPU, but it does not support MIG; exclude it from the policy."
        return GpuPlan(uuid=gpu.uuid, waits=f"Policy {wanted.policy} {why}" if wanted and divided else "")
    keep = _open(keeping(wanted, board, promised), gpu)
    owners = {**gpu.missing, **{key: one.claim for key, one in keep.promised.items()}}
    instances = [_of_claim(each, owners.get(each.id)) for each in gpu.instances]
    there = {each.id: each for each in instances}
    promises = [there.get(key) or _coming(one.placement, one.claim) for key, one in keep.promised.items()]
    coming = [each for each in promises if each.use is None]
    stay = kept(
        [instance.id for instance in sorted(instances, key=lambda each: each.age) if instance.use in IDLE], keep
    )
    leaving = [
        each for each in instances if each.use is InstanceUse.ORPHAN or (each.use in IDLE and each.id not in stay)
    ]
    destroys = [each for each in leaving if not each.stuck]
    staying = [each for each in (*instances, *coming) if each not in leaving]
    surplus = [each for each in staying if _is_surplus(each, wanted, board)]
    plan = GpuPlan(
        uuid=gpu.uuid,
        destroys=tuple(destroys),
        keeps=tuple(each for each in staying if each.use is not None and each not in surplus),
        promised=tuple(promises),
        in_the_way=(
            *(each for each in leaving if each.stuck),
            *sorted(surplus, key=lambda each: each.start),
        ),
    )
    if wanted is None:
        return plan
    plan = msgspec.structs.replace(plan, policy=wanted.policy, mode=wanted.mode)
    left = [each for each in (*instances, *coming) if each not in destroys]
    if wanted.mode is MigMode.DISABLED:
        return _undivided(plan, gpu, wanted, left)
    # A divided GPU belongs to no claim as a whole, whatever the record says; a promise of the whole GPU still counts.
    whole = tuple(dict.fromkeys((*(() if gpu.enabled else gpu.whole), *filter(None, [keep.whole]))))
    plan = msgspec.structs.replace(plan, whole=whole)
    if wanted.mode is MigMode.STATIC:
        return _laid_out(plan, gpu, board, wanted, left)
    return _on_demand(plan, gpu, board, wanted, left)


def _open(keep: KeptInstances, gpu: ObservedGpu) -> KeptInstances:
    """Drop promises that a prepared claim or the layout already keeps."""
    done = {
        *keep.places,
        *gpu.missing,
        *(each.id for each in gpu.instances if each.use is InstanceUse.CLAIM),
    }
    return msgspec.structs.replace(keep, promised={key: one for key, one in keep.promised.items() if key not in done})


def _of_claim(instance: ObservedInstance, claim: str | None) -> ObservedInstance:
    return instance if claim is None else msgspec.structs.replace(instance, claims=(claim,))


def _coming(placement: Placement, claim: str) -> ObservedInstance:
    profile = placement.profile
    return ObservedInstance(
        profile=profile.name,
        profile_id=profile.id,
        start=placement.start,
        size=profile.size,
        use=None,
        claims=(claim,),
    )


def _is_surplus(instance: ObservedInstance, wanted: WantedGpu | None, board: Board) -> bool:
    """Whether something that Draco may not destroy now conflicts with what is wanted."""
    if wanted is None or wanted.mode is MigMode.DYNAMIC:
        return False
    if wanted.mode is MigMode.DISABLED:
        return True
    if instance.use is InstanceUse.FOREIGN:  # others may use what the layout leaves free
        return not all(fits_beside(board, [instance], each.profile, each.start) for each in wanted.layout)
    return (instance.profile, instance.start) not in {(each.profile, each.start) for each in wanted.layout}


def fits_beside(board: Board, instances: Iterable[ObservedInstance], profile: str, start: int) -> bool:
    """Whether an instance fits beside these, by units and by engines."""
    found = board.profile(profile)
    return found is not None and geometry(board).fits_at(_state(board, instances), Placement(found, start))


def _state(board: Board, instances: Iterable[ObservedInstance]) -> State:
    shape = geometry(board)
    state = shape.empty
    for instance in instances:
        profile = board.by_id(instance.profile_id)
        state = (
            shape.block(state, instance.mask)
            if profile is None
            else shape.add(state, Placement(profile, instance.start))
        )
    return state


# MIG mode


def _switching(plan: GpuPlan, gpu: ObservedGpu, wanted: WantedGpu, change: str) -> GpuPlan:
    plan = msgspec.structs.replace(plan, mode_change=change, needs_reset=gpu.switched_by_reset)
    if gpu.pending:
        return plan  # requested; it takes effect with the reset
    if gpu.switched_by_reset and not wanted.reset_permitted:
        why = f"needs a reset of this GPU, which policy {wanted.policy} does not permit now."
        return msgspec.structs.replace(plan, waits=f"Turning MIG mode {change} {why}")
    return msgspec.structs.replace(plan, switches_now=True)


def _undivided(plan: GpuPlan, gpu: ObservedGpu, wanted: WantedGpu, left: Sequence[ObservedInstance]) -> GpuPlan:
    """Turn MIG mode off once no instance is left or to come."""
    if not gpu.enabled:
        return plan
    plan = _switching(plan, gpu, wanted, "off")
    if not left:
        return plan
    there = [each for each in left if each.use is not None]
    waits = f"MIG mode stays on until {blame(there or left)} is gone."
    return msgspec.structs.replace(plan, switches_now=False, waits=waits)


# A static layout


def _laid_out(
    plan: GpuPlan, gpu: ObservedGpu, board: Board, wanted: WantedGpu, left: Sequence[ObservedInstance]
) -> GpuPlan:
    """The missing instances of a static layout, and those that have room now."""
    plan = msgspec.structs.replace(plan, layout=layout_of(wanted, board))
    if not gpu.enabled:
        plan = _switching(plan, gpu, wanted, "on")
    makes: list[Placement] = []
    later: list[DelayedInstance] = []
    shape, state = geometry(board), _state(board, left)
    done = {(each.profile, each.start) for each in left if each.use in IN_PLACE}
    for each in wanted.layout:
        if (each.profile, each.start) in done:
            continue
        profile = board.profile(each.profile)
        if profile is None or each.start not in profile.starts:
            has = ", ".join(f"{one.name} at {', '.join(map(str, one.starts))}" for one in board.profiles)
            why = f"the board has no {each.profile} at {each.start} (it has {has})"
            later.append(DelayedInstance(each.profile, each.start, why))
            continue
        placement = Placement(profile, each.start)
        blocking = [each for each in left if each.mask & placement.mask]
        # Existing instances name their owners; a promised place is named only if nothing else is in the way.
        blocking = [each for each in blocking if each.use is not None] or blocking
        if blocking:
            later.append(DelayedInstance(each.profile, each.start, f"{written(placement)} waits for {blame(blocking)}"))
        elif not shape.fits_at(state, placement):  # NVML would refuse it, and the others would not be created
            why = f"{written(placement)} waits for engines that other instances on the GPU use"
            later.append(DelayedInstance(each.profile, each.start, why))
        else:
            makes.append(placement)
            state = shape.add(state, placement)
    if plan.whole:
        what = f"The layout of policy {wanted.policy}" if gpu.enabled else "MIG mode"
        has = agreeing(len(plan.whole), "has", "have")
        waits = f"{what} {waits_for(plan.whole)}, which {has} the whole GPU."
        plan = msgspec.structs.replace(plan, switches_now=False, waits=waits)
    elif gpu.enabled and later:
        waits = f"The layout of policy {wanted.policy} is not complete: {'; '.join(one.why for one in later)}."
        plan = msgspec.structs.replace(plan, waits=waits)
    if plan.whole or not gpu.settled or not (gpu.enabled or plan.switches_now):
        later = [
            DelayedInstance(each.profile, each.start)
            for each in wanted.layout
            if (each.profile, each.start) not in done
        ]
        makes = []
    return msgspec.structs.replace(plan, makes=tuple(makes), makes_later=tuple(later))


# On demand


def _on_demand(
    plan: GpuPlan, gpu: ObservedGpu, board: Board, wanted: WantedGpu, left: Sequence[ObservedInstance]
) -> GpuPlan:
    """Warm instances, the largest first, each where it costs least; those without room are created later."""
    shape = geometry(board)
    counts = keeping(wanted, board).counts
    largest_first = sorted(board.profiles, key=lambda each: -each.size)
    if plan.whole:
        # With mode Dynamic, whole use is a permitted use of the GPU.
        none = [InstanceShortage(one.name, count, count) for one in largest_first if (count := counts.get(one.id, 0))]
        so = f", so there is no room for {_short(none)}" if none else ""
        return msgspec.structs.replace(plan, lacks=f"Claim {plan.whole[0]} has the whole GPU{so}.")
    if not gpu.enabled:
        plan = _switching(plan, gpu, wanted, "on")
    if not gpu.settled:
        return plan
    state = _state(board, left)
    idle = [each for each in plan.keeps if each.use in IDLE and not each.claims]
    makes: list[Placement] = []
    no_room: list[InstanceShortage] = []
    for profile in largest_first:
        count = counts.get(profile.id, 0)
        for there in range(sum(instance.profile_id == profile.id for instance in idle), count):
            best = shape.best(state, profile)
            if best is None:
                no_room.append(InstanceShortage(profile.name, count - there, count))
                break
            state = shape.add(state, best.placement)
            makes.append(best.placement)
    if no_room and gpu.enabled:
        beside = _few(dict.fromkeys(blame([each]) for each in left if each not in idle))
        lacks = f"There is no room for {_short(no_room)}{' beside ' if beside else ''}{beside}."
        plan = msgspec.structs.replace(plan, lacks=lacks)
    plan = msgspec.structs.replace(plan, no_room=tuple(no_room))
    if gpu.enabled or plan.switches_now:
        return msgspec.structs.replace(plan, makes=tuple(makes))
    return msgspec.structs.replace(
        plan, makes_later=tuple(DelayedInstance(one.profile.name, one.start) for one in makes)
    )


# Words


def blame(instances: Iterable[ObservedInstance]) -> str:
    """The owner of the first instance in the way."""
    for instance in instances:
        if instance.claims:
            return f"claim {instance.claims[0]}"
        if instance.foreign:
            made = "may have made" if instance.doubtful else "made"
            number = f"GPU instance {instance.number}" if instance.number is not None else str(instance)
            return f"{number} that somebody else {made}"
        if instance.holder:
            return f"an instance that is being destroyed, in use by {instance.holder}"
    return "an instance that is being destroyed"


def written(placement: Placement) -> str:
    """A place for people: 1g.10gb at 3."""
    return f"{placement.profile.name} at {placement.start}"


def _short(shortages: Iterable[InstanceShortage]) -> str:
    return " and ".join(f"{one.missing} of {one.wanted} warm {one.profile}" for one in shortages)


def _list(things: Iterable[object]) -> str:
    return ", ".join(map(str, things))


def _few(phrases: Iterable[str]) -> str:
    found = list(phrases)
    more = len(found) - _NAMED
    *first, last = [*found[:_NAMED], f"{more} more"] if more > 0 else found or [""]
    return f"{', '.join(first)} and {last}" if first else last
