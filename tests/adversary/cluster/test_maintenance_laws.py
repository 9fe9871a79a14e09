"""What the observer holds against requests that say that work can start."""

import pytest

from tests.adversary.cluster.observer import laws
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.test_observer import (
    DRIVER,
    PARTS,
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
