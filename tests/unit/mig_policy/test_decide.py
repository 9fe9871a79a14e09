"""Which policy a GPU belongs to, and its wanted state."""

import gc
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.mig.known_boards import BOARDS
from draco.mig_policy.decide import Ahead, NodeDecision, SeenNode, decide
from draco.mig_policy.gpu_state import GpuCondition, LayoutState
from draco.mig_policy.matching import oldest_first, rules_of, whole_gpus
from draco.resources.api.claims import CelSelector, DeviceSelector
from draco.resources.api.draco import (
    Allocator,
    GpuMig,
    GpuNode,
    InstanceUse,
    MigMode,
    MigPolicy,
    MigReset,
    MigState,
    ProfileCount,
    ResetPermit,
    WantedGpu,
    WantedInstance,
    WarmAhead,
)
from draco.resources.api.meta import Condition, LabelSelector, NodeSelectorRequirement
from draco.resources.api.slices import Device, DeviceAttribute
from tests.builders import MOMENT, a_gpu_uuid, a_mig_instance, a_mig_node, a_mig_policy, a_static_policy

H100 = BOARDS["H100-80GB"]
A30 = BOARDS["A30"]
DRIVER = "gpu.nvidia.com"
LATER = MOMENT + timedelta(hours=1)
FIRST, SECOND = a_gpu_uuid("node-0", 0), a_gpu_uuid("node-0", 1)


def decided(node: GpuNode, *policies: MigPolicy, labels: dict[str, str] | None = None, **rest: Any) -> NodeDecision:
    seen = SeenNode(gpu_node=node, labels=labels or {}, devices=rest.get("devices", {}))
    return decide(seen, [rules_of(each) for each in oldest_first(policies)], rest.get("permits", {}))


def owners(decision: NodeDecision) -> list[str]:
    return [each.policy for each in decision.gpus]


def published(uuid: str, **attributes: str) -> Device:
    strings = {"type": "gpu", "uuid": uuid, **attributes}
    return Device(name="gpu-x", attributes={name: DeviceAttribute(string=text) for name, text in strings.items()})


def selecting(expression: str) -> list[DeviceSelector]:
    return [DeviceSelector(cel=CelSelector(expression=expression))]


HOPPERS = 'device.attributes["gpu.nvidia.com"].architecture == "Hopper"'


def test_the_oldest_policy_that_selects_a_gpu_has_it() -> None:
    young, old = a_mig_policy("a-young", created=LATER), a_mig_policy("z-old", exclude=[SECOND])
    decision = decided(a_mig_node(board=H100), young, old)
    assert owners(decision) == ["z-old", "a-young"]
    assert [(each.uuid, each.policy) for each in decision.wanted] == sorted([(FIRST, "z-old"), (SECOND, "a-young")])


def test_of_policies_made_at_the_same_moment_the_first_by_name_has_it() -> None:
    assert set(owners(decided(a_mig_node(board=H100), a_mig_policy("b"), a_mig_policy("a")))) == {"a"}


def test_a_policy_that_is_being_deleted_has_no_say() -> None:
    gone = a_mig_policy("a")
    gone = msgspec.structs.replace(gone, metadata=msgspec.structs.replace(gone.metadata, deletion_timestamp=LATER))
    assert set(owners(decided(a_mig_node(board=H100), gone, a_mig_policy("b", created=LATER)))) == {"b"}


