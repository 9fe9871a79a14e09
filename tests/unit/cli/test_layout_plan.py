"""What `draco layout plan` says about policies: what is created or destroyed, what has to wait, and what is impossible."""

import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from draco.cli import run
from draco.cli.layout import plan_screen as layout_plan_screen
from draco.mig.board import Board
from draco.mig.known_boards import BOARDS
from draco.overview.layout_plan import plan
from draco.overview.layout_schema import GpuPlanView, LayoutOutcome, PlaceView, PlanView, WaitView
from draco.overview.layouts import ObservedNodes
from draco.resources.api.claims import CelSelector, DeviceSelector, ResourceClaim
from draco.resources.api.draco import (
    GpuMig,
    InstanceStatus,
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
from draco.resources.api.meta import LabelSelector, TimeWindow
from tests.builders import (
    MOMENT,
    a_claim,
    a_gpu_uuid,
    a_mig_instance,
    a_mig_node,
    a_mig_policy,
    a_node,
    a_static_policy,
)

H100 = BOARDS["H100-80GB"]
A100 = BOARDS["A100-80GB"]
FIRST, SECOND = a_gpu_uuid("node-0", 0), a_gpu_uuid("node-0", 1)
HALVES = a_static_policy("halves", "3g.40gb@0", "3g.40gb@4")
LATER = MOMENT + timedelta(hours=1)


def on(*instances: InstanceStatus, **fields: Any) -> GpuMig:
    return GpuMig(capable=True, enabled=True, instances=list(instances), **fields)


def an_instance(text: str, use: InstanceUse = InstanceUse.CLAIM, *, claim: str = "", **fields: Any) -> InstanceStatus:
    profile = H100.profile(text.partition("@")[0])
    claim = claim or ("team-a/one" if use is InstanceUse.CLAIM else "")
    return a_mig_instance(text, size=profile.size if profile else 1, use=use, claim=claim, **fields)


def planned(
    migs: Iterable[GpuMig | None],
    *asked: MigPolicy,
    policies: Sequence[MigPolicy] = (),
    wanted: Sequence[WantedGpu] = (),
    claims: Sequence[ResourceClaim] = (),
    board: Board | None = H100,
    architecture: str = "Hopper",
    now: datetime = MOMENT,
    deleted: Sequence[str] = (),
    **status: Any,
) -> PlanView:
    node = a_mig_node(gpus=migs, board=board, wanted=wanted, **status)
    gpus = [msgspec.structs.replace(gpu, architecture=architecture) for gpu in node.status.gpus]
    node = msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=gpus))
    seen = ObservedNodes(
        server="https://cluster",
        gpu_nodes={"node-0": node},
        policies={each.metadata.name: each for each in policies},
        claims=list(claims),
        asked=list(asked),
        deleted=list(deleted),
    )
    return plan(seen, now)


def one(view: PlanView) -> GpuPlanView:
    (gpu,) = view.gpus
    return gpu


def places(*texts: str) -> list[PlaceView]:
    return [PlaceView(profile=text.partition("@")[0], start=int(text.partition("@")[2])) for text in texts]


def lines(view: PlanView, width: int = 80) -> list[str]:
    output = io.StringIO()
    layout_plan_screen.show(view, Console(file=output, width=10_000, soft_wrap=True, highlight=False), width)
    return output.getvalue().splitlines()


def test_a_layout_on_an_empty_gpu_is_made_at_once() -> None:
    gpu = one(planned([on()], HALVES))
    assert (gpu.outcome, gpu.makes, gpu.destroys) == (LayoutOutcome.CHANGES, places("3g.40gb@0", "3g.40gb@4"), [])
    assert (gpu.before, gpu.policy, gpu.mode) == ("", "halves", "Static")


def test_a_gpu_that_is_as_wanted_is_unchanged() -> None:
    there = on(an_instance("3g.40gb@0", InstanceUse.LAYOUT), an_instance("3g.40gb@4", InstanceUse.CLAIM))
    view = planned([there], HALVES)
    assert one(view).outcome is LayoutOutcome.UNCHANGED
    assert one(view).keeps == places("3g.40gb@0", "3g.40gb@4")
    assert view.applicable
    assert lines(view)[-1] == "Policy halves can be applied, and changes nothing."


