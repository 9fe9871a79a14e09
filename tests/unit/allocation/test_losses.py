"""When a running group has lost a pod, and which other pods may then be released."""

import msgspec
import pytest

from draco.allocation.ownership.losses import GroupStanding, is_made_for_a_pod, releases, standing
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Pod, PodSchedulingGate, PodStatus
from draco.resources.api.draco import Allocator, MigGangs, MigPolicy, PartialLoss
from draco.resources.api.meta import ObjectMeta, OwnerReference
from tests.builders import MOMENT, a_claim, a_mig_policy, a_pod

CLASSES = {"ours": DeviceClass(metadata=ObjectMeta(name="ours", labels={"draco.dev/allocator": "operator"}))}


def holding(name: str, *, node: str = "n1", on: str = "n1/gpu-0", phase: str = "Running") -> tuple[Pod, ResourceClaim]:
    """A pod with one claim."""
    claim = a_claim(name, device_class="ours", on=[on] if on else [])
    pod = a_pod(name, claims=[name], status=PodStatus(phase=phase))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node)), claim


def of(*members: tuple[Pod, ResourceClaim], size: int = 2) -> GroupStanding:
    claims = {claim.metadata.key: claim for _, claim in members}
    return standing(size, [pod for pod, _ in members], claims.get, CLASSES)


WAITING = holding("next", node="", on="", phase="Pending")


def gone(name: str, phase: str) -> tuple[Pod, ResourceClaim]:
    """A pod that has failed, or, with the phase "Running", one that is being deleted."""
    pod, claim = holding(name, phase=phase)
    if phase == "Failed":
        return pod, claim
    meta = msgspec.structs.replace(pod.metadata, deletion_timestamp=MOMENT)
    return msgspec.structs.replace(pod, metadata=meta), claim


def test_a_group_is_short_of_a_pod_once_another_waits_in_place_of_one_that_is_gone_has_failed_or_is_leaving() -> None:
    for rest in ([], [gone("b", "Failed")], [gone("b", "Running")]):
        found = of(holding("a"), WAITING, *rest)
        assert (found.missing, found.waiting, found.is_short, found.is_whole) == (1, 1, True, False)
        assert [each.metadata.name for each in found.held] == ["a"]
        assert not of(holding("a"), *rest).is_short


def test_one_that_succeeded_is_no_loss_also_once_it_is_deleted() -> None:
    assert of(holding("a"), holding("b", phase="Succeeded")).is_whole
    assert not of(holding("a")).is_short
    assert not of(holding("a"), WAITING, size=3).is_short, "it would not start again without the third"


def test_those_beyond_its_size_are_no_loss() -> None:
    assert of(holding("a"), holding("b"), gone("c", "Failed")).is_whole
    found = of(holding("a"), holding("b"), WAITING)
    assert (found.is_short, found.is_whole) == (False, True)


def test_one_that_has_devices_again_and_no_node_yet_is_not_missing_and_the_group_not_whole() -> None:
    found = of(holding("a"), holding("b", node="", phase="Pending"))
    assert (found.missing, found.waiting, found.is_whole) == (0, 0, False)


def test_one_behind_a_gate_does_not_wait_for_devices() -> None:
    pod, claim = WAITING
    gates = [PodSchedulingGate(name="quota")]
    gated = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduling_gates=gates))
    found = of(holding("a"), (gated, claim))
    assert (found.missing, found.is_short) == (1, False)


def a_policy(loss: PartialLoss, allocator: Allocator = Allocator.OPERATOR) -> MigPolicy:
    return a_mig_policy(allocator=allocator, gangs=MigGangs(on_partial_loss=loss))


def test_all_policies_must_say_so() -> None:
    release = a_policy(PartialLoss.RELEASE)
    assert releases([release, release])
    assert not releases([])
    for other in (a_policy(PartialLoss.KEEP), a_policy(PartialLoss.RELEASE, Allocator.SCHEDULER), None):
        assert not releases([release, other])


@pytest.mark.parametrize(
    ("kind", "controller", "made"), [("Pod", True, True), ("Pod", False, False), ("PodGroup", True, False)]
)
def test_only_a_claim_that_goes_with_its_pod_was_made_for_it(kind: str, controller: bool, made: bool) -> None:
    owner = OwnerReference(api_version="v1", kind=kind, name="a", uid="a", controller=controller)
    claim = a_claim()
    meta = msgspec.structs.replace(claim.metadata, owner_references=[owner])
    assert is_made_for_a_pod(msgspec.structs.replace(claim, metadata=meta)) is made
