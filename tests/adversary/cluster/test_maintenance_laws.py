"""The laws of requests that are ready for work."""

from typing import Any

import pytest

from tests.adversary.cluster.observer import laws
from tests.adversary.cluster.observer.service import emptied_by_mistake, repaired_by_nobody, verifying_for_ever
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.test_ledger_laws import a_gpu_node
from tests.adversary.cluster.test_observer import (
    DRIVER,
    GPU,
    OTHER,
    PARTS,
    Document,
    a_claim,
    a_request,
    a_rule,
    a_slice,
    a_world,
    partition,
    tainted,
    whole,
)


@pytest.mark.parametrize(
    ("one", "other", "wrong"),
    [("gpu-0", "gpu-0", True), ("gpu-0", "a", True), ("a", "c", True), ("a", "b", False)],
)
def test_two_requests_are_not_ready_for_work_on_the_same_hardware(one: str, other: str, wrong: bool) -> None:
    requests = [("request", a_request(one, uid="one")), ("request", a_request(other, uid="other"))]
    world = a_world(PARTS, *requests)
    assert bool(list(laws.two_at_work(world))) is wrong
    learn(world, "request", a_request(other, uid="other", ready="False"))
    assert not list(laws.two_at_work(world))


def test_what_is_ready_for_work_keeps_its_own_taint_though_a_rule_taints_it_too() -> None:
    world = a_world(PARTS, ("request", a_request(taint={"key": "k"})), ("rule", a_rule(driver=DRIVER)))
    found = {each.law for each in laws.bare_at_work(world)}
    assert found == {"bare at work"}, "as an agent publishes that has lost what it was told"
    parts = [partition("a", 0, 3), partition("b", 4, 7), partition("c", 2, 5)]
    learn(world, "slice", a_slice(*map(tainted, (whole(), *parts)), generation=2))
    assert not list(laws.bare_at_work(world))
    learn(world, "request", a_request(ready="False", taint={"key": "k"}))
    learn(world, "slice", a_slice(whole(), *parts, generation=3))
    assert not list(laws.bare_at_work(world))


READY = {
    "a part is held": ("ready but held", [("claim", a_claim(1, "a")), ("rule", a_rule(driver=DRIVER))]),
    "the whole of a part is held": (
        "ready but held",
        [("claim", a_claim(1, "gpu-0")), ("rule", a_rule(driver=DRIVER)), ("request", a_request("a"))],
    ),
    "a part has no taint": ("ready but obtainable", [("rule", a_rule(driver=DRIVER, pool="node", device="gpu-0"))]),
    "a taint that blocks nothing": ("ready but obtainable", [("rule", a_rule(driver=DRIVER, effect="None"))]),
    "all is tainted by a rule": ("", [("rule", a_rule(driver=DRIVER))]),
    "all is tainted by the slice": (
        "",
        [("slice", a_slice(tainted(whole()), tainted(partition("a", 0, 3)), generation=2))],
    ),
    "another part is held": (
        "",
        [("request", a_request("a", uid="dm")), ("claim", a_claim(1, "b")), ("rule", a_rule(driver=DRIVER))],
    ),
    "what overlaps a part is tainted": (
        "",
        [
            ("request", a_request("a", uid="dm")),
            (
                "slice",
                a_slice(
                    *map(tainted, (whole(), partition("a", 0, 3), partition("c", 2, 5))),
                    partition("b", 4, 7),
                    generation=2,
                ),
            ),
        ],
    ),
    "it is not ready": ("", [("request", a_request(ready="False")), ("claim", a_claim(1, "a"))]),
    "who holds it only looks": ("", [("claim", a_claim(1, "a", adminAccess=True)), ("rule", a_rule(driver=DRIVER))]),
}


@pytest.mark.parametrize("case", READY)
def test_nothing_is_ready_for_work_that_is_held_or_can_be_had(case: str) -> None:
    law, objects = READY[case]
    world = a_world(PARTS, ("request", a_request()), *objects)
    found = {each.law for look in (laws.ready_but_held, laws.ready_but_obtainable) for each in look(world)}
    assert found == ({law} if law else set())


