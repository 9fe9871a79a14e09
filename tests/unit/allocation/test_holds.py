"""Nodes are held for claims that autoscalers cannot see through a pod, and Draco removes only the holds that it wrote."""

import pytest

from draco.allocation.ownership.holds import (
    DO_NOT_DISRUPT,
    HOLDS,
    SCALE_DOWN_DISABLED,
    holding,
    releasing,
    unattended_nodes,
)
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.meta import ObjectMeta
from draco.resources.names import ANNOTATION_HELD
from tests.builders import a_claim

CLASSES = {
    "ours": DeviceClass(metadata=ObjectMeta(name="ours", labels={"draco.dev/allocator": "operator"})),
    "gpu.nvidia.com": DeviceClass(metadata=ObjectMeta(name="gpu.nvidia.com")),
}
ON = ["n1/gpu-0", "n2/gpu-0"]
HELD = dict.fromkeys(HOLDS, "true") | {ANNOTATION_HELD: " ".join(HOLDS)}


def test_a_claim_of_dracos_without_a_pod_keeps_its_nodes() -> None:
    assert unattended_nodes(a_claim(device_class="ours", on=ON), CLASSES) == {"n1", "n2"}


@pytest.mark.parametrize(
    "claim",
    [
        a_claim(device_class="ours"),
        a_claim(device_class="ours", on=ON, reserved_for=["pod"]),
        a_claim(device_class="ours", on=ON, deleting=True),
        a_claim(on=ON),
        a_claim(device_class="gone", on=ON),
        a_claim(device_class="ours", on=ON, admin_access=True),
    ],
    ids=["not allocated", "used", "going", "the scheduler's", "of no class", "only looks"],
)
def test_any_other_claim_keeps_none(claim: ResourceClaim) -> None:
    assert unattended_nodes(claim, CLASSES) == set()


def test_what_draco_wrote_it_takes_away_and_writes_once() -> None:
    assert holding({"a": "b"}) == HELD
    assert holding({"a": "b"} | HELD) == {}
    assert releasing({"a": "b"} | HELD) == dict.fromkeys([*HOLDS, ANNOTATION_HELD])
    assert releasing({"a": "b"}) == {}


@pytest.mark.parametrize("word", ["true", "false"])
def test_what_a_person_says_stays(word: str) -> None:
    change = holding({DO_NOT_DISRUPT: word})
    assert change == {SCALE_DOWN_DISABLED: "true", ANNOTATION_HELD: SCALE_DOWN_DISABLED}
    after = {DO_NOT_DISRUPT: word} | {name: value for name, value in change.items() if value}
    assert releasing(after) == dict.fromkeys([SCALE_DOWN_DISABLED, ANNOTATION_HELD])
    assert holding(dict.fromkeys(HOLDS, word)) == {}


def test_what_a_person_made_of_dracos_stays_and_what_they_took_away_comes_back_under_dracos_name() -> None:
    assert releasing(HELD | {DO_NOT_DISRUPT: "false"}) == dict.fromkeys([SCALE_DOWN_DISABLED, ANNOTATION_HELD])
    lacking = {name: value for name, value in HELD.items() if name != DO_NOT_DISRUPT}
    assert holding(lacking) == {DO_NOT_DISRUPT: "true", ANNOTATION_HELD: " ".join(HOLDS)}


def test_an_annotation_that_names_others_takes_nothing_else_away() -> None:
    assert releasing({ANNOTATION_HELD: "somebody.example/else", "somebody.example/else": "true"}) == {
        ANNOTATION_HELD: None
    }
