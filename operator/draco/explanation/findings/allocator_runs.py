"""Runs the allocator once for each kind of node.

Owns when two nodes are the same to the allocator, and when it need not run: a node with fewer suitable devices than a request
wants does not fit. Devices that suit no request do not matter, unless a selector fails on one.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from draco.allocation.errors import AllocationError, NodeError, SearchTooLong
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_rows import likeness
from draco.allocation.fleet.rowwise import Codes
from draco.allocation.search.allocate import would_get
from draco.explanation.findings.equivalence import EquivalenceClasses
from draco.explanation.findings.reachability import Reachability, VisiblePools
from draco.explanation.findings.verdicts import ConstrainedRequest, DeviceFinding, JudgedDevice
from draco.explanation.model import NOT_ELIGIBLE, Cause
from draco.resources.api.claims import MAX_RESULTS, ResourceClaim

MAX_STEPS: Final = 200_000
"""Most devices that one search looks at: some tenths of a second."""


class AllocatorVerdict(Enum):
    """The allocator's verdict on the claims on one node."""

    FITS = "fits"
    NONE = "none"
    BROKEN = "broken"
    TOO_LONG = "too long"
    ERROR = "error"


class AllocatorRuns:
    """The allocator's verdicts on nodes."""

    def __init__(
        self,
        fleet: Fleet,
        claims: Sequence[ResourceClaim],
        requests: Sequence[ConstrainedRequest],
        classes: EquivalenceClasses,
        reachability: Reachability,
    ) -> None:
        self._fleet = fleet
        self._claims = claims
        self._classes = classes
        self._constrained = requests
        self._reachability = reachability
        self._known: dict[Hashable, tuple[AllocatorVerdict, str]] = {}
        self._requests: dict[tuple[int, str], list[int]] = {}
        for number, constrained in enumerate(requests):
            self._requests.setdefault((constrained.number, constrained.request.base), []).append(number)
        self._all = [number for number, constrained in enumerate(requests) if constrained.all_mode]
        most: dict[int, int] = {}
        for (claim, _), numbers in self._requests.items():
            most[claim] = most.get(claim, 0) + max(requests[number].wanted for number in numbers)
        self._counts_decide = not self._all and all(each <= MAX_RESULTS for each in most.values())
        """Whether too few devices for one request mean that nothing fits, without an error."""

    def verdicts(
        self,
        names: Sequence[str],
        pools: VisiblePools,
        own: Sequence[JudgedDevice],
        shared: Sequence[JudgedDevice],
        drawn: Hashable,
    ) -> Iterator[tuple[Sequence[str], AllocatorVerdict, str]]:
        """The verdicts on nodes with equivalent devices and equal counters (`drawn`), in groups."""
        devices = [*own, *shared]
        may_fail = (
            bool(pools.error)
            or any(_fails(finding) for seen in devices for finding in seen.findings)
            or self._classes.fails_on(pools)
        )
        if self._counts_decide and not may_fail and self._is_short(devices):
            yield (
                names,
                AllocatorVerdict.BROKEN if any(view.invalid for view in pools.views) else AllocatorVerdict.NONE,
                "",
            )
            return
        matter = [place for place, seen in enumerate(own) if may_fail or self._matters(seen)]
        findings = tuple([own[place].findings for place in matter])
        odd = tuple([self._classes.oddity(own[place].candidate) for place in matter]) if self._classes.odd else ()
        draws = any(own[place].candidate.charges for place in matter)
        kind = (id(pools), may_fail and names[0], findings, odd, (drawn, tuple(matter)) if draws else None)
        is_free = not shared and not may_fail and not self._fleet.inventory.columns.irregular
        for compared, same in self._compared(names, matter, by_place=is_free):
            key = kind, compared
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = self._ask(same[0])
            yield same, *known

    def _is_short(self, devices: Sequence[JudgedDevice]) -> bool:
        places = range(len(self._constrained))
        free = [sum(seen.findings[place].cause is Cause.FREE for seen in devices) for place in places]
        return any(
            all(free[place] < self._constrained[place].wanted for place in each) for each in self._requests.values()
        )

    def _matters(self, seen: "JudgedDevice") -> bool:
        return any(finding.cause is Cause.FREE for finding in seen.findings) or any(
            seen.findings[number].cause not in NOT_ELIGIBLE for number in self._all
        )

    def _compared(
        self, names: Sequence[str], matter: Sequence[int], *, by_place: bool
    ) -> Iterable[tuple[Hashable, Sequence[str]]]:
        """The nodes grouped by what constraints compare of their relevant devices: the values, or which of them are equal."""
        if not self._classes.compared or not matter:
            return [(None, names)]
        alike: list[tuple[tuple[Hashable, ...], Sequence[str]]] = [((), names)]
        for column in self._classes.compared:
            alike = [
                ((*before, compared), group)
                for before, same in alike
                for compared, group in self._of_column(same, column, matter, by_place=by_place)
            ]
        return alike

    def _of_column(
        self, names: Sequence[str], column: Codes, matter: Sequence[int], *, by_place: bool
    ) -> Iterable[tuple[Hashable, Sequence[str]]]:
        found: dict[Hashable, list[str]] = {}
        if not by_place:
            for name in names:
                read = self._reachability.read(name, column)
                found.setdefault(tuple([read[place] for place in matter]), []).append(name)
            return found.items()
        for whole, same in self._reachability.likenesses(names, column).items():
            compared = whole if len(matter) == len(whole) else likeness([whole[place] for place in matter])
            found.setdefault(compared, []).extend(same)
        return found.items()

    def _ask(self, name: str) -> tuple[AllocatorVerdict, str]:
        try:
            results = would_get(self._fleet, self._fleet.nodes[name], self._claims, max_steps=MAX_STEPS)
        except NodeError as error:
            return AllocatorVerdict.BROKEN, str(error)
        except SearchTooLong as error:
            return AllocatorVerdict.TOO_LONG, str(error)
        except AllocationError as error:
            return AllocatorVerdict.ERROR, str(error)
        return (AllocatorVerdict.NONE if results is None else AllocatorVerdict.FITS), ""


def _fails(finding: DeviceFinding) -> bool:
    """Whether the allocator may fail because of such a device."""
    match finding:
        case DeviceFinding(Cause.SELECTOR_FAILED) | DeviceFinding(Cause.CAPACITY_SHORT, ("", _)):
            return True
    return False
