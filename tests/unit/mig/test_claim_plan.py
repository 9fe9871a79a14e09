"""What has to happen on one GPU for claims: what is created, what is destroyed for it, and what is never touched."""

from random import Random
from typing import Any

import pytest

from draco.mig.board import Placement
from draco.mig.claim_plan import plan_places, plan_release, plan_whole
from draco.mig.geometry import geometry
from draco.mig.gpu_plan import BlockedPlace, Obstacle
from draco.mig.keeping import KeptInstances, Promise
from draco.mig.observed import IN_PLACE, ObservedGpu, ObservedInstance
from draco.resources.api.draco import InstanceUse
from tests.unit.mig.gpus import H100, UUID, foreign, gpu, instance, texts, warm

NONE = KeptInstances()


def place(text: str, claim: str = "default/new") -> ObservedInstance:
    """The placement that a claim is to get."""
    return instance(text, None, claims=(claim,))


def orphan(text: str, **fields: Any) -> ObservedInstance:
    """One of Draco's instances that is being destroyed."""
    return instance(text, InstanceUse.ORPHAN, stuck=True, **fields)


# What is created, and what is destroyed for it


def test_a_free_place_gets_its_instance_and_what_is_beside_it_stays() -> None:
    plan = plan_places(gpu(warm("1g.10gb@0"), instance("1g.10gb@1"), foreign("1g.10gb@2")), [place("3g.40gb@4")])
    assert (texts(plan.makes), plan.destroys, plan.keeps, plan.blocked) == (["3g.40gb@4"], (), (), ())


def test_places_are_made_by_where_they_start() -> None:
    assert texts(plan_places(gpu(), [place("1g.10gb@6"), place("3g.40gb@0")]).makes) == ["3g.40gb@0", "1g.10gb@6"]


def test_an_instance_that_stands_there_is_kept_whoever_has_it() -> None:
    idle, laid_out, shared = warm("1g.10gb@0"), instance("1g.10gb@1", InstanceUse.LAYOUT), instance("1g.10gb@2")
    plan = plan_places(gpu(shared, laid_out, idle), [place("1g.10gb@0"), place("1g.10gb@1"), place("1g.10gb@2")])
    assert (plan.keeps, plan.idle) == ((idle, laid_out, shared), True)


def test_idle_instances_and_what_is_left_of_ours_give_way_each_once() -> None:
    idle, going = warm("3g.40gb@0"), orphan("1g.10gb@4")
    plan = plan_places(gpu(idle, going), [place("1g.10gb@0"), place("1g.10gb@1"), place("1g.10gb@4")])
    assert (plan.destroys, texts(plan.makes)) == ((idle, going), ["1g.10gb@0", "1g.10gb@1", "1g.10gb@4"])


@pytest.mark.parametrize(
    "stays",
    [
        instance("1g.10gb@3"),
        foreign("1g.10gb@3"),
        orphan("1g.10gb@3", doubtful=True),
        orphan("1g.10gb@3", claims=("default/one",)),
    ],
)
def test_what_a_claim_has_and_what_is_or_may_be_somebody_else_s_never_gives_way(stays: ObservedInstance) -> None:
    wanted = place("4g.40gb@0")
    plan = plan_places(gpu(warm("1g.10gb@0"), stays), [wanted, place("1g.10gb@6")])
    assert plan.blocked == (BlockedPlace(wanted, stays),)
    assert (plan.destroys, texts(plan.makes)) == ((), ["1g.10gb@6"]), "nothing goes for what cannot be made"


def test_somebody_else_s_instance_in_the_very_place_is_not_taken_for_ours() -> None:
    wanted = place("1g.10gb@3")
    plan = plan_places(gpu(foreign("1g.10gb@3")), [wanted])
    assert (plan.keeps, plan.blocked) == ((), (BlockedPlace(wanted, foreign("1g.10gb@3")),))


def test_what_is_left_of_a_claim_s_own_instance_gives_way_to_the_one_that_is_made_again() -> None:
    rest = orphan("1g.10gb@3", claims=("default/one",))
    lost = place("1g.10gb@3", "default/one")
    assert plan_places(gpu(rest), [lost]).destroys == (rest,)
    other = place("1g.10gb@3", "default/two")
    assert plan_places(gpu(rest), [other]).blocked == (BlockedPlace(other, rest),)
    beside = place("2g.20gb@2", "default/one")
    assert plan_places(gpu(rest), [beside]).blocked == (BlockedPlace(beside, rest),)


