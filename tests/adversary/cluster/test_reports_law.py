"""The law of reports: the Event on a rule, compared with the published and held devices."""

import pytest

from tests.adversary.cluster.observer.reports import REASON, misreported
from tests.adversary.cluster.test_observer import (
    DRIVER,
    PARTS,
    Document,
    a_claim,
    a_rule,
    a_slice,
    a_world,
    partition,
    told,
    whole,
)

EXACT = {"driver": DRIVER, "pool": "node", "device": "a"}


def says(note: str) -> tuple[str, Document]:
    return told(note, about="mine", reason=REASON)


CASES = {
    "nobody says anything": (True, EXACT, []),
    "another Event": (True, EXACT, [told("It keeps new claims off 3 devices.", about="mine", reason="Other")]),
    "what overlaps the device is counted": (
        False,
        EXACT,
        [says("It keeps new claims off 3 devices. No claim has any.")],
    ),
    "what overlaps is left out": (True, EXACT, [says("It keeps new claims off 1 device. No claim has any of them.")]),
    "a pool": (False, {"driver": DRIVER, "pool": "node"}, [says("It keeps new claims off 4 devices.")]),
    "nothing": (False, {"pool": "other"}, [says("No published device matches it: compare the names.")]),
    "nothing, but some are counted": (True, {"pool": "other"}, [says("It keeps new claims off 4 devices.")]),
    "a claim on a device that nobody publishes": (
        False,
        {"pool": "node", "device": "x"},
        [says("It keeps new claims off 0 devices. 1 claim keeps its devices."), ("claim", a_claim(1, "x"))],
    ),
    "more pods than there are": (True, EXACT, [says("It keeps new claims off 3 devices and deletes 1 pod: a/b.")]),
    "no pod": (False, EXACT, [says("It keeps new claims off 3 devices and deletes no pod.")]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_event_on_a_rule_counts_what_it_taints(case: str) -> None:
    wrong, selector, objects = CASES[case]
    world = a_world(PARTS, ("rule", a_rule("mine", **selector)), *objects)
    assert bool(list(misreported(world))) is wrong


def test_rules_of_draco_have_no_report() -> None:
    assert not list(misreported(a_world(PARTS, ("rule", a_rule("draco-extension-x", **EXACT)))))


@pytest.mark.parametrize(("number", "wrong"), [("0", False), ("1", False), ("2", False), ("3", True)])
def test_of_a_partition_that_is_gone_not_all_that_overlaps_it_is_known(number: str, wrong: bool) -> None:
    divided_otherwise = ("slice", a_slice(whole(), partition("c", 2, 5)))
    note = says(f"It keeps new claims off {number} devices.")
    world = a_world(PARTS, divided_otherwise, ("rule", a_rule("mine", **EXACT)), note)
    assert bool(list(misreported(world))) is wrong
