"""Rules about DeviceClasses, and which allocator serves their claims.

Owns sample devices as Draco's agents publish them: a GPU of each known board, whole and as a partition of each profile.
`allocation.ownership.classes` decides whether a class breaks the rule.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from draco.allocation.ownership.classes import ClassFault, OfDriver, class_fault
from draco.linting.model import Finding, Manifest, SetField, finding
from draco.linting.objects import drivers_of_classes, name_of, of_kind
from draco.mig.board import Profile
from draco.mig.known_boards import BOARDS, MODELS
from draco.resources.api.claims import DeviceClass
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from draco.resources.names import ALLOCATED_BY_OPERATOR, LABEL_ALLOCATOR, NVIDIA_DRIVER

_UUID = "GPU-00000000-0000-0000-0000-000000000000"
_LABEL = ("metadata", "labels", LABEL_ALLOCATOR)


def check_allocators(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Classes whose claims both Draco and kube-scheduler may allocate, or neither."""
    drivers = drivers_of_classes(manifests)
    for index, manifest in of_kind(manifests, "DeviceClass"):
        try:
            device_class = msgspec.convert(manifest.tree, DeviceClass)
        except msgspec.ValidationError:
            continue  # reported by other rules
        driver = drivers.get(name_of(manifest.tree), NVIDIA_DRIVER)
        fault = class_fault(device_class, _samples(driver))
        message = f"{fault.cause}: {fault.fix}" if fault else ""
        if fault is ClassFault.BOTH:
            yield finding("class-of-both-allocators", message, index, ("spec",), severity="warning")
        elif fault is ClassFault.NEITHER:
            label = SetField(_LABEL, ALLOCATED_BY_OPERATOR)
            yield finding("class-of-no-allocator", message, index, ("spec",), label)


@cache
def _samples(driver: str) -> list[OfDriver]:
    return [OfDriver(driver, each) for each in sample_devices()]


def sample_devices() -> Iterator[Device]:
    """One device of each form."""
    for board, model in MODELS.items():
        of_board = {
            "productName": DeviceAttribute(string=model.product_name),
            "brand": DeviceAttribute(string="Tesla" if model.product_name.startswith("Tesla ") else "Nvidia"),
            "architecture": DeviceAttribute(string=model.architecture),
            "cudaComputeCapability": DeviceAttribute(version=f"{model.compute_capability}.0"),
            "driverVersion": DeviceAttribute(version="580.95.5"),
            "cudaDriverVersion": DeviceAttribute(version="13.0.0"),
        }
        own = {"type": DeviceAttribute(string="gpu"), "uuid": DeviceAttribute(string=_UUID)}
        yield Device(
            name="gpu-0", attributes=of_board | own, capacity={"memory": DeviceCapacity(value=f"{model.memory_mib}Mi")}
        )
        for profile in BOARDS[board].profiles if board in BOARDS else ():
            yield _partition(profile, of_board)


def _partition(profile: Profile, of_board: dict[str, DeviceAttribute]) -> Device:
    strings = {"type": "mig", "profile": profile.name, "parentUUID": _UUID}
    amounts = {"memory": f"{profile.memory_mib}Mi", "multiprocessors": str(profile.multiprocessors)}
    return Device(
        name=f"gpu-0-mig-{profile.id}",
        attributes=of_board | {name: DeviceAttribute(string=text) for name, text in strings.items()},
        capacity={name: DeviceCapacity(value=amount) for name, amount in amounts.items()},
    )
