"""Whether claims hold more of a device than it has, at one moment of an API server's history; for tests and benchmarks."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from draco.resources.quantity import Quantity

Result = Mapping[str, Any]
"""A result of an allocation, as JSON."""


def overcommitted(held: Mapping[str, Sequence[Result]], capacities: Mapping[str, str]) -> list[str]:
    """What is wrong with the devices that these claims hold at one moment, as sentences.

    `capacities` are those of every device, for example {"memory": "80Gi"}.
    """
    alone: dict[tuple[str, str], list[str]] = defaultdict(list)
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    consumed: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for claim, results in held.items():
        for each in results:
            device = each["pool"], each["device"]
            if each.get("adminAccess"):
                continue
            if "shareID" not in each:
                alone[device].append(claim)
                continue
            shared[device].append(claim)
            consumed[device].update({name: _amount(text) for name, text in each.get("consumedCapacity", {}).items()})
    wrong = [f"{device} is held whole by {claims}" for device, claims in alone.items() if len(claims) > 1]
    wrong += [
        f"{device} is held whole by {claims} and shared by {shared[device]}"
        for device, claims in alone.items()
        if device in shared
    ]
    wrong += [
        f"{amount} of {name} of {device} is taken by {shared[device]}"
        for device, amounts in consumed.items()
        for name, amount in amounts.items()
        if name in capacities and amount > _amount(capacities[name])
    ]
    return wrong


def _amount(text: str) -> int:
    return Quantity.parse(text).value()