def test_idle_instances_without_a_place_go_and_others_stay() -> None:
    there = on(
        an_instance("1g.10gb@0", InstanceUse.WARM),
        an_instance("1g.10gb@1", InstanceUse.LAYOUT),
        an_instance("1g.10gb@2", InstanceUse.ORPHAN),
        an_instance("3g.40gb@4", InstanceUse.WARM),
    )
    gpu = one(planned([there], HALVES))
    assert gpu.destroys == places("1g.10gb@0", "1g.10gb@1", "1g.10gb@2")
    assert gpu.keeps == places("3g.40gb@4")
    assert gpu.makes == places("3g.40gb@0")


def test_what_a_claim_has_is_waited_for_and_the_rest_is_made() -> None:
    view = planned([on(an_instance("1g.10gb@0"))], HALVES)
    gpu = one(view)
    assert gpu.outcome is LayoutOutcome.WAITS
    assert gpu.waits == [WaitView(what="1g.10gb at 0", claims=["team-a/one"])]
    assert (gpu.makes, gpu.makes_later) == (places("3g.40gb@4"), places("3g.40gb@0"))
    assert view.applicable
    assert "    waits for claim team-a/one, which has 1g.10gb at 0" in lines(view)


def test_an_idle_instance_that_is_held_open_is_waited_for() -> None:
    held = on(an_instance("1g.10gb@0", InstanceUse.WARM, holder="pid 4711 (dcgm-exporter)"))
    gpu = one(planned([held], HALVES))
    assert (gpu.destroys, gpu.waits) == ([], [WaitView(what="1g.10gb at 0", holder="pid 4711 (dcgm-exporter)")])
    assert gpu.makes_later == places("3g.40gb@0")


def test_a_promise_to_a_claim_counts_as_the_claim_having_it() -> None:
    claims = [a_claim("soon", on=["node-0/gpu-0-mig-1g10gb-19-2"])]
    gpu = one(planned([on()], HALVES, claims=claims))
    assert gpu.waits == [WaitView(what="1g.10gb at 2", claims=["default/soon"])]
    fitting = [a_claim("soon", on=["node-0/gpu-0-mig-3g40gb-9-4"])]
    gpu = one(planned([on()], HALVES, claims=fitting))
    assert (gpu.waits, gpu.makes) == ([], places("3g.40gb@0", "3g.40gb@4"))


def test_a_promise_that_is_not_offered_any_more_is_kept_and_one_that_is_needs_no_word() -> None:
    claims = [a_claim("soon", on=["node-0/gpu-0-mig-1g10gb-19-2"])]
    warm = [ProfileCount(profile="3g.40gb", count=2)]
    halves_only = a_mig_policy("halves-only", profiles=["3g.40gb"], warm=warm)
    view = planned([on()], halves_only, claims=claims)
    gpu = one(view)
    assert (gpu.makes, gpu.promised) == (places("3g.40gb@4"), [WaitView(what="1g.10gb at 2", claims=["default/soon"])])
    assert "    keeps 1g.10gb at 2 for claim default/soon" in lines(view)
    gpu = one(planned([on()], a_mig_policy("any", warm=warm), claims=claims))
    assert (gpu.makes, gpu.promised) == (places("3g.40gb@4", "3g.40gb@0"), [])


def test_a_promise_is_kept_by_the_layout_that_has_it_before_mig_is_on() -> None:
    claims = [a_claim("soon", on=["node-0/gpu-0-mig-3g40gb-9-4"])]
    policy = a_static_policy("media", "3g.40gb@0", "3g.40gb@4", reset=MigReset(permit=ResetPermit.ALWAYS))
    gpu = one(planned([GpuMig(capable=True)], policy, claims=claims, board=A100, architecture="Ampere"))
    assert (gpu.makes, gpu.makes_later, gpu.waits) == (places("3g.40gb@0", "3g.40gb@4"), [], [])


