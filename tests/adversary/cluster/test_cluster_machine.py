"""What the cluster machine draws, records and shrinks, and a short run on a whole cluster."""

import os
from pathlib import Path

import pytest

from tests.adversary.cluster import machine
from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.actions import Chooser
from tests.adversary.cluster.observer.observer import Violation
from tests.adversary.cluster.tenants import Action

SEED = 56792
"""The same draws in each test run, so that they do not fail an unrelated change; `make adversary` uses a random seed."""
ACTIONS = 52
"""The same number in each run, however fast the computer is: about 20 s."""
SECONDS = 90.0
AHEAD_S = 6.0
"""The kept findings start this much earlier than the drawn actions, so that their conditions are met."""


def test_the_same_seed_draws_the_same_actions() -> None:
    one, other = Chooser(7), Chooser(7)
    assert [one.next() for _ in range(500)] == [other.next() for _ in range(500)]


def test_every_kind_of_action_is_drawn() -> None:
    chooser = Chooser(2)
    kinds = {chooser.next().kind for _ in range(10000)}
    wanted = {"tenant", "hostile", "admin", "rule", "maintenance", "policy", "hardware", "kill", "driver", "upgrade"}
    wanted |= {"reservation", "limit", "pod budget", "pod group", "job", "job set", "sharing policy"}
    assert {kind.partition(":")[0] for kind in kinds} >= wanted
    assert "feature switched off" in kinds


def test_a_short_run_has_groups_of_all_kinds_and_what_is_refused_or_changed() -> None:
    chooser = Chooser(SEED)
    kinds = {chooser.next().kind for _ in range(ACTIONS)}
    assert {"tenant: pods that start together", "tenant: a group like one before it"} <= kinds
    assert {"tenant: pods of a PodGroup", "pod group: deleted"} <= kinds
    assert "tenant: pods of a PodGroup with claims of both allocators" in kinds
    assert {"tenant: Jobs of a JobSet", "job: changed"} <= kinds
    assert {"allocations refused", "maintenance: other effect", "tenant: lets go"} <= kinds
    assert {"sharing policy: set", "tenant: a share"} <= kinds


def test_pod_groups_come_before_their_pods_and_after_them_and_with_too_few_and_too_many() -> None:
    chooser = Chooser(2)
    drawn = [chooser.next() for _ in range(5000)]
    made = [each.arguments["create"] for each in drawn if each.kind == "tenant: pods of a PodGroup"]
    orders = {tuple(dict.fromkeys(each["kind"] for each in one if each["kind"] in {"Pod", "PodGroup"})) for one in made}
    assert orders == {("PodGroup", "Pod"), ("Pod", "PodGroup"), ("Pod",)}
    more = set()
    for one in made:
        pods = sum(each["kind"] == "Pod" for each in one)
        more |= {
            pods - each["spec"]["schedulingPolicy"]["gang"]["minCount"] for each in one if each["kind"] == "PodGroup"
        }
    assert more >= {-1, 0, 1}
    kept = [each["spec"]["resourceClaims"] for one in made for each in one if each["kind"] == "PodGroup"]
    keys = {key for claims in kept for each in claims for key in each}
    assert keys == {"name", "resourceClaimName", "resourceClaimTemplateName"}
    assert {"tenant: the PodGroup of pods that wait", "hostile: an odd PodGroup"} <= {each.kind for each in drawn}


def test_groups_say_what_they_are_by_all_labels_that_there_are() -> None:
    chooser = Chooser(5)
    said: dict[str, set[tuple[tuple[str, ...], str]]] = {}
    for each in [chooser.next() for _ in range(20000)]:
        for meta in [one["metadata"] for one in each.arguments.get("create", ()) if one["kind"] == "Pod"]:
            sizes = [annotation for annotation in meta["annotations"] if "size" in annotation or "count" in annotation]
            said.setdefault(each.kind, set()).add((tuple(meta["labels"]), "".join(sizes)))
    wanted = {(tuple(write.Member("g", "2", by=by).labels), size) for by, (_, size) in write.LABELS.items()}
    assert said["tenant: pods that start together"] == wanted
    assert said["tenant: urgent pods that start together"] >= wanted, "others are by PodGroup"
    assert said["hostile: an odd group"] > wanted, "some say no size"


def test_jobs_of_job_sets_are_made_changed_and_made_again() -> None:
    chooser = Chooser(2)
    drawn = [chooser.next() for _ in range(5000)]
    made = [each.arguments["create"][1:] for each in drawn if each.kind == "tenant: Jobs of a JobSet"]
    numbers = {
        len(jobs) - int(jobs[0]["metadata"]["labels"][f"{write.JOB_SET}global-replicas"]) for jobs in made if jobs
    }
    assert numbers == {0, -1}, "the last Job may come later"
    specs = [each.arguments["change"]["spec"] for each in drawn if each.kind == "job: changed"]
    assert {tuple(each) for each in specs} == {("parallelism", "completions"), ("parallelism",), ("suspend",)}
    labels = [each.arguments["change"]["metadata"]["labels"] for each in drawn if each.kind == "job: other label"]
    titles = {each[f"{write.JOB_SET}jobset-name"] for each in labels}
    assert titles > {None, "another"}, "some are changed back"
    assert {"tenant: the last Job of a JobSet", "job: loses a pod"} <= {each.kind for each in drawn}


