"""What claims count as: whole GPUs, partitions, shares, administrative access, and devices that are no longer published."""

import msgspec
import pytest

from draco.allocation.fleet.hardware import PoolHardware
from draco.limits.amounts import ONE, DeviceOrigin, LimitedAmount, holdings_of, least_of
from draco.limits.rules import text_of, use_text
from draco.resources.api.claims import DeviceRequest, DeviceRequestAllocationResult, DeviceSubRequest, ResourceClaim
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity, ResourceSlice
from draco.resources.names import PoolKey
from tests.builders import a_claim, a_device, a_slice
from tests.mig_claims import a_mig_claim, a_mig_pool


def held(claim: ResourceClaim, slices: list[ResourceSlice]) -> str:
    (amounts,) = holdings_of(claim, lambda _: PoolHardware(slices)).holdings.values()
    return use_text(amounts, dict.fromkeys(LimitedAmount, 0)).replace(" of 0", "")


@pytest.mark.parametrize(
    ("on", "amounts"),
    [
        ("0:1g.10gb@0", "1 devices, 9.75Gi of GPU memory, 1 MIG memory slices, 0.125 GPUs"),
        ("0:1g.20gb@0", "1 devices, 19.62Gi of GPU memory, 2 MIG memory slices, 0.25 GPUs"),
        ("0:3g.40gb@4", "1 devices, 39.5Gi of GPU memory, 4 MIG memory slices, 0.5 GPUs"),
        ("0:7g.80gb@0", "1 devices, 79.25Gi of GPU memory, 8 MIG memory slices, 1 GPUs"),
    ],
)
def test_a_partition_counts_with_its_own_memory_and_its_part_of_the_gpu(on: str, amounts: str) -> None:
    assert held(a_mig_claim("part", "any", on), a_mig_pool("node-0", 1)) == amounts


def test_a_whole_gpu_counts_with_all_that_it_has() -> None:
    assert (
        held(a_claim("whole", on=["node-0/gpu-0"]), a_mig_pool("node-0", 1))
        == "1 devices, 79.65Gi of GPU memory, 8 MIG memory slices, 1 GPUs"
    )
    plain = a_device("gpu-0", capacity={"memory": DeviceCapacity(value="15Gi")})
    assert (
        held(a_claim("whole", on=["node-0/gpu-0"]), [a_slice("node-0", [plain])])
        == "1 devices, 15Gi of GPU memory, 0 MIG memory slices, 1 GPUs"
    )


def test_all_small_partitions_of_a_gpu_count_no_more_than_the_gpu() -> None:
    slices = a_mig_pool("node-0", 1)
    claims = [a_mig_claim(f"part-{start}", "1g.10gb", f"0:1g.10gb@{start}") for start in range(7)]
    shares = [
        amounts[LimitedAmount.GPU_SHARE]
        for claim in claims
        for amounts in holdings_of(claim, lambda _: PoolHardware(slices)).holdings.values()
    ]
    assert sum(shares) == 7 * ONE // 8


def test_administrative_access_counts_nothing() -> None:
    claim = a_claim("admin", on=["node-0/gpu-0"], admin_access=True)
    assert holdings_of(claim, lambda _: PoolHardware(a_mig_pool("node-0", 1))).holdings == {}


def test_a_share_of_a_device_counts_with_what_it_takes() -> None:
    shared = a_device("gpu-0", capacity={"memory": DeviceCapacity(value="80Gi")}, allow_multiple_allocations=True)
    slices = [a_slice("node-0", [shared])]

    def taking(**result: object) -> ResourceClaim:
        claim = a_claim("share", on=["node-0/gpu-0"])
        assert claim.status.allocation is not None
        changed = [msgspec.structs.replace(each, share_id="s", **result) for each in claim.results]
        devices = msgspec.structs.replace(claim.status.allocation.devices, results=changed)
        allocation = msgspec.structs.replace(claim.status.allocation, devices=devices)
        return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))

    said = "1 devices, 20Gi of GPU memory, 0 MIG memory slices, 0.25 GPUs"
    assert held(taking(consumed_capacity={"memory": "20Gi"}), slices) == said
    assert held(taking(consumed_capacity={"gpu.nvidia.com/memory": "20Gi"}), slices) == said
    numbered = msgspec.structs.replace(shared, capacity={**shared.capacity, "shares": DeviceCapacity(value="4")})
    one_of_four = taking(consumed_capacity={"memory": "0", "shares": "1"})
    assert held(one_of_four, [a_slice("node-0", [numbered])]) == said
    assert held(taking(), slices) == "1 devices, 80Gi of GPU memory, 0 MIG memory slices, 1 GPUs"


