"""What Prepare has to do for a claim: the first time, when asked again, and after an unfinished unprepare."""

import msgspec
import pytest

from draco.agent.claims.memory_limits import Holding, PublishedShares
from draco.agent.claims.plan import ClaimPlan, FirstPrepare, PartlyReleased, RepeatedPrepare, plan_prepare
from draco.agent.errors import DeviceMissing, PrepareError
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.sharing import Enforcement
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_claim, as_shares, configured
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


SHARE = as_shares(a_claim("share", on=["node-0/gpu-0"]), "s1", memory="10Gi")
OTHER_SHARE = as_shares(a_claim("other", on=["node-0/gpu-0"]), "s2", memory="10Gi")


def test_shares_of_one_device_do_not_exclude_each_other() -> None:
    plan = planned(OTHER_SHARE, on_record(SHARE, PreparationState.PREPARED))
    assert isinstance(plan, FirstPrepare)
    assert [(each.device, each.share_id) for each in plan.claim.devices] == [("gpu-0", "s2")]


def test_a_share_and_a_claim_that_has_the_device_alone_exclude_each_other() -> None:
    for wanted, held in ((SHARE, ONE), (ONE, SHARE)):
        with pytest.raises(PrepareError, match=f"still prepared for claim {held.metadata.key}"):
            planned(wanted, on_record(held, PreparationState.PREPARED))


def test_a_claim_may_have_several_shares_of_one_device() -> None:
    two = as_shares(a_claim("two", on=["node-0/gpu-0"]), "s1", "s2")
    assert [each.share_id for each in planned(two).claim.devices] == ["s1", "s2"]
    again = as_shares(two_less(two), "s1", "s3")
    with pytest.raises(PrepareError, match="prepared with gpu-0, but that is no longer its allocation"):
        planned(again, on_record(two, PreparationState.PREPARED))


def two_less(claim: ResourceClaim) -> ResourceClaim:
    """The claim with one result, of which `as_shares` makes shares."""
    return a_claim(claim.metadata.name, on=["node-0/gpu-0"])


def slicing(claim: ResourceClaim, interval: str) -> ResourceClaim:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    return configured(claim, {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing})


def test_all_shares_of_a_gpu_have_one_time_slice() -> None:
    """The time slice is the GPU's: the last claim would change it under the others."""
    first = on_record(slicing(SHARE, "Long"), PreparationState.PREPARED)
    assert isinstance(planned(slicing(OTHER_SHARE, "Long"), first), FirstPrepare)
    for interval in ("Short", "Default"):
        with pytest.raises(
            PrepareError,
            match=f"asks for time slices of {interval} on gpu-0, and claim default/share has another share of it with time "
            "slices of Long",
        ):
            planned(slicing(OTHER_SHARE, interval), first)
    with pytest.raises(PrepareError, match="and claim default/share has another share of it"):
        planned(OTHER_SHARE, first)


def test_a_share_is_limited_to_what_it_takes_where_the_driver_holds_it() -> None:
    limited = plan_prepare(
        SHARE,
        {},
        driver=NVIDIA_DRIVER,
        pool="node-0",
        gpus=GPUS,
        holding=Holding(lambda _: PublishedShares(Enforcement.DRIVER_LIMIT)),
    )
    assert [each.memory_limit_mib for each in limited.claim.devices] == [10 * 1024]
    assert [each.memory_limit_mib for each in planned(SHARE).claim.devices] == [0]


def test_a_share_is_not_prepared_before_its_terms_are_known() -> None:
    with pytest.raises(PrepareError, match="a share of gpu-0, whose published terms are not known yet"):
        plan_prepare(SHARE, {}, driver=NVIDIA_DRIVER, pool="node-0", gpus=GPUS, holding=Holding(lambda _: None))
    alone = plan_prepare(ONE, {}, driver=NVIDIA_DRIVER, pool="node-0", gpus=GPUS, holding=Holding(lambda _: None))
    assert isinstance(alone, FirstPrepare)
