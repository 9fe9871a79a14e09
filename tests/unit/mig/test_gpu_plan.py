"""What has to happen on one GPU: around instances in use, in the right order, and never more than there is room for."""

from random import Random
from typing import Any

import msgspec
import pytest

from draco.mig.board import Board, Placement
from draco.mig.geometry import geometry
from draco.mig.gpu_plan import GpuPlan, InstanceShortage, LayoutProgress, plan_gpu
from draco.mig.observed import ObservedGpu, ObservedInstance
from draco.resources.api.draco import InstanceUse, MigMode, ProfileCount, PromisedDevice, WantedGpu, WantedInstance
from draco.resources.names import read_partition_name
from tests.unit.mig.gpus import H100, UUID, foreign, gpu, instance, texts, warm


def static(*layout: str, **fields: Any) -> WantedGpu:
    places = [each.partition("@") for each in layout]
    instances = [WantedInstance(profile=profile, start=int(start)) for profile, _, start in places]
    return WantedGpu(uuid=UUID, policy="pool", mode=MigMode.STATIC, layout=instances, **fields)


def on_demand(**counts: int) -> WantedGpu:
    """Warm instances by profile: _3g=2 for two 3g.40gb."""
    names = {"_1g": "1g.10gb", "_3g": "3g.40gb", "_7g": "7g.80gb"}
    keep = [ProfileCount(profile=names[name], count=count) for name, count in counts.items()]
    return WantedGpu(uuid=UUID, policy="pool", mode=MigMode.DYNAMIC, warm=keep)


OFF = WantedGpu(uuid=UUID, policy="pool", mode=MigMode.DISABLED)


def promise(text: str = "1g.10gb@2", claim: str = "default/soon") -> PromisedDevice:
    """A placement that was allocated to a claim, or "" for the whole GPU."""
    profile, _, start = text.partition("@")
    known = H100.profile(profile)
    device = f"gpu-0-mig-any-{known.id if known else 99}-{start}" if text else "gpu-0"
    return PromisedDevice(device=device, uuid=UUID, claim=claim)


# What is destroyed and what stays


def test_where_nothing_is_wanted_only_idle_instances_go() -> None:
    plan = plan_gpu(gpu(warm("1g.10gb@0"), instance("1g.10gb@3"), foreign("1g.10gb@6")), None)
    assert (texts(plan.destroys), texts(plan.keeps)) == (["1g.10gb@0"], ["1g.10gb@3", "1g.10gb@6"])
    assert (plan.mode_change, plan.progress()) == ("", LayoutProgress())


def test_idle_instances_of_the_layout_stay_and_others_go() -> None:
    there = gpu(warm("3g.40gb@0"), instance("1g.10gb@4", InstanceUse.LAYOUT))
    plan = plan_gpu(there, static("3g.40gb@0", "3g.40gb@4"))
    assert (texts(plan.keeps), texts(plan.destroys), texts(plan.makes)) == (["3g.40gb@0"], ["1g.10gb@4"], ["3g.40gb@4"])


def test_of_warm_instances_too_many_the_oldest_stay() -> None:
    there = gpu(warm("1g.10gb@0", age=2), warm("1g.10gb@1", age=1))
    plan = plan_gpu(there, on_demand(_1g=1))
    assert (texts(plan.keeps), texts(plan.destroys)) == (["1g.10gb@1"], ["1g.10gb@0"])


def test_an_instance_that_cannot_be_destroyed_now_is_waited_for_and_in_the_way() -> None:
    stuck = instance("1g.10gb@0", InstanceUse.ORPHAN, stuck=True, holder="process 7")
    plan = plan_gpu(gpu(stuck), static("3g.40gb@0"))
    assert (plan.destroys, plan.in_the_way, plan.makes) == ((), (stuck,), ())
    assert "3g.40gb at 0 waits for an instance that is being destroyed, in use by process 7" in plan.waits


