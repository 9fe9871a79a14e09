"""Finds, for the claims of one pod, a verdict per node and a finding per device and request.

Folds equivalent nodes and devices, so that each kind is examined once. Nodes are equivalent if they have equivalent devices in
the same order; the verdict on a kind is the allocator's verdict on one of its nodes. Contains no wording.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.node_rows import NodeProfile
from draco.allocation.fleet.pools import Candidate, PoolView, SliceEntry, SliceState
from draco.explanation.findings.allocator_runs import AllocatorRuns, AllocatorVerdict
from draco.explanation.findings.equivalence import EquivalenceClasses
from draco.explanation.findings.reachability import NO_VIEW, NOTHING, Reachability, VisiblePools, candidate_of
from draco.explanation.findings.verdicts import (
    ConstrainedRequest,
    DeviceFinding,
    Judge,
    JudgedDevice,
    at_best,
    counter_names,
)
from draco.explanation.model import NOT_ELIGIBLE, Cause
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.names import PoolKey

MAX_EXAMPLES: Final = 20
MAX_HELD: Final = 512
"""Devices in use whose holders are looked up."""
_ORDER: Final = {cause: place for place, cause in enumerate(Cause)}
_ANYWHERE: Final = NOT_ELIGIBLE | {Cause.IN_USE}
"""Causes that are found before the device's pool is looked at."""


class FindingCounts:
    """Devices with one finding."""

    def __init__(self) -> None:
        self.devices = 0
        self.examples: list[tuple[PoolView, Candidate]] = []
        """Some of the devices."""
        self.rows: list[int] = []
        """For devices in use in plain pools, the rows of the first ones."""
        self._alike: list[Sequence[str]] = []
        self._nodes: set[str] = set()

    def add_alike(self, devices: int, nodes: Sequence[str]) -> None:
        """Count `devices` on each of these nodes."""
        self.devices += devices * len(nodes)
        self._alike.append(nodes)

    def add(self, view: PoolView, candidate: Candidate) -> None:
        """Count one device, of one node or of many."""
        self.devices += 1
        self.examples.append((view, candidate))
        if name := candidate.device.node_name or candidate.spec.node_name:
            self._nodes.add(name)

    @property
    def nodes(self) -> int:
        """Number of nodes that have such devices of their own."""
        if not self._nodes:
            return sum(map(len, self._alike))
        return len(self._nodes.union(*self._alike))

    def names(self, limit: int) -> list[str]:
        """Some of these nodes."""
        firsts = {name for names in self._alike for name in names[:limit]}
        return sorted(firsts | self._nodes)[:limit]


class NodeGroup(msgspec.Struct, frozen=True):
    """Nodes with one verdict for one cause. `free` has, per request, how many devices would suit if it were alone."""

    names: list[str]
    verdict: AllocatorVerdict
    error: str
    free: tuple[int, ...]


class FleetFindings(msgspec.Struct, frozen=True):
    """The findings. `groups` covers the nodes that the pod may use."""

    requests: Sequence[ConstrainedRequest]
    counts: Sequence[Mapping[DeviceFinding, FindingCounts]]
    """Per request."""
    groups: Sequence[NodeGroup]
    classes: EquivalenceClasses
    devices: int


_Like: TypeAlias = tuple[bool, int, NodeProfile]
"""Whether nodes are open, which pools they see, and the codes of their devices."""


class _Kind(msgspec.Struct, frozen=True):
    """Nodes with equivalent devices in their plain pools that see the same other pools."""

    open: bool
    pools: VisiblePools
    names: list[str]
    drawn: Hashable = ()
    """The counters their devices draw from, if any (see `Reachability.drawn`)."""


