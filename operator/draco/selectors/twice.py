"""Names that devices publish twice: with their driver's domain and without it.

Owns what is said of them. Kubernetes stores both; which of two values a selector meets is left to chance in releases up to 1.37
(kubernetes#142218), and is the one with the domain by the open #142202. Draco takes that one.
"""

from draco.resources.api.slices import Device


def published_twice(driver: str, device: Device) -> list[str]:
    """The attributes and capacities that a device has with its driver's domain and without it, and not with the same value."""
    return [
        name
        for values in (device.attributes, device.capacity)
        for name in values
        if (other := values.get(f"{driver}/{name}")) is not None and other != values[name]
    ]


def twice_text(who: str, domain: str, name: str) -> str:
    """What is to be known of it, as a sentence without its end."""
    return (
        f"{who} published with {name} and with {domain}/{name}, whose values differ: up to Kubernetes 1.37 chance decides which "
        "of them a selector meets, and here it is the one with the domain"
    )