def verifying(device: str = "gpu-0", *, work: str = "adv-works", phase: str = "Verifying", **spec: Any) -> Document:
    probe = {"mode": "Job", "fromCronJob": work}
    request = a_request(device, ready="False", verification=probe, taint={"key": "k"}, **spec)
    request["status"]["phase"] = phase
    return request


HANDED_OVER = {**whole(), "taints": [{"key": "draco.dev/operator-allocated", "effect": "NoSchedule"}]}
SICK = {**whole(), "taints": [{"key": "draco.dev/xid", "effect": "NoSchedule"}]}
OF_A_JOB = a_claim(1, "gpu-0")
OF_A_JOB["metadata"]["namespace"] = "draco-jobs"
VERIFYING = {
    "it is free": (True, [("request", verifying())]),
    "it is free and has the taint of its request": (True, [("request", verifying()), ("rule", a_rule(driver=DRIVER))]),
    "it was handed over": (True, [("request", verifying()), ("slice", a_slice(HANDED_OVER, generation=2))]),
    "its Job holds it": (True, [("request", verifying()), ("claim", OF_A_JOB)]),
    "a part of another profile is held": (True, [("request", verifying("a")), ("claim", a_claim(1, "b"))]),
    "a part of it is held": (False, [("request", verifying()), ("claim", a_claim(1, "a"))]),
    "it is sick": (False, [("request", verifying()), ("slice", a_slice(SICK, generation=2))]),
    "its Job never ends": (False, [("request", verifying(work="adv-never-ends"))]),
    "there is no such template": (False, [("request", verifying(work="adv-not-there"))]),
    "it was cancelled": (False, [("request", verifying(cancelled=True))]),
    "it failed": (False, [("request", verifying(phase="Failed"))]),
    "it is not published": (False, [("request", verifying("gpu-7"))]),
}


@pytest.mark.parametrize("case", VERIFYING)
def test_what_a_job_verifies_that_can_have_it_does_not_stay_so(case: str) -> None:
    wrong, objects = VERIFYING[case]
    world = a_world(PARTS, *objects)
    assert bool(list(verifying_for_ever(world))) is wrong


EMPTIED = {
    "another board": (OTHER, "NoExecute", {}, True),
    "the board that was isolated": (GPU, "NoExecute", {}, False),
    "nothing": (OTHER, "NoSchedule", {}, False),
    "another board, as its author wants": (OTHER, "NoExecute", {"taint": {"effect": "NoExecute"}}, False),
}


@pytest.mark.parametrize(("isolated", "effect", "spec", "wrong"), EMPTIED.values(), ids=EMPTIED)
def test_a_drain_empties_no_board_that_was_not_isolated(
    isolated: str, effect: str, spec: Document, wrong: bool
) -> None:
    request = a_request(**spec)
    request["status"]["devices"][0]["uuid"] = isolated
    rule = a_rule(owner="dm", effect=effect, driver=DRIVER, pool="node", device="gpu-0")
    found = list(emptied_by_mistake(a_world(PARTS, ("request", request), ("rule", rule))))
    assert [each.law for each in found] == ["emptied by mistake"] * wrong


REPAIRED = {
    "a policy's Jobs have succeeded": ({"draco.dev/remediates": "uid"}, "True", "Verifying", False),
    "they have not": ({"draco.dev/remediates": "uid"}, "False", "InMaintenance", True),
    "the request is over": ({"draco.dev/remediates": "uid"}, "True", "Completed", True),
    "it is a person's": ({}, "True", "Verifying", True),
}


@pytest.mark.parametrize(("labels", "worked", "phase", "wrong"), REPAIRED.values(), ids=REPAIRED)
def test_an_agent_is_told_of_a_repair_only_by_one_who_has_worked(
    labels: Document, worked: str, phase: str, wrong: bool
) -> None:
    request = a_request()
    request["metadata"]["labels"] = labels
    request["status"] |= {"phase": phase, "conditions": [{"type": "Worked", "status": worked}]}
    kind, node = a_gpu_node()
    node["spec"] = {"repaired": [{"uuid": GPU, "request": "dm", "until": "2026-01-01T00:00:00Z"}]}
    world = a_world((kind, node), ("request", request))
    assert [each.law for each in repaired_by_nobody(world)] == ["repaired by nobody"] * wrong
    world.requests.clear()
    assert list(repaired_by_nobody(world)), "nor by one that is gone"
