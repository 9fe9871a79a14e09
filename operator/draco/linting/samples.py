"""Devices as Draco's agents publish them, for rules that must evaluate a selector where there is no cluster.

Owns these samples: a GPU of each board that is known, whole, and a partition of each of its profiles. What is one device's own,
such as its UUID, is made up.
"""

from collections.abc import Iterator

from draco.mig.board import Profile
from draco.mig.known_boards import BOARDS, MODELS
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity

_UUID = "GPU-00000000-0000-0000-0000-000000000000"


def sample_devices() -> Iterator[Device]:
    """One device of each form."""
    for board, model in MODELS.items():
        of_board = {
            "productName": DeviceAttribute(string=model.product_name),
            "brand": DeviceAttribute(string="Tesla" if board == "T4" else "Nvidia"),
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