def test_a_layout_is_not_complete_while_its_own_instance_is_going() -> None:
    stuck = instance("3g.40gb@0", InstanceUse.ORPHAN, stuck=True)
    plan = plan_gpu(gpu(stuck), static("3g.40gb@0"))
    assert plan.waits == (
        "The layout of policy pool is not complete: 3g.40gb at 0 waits for an instance that is being destroyed."
    )


# A layout


def test_a_layout_is_made_as_far_as_there_is_room_and_the_rest_waits_for_whom_it_names() -> None:
    plan = plan_gpu(gpu(instance("1g.10gb@3")), static("4g.40gb@0", "3g.40gb@4"))
    assert (texts(plan.makes), texts(plan.makes_later)) == (["3g.40gb@4"], ["4g.40gb@0"])
    assert plan.progress().waits == (
        "The layout of policy pool is not complete: 4g.40gb at 0 waits for claim default/one."
    )
    assert texts(plan.in_the_way) == ["1g.10gb@3"]


def test_an_instance_of_a_claim_in_the_place_of_the_layout_is_the_layout_s() -> None:
    plan = plan_gpu(gpu(instance("3g.40gb@0")), static("3g.40gb@0"))
    assert (plan.makes, plan.in_the_way, plan.waits) == ((), (), "")


def test_a_claim_beside_the_layout_is_in_the_way_of_it_being_as_wanted_and_of_nothing_else() -> None:
    plan = plan_gpu(gpu(instance("1g.10gb@6")), static("3g.40gb@0"))
    assert (texts(plan.in_the_way), texts(plan.makes), plan.waits) == (["1g.10gb@6"], ["3g.40gb@0"], "")


def test_what_others_made_is_in_the_way_only_of_what_it_overlaps_or_takes_the_engines_of() -> None:
    plan = plan_gpu(gpu(foreign("1g.10gb@6")), static("3g.40gb@0"))
    assert (plan.in_the_way, texts(plan.keeps)) == ((), ["1g.10gb@6"])
    plan = plan_gpu(gpu(foreign("1g.10gb@6")), static("3g.40gb@4"))
    assert (texts(plan.in_the_way), plan.makes) == (["1g.10gb@6"], ())
    assert "waits for GPU instance 7 that somebody else made" in plan.waits
    plan = plan_gpu(gpu(foreign("1g.10gb+me@6")), static("1g.10gb+me@0"))
    assert texts(plan.in_the_way) == ["1g.10gb+me@6"]
    assert "1g.10gb+me at 0 waits for engines that other instances on the GPU use" in plan.waits


def test_what_may_be_somebody_else_s_is_called_so() -> None:
    doubtful = instance("1g.10gb@0", InstanceUse.ORPHAN, stuck=True, doubtful=True, number=3)
    assert "GPU instance 3 that somebody else may have made" in plan_gpu(gpu(doubtful), static("3g.40gb@0")).waits


def test_an_instance_of_an_unknown_profile_takes_its_units_all_the_same() -> None:
    unknown = instance("profile 77@0", InstanceUse.FOREIGN, size=8)
    plan = plan_gpu(gpu(unknown), on_demand(_1g=1))
    assert (plan.makes, plan.no_room) == ((), (InstanceShortage("1g.10gb", 1, 1),))


def test_one_engine_too_few_keeps_the_rest_of_a_layout_from_nothing() -> None:
    plan = plan_gpu(gpu(), static("1g.10gb+me@0", "1g.10gb+me@1", "3g.40gb@4"))
    assert (texts(plan.makes), texts(plan.makes_later)) == (["1g.10gb+me@0", "3g.40gb@4"], ["1g.10gb+me@1"])


def test_a_place_that_the_board_does_not_have_is_told_with_those_it_has() -> None:
    plan = plan_gpu(gpu(), static("3g.40gb@2", "9g.90gb@0", "1g.10gb@0"))
    assert "the board has no 3g.40gb at 2 (it has 1g.10gb at 0, 1, 2, 3, 4, 5, 6" in plan.waits
    assert "no 9g.90gb at 0" in plan.waits
    assert texts(plan.makes) == ["1g.10gb@0"]


