"""At which priority a reservation keeps its devices, by its PriorityClass, as the API server finds out that of a pod.

Owns the rule: the class that is named, else the cluster's default, else 0; never one that is the system's, since no ResourceQuota
bounds who takes it for a reservation. It is found out once and written down: what becomes of the class later changes nothing.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from draco.reservations.asking import ReservationProblem
from draco.resources.api.scheduling import PriorityClass
from draco.resources.texts import nearest, sentence, shown

HIGHEST: Final = 1_000_000_000
"""The highest value of a class that people may make (source: scheduling.HighestUserDefinablePriority)."""
NEVER: Final = "Never"


class ReservationPriority(msgspec.Struct, frozen=True):
    """The value of a class, and its preemptionPolicy."""

    value: int = 0
    preemption_policy: str = ""


def priority_of(name: str, classes: Iterable[PriorityClass]) -> ReservationPriority | ReservationProblem:
    """What the class of this name gives a reservation; "" means the default."""
    known = {each.metadata.name: each for each in classes}
    if not name:
        default = min(
            (each for each in known.values() if each.global_default), key=lambda each: each.value, default=None
        )
        found = default
        if found is None:
            return ReservationPriority()
    elif name not in known:
        return ReservationProblem(
            "NoPriorityClass", sentence(f"There is no PriorityClass {shown(name)}{nearest(name, known)}")
        )
    else:
        found = known[name]
    if found.value > HIGHEST:
        return ReservationProblem(
            "SystemPriority",
            f"PriorityClass {shown(found.metadata.name)} is for the system's own pods: name one of at most {HIGHEST:,}.",
        )
    return ReservationPriority(found.value, found.preemption_policy)
