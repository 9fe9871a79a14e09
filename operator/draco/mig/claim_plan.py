"""What has to happen on one GPU so that claims have what they were allocated of it, or have given it up.

The agent carries these plans out when kubelet asks, and when claims have lost what they had. Owns what gives way to a claim: only
what no claim needs and nobody else may have made. Pure. What policies want of a GPU is decided in `gpu_plan`.
"""

from collections.abc import Sequence

import msgspec

from draco.mig.board import Placement
from draco.mig.gpu_plan import BlockedPlace, GpuPlan, Obstacle, blame
from draco.mig.keeping import KeptInstances, kept
from draco.mig.observed import IN_PLACE, ObservedGpu, ObservedInstance
from draco.resources.names import GpuUuid


def plan_places(gpu: ObservedGpu, places: Sequence[ObservedInstance]) -> GpuPlan:
    """What gives each of these places an instance. Each is planned as if it were alone, for the claims that it names.

    `keeps` are the instances that stand there already; one that names no claim is idle, unless somebody still computes on it.
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
    """What makes a GPU undivided for a claim that was allocated all of it, so that no other claim has any of it."""
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
    """Which instances of a claim go with it. `instances` are those that no other claim needs; the claim's own name it.

    Of those that would do for what is to stay idle, the claim's come last, and else the newest.
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
    """Whether an instance may go for another at a place: nobody's, or what is left of the one that is made again."""
    mine = (instance.id, instance.claims) == (place.id, place.claims)
    return not instance.foreign and (mine or not instance.claims)