def test_a_place_that_the_board_does_not_have_is_blocked_whatever_stands_there() -> None:
    for text in ("3g.40gb@2", "9g.90gb@0"):
        wanted = place(text)
        plan = plan_places(gpu(foreign("1g.10gb@2"), warm("1g.10gb@0")), [wanted])
        assert (plan.blocked, plan.destroys, plan.makes) == ((BlockedPlace(wanted, Obstacle.NO_SUCH_PLACE),), (), ())


# MIG mode


def test_mig_mode_is_turned_on_for_what_is_missing_and_for_nothing_else() -> None:
    plan = plan_places(gpu(enabled=False), [place("1g.10gb@0")])
    assert (plan.mode_change, plan.switches_now, texts(plan.makes)) == ("on", True, ["1g.10gb@0"])
    assert plan_places(gpu(enabled=False), []).mode_change == ""
    assert plan_places(gpu(), [place("1g.10gb@0")]).mode_change == ""


def test_nothing_is_made_where_mig_mode_needs_a_reset_or_there_is_none() -> None:
    wanted = place("1g.10gb@0")
    plan = plan_places(gpu(enabled=False, switched_by_reset=True), [wanted])
    assert (plan.idle, plan.needs_reset, plan.blocked) == (True, True, (BlockedPlace(wanted, Obstacle.NEEDS_RESET),))
    for unsupported in (gpu(capable=False, enabled=False), gpu(board=None)):
        plan = plan_places(unsupported, [wanted])
        assert (plan.idle, plan.mode_change, plan.blocked) == (True, "", (BlockedPlace(wanted, Obstacle.NO_MIG),))


def test_a_gpu_in_mig_mode_needs_no_reset_to_have_more_instances() -> None:
    assert texts(plan_places(gpu(switched_by_reset=True), [place("1g.10gb@0")]).makes) == ["1g.10gb@0"]


# Whole GPUs


def test_a_gpu_is_undivided_once_all_that_is_ours_is_gone() -> None:
    instances = (warm("1g.10gb@0"), orphan("1g.10gb@1"))
    plan = plan_whole(gpu(*instances))
    assert (plan.destroys, plan.mode_change, plan.switches_now) == (instances, "off", True)
    assert plan_whole(gpu(enabled=False)).idle


@pytest.mark.parametrize("stays", [foreign("1g.10gb@3"), orphan("1g.10gb@3", doubtful=True)])
def test_a_gpu_on_which_somebody_else_may_have_made_something_is_left_as_it_is(stays: ObservedInstance) -> None:
    plan = plan_whole(gpu(warm("1g.10gb@0"), stays))
    assert (plan.idle, plan.in_the_way) == (True, (stays,))


def test_a_gpu_whose_mode_needs_a_reset_is_left_as_it_is() -> None:
    plan = plan_whole(gpu(warm("1g.10gb@0"), switched_by_reset=True))
    assert (plan.idle, plan.needs_reset) == (True, True)


# Unpreparing


def mine(text: str, **fields: Any) -> ObservedInstance:
    return instance(text, claims=("default/old",), **fields)


def test_a_claim_s_instances_go_with_it_and_nobody_else_s() -> None:
    plan = plan_release(
        UUID, [mine("1g.10gb@0"), orphan("1g.10gb@1", claims=("default/old",)), warm("1g.10gb@2")], NONE
    )
    assert (texts(plan.destroys), plan.keeps) == (["1g.10gb@0", "1g.10gb@1"], ())


def test_an_instance_stays_where_a_layout_or_a_promise_has_its_place() -> None:
    first, second, third = mine("1g.10gb@0"), mine("1g.10gb@1"), mine("1g.10gb@2")
    promise = Promise(Placement(H100.profiles[0], second.start), "default/soon")
    keep = KeptInstances(places=frozenset({first.id}), promised={second.id: promise})
    plan = plan_release(UUID, [first, second, third], keep)
    assert (plan.keeps, plan.destroys) == ((first, second), (third,))