def test_without_counters_a_partition_counts_by_its_profile() -> None:
    device = Device(
        name="gpu-0-mig-3g40gb-9-4",
        attributes={"profile": DeviceAttribute(string="3g.40gb"), "parentUUID": DeviceAttribute(string="GPU-1")},
        capacity={"memory": DeviceCapacity(value="39Gi")},
    )
    said = held(a_claim("part", on=["node-0/gpu-0-mig-3g40gb-9-4"]), [a_slice("node-0", [device])])
    assert said == "1 devices, 39Gi of GPU memory, 4 MIG memory slices, 0.429 GPUs"


def test_a_partition_that_is_published_no_more_counts_like_another_of_its_profile() -> None:
    slices = a_mig_pool("node-0", 1)
    gone = a_claim("part", on=["node-0/gpu-5-mig-1g10gb-19-3"])
    assert held(gone, slices) == "1 devices, 9.75Gi of GPU memory, 1 MIG memory slices, 0.125 GPUs"


def test_what_nothing_is_known_of_counts_as_one_gpu_and_is_named() -> None:
    found = holdings_of(a_claim("gone", on=["node-0/gpu-9"]), lambda _: PoolHardware([]))
    assert found.unknown == ("gpu-9",)
    (amounts,) = found.holdings.values()
    assert (amounts[LimitedAmount.GPU_SHARE], amounts[LimitedAmount.MEMORY]) == (ONE, 0)


def test_a_device_counts_for_the_class_that_it_was_asked_for_by() -> None:
    claim = a_claim("two", on=["node-0/gpu-0"])
    sub = DeviceSubRequest(name="large", device_class_name="large.example.com")
    request = DeviceRequest(name="any", first_available=[sub])
    devices = msgspec.structs.replace(claim.spec.devices, requests=[*claim.spec.devices.requests, request])
    result = DeviceRequestAllocationResult(request="any/large", driver="gpu.nvidia.com", pool="node-0", device="gpu-1")
    allocation = claim.status.allocation
    assert allocation is not None
    results = msgspec.structs.replace(allocation.devices, results=[*claim.results, result])
    claim = msgspec.structs.replace(
        claim,
        spec=msgspec.structs.replace(claim.spec, devices=devices),
        status=msgspec.structs.replace(claim.status, allocation=msgspec.structs.replace(allocation, devices=results)),
    )
    asked: list[PoolKey] = []

    def hardware(pool: PoolKey) -> PoolHardware:
        asked.append(pool)
        return PoolHardware(a_mig_pool("node-0", 2))

    classes = {origin.device_class for origin in holdings_of(claim, hardware).holdings}
    assert classes == {"gpu.nvidia.com", "large.example.com"}
    assert set(asked) == {PoolKey("gpu.nvidia.com", "node-0")}


def test_what_a_claim_asks_for_by_number_is_known_beforehand() -> None:
    assert least_of(a_claim()) == {DeviceOrigin("gpu.nvidia.com", ""): {LimitedAmount.DEVICES: ONE}}
    assert least_of(a_claim(admin_access=True)) == {}


@pytest.mark.parametrize(
    ("octets", "text"), [(80 << 30, "80Gi"), (9728 << 20, "9.5Gi"), (512 << 20, "512Mi"), (0, "0")]
)
def test_memory_reads_as_people_write_it(octets: int, text: str) -> None:
    assert text_of(LimitedAmount.MEMORY, octets * ONE) == text


def test_a_gpu_without_memory_of_its_own_is_one_gpu_and_no_memory_and_is_named() -> None:
    unified = [a_slice("node-0", [a_device("gpu-0")])]
    found = holdings_of(a_claim("spark", on=["node-0/gpu-0"]), lambda _: PoolHardware(unified))
    assert (found.unknown, found.unsized) == ((), ("gpu-0",))
    (amounts,) = found.holdings.values()
    assert (amounts[LimitedAmount.GPU_SHARE], amounts[LimitedAmount.MEMORY]) == (ONE, 0)
    assert (
        holdings_of(a_claim("whole", on=["node-0/gpu-0"]), lambda _: PoolHardware(a_mig_pool("node-0", 1))).unsized
        == ()
    )