def test_mig_stays_on_for_a_promise() -> None:
    claims = [a_claim("soon", on=["node-0/gpu-0-mig-1g10gb-19-2"])]
    gpu = one(planned([on()], a_mig_policy("off", mode=MigMode.DISABLED), claims=claims))
    assert (gpu.outcome, gpu.promised) == (LayoutOutcome.WAITS, [])
    assert gpu.waits == [WaitView(what="1g.10gb at 2", claims=["default/soon"])]


@pytest.mark.parametrize("beside", [[], [an_instance("1g.10gb@0")]], ids=["alone", "beside a claim's"])
def test_a_layout_cannot_be_where_others_have_made_something(beside: list[InstanceStatus]) -> None:
    view = planned([on(*beside, an_instance("1g.10gb@6", InstanceUse.FOREIGN))], HALVES)
    gpu = one(view)
    assert gpu.outcome is LayoutOutcome.CANNOT
    assert gpu.message == "1g.10gb at 6 was not made by Draco, which leaves it alone; destroy it by hand"
    assert WaitView(what="1g.10gb at 6") in gpu.waits
    assert "    waits until its owner destroys 1g.10gb at 6" in lines(view)
    assert not view.applicable


def test_a_layout_cannot_be_where_others_have_the_engines_it_needs() -> None:
    gpu = one(planned([on(an_instance("1g.10gb+me@6", InstanceUse.FOREIGN))], a_static_policy("media", "1g.10gb+me@0")))
    assert (gpu.outcome, gpu.makes, gpu.makes_later) == (LayoutOutcome.CANNOT, [], places("1g.10gb+me@0"))
    assert gpu.message == "1g.10gb+me at 6 was not made by Draco, which leaves it alone; destroy it by hand"


def test_what_others_made_beside_the_layout_stays() -> None:
    gpu = one(planned([on(an_instance("1g.10gb@6", InstanceUse.FOREIGN))], a_static_policy("half", "3g.40gb@0")))
    assert (gpu.outcome, gpu.makes, gpu.keeps) == (LayoutOutcome.CHANGES, places("3g.40gb@0"), places("1g.10gb@6"))


def test_an_illegal_layout_says_why_and_what_is_nearest() -> None:
    view = planned([on(), on()], a_static_policy("greedy", "3x3g.40gb"))
    assert {each.outcome for each in view.gpus} == {LayoutOutcome.CANNOT}
    assert "3 x 3g.40gb do not fit on a GPU, which holds at most 2" in view.gpus[0].message
    assert "the nearest that can exist is" in view.gpus[0].message
    assert view.gpus[0].makes == []
    text = lines(view)
    assert "cannot  2 GPUs: node-0/gpu-0, node-0/gpu-1" in text
    assert text[-1] == "Policy greedy cannot be applied on 2 GPUs."


def test_a_profile_that_a_board_does_not_have_lists_those_it_has() -> None:
    message = one(planned([on()], a_static_policy("other", "1g.5gb"))).message
    assert (
        "there is no profile 1g.5gb on this board; the nearest that can exist is 1 x 1g.10gb (the board has 1g.10gb, "
        in message
    )


def test_mig_is_turned_on_where_it_can_be() -> None:
    gpu = one(planned([GpuMig(capable=True)], HALVES))
    assert (gpu.outcome, gpu.mode_change) == (LayoutOutcome.CHANGES, "on")
    assert gpu.makes == places("3g.40gb@0", "3g.40gb@4")


def test_a_board_that_is_known_only_once_mig_is_on_is_said_to_be() -> None:
    gpu = one(planned([GpuMig(capable=True)], HALVES, board=None))
    assert (gpu.outcome, gpu.mode_change, gpu.makes) == (LayoutOutcome.CHANGES, "on", [])
    assert gpu.message == "the profiles of its board are known only when MIG is on: plan again then"