class FleetFinder:
    """Examines every node and device for these requests of these claims; `open_nodes` are those that the pod may use."""

    def __init__(
        self,
        fleet: Fleet,
        claims: Sequence[ResourceClaim],
        requests: Sequence[ConstrainedRequest],
        open_nodes: Mapping[str, Node],
    ) -> None:
        self._fleet = fleet
        self._requests = requests
        self._open = open_nodes
        self._reachability = Reachability(fleet)
        self._classes = EquivalenceClasses(fleet, requests)
        self._judge = Judge(fleet.inventory.selectors, fleet.state)
        self._allocator = AllocatorRuns(fleet, claims, requests, self._classes, self._reachability)
        self._findings: dict[Hashable, tuple[DeviceFinding, ...]] = {}
        self._anywhere: dict[tuple[int, Cause], tuple[DeviceFinding, ...]] = {}
        self._counts: list[dict[DeviceFinding, FindingCounts]] = [{} for _ in requests]
        self._best: dict[int, JudgedDevice] = {}
        self._pools: dict[tuple[int, bool], list[JudgedDevice]] = {}
        self._broken: dict[PoolKey, Cause] = {}
        self._groups: dict[tuple[AllocatorVerdict, str, tuple[int, ...]], NodeGroup] = {}

    def findings(self) -> FleetFindings:
        """All findings, folded."""
        for kind in self._kinds():
            self._look(kind)
        for seen in self._unreached():
            self._count(seen)
        for seen in self._best.values():
            self._count(seen)
        return FleetFindings(
            self._requests, self._counts, list(self._groups.values()), self._classes, len(self._fleet.inventory)
        )

    def devices(self) -> Iterator[tuple[PoolView, Candidate, tuple[DeviceFinding, ...]]]:
        """The findings of every device."""
        for name in self._fleet.node_names:
            kind = _Kind(name in self._open, self._reachability.pools(self._fleet.nodes[name]), [name])
            self._shared(kind)
            for view, candidate in self._reachability.own(name):
                yield view, candidate, self._seen(view, candidate, Cause.FREE if kind.open else Cause.NODE_RULES)
        for seen in self._best.values():
            yield seen.view, seen.candidate, seen.findings
        for seen in self._unreached():
            yield seen.view, seen.candidate, seen.findings

    def _kinds(self) -> Iterable[_Kind]:
        as_read = self._as_read() if self._reachability.others else self._plainly_read()
        kinds = as_read if self._classes.order_matters else _in_any_order(as_read)
        return [each for kind in kinds.values() for each in self._split(kind)]

    def _plainly_read(self) -> dict[_Like, _Kind]:
        """Nodes by the codes of their devices in order; enough if all pools are plain."""
        names = self._fleet.node_names
        shut = [] if len(self._open) == len(names) else [name for name in names if name not in self._open]
        there = [name for name in names if name in self._open] if shut else names
        return {
            (is_open, 0, profile): _Kind(is_open, NOTHING, alike)
            for is_open, asked in ((True, there), (False, shut))
            for profile, alike in self._reachability.profiles(asked, self._classes.codes).items()
        }

    def _as_read(self) -> dict[_Like, _Kind]:
        """The same if nodes also see pools that are not plain."""
        as_read: dict[_Like, _Kind] = {}
        codes, read, pools_of = self._classes.codes, self._reachability.read, self._reachability.pools
        for name in self._fleet.node_names:
            pools = pools_of(self._fleet.nodes[name])
            key = (name in self._open, id(pools), read(name, codes))
            kind = as_read.get(key)
            if kind is None:
                kind = as_read[key] = _Kind(key[0], pools, [])
            kind.names.append(name)
        return as_read

    def _split(self, kind: _Kind) -> Iterable[_Kind]:
        """A kind of nodes, split by its odd devices and by devices that draw from counters."""
        codes = set(self._reachability.read(kind.names[0], self._classes.codes))
        odd, drawing = not codes.isdisjoint(self._classes.odd), not codes.isdisjoint(self._classes.drawing)
        if not odd and not drawing:
            return [kind]
        kinds: dict[Hashable, _Kind] = {}
        for name in kind.names:
            drawn = self._reachability.drawn(name) if drawing else ()
            oddities = tuple([self._classes.oddity(each) for _, each in self._reachability.own(name)]) if odd else ()
            kinds.setdefault((drawn, oddities), _Kind(kind.open, kind.pools, [], drawn)).names.append(name)
        return kinds.values()

    def _look(self, kind: _Kind) -> None:
        """Examine a kind by its first node."""
        own = [
            JudgedDevice(view, candidate, self._seen(view, candidate, Cause.FREE if kind.open else Cause.NODE_RULES))
            for view, candidate in self._reachability.own(kind.names[0])
        ]
        for number, counts in enumerate(self._counts):
            for finding, devices in Counter([seen.findings[number] for seen in own]).items():
                count = counts.setdefault(finding, FindingCounts())
                count.add_alike(devices, kind.names)
                self._give_examples(count, finding, number, kind, own)
        shared = self._shared(kind)
        if kind.open:
            for names, verdict, error in self._allocator.verdicts(kind.names, kind.pools, own, shared, kind.drawn):
                self._group(names, verdict, error, [*own, *shared])

    def _group(
        self, names: Sequence[str], verdict: AllocatorVerdict, error: str, devices: Sequence[JudgedDevice]
    ) -> None:
        free = tuple(
            [sum(seen.findings[n].cause is Cause.FREE for seen in devices) for n in range(len(self._requests))]
        )
        key = (verdict, error if verdict is not AllocatorVerdict.ERROR else "", free)
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = NodeGroup(list(names), verdict, error, free)
        else:
            group.names.extend(names)

    def _give_examples(
        self, count: FindingCounts, finding: DeviceFinding, number: int, kind: _Kind, own: Sequence[JudgedDevice]
    ) -> None:
        like = [seen for seen in own if seen.findings[number] == finding]
        if len(count.examples) < MAX_EXAMPLES:
            count.examples += [(seen.view, seen.candidate) for seen in like]
        if finding.cause is not Cause.IN_USE:
            return
        codes = {self._classes.codes[seen.candidate.row] for seen in like}
        for name in kind.names:
            if len(count.rows) >= MAX_HELD:
                break
            count.rows += [row for row in self._reachability.rows(name) if self._classes.codes[row] in codes]

    def _seen(self, view: PoolView, candidate: Candidate, at_most: Cause) -> tuple[DeviceFinding, ...]:
        """The findings of a device in a plain pool."""
        code = self._classes.codes[candidate.row]
        drawn: Hashable = None
        if code in self._classes.drawing:
            drawn = (candidate.charges, tuple(counter_names(candidate)), tuple(self._judge.left(view)))
        key = (code, at_most, self._classes.oddity(candidate), drawn)
        findings = self._findings.get(key)
        if findings is None:
            findings = self._findings[key] = self._judged(view, candidate, at_most)
        return findings

    def _of_pool(self, view: PoolView, candidate: Candidate, at_most: Cause) -> tuple[DeviceFinding, ...]:
        """The findings of a device in another pool; shared by equivalent devices if the pool plays no role."""
        key = (self._classes.codes[candidate.row], at_most)
        findings = self._anywhere.get(key)
        if findings is None:
            findings = self._judged(view, candidate, at_most)
            if all(each.cause in _ANYWHERE for each in findings):
                self._anywhere[key] = findings
        return findings

    def _judged(self, view: PoolView, candidate: Candidate, at_most: Cause) -> tuple[DeviceFinding, ...]:
        return tuple(
            [at_best(self._judge.finding(constrained, view, candidate), at_most) for constrained in self._requests]
        )

    def _shared(self, kind: _Kind) -> list[JudgedDevice]:
        """The devices of pools that are not plain."""
        key = (id(kind.pools), kind.open)
        known = self._pools.get(key)
        if known is None:
            at_most = Cause.FREE if kind.open else Cause.NODE_RULES
            known = self._pools[key] = [
                JudgedDevice(view, candidate, self._of_pool(view, candidate, at_most))
                for view, candidate in kind.pools.candidates(self._fleet.nodes[kind.names[0]])
            ]
            for seen in known:
                self._best[seen.candidate.row] = _better(seen, self._best.get(seen.candidate.row))
            for view in kind.pools.views:
                if view.incomplete or view.invalid:
                    self._broken[view.key] = Cause.POOL_INCOMPLETE if view.incomplete else Cause.POOL_INVALID
        return known

    def _unreached(self) -> Iterator[JudgedDevice]:
        """The devices that no node can reach."""
        for entry in self._reachability.lost:
            yield from self._of_slice(entry, Cause.NO_NODE)
        for pool in self._reachability.others:
            for entry, state in pool.slice_states():
                match state:
                    case SliceState.OBSOLETE:
                        cause = Cause.POOL_OBSOLETE
                    case SliceState.INCOMPLETE:
                        cause = Cause.POOL_INCOMPLETE
                    case _:
                        cause = self._broken.get(pool.key, Cause.NO_NODE)
                yield from self._of_slice(entry, cause)

    def _of_slice(self, entry: SliceEntry, cause: Cause) -> Iterator[JudgedDevice]:
        for place, row in enumerate(entry.rows):
            if row not in self._best:
                candidate = candidate_of(entry, place)
                yield JudgedDevice(NO_VIEW, candidate, self._judged(NO_VIEW, candidate, cause))

    def _count(self, seen: JudgedDevice) -> None:
        for counts, finding in zip(self._counts, seen.findings, strict=True):
            counts.setdefault(finding, FindingCounts()).add(seen.view, seen.candidate)


def _in_any_order(as_read: Mapping[_Like, _Kind]) -> dict[_Like, _Kind]:
    """The kinds, merged if they differ only in the order of their devices."""
    kinds: dict[_Like, _Kind] = {}
    for (is_open, pools, profile), kind in as_read.items():
        same = kinds.setdefault((is_open, pools, tuple(sorted(profile))), kind)
        if same is not kind:
            same.names.extend(kind.names)
    for kind in kinds.values():
        kind.names.sort()
    return kinds


def _better(seen: JudgedDevice, known: JudgedDevice | None) -> JudgedDevice:
    """The better of the two findings per request, for a device that several kinds of nodes reach."""
    if known is None:
        return seen
    pairs: Iterator[tuple[DeviceFinding, DeviceFinding]] = zip(seen.findings, known.findings, strict=True)
    return msgspec.structs.replace(
        seen, findings=tuple([max(pair, key=lambda one: _ORDER[one.cause]) for pair in pairs])
    )
