"""Known bugs of Kubernetes' allocator that can refuse a pod whose claims fit, each with the release that fixed it.

Draco allocates like the newest release; explanations quote the bugs that the cluster's scheduler may have.
"""

from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Final

import msgspec


class AffectedArea(StrEnum):
    """A feature that a claim or slice uses."""

    ALL_MODE = "AllMode"
    CONSTRAINTS = "Constraints"
    CONSUMABLE_CAPACITY = "ConsumableCapacity"
    LIST_ATTRIBUTES = "ListAttributes"
    SHARED_COUNTERS = "SharedCounters"
    ADMIN_ACCESS = "AdminAccess"
    NAMES_TWICE = "NamesTwice"
    SEVERAL_CLAIMS = "SeveralClaims"
    SAME_POOL_NAMES = "SamePoolNames"
    RULE_WITHOUT_SELECTOR = "RuleWithoutSelector"


class UpstreamBug(msgspec.Struct, frozen=True, kw_only=True):
    """One bug. Numbers are pull requests and issues of kubernetes/kubernetes."""

    changes: tuple[int, ...]
    """The pull requests that fixed it; for an open one, those or issues that describe it."""
    issues: tuple[int, ...] = ()
    areas: tuple[frozenset[AffectedArea], ...]
    """Feature sets: the bug matters if all of one set are in use. An empty set always matches."""
    what: str
    """What the affected scheduler does, in one sentence."""
    fixed_in: int | None
    """The first minor release of Kubernetes 1 with the fix; None while it is open."""

    def affects(self, minor: int) -> bool:
        """Whether some patch release of Kubernetes 1.`minor` has it."""
        return self.fixed_in is None or minor < self.fixed_in

    def concerns(self, used: AbstractSet[AffectedArea]) -> bool:
        """Whether it matters if these features are in use."""
        return any(each <= used for each in self.areas)


def _with(*areas: AffectedArea) -> frozenset[AffectedArea]:
    return frozenset(areas)


UPSTREAM_BUGS: Final = (
    UpstreamBug(
        changes=(137347,),
        areas=(_with(AffectedArea.ALL_MODE),),
        what="The scheduler mistakes which devices a firstAvailable alternative with allocationMode All asks for.",
        fixed_in=36,
    ),
    UpstreamBug(
        changes=(138885,),
        areas=(_with(AffectedArea.ALL_MODE, AffectedArea.SHARED_COUNTERS),),
        what="The scheduler panics when a request with allocationMode All meets devices that draw from shared counters.",
        fixed_in=37,
    ),
    UpstreamBug(
        changes=(140435, 140504),
        issues=(140434,),
        areas=(_with(AffectedArea.SHARED_COUNTERS, AffectedArea.SAME_POOL_NAMES),),
        what="The scheduler confuses the counters of two drivers whose pools have the same name, such as the node's.",
        fixed_in=37,
    ),
    UpstreamBug(
        changes=(140431,),
        issues=(140436,),
        areas=(_with(AffectedArea.SHARED_COUNTERS), _with(AffectedArea.CONSTRAINTS)),
        what="The scheduler keeps counters and constraint values of devices it tried and dropped, and then finds no fit.",
        fixed_in=37,
    ),
    UpstreamBug(
        changes=(140325,),
        issues=(140300,),
        areas=(_with(AffectedArea.CONSTRAINTS, AffectedArea.LIST_ATTRIBUTES),),
        what="The scheduler does not restore the common values of a list matchAttribute after dropping a device.",
        fixed_in=37,
    ),
    UpstreamBug(
        changes=(140437, 140442, 140518, 140702, 140769, 140666, 139698),
        areas=(_with(AffectedArea.CONSUMABLE_CAPACITY), _with(AffectedArea.SHARED_COUNTERS)),
        what=(
            "The scheduler miscalculates amounts of counters and shared capacities: overflows, a division by zero, changed "
            "objects in its cache, and partial results of allocationMode All."
        ),
        fixed_in=37,
    ),
    UpstreamBug(
        changes=(139017,),
        issues=(139016,),
        areas=(_with(AffectedArea.SEVERAL_CLAIMS),),
        what="The scheduler fails a pod with several claims: it finds fewer allocations than there are claims.",
        fixed_in=37,
    ),
    UpstreamBug(
        changes=(141648,),
        issues=(141620,),
        areas=(_with(AffectedArea.RULE_WITHOUT_SELECTOR),),
        what="The scheduler keeps new claims off every device while a DeviceTaintRule has no spec.deviceSelector.",
        fixed_in=38,
    ),
    UpstreamBug(
        changes=(142202,),
        issues=(142218,),
        areas=(_with(AffectedArea.NAMES_TWICE),),
        what="The scheduler takes either value of an attribute that a device publishes with its domain and without it.",
        fixed_in=None,
    ),
    UpstreamBug(
        changes=(140729,),
        areas=(_with(AffectedArea.ADMIN_ACCESS, AffectedArea.SHARED_COUNTERS),),
        what="The scheduler charges administrative access to shared counters, so that it can be refused for lack of them.",
        fixed_in=None,
    ),
)
"""In the order of the fixing releases, open ones last."""


def bugs_of(minor: int) -> tuple[UpstreamBug, ...]:
    """The bugs of some patch release of Kubernetes 1.`minor`."""
    return tuple(bug for bug in UPSTREAM_BUGS if bug.affects(minor))
