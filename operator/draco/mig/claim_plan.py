"""The steps on one GPU that give claims the instances they were allocated, or take them away.

The agent runs these plans when kubelet asks, and when claims have lost their instances. Owns what gives way to a claim: only
instances that no claim needs and nobody else may have made. Pure. `gpu_plan` plans for policies.
"""

from collections.abc import Sequence

import msgspec

from draco.mig.board import Placement
from draco.mig.gpu_plan import BlockedPlace, GpuPlan, Obstacle, blame
from draco.mig.keeping import KeptInstances, kept
from draco.mig.observed import IN_PLACE, ObservedGpu, ObservedInstance
from draco.resources.names import GpuUuid


def plan_places(gpu: ObservedGpu, places: Sequence[ObservedInstance]) -> GpuPlan:
    """Give each of these places an instance. Each is planned independently, for the claims that it names.

    `keeps` are the existing instances; one that names no claim is idle, unless a process still uses it.
    """
    there = {each.id: each for each in gpu.instances if each.use in IN_PLACE}
    plan = GpuPlan(uuid=gpu.uuid, keeps=tuple(there[place.id] for place in places if place.id in there))
    missing = [place for place in places if place.id not in there]
    if not missing:
        return plan
    if not gpu.capable or gpu.board is None:
        return msgspec.structs.replace(plan, blocked=tuple(BlockedPlace(place, Obstacle.NO_MIG) for place in missing))
    if not gpu.enabled:
        plan = msgspec.structs.replace(
            plan, mode_change="on", needs_reset=gpu.switched_by_reset, switches_now=not gpu.switched_by_reset
        )
    if plan.needs_reset:
        return msgspec.structs.replace(
            plan, blocked=tuple(BlockedPlace(place, Obstacle.NEEDS_RESET) for place in missing)
        )
    destroys: list[ObservedInstance] = []
    makes: list[Placement] = []
    blocked: list[BlockedPlace] = []
    for place in missing:
        profile = gpu.board.by_id(place.profile_id)
        around = [each for each in gpu.instances if each.mask & place.mask]
        if profile is None or place.start not in profile.starts:
            blocked.append(BlockedPlace(place, Obstacle.NO_SUCH_PLACE))
        elif stays := [each for each in around if not _gives_way(each, place)]:
            blocked.append(BlockedPlace(place, stays[0]))
        else:
            destroys += around
            makes.append(Placement(profile, place.start))
    return msgspec.structs.replace(
        plan,
        destroys=tuple(dict.fromkeys(destroys)),
        makes=tuple(sorted(makes, key=lambda one: one.start)),
        blocked=tuple(blocked),
    )


def plan_whole(gpu: ObservedGpu) -> GpuPlan:
    """Make a GPU undivided for a claim that was allocated all of it, so no other claim has any of it."""
    if not gpu.enabled:
        return GpuPlan(uuid=gpu.uuid)
    plan = GpuPlan(uuid=gpu.uuid, mode_change="off", needs_reset=gpu.switched_by_reset)
    in_the_way = tuple(each for each in gpu.instances if each.foreign)
    if plan.needs_reset:
        return msgspec.structs.replace(plan, waits="MIG mode stays on until the GPU is reset.")
    if in_the_way:
        waits = f"MIG mode stays on until {blame(in_the_way)} is gone."
        return msgspec.structs.replace(plan, in_the_way=in_the_way, waits=waits)
    return msgspec.structs.replace(plan, destroys=gpu.instances, switches_now=True)


def plan_release(uuid: GpuUuid, instances: Sequence[ObservedInstance], keep: KeptInstances) -> GpuPlan:
    """Which instances of a claim are destroyed with it. `instances` are those that no other claim needs; its own name it.

    If several could stay as idle instances, others stay before the claim's own, and older before newer.
    """
    idle = [each for each in instances if each.use in IN_PLACE]
    stay = kept([each.id for each in sorted(idle, key=lambda each: (bool(each.claims), each.age))], keep)
    mine = [each for each in instances if each.claims]
    return GpuPlan(
        uuid=uuid,
        destroys=tuple(each for each in mine if each.id not in stay),
        keeps=tuple(each for each in instances if each.id in stay),
    )


def _gives_way(instance: ObservedInstance, place: ObservedInstance) -> bool:
    """Whether an instance may be destroyed for this place: it is nobody's, or a remnant of the same one."""
    mine = (instance.id, instance.claims) == (place.id, place.claims)
    return not instance.foreign and (mine or not instance.claims)
