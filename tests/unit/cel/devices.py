"""The device of the recorded evaluations."""

from draco.cel import DeviceVariable, device_view
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity

DRIVER = "d.example.com"


def a_device(**more: DeviceAttribute) -> DeviceVariable:
    """A device with an attribute of every kind."""
    attributes = {
        "s": DeviceAttribute(string="abc"),
        "n": DeviceAttribute(int_=3),
        "v": DeviceAttribute(version="1.2.3"),
        "b": DeviceAttribute(bool_=True),
        "l": DeviceAttribute(strings=["a", "b"]),
        "vs": DeviceAttribute(versions=["1.0.0", "2.1.0"]),
        "other.example.com/x": DeviceAttribute(int_=1),
    }
    device = Device(
        name="x",
        attributes=attributes | more,
        capacity={"m": DeviceCapacity(value="40Gi")},
        allow_multiple_allocations=True,
    )
    return device_view(DRIVER, device)