def test_without_a_policy_nothing_is_wanted() -> None:
    decision = decided(a_mig_node(board=H100, wanted=[WantedGpu(uuid=FIRST, policy="gone", mode=MigMode.DYNAMIC)]))
    assert decision.wanted == []
    assert owners(decision) == ["", ""]


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (LabelSelector(), True),
        (LabelSelector(match_labels={"pool": "mig"}), True),
        (LabelSelector(match_labels={"pool": "train"}), False),
        (LabelSelector(match_expressions=[NodeSelectorRequirement(key="pool", operator="In", values=["mig"])]), True),
        (LabelSelector(match_expressions=[NodeSelectorRequirement(key="zone", operator="In", values=["a"])]), False),
        (LabelSelector(match_expressions=[NodeSelectorRequirement(key="zone", operator="NotIn", values=["a"])]), True),
        (
            LabelSelector(match_expressions=[NodeSelectorRequirement(key="pool", operator="NotIn", values=["mig"])]),
            False,
        ),
        (LabelSelector(match_expressions=[NodeSelectorRequirement(key="pool", operator="Exists")]), True),
        (LabelSelector(match_expressions=[NodeSelectorRequirement(key="zone", operator="Exists")]), False),
        (LabelSelector(match_expressions=[NodeSelectorRequirement(key="zone", operator="DoesNotExist")]), True),
        (LabelSelector(match_expressions=[NodeSelectorRequirement(key="pool", operator="DoesNotExist")]), False),
    ],
)
def test_nodes_are_selected_by_their_labels(selector: LabelSelector, selected: bool) -> None:
    policy = a_mig_policy(node_selector=selector)
    decision = decided(a_mig_node(board=H100, gpus=1), policy, labels={"pool": "mig"})
    assert owners(decision) == (["policy"] if selected else [""])


@pytest.mark.parametrize("mig", [None, GpuMig(capable=False)])
@pytest.mark.parametrize("mode", list(MigMode))
def test_a_gpu_without_mig_belongs_to_no_policy(mig: GpuMig | None, mode: MigMode) -> None:
    assert owners(decided(a_mig_node(gpus=[mig]), a_mig_policy(mode=mode))) == [""]


@pytest.mark.parametrize("mode", list(MigMode))
def test_a_gpu_without_mig_can_be_handed_over_whole(mode: MigMode) -> None:
    policy = a_mig_policy(mode=mode, allocator=Allocator.OPERATOR)
    decision = decided(a_mig_node(gpus=[GpuMig(capable=False)]), policy)
    whole = mode is MigMode.DISABLED
    assert owners(decision) == (["policy"] if whole else [""])
    assert decision.wanted == ([WantedGpu(uuid=FIRST, policy="policy", mode=mode)] if whole else [])


def test_a_gpu_without_mig_that_is_handed_over_is_as_wanted_and_stays_so_while_a_selector_is_broken() -> None:
    had = WantedGpu(uuid=FIRST, policy="policy", mode=MigMode.DISABLED)
    node = a_mig_node(gpus=[GpuMig(capable=False)], wanted=[had])
    plain = a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.OPERATOR)
    broken = a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.OPERATOR, device_selectors=selecting("device.("))
    (gpu,) = decided(node, plain).gpus
    assert gpu.condition == (LayoutState.APPLIED, "")
    assert [(each.policy, each.allocator) for each in decided(node, broken).gpus] == [("policy", Allocator.OPERATOR)]


def test_a_gpu_whose_partitions_are_not_reported_now_stays_with_its_policy() -> None:
    had = WantedGpu(uuid=FIRST, policy="young", mode=MigMode.DYNAMIC)
    node = a_mig_node(gpus=[None, None], wanted=[had])
    decision = decided(node, a_mig_policy("old"), a_mig_policy("young", created=LATER))
    assert decision.wanted == [had]
    assert decision.gpus[0].condition == (LayoutState.CHANGING, "its agent has not reported its partitions")


def test_selectors_see_the_published_gpu() -> None:
    devices = {FIRST: published(FIRST, architecture="Hopper"), SECOND: published(SECOND, architecture="Ampere")}
    policy = a_mig_policy(device_selectors=selecting(HOPPERS))
    assert owners(decided(a_mig_node(board=H100), policy, devices=devices)) == ["policy", ""]


def test_selectors_see_the_whole_gpu_also_when_only_partitions_are_published() -> None:
    node = a_mig_node(board=H100)
    partition = Device(
        name="gpu-0-mig-1g10gb-19-0",
        attributes={
            "type": DeviceAttribute(string="mig"),
            "profile": DeviceAttribute(string="1g.10gb"),
            "parentUUID": DeviceAttribute(string=FIRST),
            "architecture": DeviceAttribute(string="Hopper"),
        },
    )
    whole = whole_gpus([partition], node.status.gpus, driver=DRIVER)
    assert whole.keys() == {FIRST}
    own = 'device.attributes["gpu.nvidia.com"]'
    seen = f'{HOPPERS} && {own}.type == "gpu" && !("profile" in {own})'
    assert owners(decided(node, a_mig_policy(device_selectors=selecting(seen)), devices=whole)) == ["policy", ""]


