"""A cluster with too few GPUs: its draws, and a short run with evictions for others."""

import os

import pytest

from tests.adversary.cluster import machine
from tests.adversary.cluster.manifests import PRIORITIES
from tests.adversary.cluster.rivalry import AHEAD_S, Rivalry, some_wait_and_some_leave

SEED = 2378
"""The same draws in each test run, as in the other machine's tests."""
ACTIONS = 40
SECONDS = 60.0


def test_some_may_have_others_leave_and_some_things_forbid_it() -> None:
    chooser = Rivalry(1)
    drawn = [chooser.next() for _ in range(2000)]
    priorities = {
        document["spec"].get("priorityClassName", "")
        for each in drawn
        for document in each.arguments.get("create", ())
        if document["kind"] == "Pod"
    }
    assert priorities == {"", *PRIORITIES}
    wanted = {"policy: permits", "pod budget: set", "pod budget: deleted", "tenant: a group loses a pod"}
    assert {each.kind for each in drawn} >= wanted


def test_a_short_run_has_pod_groups_and_claims_that_say_they_are_a_pods() -> None:
    chooser = Rivalry(SEED)
    drawn = [*some_wait_and_some_leave(), *(chooser.next() for _ in range(ACTIONS))]
    kinds = {each.kind for each in drawn}
    assert {"tenant: pods of a PodGroup", "pod group: deleted", "tenant: a group like one before it"} <= kinds
    assert {"allocations refused", "tenant: Jobs of a JobSet", "job: changed"} <= kinds
    doubles = [each for each in drawn if each.kind == "hostile: a claim that says it is a pod's"]
    assert {each.arguments["late"] for each in doubles} == {True, False}
    urgent = [each for each in drawn if each.kind == "tenant: urgent pods that start together"]
    assert any(document["kind"] == "PodGroup" for each in urgent for document in each.arguments["create"])


def test_groups_wait_and_pods_leave_for_others_and_no_law_is_broken(tmp_path_factory: pytest.TempPathFactory) -> None:
    seed = int(os.environ.get("ADVERSARY_SEED") or SEED)
    report = machine.run(
        SECONDS,
        seed,
        most=ACTIONS,
        beside=some_wait_and_some_leave(),
        ahead_s=AHEAD_S,
        draws=Rivalry,
        folder=tmp_path_factory.mktemp("rivalry"),
    )
    print(report)  # noqa: T201 - pytest shows it when the test fails
    assert not report.violations, f"again with ADVERSARY_SEED={seed}"
    assert report.seen.get("groups that began before one like them, and were compared")
    assert report.seen.get("pods that left for others")
    assert report.seen.get("pods that left with their groups")
    assert report.seen.get("PodGroups that had all they need")
    assert report.seen.get("claims that PodGroups kept for their pods")