# Mode Dynamic


def test_warm_instances_are_made_the_largest_first_each_where_it_costs_least() -> None:
    plan = plan_gpu(gpu(), on_demand(_1g=2, _3g=1))
    assert texts(plan.makes) == ["3g.40gb@4", "1g.10gb@3", "1g.10gb@2"]


def test_warm_instances_without_room_are_counted_with_who_is_beside() -> None:
    claims = [instance(f"1g.10gb@{start}", claims=(f"default/claim-{start}",)) for start in range(5)]
    plan = plan_gpu(gpu(*claims, warm("1g.10gb@5")), on_demand(_1g=1, _3g=2))
    assert (plan.makes, plan.no_room) == ((), (InstanceShortage("3g.40gb", 2, 2),))
    assert plan.progress() == LayoutProgress(
        "",
        "There is no room for 2 of 2 warm 3g.40gb beside claim default/claim-0, claim default/claim-1, claim default/claim-2 and "
        "2 more.",
    )


def test_an_idle_instance_of_a_promise_is_not_counted_as_warm() -> None:
    plan = plan_gpu(gpu(warm("1g.10gb@2")), on_demand(_1g=1), [promise()])
    assert (len(plan.makes), texts(plan.keeps)) == (1, ["1g.10gb@2"])


# Promises


def test_a_promised_place_is_left_free_and_told() -> None:
    plan = plan_gpu(gpu(), static("4g.40gb@0", "3g.40gb@4"), [promise()])
    assert (texts(plan.makes), texts(plan.in_the_way)) == (["3g.40gb@4"], ["1g.10gb@2"])
    assert plan.progress().waits == (
        "The layout of policy pool is not complete: 4g.40gb at 0 waits for claim default/soon. The GPU keeps 1g.10gb at 2 for "
        "claim default/soon."
    )


def test_a_promise_that_a_prepared_claim_has_or_has_lost_is_kept_no_longer() -> None:
    assert plan_gpu(gpu(instance("1g.10gb@2")), None, [promise()]).promised == ()
    lost = gpu(missing={instance("1g.10gb@2").id: "default/soon"})
    assert plan_gpu(lost, None, [promise()]).promised == ()


def test_a_promise_that_the_layout_has_is_made_with_it() -> None:
    plan = plan_gpu(gpu(), static("1g.10gb@2"), [promise()])
    assert (texts(plan.makes), plan.promised, plan.waits) == (["1g.10gb@2"], (), "")


def test_an_idle_instance_in_a_promised_place_stays_and_is_the_claim_s() -> None:
    plan = plan_gpu(gpu(warm("1g.10gb@2")), None, [promise()])
    assert (plan.destroys, texts(plan.keeps)) == ((), ["1g.10gb@2"])
    assert plan.progress() == LayoutProgress("", "The GPU keeps 1g.10gb at 2 for claim default/soon.")
    assert plan_gpu(gpu(warm("1g.10gb@2")), OFF, [promise()]).waits == (
        "MIG mode stays on until claim default/soon is gone."
    )


def test_who_stands_where_a_claim_is_to_have_its_own_is_told_as_that_claim() -> None:
    lost = gpu(foreign("1g.10gb@2"), missing={instance("1g.10gb@2").id: "default/lost"})
    assert "4g.40gb at 0 waits for claim default/lost" in plan_gpu(lost, static("4g.40gb@0")).waits


def test_a_promise_of_what_the_board_lacks_keeps_nothing() -> None:
    assert plan_gpu(gpu(), None, [promise("9g.90gb@0"), promise("3g.40gb@1")]).promised == ()


# MIG mode