def test_a_claim_on_the_whole_gpu_is_waited_for_by_a_layout_and_left_alone_on_demand() -> None:
    claims = [a_claim("big", on=["node-0/gpu-0"])]
    gpu = one(planned([GpuMig(capable=True)], HALVES, claims=claims))
    assert gpu.waits == [WaitView(what="the whole GPU", claims=["default/big"])]
    assert (gpu.makes, gpu.makes_later) == ([], places("3g.40gb@0", "3g.40gb@4"))
    gpu = one(planned([GpuMig(capable=True)], a_mig_policy(), claims=claims))
    assert (gpu.outcome, gpu.mode_change) == (LayoutOutcome.UNCHANGED, "")


@pytest.mark.parametrize(
    ("reset", "outcome", "message"),
    [
        (
            MigReset(),
            LayoutOutcome.CANNOT,
            (
                "turning MIG on needs a reset of the GPU, and spec.reset.permit is Never; permit it, or switch it on with "
                "nvidia-smi -mig and reset the GPU by hand"
            ),
        ),
        (
            MigReset(permit=ResetPermit.ALWAYS),
            LayoutOutcome.RESET,
            "turning MIG on needs a reset of the GPU, which the policy permits now",
        ),
        (
            MigReset(permit=ResetPermit.IN_WINDOWS, windows=[TimeWindow(start="22:00", duration="2h")]),
            LayoutOutcome.RESET,
            "turning MIG on needs a reset of the GPU, which the policy permits from 2026-03-01 22:00 UTC",
        ),
    ],
)
def test_before_hopper_turning_mig_on_takes_a_reset(reset: MigReset, outcome: LayoutOutcome, message: str) -> None:
    policy = a_static_policy("halves", "3g.40gb@0", reset=reset)
    view = planned([GpuMig(capable=True)], policy, board=A100, architecture="Ampere")
    gpu = one(view)
    assert (gpu.outcome, gpu.message) == (outcome, message)
    at_once = reset.permit is ResetPermit.ALWAYS
    assert (gpu.makes, gpu.makes_later) == ((places("3g.40gb@0"), []) if at_once else ([], places("3g.40gb@0")))
    assert view.applicable is (outcome is not LayoutOutcome.CANNOT)


def test_a_pending_mode_needs_a_reset_on_any_board() -> None:
    gpu = one(planned([on(pending=True, state=MigState.NEEDS_RESET)], HALVES))
    assert gpu.outcome is LayoutOutcome.CANNOT
    assert gpu.message.startswith("the GPU needs a reset, and spec.reset.permit is Never")


def test_on_a_dirty_gpu_nothing_is_made_and_it_says_why() -> None:
    view = planned([on(state=MigState.DIRTY, message="GPU instance 7 could not be destroyed.")], HALVES)
    gpu = one(view)
    assert (gpu.outcome, gpu.message) == (LayoutOutcome.CANNOT, "GPU instance 7 could not be destroyed")
    assert gpu.makes == []


def test_disabling_destroys_idle_instances_and_waits_for_claims() -> None:
    there = on(an_instance("1g.10gb@0", InstanceUse.LAYOUT), an_instance("1g.10gb@1"))
    gpu = one(planned([there], a_mig_policy("off", mode=MigMode.DISABLED)))
    assert (gpu.outcome, gpu.mode_change, gpu.destroys) == (LayoutOutcome.WAITS, "off", places("1g.10gb@0"))
    assert gpu.waits == [WaitView(what="1g.10gb at 1", claims=["team-a/one"])]


def test_on_demand_only_warm_instances_are_made_where_they_cost_least() -> None:
    policy = a_mig_policy("by-demand", warm=[ProfileCount(profile="1g.10gb", count=2)])
    there = on(an_instance("1g.10gb@6", InstanceUse.LAYOUT), an_instance("3g.40gb@0", InstanceUse.LAYOUT))
    gpu = one(planned([there], policy))
    assert gpu.keeps == places("1g.10gb@6")
    assert gpu.destroys == places("3g.40gb@0")
    assert [each.profile for each in gpu.makes] == ["1g.10gb"]
    assert gpu.makes[0].start != 6


