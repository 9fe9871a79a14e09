"""What `draco layout plan --delete` says: who gets the GPUs, which idle instances go, and how claims get devices afterwards."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.cli import run
from draco.overview.layout_schema import LayoutOutcome, PlanView, WaitView
from draco.resources.api.draco import GpuMig, GpuNode, InstanceUse, MigMode, MigPolicy, WantedGpu, WantedInstance
from draco.resources.api.meta import Condition
from tests.builders import a_claim, a_mig_node, a_mig_policy, a_static_policy
from tests.unit.cli.test_layout_plan import (
    A100,
    FIRST,
    H100,
    HALVES,
    LATER,
    SECOND,
    an_instance,
    lines,
    on,
    one,
    places,
    planned,
)

ON_DEMAND = a_mig_policy("on-demand")
YOUNG = a_mig_policy("young", created=LATER)
MANY = [a_mig_policy(f"policy-{number}") for number in range(10)]
BY_HALVES = WantedGpu(
    uuid=FIRST,
    policy="halves",
    mode=MigMode.STATIC,
    layout=[WantedInstance(profile="3g.40gb", start=start) for start in (0, 4)],
)
TWO_HALVES = on(an_instance("3g.40gb@0", InstanceUse.LAYOUT), an_instance("3g.40gb@4"))


def without(policy: MigPolicy, mig: GpuMig | None, *, policies: Sequence[MigPolicy] = (), **fields: Any) -> PlanView:
    """The plan of deleting the policy that has the only GPU."""
    mode = policy.spec.mode
    wanted = [msgspec.structs.replace(BY_HALVES, policy=policy.metadata.name, mode=mode)]
    return planned([mig], policies=[policy, *policies], deleted=[policy.metadata.name], **{"wanted": wanted, **fields})


def test_idle_instances_go_and_those_of_claims_stay() -> None:
    view = without(HALVES, TWO_HALVES)
    gpu = one(view)
    assert (gpu.before, gpu.policy, gpu.mode, gpu.outcome) == ("halves", "", "", LayoutOutcome.CHANGES)
    assert (gpu.destroys, gpu.keeps, gpu.mode_change) == (places("3g.40gb@0"), places("3g.40gb@4"), "")
    assert lines(view) == [
        "Policy halves (deleted, Static, layout layout): 1 GPU",
        "  Its GPU goes to no policy.",
        "",
        "changes  1 GPU: node-0/gpu-0",
        "    new claims get it only as a whole, after the claims on its partitions end",
        "    goes from halves to no policy",
        "    destroys 3g.40gb at 0 (idle)",
        "    keeps 3g.40gb at 4",
        "",
        "Policy halves can be deleted: 1 GPU immediately.",
    ]
    assert view.applicable


def test_an_empty_gpu_is_no_longer_offered_in_parts() -> None:
    gpu = one(without(ON_DEMAND, on()))
    assert (gpu.outcome, gpu.message) == (LayoutOutcome.CHANGES, "new claims get it only as a whole")


def test_a_place_that_is_promised_and_not_taken_yet_is_kept() -> None:
    view = without(ON_DEMAND, on(), claims=[a_claim("soon", on=["node-0/gpu-0-mig-1g10gb-19-2"])])
    gpu = one(view)
    assert gpu.message == "new claims get it only as a whole, after the claims on its partitions end"
    assert gpu.promised == [WaitView(what="1g.10gb at 2", claims=["default/soon"])]
    assert "    keeps 1g.10gb at 2 for claim default/soon" in lines(view)


def test_an_idle_instance_that_is_promised_stays() -> None:
    gpu = one(without(HALVES, TWO_HALVES, claims=[a_claim("soon", on=["node-0/gpu-0-mig-3g40gb-9-0"])]))
    assert (gpu.destroys, gpu.keeps, gpu.promised) == ([], places("3g.40gb@0", "3g.40gb@4"), [])


def test_before_hopper_nobody_gets_the_gpu_while_mig_is_on() -> None:
    gpu = one(without(ON_DEMAND, on(), board=A100, architecture="Ampere"))
    assert gpu.message.startswith(
        "no new claim gets it until MIG is off, which needs a reset: deleting the policy does not turn MIG off"
    )
    gpu = one(without(ON_DEMAND, GpuMig(capable=True), board=A100, architecture="Ampere"))
    assert gpu.message == "new claims get it only as a whole"


def test_nobody_gets_a_gpu_on_which_others_have_something() -> None:
    gpu = one(without(ON_DEMAND, on(an_instance("1g.10gb@6", InstanceUse.FOREIGN))))
    assert gpu.message == "no new claim gets it until the foreign instances are destroyed by hand"
    assert (gpu.waits, gpu.destroys) == ([], [])


def test_an_idle_instance_that_is_held_open_is_waited_for() -> None:
    gpu = one(without(HALVES, on(an_instance("3g.40gb@0", InstanceUse.LAYOUT, holder="pid 7 (dcgm)"))))
    assert (gpu.outcome, gpu.waits) == (LayoutOutcome.WAITS, [WaitView(what="3g.40gb at 0", holder="pid 7 (dcgm)")])


def test_a_gpu_that_was_kept_whole_is_unchanged() -> None:
    view = without(a_mig_policy("off", mode=MigMode.DISABLED), GpuMig(capable=True))
    assert (one(view).outcome, one(view).message) == (LayoutOutcome.UNCHANGED, "")
    assert lines(view)[-1] == "Policy off can be deleted, and changes nothing."


def test_the_next_oldest_policy_that_selects_a_gpu_gets_it() -> None:
    view = without(HALVES, TWO_HALVES, policies=[YOUNG])
    gpu = one(view)
    assert (gpu.policy, gpu.mode, gpu.destroys, gpu.keeps) == (
        "young",
        "Dynamic",
        places("3g.40gb@0"),
        places("3g.40gb@4"),
    )
    assert "    goes from halves to young" in lines(view)
    assert view.policies[0].message == "Its GPU goes to policy young."


def test_gpus_may_go_to_different_policies() -> None:
    young = a_mig_policy("young", created=LATER, exclude=[SECOND])
    view = planned([on(), on()], policies=[HALVES, young], deleted=["halves"])
    assert [each.policy for each in view.gpus] == ["young", ""]
    assert view.policies[0].message == "Its GPUs go to policy young (1), no policy (1)."
    assert (view.policies[0].gpus, view.policies[0].deleted, view.policies[0].new) == (2, True, False)


def test_what_the_next_policy_cannot_have_is_said() -> None:
    greedy = a_static_policy("greedy", "3x3g.40gb", created=LATER)
    view = without(HALVES, TWO_HALVES, policies=[greedy])
    assert one(view).outcome is LayoutOutcome.CANNOT
    assert "3 x 3g.40gb do not fit on a GPU" in one(view).message
    assert lines(view)[-1] == "Policy halves can be deleted, but the next policy cannot be applied on 1 GPU."
    assert not view.applicable


def test_deleting_one_policy_and_applying_another_is_one_plan() -> None:
    view = planned([on()], HALVES, policies=[ON_DEMAND], deleted=["on-demand"])
    assert (one(view).before, one(view).policy) == ("on-demand", "halves")
    assert [(each.name, each.deleted) for each in view.policies] == [("on-demand", True), ("halves", False)]
    assert lines(view)[-1] == "Policy halves can be applied: 1 GPU immediately."


def test_a_policy_that_has_nothing_leaves_nothing() -> None:
    view = planned([on()], policies=[ON_DEMAND, YOUNG], deleted=["young"])
    assert (view.gpus, view.policies[0].message) == ([], "It has no GPU.")
    assert lines(view)[-1] == "Policy young can be deleted, and changes nothing."


def test_a_gpu_that_its_agent_does_not_report_now_is_not_left_out() -> None:
    silent = [Condition(type="Readable", status="False", reason="NoDriver")]
    view = planned([], policies=[HALVES], deleted=["halves"], wanted=[BY_HALVES], conditions=silent)
    assert (one(view).outcome, one(view).uuid) == (LayoutOutcome.UNKNOWN, FIRST)
    assert one(view).message.startswith("its agent does not report it now")


def given(folder: Path, node: GpuNode, *policies: MigPolicy) -> list[str]:
    """A command line that reads the output of `kubectl get -o json` for a cluster."""
    items = [
        {"apiVersion": "draco.dev/v1alpha1", "kind": type(each).__name__, **msgspec.to_builtins(each)}
        for each in (node, *policies)
    ]
    path = folder / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), "utf-8")
    return ["layout", "plan", "-f", str(path)]


def test_files_stand_for_a_cluster_whose_policies_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = given(tmp_path, a_mig_node(gpus=[on()], board=H100, wanted=[BY_HALVES]), HALVES, YOUNG)
    assert run([*arguments, "--delete", "halves", "--delete", "halves", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["deleted"]) for each in document["policies"]] == [("halves", True)]
    assert [(each["before"], each["policy"]) for each in document["gpus"]] == [("halves", "young")]
    assert document["notes"] == []


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ([HALVES, YOUNG], "Error: There is no MigPolicy halfs in the files: there are halves, young.\n"),
        ([YOUNG], "Error: There is no MigPolicy halfs in the files: there is young.\n"),
        (MANY[:9], "policy-6, policy-7 and 1 more.\n"),
        (MANY, "policy-6, policy-7 and 2 more.\n"),
        ([], "Error: There is no MigPolicy halfs in the files: there is none.\n"),
    ],
)
def test_a_policy_that_is_not_there_lists_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policies: list[MigPolicy], said: str
) -> None:
    assert run([*given(tmp_path, a_mig_node(gpus=[on()], board=H100), *policies), "--delete", "halfs"]) == 1
    assert capsys.readouterr().err.endswith(said)


def test_a_policy_is_not_deleted_and_applied_in_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = msgspec.structs.replace(HALVES, metadata=msgspec.structs.replace(HALVES.metadata, uid=""))
    arguments = given(tmp_path, a_mig_node(gpus=[on()], board=H100), HALVES, changed)
    assert run([*arguments, "--delete", "halves"]) == 2
    assert "MigPolicy halves cannot be both deleted and applied" in capsys.readouterr().err