def test_the_mode_is_turned_on_before_anything_is_made() -> None:
    plan = plan_gpu(gpu(enabled=False), static("3g.40gb@0"))
    assert (plan.mode_change, plan.switches_now, plan.needs_reset) == ("on", True, False)
    assert (texts(plan.makes), plan.waits) == (["3g.40gb@0"], "")


def test_a_mode_that_needs_a_reset_waits_for_a_permit() -> None:
    ampere = gpu(enabled=False, switched_by_reset=True)
    plan = plan_gpu(ampere, static("3g.40gb@0"))
    assert (plan.mode_change, plan.needs_reset, plan.switches_now) == ("on", True, False)
    assert (plan.makes, texts(plan.makes_later)) == ((), ["3g.40gb@0"])
    assert plan.waits == "Turning MIG mode on needs a reset of this GPU, which policy pool does not permit now."
    permitted = plan_gpu(ampere, static("3g.40gb@0", reset_permitted=True))
    assert (permitted.switches_now, permitted.waits) == (True, "")


@pytest.mark.parametrize("wanted", [static("3g.40gb@0"), on_demand(_3g=1)])
def test_a_mode_that_was_asked_for_is_not_asked_for_again_and_nothing_is_made_before_the_reset(
    wanted: WantedGpu,
) -> None:
    plan = plan_gpu(gpu(enabled=False, pending=True, switched_by_reset=True), wanted)
    assert (plan.switches_now, plan.makes, len(plan.makes_later), plan.waits) == (False, (), 1, "")


def test_the_mode_goes_off_together_with_what_is_idle() -> None:
    plan = plan_gpu(gpu(warm("3g.40gb@0")), OFF)
    assert (texts(plan.destroys), plan.mode_change, plan.switches_now, plan.waits) == (["3g.40gb@0"], "off", True, "")
    assert plan_gpu(gpu(enabled=False), OFF).mode_change == ""


@pytest.mark.parametrize(
    ("there", "who"),
    [
        (instance("1g.10gb@3"), "claim default/one"),
        (foreign("1g.10gb@3"), "GPU instance 7 that somebody else made"),
        (instance("1g.10gb@3", InstanceUse.ORPHAN, stuck=True), "an instance that is being destroyed"),
    ],
)
def test_the_mode_stays_on_for_what_is_there(there: ObservedInstance, who: str) -> None:
    plan = plan_gpu(gpu(there), OFF)
    assert (plan.switches_now, plan.waits) == (False, f"MIG mode stays on until {who} is gone.")
    assert plan.in_the_way == (there,)


def test_the_mode_stays_on_for_a_promise() -> None:
    plan = plan_gpu(gpu(), OFF, [promise()])
    assert (plan.switches_now, texts(plan.in_the_way)) == (False, ["1g.10gb@2"])
    assert plan.progress().waits == (
        "MIG mode stays on until claim default/soon is gone. The GPU keeps 1g.10gb at 2 for claim default/soon."
    )


def test_a_layout_waits_for_who_has_the_whole_gpu() -> None:
    plan = plan_gpu(gpu(enabled=False, whole=("default/all",)), static("3g.40gb@0"))
    assert (plan.switches_now, plan.makes, texts(plan.makes_later)) == (False, (), ["3g.40gb@0"])
    assert plan.waits == "MIG mode waits for claim default/all, which has the whole GPU."
    plan = plan_gpu(gpu(enabled=False, whole=("default/one", "default/two")), static("3g.40gb@0"))
    assert plan.waits == "MIG mode waits for claims default/one, default/two, which have the whole GPU."
    plan = plan_gpu(gpu(), static("3g.40gb@0"), [promise("", "default/all")])
    assert (plan.makes, plan.waits) == (
        (),
        "The layout of policy pool waits for claim default/all, which has the whole GPU.",
    )