@pytest.mark.parametrize("expression", [HOPPERS, "no such thing"])
def test_a_gpu_that_cannot_be_judged_stays_with_the_policy_that_has_it(expression: str) -> None:
    had = WantedGpu(uuid=FIRST, policy="had", mode=MigMode.DYNAMIC, profiles=["1g.10gb"])
    node = a_mig_node(board=H100, wanted=[had])
    policy = a_mig_policy("had", created=LATER, device_selectors=selecting(expression))
    decision = decided(node, policy, devices={})
    assert decision.wanted == [had]
    assert owners(decision) == ["had", ""]


def test_a_broken_selector_takes_no_further_gpu_and_leaves_them_to_others() -> None:
    broken = a_mig_policy("broken", device_selectors=selecting('device.attributes["x"].missing == 1'))
    devices = {FIRST: published(FIRST), SECOND: published(SECOND)}
    decision = decided(a_mig_node(board=H100), broken, a_mig_policy("other", created=LATER), devices=devices)
    assert owners(decision) == ["other", "other"]


def test_a_gpu_that_is_excluded_goes_though_a_selector_is_broken() -> None:
    had = WantedGpu(uuid=FIRST, policy="policy", mode=MigMode.DYNAMIC)
    policy = a_mig_policy(device_selectors=selecting("device.driver =="), exclude=[FIRST])
    assert owners(decided(a_mig_node(board=H100, gpus=1, wanted=[had]), policy)) == [""]


def test_the_selector_that_does_not_hold_is_known() -> None:
    policy = a_mig_policy(device_selectors=[*selecting(f'device.driver == "{DRIVER}"'), *selecting(HOPPERS)])
    decision = decided(a_mig_node(board=H100, gpus=1), policy, devices={FIRST: published(FIRST, architecture="Ampere")})
    assert decision.gpus[0].verdicts["policy"].selector == 1


def test_what_is_wanted_of_a_gpu_stays_while_its_driver_does_not_answer() -> None:
    had = WantedGpu(uuid=FIRST, policy="policy", mode=MigMode.DYNAMIC)
    down = a_mig_node(board=H100, gpus=0, wanted=[had], conditions=[Condition(type="Readable", status="False")])
    assert decided(down, a_mig_policy()).wanted == [had]
    up = a_mig_node(board=H100, gpus=0, wanted=[had], conditions=[Condition(type="Readable", status="True")])
    assert decided(up, a_mig_policy()).wanted == []
    unsaid = a_mig_node(board=H100, gpus=0, wanted=[had])
    assert decided(unsaid, a_mig_policy()).wanted == []


def test_a_gpu_that_is_reported_while_the_driver_does_not_answer_for_others_is_decided_once() -> None:
    had = [WantedGpu(uuid=uuid, policy="policy", mode=MigMode.DYNAMIC) for uuid in (FIRST, SECOND)]
    node = a_mig_node(board=H100, gpus=1, wanted=had, conditions=[Condition(type="Readable", status="False")])
    assert [each.uuid for each in decided(node, a_mig_policy()).gpus] == [FIRST, SECOND]


def test_a_static_layout_gets_its_starts_from_the_board() -> None:
    (wanted,) = decided(a_mig_node(board=H100, gpus=1), a_static_policy("p", "3g.40gb", "4g.40gb")).wanted
    assert wanted.layout == [WantedInstance(profile="4g.40gb", start=0), WantedInstance(profile="3g.40gb", start=4)]
    assert wanted.mode is MigMode.STATIC


def test_an_instance_in_use_stays_where_it_is_when_the_new_layout_has_it_too() -> None:
    busy = GpuMig(
        capable=True, enabled=True, instances=[a_mig_instance("3g.40gb@0", size=4, use=InstanceUse.CLAIM, claim="a/b")]
    )
    (wanted,) = decided(a_mig_node(board=H100, gpus=[busy]), a_static_policy("p", "3g.40gb", "2x1g.10gb")).wanted
    assert WantedInstance(profile="3g.40gb", start=0) in wanted.layout