def test_warm_instances_without_room_are_said() -> None:
    policy = a_mig_policy("by-demand", warm=[ProfileCount(profile="1g.10gb", count=2)])
    view = planned([on(an_instance("7g.80gb@0"))], policy)
    assert one(view).message == "there is no room now to keep 2 x 1g.10gb warm"
    assert view.applicable


def test_a_board_without_what_is_to_be_kept_warm_is_told_with_the_nearest() -> None:
    def remark(*profiles: str) -> str:
        warm = [ProfileCount(profile=each, count=1) for each in profiles]
        return one(planned([on()], a_mig_policy("by-demand", warm=warm))).message

    assert remark("3g.71gb") == "its board has no 3g.71gb to keep warm; the nearest is 3g.40gb"
    assert remark("3g.71gb", "3g.40gb") == "", "a policy may name the profiles of several boards"


def test_an_older_policy_keeps_its_gpus() -> None:
    old = a_mig_policy("old", exclude=[SECOND])
    view = planned([on(), on()], a_static_policy("halves", "3g.40gb@0", created=LATER), policies=[old])
    assert [(each.device, each.outcome, each.policy) for each in view.gpus] == [
        ("gpu-0", LayoutOutcome.OLDER, "old"),
        ("gpu-1", LayoutOutcome.CHANGES, "halves"),
    ]
    assert view.policies[0].message == "1 GPU that it selects belongs to the older policy old."
    assert view.applicable


def test_a_policy_whose_gpus_all_belong_to_an_older_one_has_a_problem() -> None:
    view = planned([on()], a_static_policy("halves", "3g.40gb@0", created=LATER), policies=[a_mig_policy("old")])
    assert "older policy old" in view.policies[0].problem
    assert not view.applicable


def test_a_changed_policy_stays_as_old_as_it_is() -> None:
    current = a_static_policy("halves", "7g.80gb@0")
    asked = msgspec.structs.replace(HALVES, metadata=msgspec.structs.replace(HALVES.metadata, creation_timestamp=None))
    view = planned([on()], asked, policies=[current, a_mig_policy("young", created=LATER)])
    assert one(view).policy == "halves"
    assert not view.policies[0].new
    assert "    goes from no policy to halves" not in lines(view)
    assert "Policy halves (changed, Static, layout layout): 1 GPU" in lines(view)


def test_a_policy_that_is_as_it_was_is_not_called_changed() -> None:
    asked = msgspec.structs.replace(HALVES, metadata=msgspec.structs.replace(HALVES.metadata, creation_timestamp=None))
    view = planned([on()], asked, policies=[HALVES])
    assert view.policies[0].unchanged
    assert "Policy halves (unchanged, Static, layout layout): 1 GPU" in lines(view)


def test_who_has_a_gpu_before_and_after_is_said_where_it_changes() -> None:
    was = WantedGpu(uuid=FIRST, policy="young", mode=MigMode.DYNAMIC)
    young = a_mig_policy("young", created=LATER)
    assert "    goes from young to halves" in lines(planned([on()], HALVES, policies=[young], wanted=[was]))
    assert not any("goes from" in line for line in lines(planned([on()], HALVES, policies=[HALVES])))


def test_a_gpu_that_no_policy_has_any_more_loses_its_idle_instances() -> None:
    was = WantedGpu(
        uuid=FIRST, policy="halves", mode=MigMode.STATIC, layout=[WantedInstance(profile="3g.40gb", start=0)]
    )
    excluding = a_static_policy("halves", "3g.40gb@0", exclude=[FIRST])
    there = on(an_instance("3g.40gb@0", InstanceUse.LAYOUT), an_instance("3g.40gb@4"))
    view = planned([there, on()], excluding, policies=[a_static_policy("halves", "3g.40gb@0")], wanted=[was])
    gpu = view.gpus[0]
    assert (gpu.before, gpu.policy) == ("halves", "")
    assert (gpu.outcome, gpu.destroys, gpu.keeps) == (LayoutOutcome.CHANGES, places("3g.40gb@0"), places("3g.40gb@4"))


