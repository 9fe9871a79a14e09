"""At which priority a reservation keeps its devices."""

import pytest

from draco.reservations.validity import ReservationPriority, ReservationProblem, priority_of
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.scheduling import PriorityClass


def a_class(name: str, value: int, *, default: bool = False, policy: str = "PreemptLowerPriority") -> PriorityClass:
    return PriorityClass(metadata=ObjectMeta(name=name), value=value, global_default=default, preemption_policy=policy)


SYSTEM = a_class("system-cluster-critical", 2_000_000_000)
HIGH, QUIET = a_class("high", 100), a_class("quiet", 50, policy="Never")


@pytest.mark.parametrize(
    ("name", "classes", "value", "policy"),
    [
        ("high", [SYSTEM, HIGH], 100, "PreemptLowerPriority"),
        ("quiet", [HIGH, QUIET], 50, "Never"),
        ("", [HIGH, QUIET], 0, ""),
        ("", [a_class("usual", 7, default=True), a_class("another", 9, default=True)], 7, "PreemptLowerPriority"),
    ],
)
def test_it_is_that_of_the_class_that_is_named_or_else_of_the_default(
    name: str, classes: list[PriorityClass], value: int, policy: str
) -> None:
    assert priority_of(name, classes) == ReservationPriority(value, policy)


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        ("hihg", "NoPriorityClass", "There is no PriorityClass hihg; did you mean high?"),
        ("system-cluster-critical", "SystemPriority", "is for the system's own pods"),
        ("own", "SystemPriority", "at most 1,000,000,000"),
    ],
)
def test_a_class_that_is_not_there_or_is_the_systems_reserves_nothing(name: str, reason: str, says: str) -> None:
    found = priority_of(name, [SYSTEM, HIGH, a_class("own", 1_000_000_001)])
    assert isinstance(found, ReservationProblem)
    assert found.reason == reason
    assert says in found.message