@pytest.mark.parametrize(
    ("use", "start"),
    [(InstanceUse.WARM, 0), (InstanceUse.LAYOUT, 0), (InstanceUse.FOREIGN, 4), (InstanceUse.ORPHAN, 4)],
)
def test_a_layout_keeps_the_place_of_what_is_draco_s_and_there_to_stay(use: InstanceUse, start: int) -> None:
    there = GpuMig(capable=True, enabled=True, instances=[a_mig_instance("3g.40gb@0", size=4, use=use)])
    (wanted,) = decided(a_mig_node(board=H100, gpus=[there]), a_static_policy("p", "3g.40gb")).wanted
    assert wanted.layout == [WantedInstance(profile="3g.40gb", start=start)]


def test_a_layout_that_cannot_be_on_the_board_says_why_and_leaves_the_gpu_as_it_was() -> None:
    before = WantedGpu(uuid=FIRST, policy="p", mode=MigMode.STATIC, layout=[WantedInstance(profile="7g.80gb", start=0)])
    node = a_mig_node(board=H100, gpus=1, wanted=[before])
    decision = decided(node, a_static_policy("p", "2x4g.40gb"))
    assert decision.wanted == [before]
    (gpu,) = decision.gpus
    assert gpu.condition.state is LayoutState.FAILED
    assert gpu.condition.message.startswith("layout layout: 2 x 4g.40gb")
    assert "nearest that can exist is 1 x 4g.40gb" in gpu.condition.message


def test_a_new_policy_whose_layout_cannot_be_wants_nothing() -> None:
    decision = decided(a_mig_node(board=A30, gpus=1), a_static_policy("p", "3g.40gb"))
    assert decision.wanted == []
    assert "there is no profile 3g.40gb on this board" in decision.gpus[0].condition.message


def test_a_gpu_whose_new_policy_cannot_be_keeps_nothing_of_its_old_one() -> None:
    node = a_mig_node(board=A30, gpus=1, wanted=[WantedGpu(uuid=FIRST, policy="gone", mode=MigMode.DYNAMIC)])
    decision = decided(node, a_static_policy("p", "3g.40gb"))
    assert (owners(decision), decision.wanted) == (["p"], [])


def test_profiles_and_warm_instances_are_those_the_board_has() -> None:
    policy = a_mig_policy(
        profiles=["1g.10gb", "1g.6gb"], warm=[ProfileCount(profile="1g.10gb", count=2), ProfileCount(profile="1g.6gb")]
    )
    (wanted,) = decided(a_mig_node(board=H100, gpus=1), policy).wanted
    assert (wanted.profiles, wanted.warm) == (["1g.10gb"], [ProfileCount(profile="1g.10gb", count=2)])


def test_allowing_only_profiles_that_the_board_does_not_have_allows_none_rather_than_all() -> None:
    decision = decided(a_mig_node(board=A30, gpus=1), a_mig_policy(profiles=["1g.10gb"]))
    assert decision.wanted == []
    assert decision.gpus[0].condition.state is LayoutState.FAILED
    assert "its board has none of spec.profiles; it has 1g.6gb" in decision.gpus[0].condition.message


def test_on_a_board_that_is_told_only_with_mig_on_the_mode_comes_first() -> None:
    off = a_mig_node(gpus=[GpuMig(capable=True)])
    (wanted,) = decided(off, a_static_policy("p", "3g.40gb")).wanted
    assert (wanted.mode, wanted.layout) == (MigMode.STATIC, [])
    on = a_mig_node(gpus=[GpuMig(capable=True, enabled=True)], wanted=[wanted])
    assert decided(on, a_static_policy("p", "3g.40gb")).wanted == [wanted]


@pytest.mark.parametrize("granted", [True, False])
def test_resets_are_permitted_as_the_policy_says_now(granted: bool) -> None:
    (wanted,) = decided(a_mig_node(board=H100, gpus=1), a_mig_policy(), permits={"policy": granted}).wanted
    assert wanted.reset_permitted is granted