def test_a_policy_that_matches_nothing_says_so() -> None:
    view = planned([on()], a_static_policy("halves", "3g.40gb@0", node_selector=LabelSelector(match_labels={"a": "b"})))
    assert view.policies[0].problem.startswith("Matches nothing: spec.nodeSelector selects none of 1 node")
    assert (view.gpus, view.applicable) == ([], False)


def test_a_selector_that_cannot_be_compiled_is_a_problem_of_the_policy() -> None:
    broken = [DeviceSelector(cel=CelSelector(expression="device.nothing"))]
    view = planned([on()], a_mig_policy("broken", device_selectors=broken))
    assert view.policies[0].problem == ("spec.deviceSelectors[0] is invalid: at 1:7: undefined field 'nothing'.")
    assert not view.applicable


def test_a_selector_without_a_published_gpu_to_ask_leaves_it_unknown() -> None:
    selecting = [DeviceSelector(cel=CelSelector(expression="device.driver == 'gpu.nvidia.com'"))]
    assert one(planned([on()], a_mig_policy("careful", device_selectors=selecting))).outcome is LayoutOutcome.UNKNOWN


def test_profiles_that_no_board_has_are_a_problem() -> None:
    view = planned([on()], a_mig_policy("by-demand", profiles=["1g.10gb", "9g.99gb"]))
    assert view.policies[0].problem.startswith("No board of its GPUs has profile 9g.99gb; they have")


def test_equal_gpus_are_told_together_and_all_are_counted() -> None:
    text = lines(planned([on()] * 6, HALVES))
    assert "changes  6 GPUs: node-0/gpu-0, node-0/gpu-1, node-0/gpu-2, node-0/gpu-3 and 2" in text
    assert text[-1] == "Policy halves can be applied: 6 GPUs immediately."


def test_where_every_gpu_waits_for_another_claim_the_last_ones_are_counted() -> None:
    text = lines(planned([on(an_instance("1g.10gb@0", claim=f"default/claim-{minor}")) for minor in range(20)], HALVES))
    assert sum(line.startswith("waits  1 GPU: ") for line in text) == 16
    assert "waits  4 more: list them with -o json" in text
    assert text[-1] == "Policy halves can be applied: 20 GPUs later."


def test_a_plan_is_not_wider_than_80_columns() -> None:
    there = on(*(an_instance(f"1g.10gb@{start}", claim=f"team-with-a-name/claim-{start}") for start in range(7)))
    assert max(map(len, lines(planned([there, on(), GpuMig(capable=True)], HALVES)))) <= 80


A_POLICY = {
    "apiVersion": "draco.dev/v1alpha1",
    "kind": "MigPolicy",
    "metadata": {"name": "halves"},
    "spec": {
        "mode": "Static",
        "layout": "halves",
        "layouts": [{"name": "halves", "instances": [{"profile": "3g.40gb", "count": 2}]}],
    },
}


def files(folder: Path, migs: Iterable[GpuMig], **spec: Any) -> list[str]:
    node = {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "GpuNode",
        **msgspec.to_builtins(a_mig_node(gpus=migs, board=H100)),
    }
    policy = {**A_POLICY, "spec": {**A_POLICY["spec"], **spec}}  # type: ignore[dict-item]
    (folder / "node.json").write_text(json.dumps(node), encoding="utf-8")
    (folder / "policy.json").write_text(json.dumps(policy), encoding="utf-8")
    return ["layout", "plan", "-f", str(folder / "policy.json"), "-f", str(folder / "node.json")]


def test_the_status_says_whether_it_can_be_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files(tmp_path, [on()])) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Policy halves can be applied: 1 GPU immediately."
    assert run(files(tmp_path, [on(an_instance("1g.10gb@0", InstanceUse.FOREIGN))])) == 1
    assert "Policy halves cannot be applied on 1 GPU." in capsys.readouterr().out


