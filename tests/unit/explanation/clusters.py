"""A small cluster to explain claims on: two nodes of two GPUs each, and one network card."""

from collections.abc import Sequence
from typing import Any

from draco.allocation.fleet.fleet import Fleet
from draco.resources.api.claims import (
    CelSelector,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from tests.builders import a_node, a_slice

GPU = "gpu.nvidia.com"
ATTRIBUTES, CAPACITY = f'device.attributes["{GPU}"]', f'device.capacity["{GPU}"]'
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"


def selectors(*expressions: str) -> list[DeviceSelector]:
    return [DeviceSelector(cel=CelSelector(expression=each)) for each in expressions]


def a_class(name: str, *expressions: str) -> DeviceClass:
    return DeviceClass(metadata=ObjectMeta(name=name), spec=DeviceClassSpec(selectors=selectors(*expressions)))


def a_gpu(name: str, model: str, memory: str) -> Device:
    return Device(
        name=name,
        attributes={
            "productName": DeviceAttribute(string=model),
            "driverVersion": DeviceAttribute(version="570.86.15"),
            "index": DeviceAttribute(int_=int(name[-1])),
            "ecc": DeviceAttribute(bool_=True),
        },
        capacity={"memory": DeviceCapacity(value=memory)},
    )


def a_fleet(*held: ResourceClaim) -> Fleet:
    card = Device(name="nic-0", attributes={"speed": DeviceAttribute(int_=100)})
    return Fleet.of(
        slices=[
            a_slice("n1", [a_gpu("gpu-0", H100, "80Gi"), a_gpu("gpu-1", H100, "80Gi")]),
            a_slice("n2", [a_gpu("gpu-0", A100, "40Gi"), a_gpu("gpu-1", A100, "40Gi")]),
            a_slice("n1", [card], driver="nic.example.com"),
        ],
        nodes=[a_node("n1"), a_node("n2")],
        classes=[
            a_class(GPU, f'device.driver == "{GPU}"'),
            a_class("any"),
            a_class("mig", f'device.driver == "{GPU}" && {ATTRIBUTES}.productName == "MIG 1g.10gb"'),
        ],
        claims=held,
    )


def asking(*expressions: str, device_class: str = GPU, constraints: Sequence[Any] = (), **asked: Any) -> ResourceClaim:
    exactly = ExactDeviceRequest(device_class_name=device_class, selectors=selectors(*expressions), **asked)
    return ResourceClaim(
        metadata=ObjectMeta(name="c", namespace="default"),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(
                requests=[DeviceRequest(name="gpu", exactly=exactly)],
                constraints=list(constraints),
            )
        ),
    )
