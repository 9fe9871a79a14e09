"""What Prepare has to do for a claim: the first time, when asked again, and after an unfinished unprepare."""

import msgspec
import pytest

from draco.agent.claims.plan import ClaimPlan, FirstPrepare, PartlyReleased, RepeatedPrepare, plan_prepare
from draco.agent.errors import DeviceMissing, PrepareError
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_claim
from tests.unit.agent.claims.test_claims import GPUS

ONE = a_claim("one", on=["node-0/gpu-0"])


def planned(claim: ResourceClaim, *record: PreparedClaim) -> ClaimPlan:
    return plan_prepare(claim, {each.uid: each for each in record}, driver=NVIDIA_DRIVER, pool="node-0", gpus=GPUS)


def on_record(claim: ResourceClaim, state: PreparationState) -> PreparedClaim:
    return msgspec.structs.replace(planned(claim).claim, state=state)


@pytest.mark.parametrize("left_over", [(), (on_record(ONE, PreparationState.PREPARING),)], ids=["unknown", "an intent"])
def test_a_claim_that_kubelet_was_never_told_of_is_prepared_from_the_start(
    left_over: tuple[PreparedClaim, ...],
) -> None:
    plan = planned(ONE, *left_over)
    assert isinstance(plan, FirstPrepare)
    assert plan.claim.state is PreparationState.PREPARING
    assert [(each.device, each.gpu) for each in plan.claim.devices] == [("gpu-0", GPUS["gpu-0"].uuid)]


def test_a_claim_that_is_prepared_is_taken_from_the_record() -> None:
    known = on_record(ONE, PreparationState.PREPARED)
    assert planned(ONE, known) == RepeatedPrepare(known)


def test_a_claim_that_is_prepared_with_something_else_is_refused() -> None:
    known = on_record(ONE, PreparationState.PREPARED)
    elsewhere = a_claim("one", on=["node-0/gpu-1"])
    elsewhere = msgspec.structs.replace(elsewhere, metadata=ONE.metadata)
    with pytest.raises(PrepareError, match="prepared with gpu-0, but that is no longer its allocation"):
        planned(elsewhere, known)


def test_what_a_claim_still_has_from_before_goes_first() -> None:
    known = on_record(ONE, PreparationState.RELEASING)
    assert planned(ONE, known) == PartlyReleased(known)


def test_who_holds_a_device_keeps_it_from_others_and_who_gives_it_up_does_not() -> None:
    other = a_claim("other", on=["node-0/gpu-0"])
    with pytest.raises(PrepareError, match="still prepared for claim default/one"):
        planned(other, on_record(ONE, PreparationState.PREPARED))
    assert isinstance(planned(other, on_record(ONE, PreparationState.RELEASING)), FirstPrepare)


def test_a_gpu_that_is_said_to_be_in_two_places_is_nobody_s() -> None:
    twice = {**GPUS, "gpu-1": msgspec.structs.replace(GPUS["gpu-1"], minor=GPUS["gpu-0"].minor)}
    with pytest.raises(DeviceMissing, match="NVML reports /dev/nvidia"):
        plan_prepare(ONE, {}, driver=NVIDIA_DRIVER, pool="node-0", gpus=twice)


@pytest.mark.parametrize("state", [None, PreparationState.PREPARED])
def test_a_claim_waits_until_its_gpus_have_joined_their_fabric(state: PreparationState | None) -> None:
    record = {} if state is None else {(known := on_record(ONE, state)).uid: known}
    gpus = {name: msgspec.structs.replace(gpu, joining=name == "gpu-0") for name, gpu in GPUS.items()}

    def plan(claim: ResourceClaim) -> ClaimPlan:
        return plan_prepare(claim, record, driver=NVIDIA_DRIVER, pool="node-0", gpus=gpus)

    with pytest.raises(
        PrepareError, match=r"gpu-0 is still being registered with the NVLink fabric.*kubelet tries again"
    ):
        plan(ONE)
    assert isinstance(plan(a_claim("other", on=["node-0/gpu-1"])), FirstPrepare)
    assert isinstance(plan(a_claim("admin", on=["node-0/gpu-0"], admin_access=True)), FirstPrepare)