def condition(mig: GpuMig | None, policy: MigPolicy, *, taken_up: bool = True, **status: Any) -> GpuCondition:
    """The condition of a GPU after its wanted state is in the spec."""
    wanted = decided(a_mig_node(board=H100, gpus=[mig]), policy).wanted
    node = a_mig_node(board=H100, gpus=[mig], wanted=wanted, **status)
    if not taken_up:
        node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, generation=2))
    return decided(node, policy).gpus[0].condition


ON = GpuMig(capable=True, enabled=True)
HALVES = a_static_policy("policy", "3g.40gb@0", "3g.40gb@4")
LEFT = a_static_policy("policy", "3g.40gb@0")
BOTH = [a_mig_instance(f"3g.40gb@{start}", size=4, use=InstanceUse.LAYOUT) for start in (0, 4)]
CLAIMED = a_mig_instance("1g.10gb@6", use=InstanceUse.CLAIM, claim="team/serve")
NO_ROOM = "There is no room for 1 of 2 warm 1g.10gb beside claim team/serve."
WHOLE = "Claim team/train has the whole GPU."
FOREIGN = a_mig_instance("1g.10gb@6", use=InstanceUse.FOREIGN)


PROMISED = "The GPU keeps 1g.10gb@2 for claim team/soon."


def having(*instances: Any, **fields: Any) -> GpuMig:
    return GpuMig(capable=True, enabled=fields.pop("enabled", True), instances=list(instances), **fields)


@pytest.mark.parametrize(
    ("mig", "policy", "state", "message"),
    [
        (ON, a_mig_policy(), LayoutState.APPLIED, ""),
        (GpuMig(capable=True), a_mig_policy(), LayoutState.CHANGING, "MIG is still off"),
        (GpuMig(capable=True), a_mig_policy(mode=MigMode.DISABLED), LayoutState.APPLIED, ""),
        (having(CLAIMED, message=NO_ROOM), a_mig_policy(), LayoutState.APPLIED, NO_ROOM.rstrip(".")),
        (having(enabled=False, message=WHOLE), a_mig_policy(), LayoutState.APPLIED, WHOLE.rstrip(".")),
        (
            having(enabled=False, message=WHOLE, state=MigState.CHANGING),
            HALVES,
            LayoutState.CHANGING,
            WHOLE.rstrip("."),
        ),
        (having(enabled=False, message=WHOLE), HALVES, LayoutState.CHANGING, WHOLE.rstrip(".")),
        (
            having(CLAIMED, state=MigState.CHANGING, message=f"MIG is asked for. {NO_ROOM}"),
            a_mig_policy(),
            LayoutState.CHANGING,
            f"MIG is asked for. {NO_ROOM}".rstrip("."),
        ),
        (ON, a_mig_policy(mode=MigMode.DISABLED), LayoutState.CHANGING, "MIG is still on"),
        (
            having(enabled=False, state=MigState.CHANGING, message=PROMISED),
            a_mig_policy(mode=MigMode.DISABLED),
            LayoutState.CHANGING,
            PROMISED.rstrip("."),
        ),
        (having(*BOTH, state=MigState.CHANGING, message=PROMISED), HALVES, LayoutState.CHANGING, PROMISED.rstrip(".")),
        (
            having(CLAIMED),
            a_mig_policy(mode=MigMode.DISABLED),
            LayoutState.CHANGING,
            "waits for claim team/serve",
        ),
        (having(*BOTH), HALVES, LayoutState.APPLIED, ""),
        (having(BOTH[0]), HALVES, LayoutState.CHANGING, "its instances are being changed"),
        (having(BOTH[0], CLAIMED), HALVES, LayoutState.CHANGING, "waits for claim team/serve"),
        (
            having(BOTH[0], FOREIGN),
            HALVES,
            LayoutState.FAILED,
            "1g.10gb at 6 was not made by Draco, which leaves it alone; destroy it by hand",
        ),
        (having(BOTH[0], BOTH[1], FOREIGN), HALVES, LayoutState.APPLIED, ""),
        (
            having(*BOTH, FOREIGN, state=MigState.CHANGING, message="Verifying."),
            HALVES,
            LayoutState.CHANGING,
            "Verifying",
        ),
        (having(BOTH[0], CLAIMED), LEFT, LayoutState.CHANGING, "waits for claim team/serve"),
        (
            having(enabled=False, state=MigState.CHANGING, message="MIG is asked for."),
            a_mig_policy(),
            LayoutState.CHANGING,
            "MIG is asked for",
        ),
        (
            having(BOTH[0], a_mig_instance("1g.10gb@6", use=InstanceUse.ORPHAN, holder="dcgm (pid 7)")),
            HALVES,
            LayoutState.CHANGING,
            "1g.10gb at 6 is held by dcgm (pid 7)",
        ),
        (having(*BOTH, state=MigState.CHANGING, message="Verifying."), HALVES, LayoutState.CHANGING, "Verifying"),
        (having(state=MigState.DIRTY, message="GI 3 is stuck."), a_mig_policy(), LayoutState.FAILED, "GI 3 is stuck"),
        (
            having(state=MigState.NEEDS_RESET),
            a_mig_policy(),
            LayoutState.FAILED,
            "it needs a reset, which spec.reset.permit does not allow",
        ),
        (
            having(pending=True, enabled=False),
            a_mig_policy(reset=MigReset(permit=ResetPermit.IN_WINDOWS)),
            LayoutState.CHANGING,
            "it needs a reset and waits for a window of spec.reset",
        ),
    ],
)
def test_how_far_a_gpu_is(mig: GpuMig | None, policy: MigPolicy, state: LayoutState, message: str) -> None:
    assert condition(mig, policy) == (state, message)


