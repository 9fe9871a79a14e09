"""Which devices go together in one claim, beside shares that are held to their memory."""

from typing import Any

import pytest

from draco.allocation.share_limits import LimitedDevice, ShareRoom, allocated, refused_shares
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.api.slices import CapacityRange, CapacityRequestPolicy, Device, DeviceAttribute, DeviceCapacity
from draco.resources.names import ATTRIBUTE_MEMORY_LIMIT, NVIDIA_DRIVER
from tests.builders import a_claim, as_shares

DRIVER, MPS, LIBRARY = MemoryLimitBy.DRIVER, MemoryLimitBy.MPS, MemoryLimitBy.LIBRARY
ALONE, MONITORED = LimitedDevice("gpu-1"), LimitedDevice("gpu-1", is_admin=True)


def held(device: str, by: MemoryLimitBy, mib: int = 10240) -> LimitedDevice:
    return LimitedDevice(device, by, mib)


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([ALONE], ""),
        ([held("gpu-0", DRIVER), held("gpu-1", DRIVER)], ""),
        ([held("gpu-0", DRIVER), ALONE], ""),
        (
            [held("gpu-0", DRIVER), held("gpu-1", DRIVER, 1)],
            "its memory limits differ (1 MiB, 10240 MiB), and NVIDIA's",
        ),
        ([held("gpu-0", DRIVER, 1), held("gpu-0", DRIVER, 2), held("gpu-1", DRIVER, 3)], ""),
        ([held("gpu-0", LIBRARY), held("gpu-1", LIBRARY)], ""),
        ([held("gpu-0", LIBRARY), held("gpu-1", LIBRARY, 1)], "and the library that holds them takes one for all GPUs"),
        ([held("gpu-0", LIBRARY), ALONE], "would limit gpu-1, too"),
        ([held("gpu-0", LIBRARY), MONITORED], "would limit gpu-1, too"),
        ([held("gpu-0", LIBRARY), held("gpu-1", DRIVER)], "would limit gpu-1, too"),
        ([held("gpu-0", MPS), held("gpu-0", MPS, 1)], ""),
        ([held("gpu-0", MPS), MONITORED], ""),
        (
            [held("gpu-0", MPS), held("gpu-1", MPS)],
            "it has gpu-0, gpu-1 with MPS, and a container can be the client of only",
        ),
        ([held("gpu-0", MPS), ALONE], "it has gpu-0 with MPS and gpu-1 without, and a container can be"),
        ([held("gpu-0", MPS), held("gpu-1", LIBRARY)], "would limit gpu-0, too"),
    ],
)
def test_only_what_a_container_could_use_goes_together(devices: list[LimitedDevice], why: str) -> None:
    refused = refused_shares(devices)
    said = refused.why if refused else ""
    assert (why in said) if why else said == ""
    assert refused_shares(devices[::-1]) == refused


POLICY = CapacityRequestPolicy(default="79Gi", valid_range=CapacityRange(min="1Gi", step="1Gi"))


def shared_by(level: str, **memory: Any) -> Device:
    return Device(
        name="gpu-0",
        attributes={ATTRIBUTE_MEMORY_LIMIT: DeviceAttribute(string=level)},
        capacity={"memory": DeviceCapacity(**{"value": "81559Mi", "request_policy": POLICY, **memory})},
        allow_multiple_allocations=True,
    )


def read(claim: ResourceClaim, device: Device | None, driver: str = NVIDIA_DRIVER) -> list[LimitedDevice]:
    return allocated(claim, driver, lambda _: device)


def test_an_allocated_claim_tells_its_amounts_and_the_slices_who_holds_them() -> None:
    claim = as_shares(a_claim(on=["node-0/gpu-0"]), "a", "b", memory="10Gi")
    assert read(claim, shared_by("mps")) == [held("gpu-0", MPS)] * 2
    assert read(claim, shared_by("mps"), "gpu.example.com") == []
    for unknown in (None, shared_by("none"), shared_by("something")):
        assert {one.by for one in read(claim, unknown)} == {MemoryLimitBy.NONE}
    assert [one.by for one in read(a_claim(on=["node-0/gpu-0"]), shared_by("driver"))] == [MemoryLimitBy.NONE]


@pytest.mark.parametrize(
    ("level", "memory", "by"),
    [
        ("mps", "79Gi", MemoryLimitBy.NONE),
        ("library", "79Gi", MemoryLimitBy.NONE),
        ("driver", "79Gi", DRIVER),
        ("mps", "78Gi", MPS),
    ],
)
def test_a_share_that_leaves_no_room_has_its_gpu_alone(level: str, memory: str, by: MemoryLimitBy) -> None:
    [found] = read(as_shares(a_claim(on=["node-0/gpu-0"]), "a", memory=memory), shared_by(level))
    assert found.by is by


def test_room_is_that_of_a_device_that_is_shared_by_memory() -> None:
    assert ShareRoom.of(shared_by("mps"), NVIDIA_DRIVER) == ShareRoom(81559 << 20, 79 << 30, 1 << 30)
    assert ShareRoom.of(shared_by("none", request_policy=None), NVIDIA_DRIVER) is None
    assert ShareRoom.of(Device(name="gpu-0"), NVIDIA_DRIVER) is None