def test_pod_groups_have_claims_of_both_allocators_by_template_and_by_name() -> None:
    chooser = Chooser(6)
    drawn = [chooser.next() for _ in range(3000)]
    made = [each.arguments["create"] for each in drawn if each.kind.endswith("with claims of both allocators")]
    requests = [
        [one["spec"]["spec"]["devices"]["requests"][0] for one in documents if one["kind"].endswith("Template")]
        for documents in made
    ]
    classes = [{each["exactly"]["deviceClassName"] for each in one} for one in requests]
    assert all(len(each) == 2 and len(each & {write.GPU, write.MIG}) == 1 for each in classes)
    uses = [one["spec"]["resourceClaims"] for documents in made for one in documents if one["kind"] == "Pod"]
    assert {tuple(key for each in claims for key in each if key != "name") for claims in uses} == {
        ("resourceClaimTemplateName", "resourceClaimTemplateName"), ("resourceClaimName", "resourceClaimTemplateName"),
    }  # fmt: skip


def test_a_group_that_is_made_again_asks_for_the_same_under_another_name() -> None:
    chooser = Chooser(8)
    drawn = [each for each in (chooser.next() for _ in range(3000)) if "create" in each.arguments]
    again = [each.arguments["create"] for each in drawn if each.kind == "tenant: a group like one before it"]
    templates = [one for documents in again for one in documents if one["kind"] == "ResourceClaimTemplate"]
    asked = [
        one["spec"] for each in drawn for one in each.arguments["create"] if one["kind"] == "ResourceClaimTemplate"
    ]
    assert templates
    assert all(asked.count(each["spec"]) > 1 for each in templates)
    names = [one["metadata"]["name"] for each in drawn for one in each.arguments["create"] if one["kind"] == "Pod"]
    assert len(names) == len(set(names))
    assert {any(one["kind"] == "PodGroup" for one in documents) for documents in again} == {True, False}


def test_policies_keep_instances_ready_ahead_of_claims_now_and_then() -> None:
    chooser = Chooser(4)
    drawn = [chooser.next() for _ in range(3000)]
    specs = [each.arguments["policy"]["spec"] for each in drawn if each.kind == "policy: set"]
    assert {(spec["mode"], bool(spec["warmAhead"])) for spec in specs} == {
        ("Dynamic", True), ("Dynamic", False), ("Static", False), ("Disabled", False),
    }  # fmt: skip


def test_actions_that_are_written_down_are_read_again(tmp_path: Path) -> None:
    chooser = Chooser(3)
    drawn = [chooser.next() for _ in range(200)]
    machine.save(drawn, tmp_path / "actions.json")
    assert machine.load(tmp_path / "actions.json") == drawn


def test_a_record_is_shrunk_to_what_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [Action("kill: agent", {"n": 3}), Action("kill: etcd", {"n": 11})]
    actions = [Action("tenant", {"n": number}) for number in range(20)]
    actions[3], actions[11] = needed

    def replay(fewer: list[Action], **_: object) -> machine.Report:
        broken = [Violation("", "held twice", "", ())] if all(each in fewer for each in needed) else []
        return machine.Report(None, Path(), violations=broken)

    monkeypatch.setattr(machine, "replay", replay)
    assert machine.shrink(actions, "held twice", say=lambda _: None, attempts=200) == needed


def test_records_are_done_side_by_side() -> None:
    one = [Action("a", {}, 1.0), Action("b", {}, 4.0)]
    other = [Action("c", {}, 2.0), Action("d", {}, 2.0)]
    merged = list(machine.together([one, other]))
    assert [each.kind for each in merged] == ["a", "c", "d", "b"]
    assert [each.wait_s for each in merged] == [1.0, 1.0, 2.0, 1.0]


def test_a_tormented_cluster_breaks_no_law(tmp_path_factory: pytest.TempPathFactory) -> None:
    seed = int(os.environ.get("ADVERSARY_SEED") or SEED)
    report = machine.run(
        SECONDS, seed, most=ACTIONS, beside=machine.kept(), ahead_s=AHEAD_S, folder=tmp_path_factory.mktemp("adversary")
    )
    print(report)  # noqa: T201 - pytest shows it when the test fails
    assert not report.violations, f"again with ADVERSARY_SEED={seed}"
    assert report.seen["claims allocated"]
    assert report.seen["pods that ran"]