@pytest.mark.parametrize(
    ("permit", "granted", "state", "message"),
    [
        (
            ResetPermit.NEVER,
            False,
            LayoutState.FAILED,
            "turning MIG on needs a reset of the GPU, which spec.reset.permit Never does not allow",
        ),
        (
            ResetPermit.IN_WINDOWS,
            False,
            LayoutState.CHANGING,
            "turning MIG on needs a reset of the GPU, which waits for a window of spec.reset",
        ),
        (ResetPermit.IN_WINDOWS, True, LayoutState.CHANGING, "MIG is still off"),
        (ResetPermit.ALWAYS, True, LayoutState.CHANGING, "MIG is still off"),
    ],
)
def test_where_the_mode_changes_by_a_reset_only_the_permit_is_named(
    permit: ResetPermit, granted: bool, state: LayoutState, message: str
) -> None:
    policy = a_mig_policy(reset=MigReset(permit=permit))
    node = a_mig_node(board=H100, gpus=[GpuMig(capable=True)])
    (gpu,) = node.status.gpus
    ampere = msgspec.structs.replace(gpu, architecture="Ampere")
    status = msgspec.structs.replace(node.status, gpus=[ampere])
    for _ in range(2):
        decision = decided(msgspec.structs.replace(node, status=status), policy, permits={"policy": granted})
        spec = msgspec.structs.replace(node.spec, gpus=decision.wanted)
        node = msgspec.structs.replace(node, spec=spec)
    assert decision.gpus[0].condition == (state, message)


def test_a_claim_is_waited_for_before_a_reset() -> None:
    policy = a_mig_policy(mode=MigMode.DISABLED)
    node = a_mig_node(
        board=H100, gpus=[having(CLAIMED)], wanted=[WantedGpu(uuid=FIRST, policy="policy", mode=policy.spec.mode)]
    )
    gpus = [msgspec.structs.replace(each, architecture="Ampere") for each in node.status.gpus]
    node = msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=gpus))
    assert decided(node, policy).gpus[0].condition.message == "waits for claim team/serve"


def test_nothing_counts_as_applied_before_the_agent_has_seen_it() -> None:
    told = (LayoutState.CHANGING, "its agent has not processed this yet")
    assert condition(ON, a_mig_policy(), taken_up=False) == told
    assert decided(a_mig_node(board=H100, gpus=[ON]), a_mig_policy()).gpus[0].condition == told