def test_the_document_has_its_schema_and_every_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*files(tmp_path, [on(), on()]), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["applicable"], len(document["gpus"])) == ("draco.dev/layout-plan/v1", True, 2)
    assert msgspec.convert(document, PlanView).gpus[0].makes == places("3g.40gb@0", "3g.40gb@4")


def test_files_can_bring_the_policies_that_a_cluster_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumped = [
        {"apiVersion": "draco.dev/v1alpha1", "kind": "MigPolicy", **msgspec.to_builtins(each)}
        for each in (a_static_policy("halves", "7g.80gb", exclude=[SECOND]), a_mig_policy("young", created=LATER))
    ]
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": dumped}), "utf-8")
    arguments = [*files(tmp_path, [on(), on()]), "-f", str(tmp_path / "cluster.json"), "-o", "json"]
    assert run(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["new"]) for each in document["policies"]] == [("halves", False)]
    assert [each["before"] for each in document["gpus"]] == ["halves", "young"], "the younger one had what it left out"
    assert {each["policy"] for each in document["gpus"]} == {"halves"}


def test_policies_that_all_come_out_of_a_cluster_are_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = files(tmp_path, [on()])
    dumped = {"apiVersion": "draco.dev/v1alpha1", "kind": "MigPolicy", **msgspec.to_builtins(HALVES)}
    (tmp_path / "policy.json").write_text(json.dumps(dumped), "utf-8")
    assert run(arguments) == 0
    assert "Policy halves" in capsys.readouterr().out


def test_a_plan_needs_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "plan"]) == 2
    assert "give MigPolicies with -f" in capsys.readouterr().err
    arguments = files(tmp_path, [on()])
    assert run(["layout", "plan", "-f", arguments[-1]]) == 2
    assert "hold no MigPolicy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"layuot": "halves"}, "there is no field spec.layuot: did you mean layout?"),
        ({"layout": "thirds"}, "spec.layouts has no layout named thirds: it has halves."),
        ({"layout": ""}, "mode Static needs spec.layout to name one of spec.layouts."),
        ({"mode": "static"}, "spec.mode is 'static'; it must be Disabled, Static or Dynamic."),
        ({"reset": {"permit": ""}}, "spec.reset.permit is ''; it must be Never, InWindows or Always."),
        (
            {"reset": {"windows": [{"start": "22:00", "duration": "1h", "days": ["Mon", "Sunday"]}]}},
            "spec.reset.windows[0].days[1] is 'Sunday'; it must be Mon, Tue, Wed, Thu, Fri, Sat or Sun.",
        ),
        ({"layouts": [{"name": "halves", "instances": [{"profil": "3g.40gb"}]}]}, "profil"),
        ({"layouts": [{"name": "halves", "instances": [{"profile": "3g.40gb", "count": 0}]}]}, "it must be at least 1"),
        ({"profiles": ["1g.10gb"], "warm": [{"profile": "2g.20gb"}]}, "spec.warm names 2g.20gb"),
        ({"repair": {"maxMoves": 3}}, "it must be 0, 1 or 2"),
        (
            {"layouts": [{"name": "halves", "instances": [{"profile": "3g.40gb", "count": 2, "start": 0}]}]},
            "layout halves wants 2 x 3g.40gb at 0: only one instance can be at a start; write one entry for each",
        ),
        (
            {"layouts": [{"name": "halves", "instances": []}]},
            "layout halves has no instances; name at least one profile",
        ),
        ({"exclude": ["gpu-0"]}, "spec.exclude names gpu-0: the UUID of a GPU begins with GPU-"),
        ({"warm": [{"profile": "1g.10gb"}] * 2}, "spec.warm names 1g.10gb twice; remove one of them"),
        (
            {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "Is", "values": ["a"]}]}},
            "matchExpressions for pool: operator is 'Is'; it must be In, NotIn, Exists or DoesNotExist",
        ),
        (
            {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "Exists", "values": ["a"]}]}},
            "matchExpressions for pool: Exists takes no values",
        ),
        ({"reset": {"permit": "InWindows"}}, "needs at least one window"),
        (
            {"reset": {"windows": [{"start": "25:00", "duration": "1h"}]}},
            'must start at a time such as "22:00", not "25:00"',
        ),
        ({"reset": {"windows": [{"start": "22:00", "duration": "1d"}]}}, "such as 2h30m, not 1d"),
        ({"reset": {"windows": [{"start": "22:00", "duration": "48h"}]}}, "open for 1m to 24h, "),
        ({"reset": {"windows": [{"start": "22:00", "duration": "0m"}]}}, "such as 2h30m, not 0m"),
    ],
)
def test_what_an_api_server_would_refuse_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], said: str
) -> None:
    assert run(files(tmp_path, [on()], **spec)) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "MigPolicy halves" in error
    assert error.count("\n") == 1, "one sentence"