def test_on_demand_a_gpu_that_is_in_use_as_a_whole_is_just_that() -> None:
    plan = plan_gpu(gpu(enabled=False, whole=("default/all",)), on_demand(_1g=1, _3g=2))
    assert (plan.mode_change, plan.makes, plan.waits) == ("", (), "")
    assert plan.lacks == (
        "Claim default/all has the whole GPU, so there is no room for 2 of 2 warm 3g.40gb and 1 of 1 warm 1g.10gb."
    )


def test_a_divided_gpu_is_no_claim_s_as_a_whole_whatever_is_on_record() -> None:
    assert texts(plan_gpu(gpu(whole=("default/all",)), static("3g.40gb@0")).makes) == ["3g.40gb@0"]


def test_a_gpu_that_cannot_be_divided_is_to_be_excluded_from_a_policy_that_divides() -> None:
    for there in (gpu(capable=False), gpu(board=None)):
        assert plan_gpu(there, on_demand()).waits == (
            "Policy pool divides this GPU, but it does not support MIG; exclude it from the policy."
        )
        assert plan_gpu(there, OFF).progress() == plan_gpu(there, None).progress() == LayoutProgress()


def test_where_it_is_not_known_for_sure_what_is_there_nothing_is_made() -> None:
    plan = plan_gpu(gpu(settled=False), static("3g.40gb@0"))
    assert (plan.makes, texts(plan.makes_later)) == ((), ["3g.40gb@0"])
    assert plan_gpu(gpu(settled=False), on_demand(_1g=1)).makes == ()


# The plan as text


def test_a_hindrance_is_told_where_the_plan_waits_for_nothing_else() -> None:
    assert plan_gpu(gpu(), OFF).progress("In use.") == LayoutProgress("In use.", "")
    assert plan_gpu(gpu(instance("1g.10gb@3")), OFF).progress("In use.").waits.startswith("MIG mode stays on")


def test_a_plan_is_read_as_its_steps_in_their_order() -> None:
    there = gpu(warm("1g.10gb@0"), instance("1g.10gb@6"), enabled=True)
    assert str(plan_gpu(there, static("4g.40gb@0", "3g.40gb@4"))) == (
        "GPU GPU-1: destroy 1g.10gb at 0; make 4g.40gb at 0; make 3g.40gb at 4 later. The layout of policy pool is not complete: "
        "3g.40gb at 4 waits for claim default/one."
    )
    ampere = gpu(enabled=False, switched_by_reset=True)
    assert str(plan_gpu(ampere, static("3g.40gb@0", reset_permitted=True))) == (
        "GPU GPU-1: turn MIG mode on with a reset; make 3g.40gb at 0."
    )
    assert str(plan_gpu(gpu(instance("1g.10gb@3")), None)) == "GPU GPU-1: keep 1g.10gb at 3."
    assert str(plan_gpu(gpu(), None)) == "GPU GPU-1: nothing to do."


# Random GPUs and wanted states


def anything(random: Random, board: Board) -> tuple[ObservedGpu, WantedGpu | None, list[PromisedDevice]]:
    """A GPU with instances and promises that fit together, and a wanted state."""
    space = geometry(board)
    state, instances, promised = space.empty, list[ObservedInstance](), list[PromisedDevice]()
    enabled = random.random() < 0.8
    for age in range(random.randint(0, 6)):
        if not (fitting := space.fits(state)):
            break
        place = random.choice(fitting)
        state = space.add(state, place)
        text = f"{place.profile.name}@{place.start}"
        use = random.choice([*InstanceUse, None])
        if use is None or (use in {InstanceUse.WARM, InstanceUse.LAYOUT} and random.random() < 0.2):
            promised.append(promise(text, f"default/soon-{age}"))
        if use is not None and enabled:
            stuck = use is InstanceUse.ORPHAN and random.random() < 0.5
            instances.append(instance(text, use, stuck=stuck, age=random.randint(0, 9)))
    whole = ("default/all",) if not enabled and random.random() < 0.3 else ()
    seen = ObservedGpu(
        uuid=UUID,
        board=board,
        enabled=enabled,
        pending=random.random() < 0.1,
        switched_by_reset=random.random() < 0.3,
        instances=tuple(instances),
        whole=whole,
    )
    mode = random.choice([*MigMode, MigMode.STATIC, None])
    if mode is None:
        return seen, None, promised
    permitted = random.random() < 0.5
    layout, state = list[str](), space.empty
    for _ in range(random.randint(1, 5) if mode is MigMode.STATIC else 0):
        if fitting := space.fits(state):
            place = random.choice(fitting)
            state = space.add(state, place)
            layout.append(f"{place.profile.name}@{place.start}")
    keep = [ProfileCount(profile=each.name, count=random.randint(1, 2)) for each in random.sample(board.profiles, 2)]
    wanted = static(*layout, reset_permitted=permitted)
    return seen, msgspec.structs.replace(wanted, mode=mode, warm=keep if mode is MigMode.DYNAMIC else []), promised