def test_partitions_on_demand_need_a_cluster_that_keeps_their_counters() -> None:
    """Otherwise everything would look fine: the agent does what it can, and publishes GPUs whole."""
    lacking = [Condition(type="Partitionable", status="False", reason="CountersNotKept")]
    state, message = condition(ON, a_mig_policy(), conditions=lacking)
    assert state is LayoutState.FAILED
    assert "use mode Static, or Kubernetes 1.36" in message
    assert condition(having(*BOTH), HALVES, conditions=lacking).state is LayoutState.APPLIED
    kept = [Condition(type="Partitionable", status="True", reason="CountersKept")]
    assert condition(ON, a_mig_policy(), conditions=kept).state is LayoutState.APPLIED


def test_a_decision_can_be_read_aloud() -> None:
    decision = decided(a_mig_node(board=H100), a_mig_policy(exclude=[SECOND]))
    assert str(decision) == "node-0: gpu-0: Dynamic by policy; gpu-1: left alone"


def test_what_is_remembered_of_tens_of_thousands_of_gpus_costs_the_garbage_collector_little() -> None:
    decision = decided(a_mig_node(board=H100), a_mig_policy())
    verdicts = [said for gpu in decision.gpus for said in gpu.verdicts.values()]
    assert [each for each in (decision, *decision.gpus, *verdicts, *decision.wanted) if gc.is_tracked(each)] == []
    one, other = (each.condition for each in decision.gpus)
    assert one is other


def ahead_of(*limits: ProfileCount, **spec: Any) -> MigPolicy:
    return a_mig_policy(warm_ahead=WarmAhead(limits=list(limits)), **spec)


def kept_on(node: GpuNode, policy: MigPolicy, ahead: Ahead | None) -> list[tuple[str, int]]:
    """The warm instances that the first GPU is to keep."""
    seen = SeenNode(gpu_node=node, devices={})
    wanted = {each.uuid: each for each in decide(seen, [rules_of(policy)], {}, ahead).wanted}[FIRST]
    return [(each.profile, each.count) for each in wanted.warm]


SMALL = "1g.10gb"


def test_what_is_kept_ahead_of_demand_comes_on_top_of_what_is_kept_anyway() -> None:
    policy = ahead_of(ProfileCount(profile=SMALL, count=4), warm=[ProfileCount(profile="3g.40gb", count=1)])
    ahead = {FIRST: [ProfileCount(profile=SMALL, count=2)]}
    node = a_mig_node(board=H100)
    assert kept_on(node, policy, ahead) == [("3g.40gb", 1), (SMALL, 2)]
    assert kept_on(node, policy, {SECOND: ahead[FIRST]}) == [("3g.40gb", 1)]
    assert kept_on(node, policy, {FIRST: [ProfileCount(profile=SMALL, count=9)]})[-1] == (SMALL, 4)


@pytest.mark.parametrize("profile", ["2g.20gb", "1g.6gb"])
def test_what_has_no_limit_or_is_not_of_the_board_is_not_kept_ahead(profile: str) -> None:
    limit = ProfileCount(profile=profile if profile == "1g.6gb" else SMALL, count=4)
    ahead = {FIRST: [ProfileCount(profile=profile, count=2)]}
    assert kept_on(a_mig_node(board=H100), ahead_of(limit), ahead) == []
    assert kept_on(a_mig_node(board=H100), a_mig_policy(), ahead) == []


def test_where_demand_is_not_measured_what_stands_by_the_policy_stays() -> None:
    stands = WantedGpu(uuid=FIRST, policy="policy", mode=MigMode.DYNAMIC, warm=[ProfileCount(profile=SMALL, count=3)])
    policy, node = ahead_of(ProfileCount(profile=SMALL, count=4)), a_mig_node(board=H100, wanted=[stands])
    assert kept_on(node, policy, None) == [(SMALL, 3)]
    assert kept_on(node, policy, {}) == []
    assert kept_on(node, ahead_of(ProfileCount(profile=SMALL, count=1)), None) == [(SMALL, 1)]
    of_another = msgspec.structs.replace(stands, policy="another")
    assert kept_on(a_mig_node(board=H100, wanted=[of_another]), policy, None) == []