@pytest.mark.parametrize("name", ["Halves", "-halves", "halves.", "half of it", "h" * 254])
def test_a_name_that_an_api_server_would_refuse_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    arguments = files(tmp_path, [on()])
    (tmp_path / "policy.json").write_text(json.dumps({**A_POLICY, "metadata": {"name": name}}), encoding="utf-8")
    assert run(arguments) == 1
    assert "metadata.name must contain only" in capsys.readouterr().err


def test_policies_that_the_files_leave_out_are_named(tmp_path: Path) -> None:
    node = a_mig_node(gpus=[on()], board=H100, wanted=[WantedGpu(uuid=FIRST, policy="gone", mode=MigMode.DYNAMIC)])
    view = plan(ObservedNodes(gpu_nodes={"node-0": node}, asked=[HALVES]), datetime(2026, 3, 1, tzinfo=UTC))
    assert "belong to gone, which is not in the files" in view.notes[0]


def test_labels_that_the_files_leave_out_are_missed_where_they_are_asked_for() -> None:
    node = a_mig_node(gpus=[on()], board=H100)
    here = a_mig_policy("here", node_selector=LabelSelector(match_labels={"pool": "a"}))
    view = plan(ObservedNodes(gpu_nodes={"node-0": node}, asked=[here]), MOMENT)
    (note,) = view.notes
    assert note.startswith(
        "The files do not contain the labels of 1 of 1 node, which spec.nodeSelector of here needs; give "
    )
    assert not plan(ObservedNodes(gpu_nodes={"node-0": node}, asked=[HALVES]), MOMENT).notes
    labelled = {"node-0": a_node("node-0")}
    assert not plan(ObservedNodes(gpu_nodes={"node-0": node}, nodes=labelled, asked=[here]), MOMENT).notes


def test_what_is_kept_ahead_of_demand_stays_as_far_as_the_limit_of_the_plan_allows() -> None:
    def ahead(limit: int) -> MigPolicy:
        return a_mig_policy(warm_ahead=WarmAhead(limits=[ProfileCount(profile="1g.10gb", count=limit)]))

    def kept(uuid: str, count: int) -> WantedGpu:
        warm = [ProfileCount(profile="1g.10gb", count=count)]
        return WantedGpu(uuid=uuid, policy="policy", mode=MigMode.DYNAMIC, warm=warm)

    idle = [on(*(an_instance(f"1g.10gb@{start}", InstanceUse.WARM) for start in starts)) for starts in ((6, 5), (6,))]
    stands = [kept(FIRST, 2), kept(SECOND, 1)]
    same = planned(idle, ahead(4), policies=[ahead(4)], wanted=stands)
    assert [(each.makes, each.destroys) for each in same.gpus] == [([], [])] * 2
    fewer = planned(idle, ahead(2), policies=[ahead(4)], wanted=stands)
    assert [each.destroys for each in fewer.gpus] == [[], places("1g.10gb@6")]
    none = planned(idle, a_mig_policy(), policies=[ahead(4)], wanted=stands)
    assert [len(each.destroys) for each in none.gpus] == [2, 1]