def done(seen: ObservedGpu, plan: GpuPlan) -> ObservedGpu:
    """The GPU after everything that can be done now; a reset happens immediately."""
    instances = [each for each in seen.instances if each not in plan.destroys]
    enabled = plan.mode_change == "on" if plan.switches_now else seen.enabled
    if enabled:
        instances += [instance(f"{each.profile.name}@{each.start}", InstanceUse.LAYOUT, age=10) for each in plan.makes]
    return msgspec.structs.replace(seen, instances=tuple(instances), enabled=enabled)


@pytest.mark.parametrize("seed", range(10))
def test_a_plan_is_safe_and_leads_to_a_gpu_on_which_nothing_is_left_to_do_now(seed: int) -> None:
    random = Random(seed)
    for _ in range(40):
        is_safe_and_done_at_once(*anything(random, H100))


def is_safe_and_done_at_once(seen: ObservedGpu, wanted: WantedGpu | None, promised: list[PromisedDevice]) -> None:
    plan = plan_gpu(seen, wanted, promised)
    said = str(plan)
    places = {(there.profile_id, there.start) for each in promised if (there := read_partition_name(each.device))}

    # Only idle instances without an owner are destroyed, and those that were being destroyed.
    for each in plan.destroys:
        assert each.use not in {InstanceUse.CLAIM, InstanceUse.FOREIGN}, said
        assert each.use is InstanceUse.ORPHAN or (each.profile_id, each.start) not in places, said
    # Every instance is either destroyed, kept, or in the way.
    fates = sorted([*texts(plan.destroys), *texts(plan.keeps), *texts(each for each in plan.in_the_way if each.use)])
    assert fates == sorted(texts(seen.instances)), said
    # New instances fit beside all that stays, and beside promises without instances; MIG mode is on by then.
    space = geometry(H100)
    stay = {Placement(H100.profile(each.profile), each.start) for each in seen.instances if each not in plan.destroys}  # type: ignore[arg-type]
    ids = {each.id for each in seen.instances if each.use is InstanceUse.CLAIM} | {each.id for each in plan.layout}
    stay |= {
        place
        for profile_id, start in places
        if (profile := H100.by_id(profile_id)) and (place := Placement(profile, start)).id not in ids
    }
    state = space.state_of(stay)
    for place in plan.makes:
        assert space.fits_at(state, place), said
        state = space.add(state, place)
    assert not plan.makes or seen.enabled or plan.switches_now, said
    # MIG mode never changes without a permit where it needs one, and never turns off while an instance is left.
    if plan.switches_now:
        assert not (plan.needs_reset and not (wanted and wanted.reset_permitted)), said
        assert plan.mode_change == "on" or not [each for each in seen.instances if each not in plan.destroys], said
    # After that, nothing is left that could be done now.
    after = done(seen, plan)
    again = plan_gpu(msgspec.structs.replace(after, pending=False), wanted, promised)
    if not seen.pending:
        assert (again.destroys, again.makes, again.switches_now) == ((), (), False), f"{said}\n{again}"