def test_of_instances_that_would_do_as_warm_those_that_were_idle_before_stay_and_then_the_oldest() -> None:
    keep = KeptInstances(counts={mine("1g.10gb@0").profile_id: 2})
    newer, older, idle = mine("1g.10gb@0", age=1), mine("1g.10gb@1", age=0), warm("1g.10gb@2", age=2)
    plan = plan_release(UUID, [newer, older, idle], keep)
    assert (plan.keeps, plan.destroys) == ((older, idle), (newer,))


def test_what_is_half_made_or_half_gone_is_not_kept() -> None:
    broken = orphan("1g.10gb@0", claims=("default/old",))
    keep = KeptInstances(places=frozenset({broken.id}), counts={broken.profile_id: 1})
    assert plan_release(UUID, [broken], keep).destroys == (broken,)


# The plan as text


def test_a_plan_for_claims_is_read_as_its_steps_and_what_is_in_the_way() -> None:
    there = gpu(warm("1g.10gb@0"), instance("1g.10gb@3"), warm("1g.10gb@5"), foreign("1g.10gb@6"))
    wanted = [place("1g.20gb@0"), place("1g.20gb@2"), place("1g.10gb@5"), place("1g.20gb@6")]
    assert str(plan_places(there, wanted)) == (
        "GPU GPU-1: destroy 1g.10gb at 0; make 1g.20gb at 0; keep 1g.10gb at 5; "
        "cannot make 1g.20gb at 2: it waits for claim default/one; "
        "cannot make 1g.20gb at 6: it waits for GPU instance 7 that somebody else made."
    )
    assert str(plan_places(gpu(enabled=False), [place("1g.10gb@0")])) == (
        "GPU GPU-1: turn MIG mode on; make 1g.10gb at 0."
    )
    assert str(plan_places(gpu(capable=False), [place("1g.10gb@0")])) == (
        "GPU GPU-1: cannot make 1g.10gb at 0: the GPU does not support MIG."
    )
    assert str(plan_whole(gpu(warm("1g.10gb@0")))) == "GPU GPU-1: destroy 1g.10gb at 0; turn MIG mode off."
    assert str(plan_whole(gpu(foreign("1g.10gb@0")))) == (
        "GPU GPU-1: turn MIG mode off. MIG mode stays on until GPU instance 7 that somebody else made is gone."
    )
    assert str(plan_release(UUID, [mine("1g.10gb@0")], NONE)) == "GPU GPU-1: destroy 1g.10gb at 0."


# Random GPUs


def anything(random: Random) -> ObservedGpu:
    """A GPU with instances of all uses."""
    space, state, instances = geometry(H100), geometry(H100).empty, []
    for _ in range(random.randint(0, 6)):
        if not (fitting := space.fits(state)):
            break
        one = random.choice(fitting)
        state = space.add(state, one)
        use = random.choice(list(InstanceUse))
        doubtful = use is InstanceUse.ORPHAN and random.random() < 0.3
        instances.append(
            instance(f"{one.profile.name}@{one.start}", use, stuck=use is InstanceUse.ORPHAN, doubtful=doubtful)
        )
    return gpu(*instances, enabled=bool(instances) or random.random() < 0.5, switched_by_reset=random.random() < 0.2)


@pytest.mark.parametrize("seed", range(5))
def test_every_place_is_kept_made_or_blocked_and_only_what_is_nobody_s_goes(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        seen = anything(random)
        board = random.sample(H100.placements, random.randint(1, 3))
        plan = plan_places(seen, [place(f"{one.profile.name}@{one.start}") for one in board])
        said = str(plan)
        fates = [
            *(one.id for one in plan.keeps),
            *(one.id for one in plan.makes),
            *(one.place.id for one in plan.blocked),
        ]
        assert sorted(fates) == sorted(one.id for one in board), said
        assert not [one for one in plan.destroys if one.foreign or one.claims], said
        assert all(one.use in IN_PLACE for one in plan.keeps), said
        for one in plan.makes:
            left = [each for each in seen.instances if each.mask & one.mask and each not in plan.destroys]
            assert not left, said
