"""How many idle instances are kept ahead of claims, and on which GPUs.

Owns the measured rate at which claims take instances of a profile, the wanted number, and its distribution over GPUs. The number
is how many are taken while new ones are created, within the limit. It rises immediately, and falls only once demand has been
lower for a whole window, so that GpuNodes are not rewritten back and forth. Pure: the time is an argument.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from draco.mig.board import Board, Placement
from draco.mig.geometry import Geometry, PlacementRank, State, geometry
from draco.resources.api.draco import GpuNode, MigPolicy, ProfileCount

_PARTS = 30
"""A window is counted in this many parts, so memory does not grow with the number of claims."""

_WHOLE_FROM = 10
"""Rates from here on are printed without decimals."""


class WarmDemand:
    """The instances of one profile that claims took recently. `standing` is what the previous leader kept."""

    def __init__(self, *, window_s: float, lead_s: float, limit: int, now_s: float, standing: int = 0) -> None:
        self._window_s = window_s
        self._lead_s = lead_s
        self._limit = limit
        self._taken: dict[int, int] = {}
        self._highest: deque[tuple[float, int]] = deque([(now_s, min(standing, limit))])  # wanted numbers, falling

    def take(self, at_s: float) -> None:
        """Count a claim that was allocated an instance."""
        part = self._part(at_s)
        self._taken[part] = self._taken.get(part, 0) + 1

    def per_minute(self, now_s: float) -> float:
        """The rate over the window that ends now."""
        oldest = self._part(now_s - self._window_s)
        self._taken = {part: count for part, count in self._taken.items() if part > oldest}
        return sum(self._taken.values()) * 60 / self._window_s

    def wanted(self, now_s: float) -> int:
        """How many idle instances to keep: the maximum wanted within the window."""
        expected = self.per_minute(now_s) / 60 * self._lead_s
        wanted = min(self._limit, math.ceil(round(expected, 6)))
        while self._highest and (self._highest[-1][1] <= wanted):
            self._highest.pop()
        self._highest.append((now_s, wanted))
        while self._highest[0][0] <= now_s - self._window_s:
            self._highest.popleft()
        return self._highest[0][1]

    def _part(self, at_s: float) -> int:
        return math.floor(at_s * _PARTS / self._window_s)


def ahead_text(profile: str, wanted: int, room: int, limit: int, per_minute: float) -> str:
    """The text about a profile in a policy's status."""
    rate = f"{per_minute:.0f}" if per_minute >= _WHOLE_FROM else f"{per_minute:.1f}".removesuffix(".0")
    short = f", but there is room for {room}" if room < wanted else ""
    return f"Wants {wanted} idle {profile} ready (at most {limit}) as claims take {rate} a minute{short}."


class WarmGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of the policy. `state` is what others have of it; `usable`: a claim could get a part of it now.

    `lately` is what others had at the last look: units that just became free are left to waiting claims, otherwise instances
    would move back and forth on nearly full GPUs. `stands` is what its spec keeps for demand, by profile, `idle` the unused
    instances.
    """

    uuid: str
    board: Board
    state: State
    lately: State | None = None
    usable: bool = True
    stands: Mapping[str, int] = {}
    idle: Mapping[str, int] = {}


def both(one: State, other: State) -> State:
    """What is used in either of two states of a GPU."""
    tokens = tuple(map(max, one.tokens, other.tokens))
    return State(one.mask | other.mask, tokens, max(one.instances, other.instances))


def beside_fixed(board: Board, state: State, idle: Iterable[Placement], fixed: Iterable[ProfileCount]) -> State:
    """The state with what `spec.warm` keeps on the GPU: its idle instances, and the best places for missing ones."""
    shape, there = geometry(board), sorted(idle, key=lambda each: (each.profile.name, each.start))
    for each in fixed:
        if (profile := board.profile(each.profile)) is None:
            continue
        kept = [one for one in there if one.profile == profile][: each.count]
        for placement in kept:
            state = shape.add(state, placement)
        for _ in range(each.count - len(kept)):
            if best := shape.best(state, profile):
                state = shape.add(state, best.placement)
    return state


def within_limits(nodes: Iterable[GpuNode], policies: Iterable[MigPolicy]) -> Iterator[GpuNode]:
    """The nodes with what their GPUs keep for demand, reduced to the policies' limits."""
    terms = {each.metadata.name: each.spec.warm_ahead for each in policies}
    left = {(name, one.profile): one.count for name, ahead in terms.items() for one in (ahead.limits if ahead else ())}
    for node in nodes:
        gpus = []
        for gpu in node.spec.gpus:
            warm = []
            for one in gpu.warm:
                key = (gpu.policy, one.profile)
                count = min(one.count, left.get(key, one.count))
                if key in left:
                    left[key] -= count
                warm += [msgspec.structs.replace(one, count=count)] if count else []
            gpus.append(msgspec.structs.replace(gpu, warm=warm))
        yield msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, gpus=gpus))


class Shares(msgspec.Struct, frozen=True):
    """How many of each profile each GPU keeps, by UUID, and for how many of each there is room."""

    by_gpu: Mapping[str, Mapping[str, int]]
    with_room: Mapping[str, int]


def spread(gpus: Sequence[WarmGpu], wanted: Mapping[str, int], limits: Mapping[str, int]) -> Shares:
    """Distribute what is wanted over GPUs.

    What a GPU keeps stays if it has room, and the rest goes where it costs least capability. What has room nowhere stays where it
    is if claims could use it there. Instances are added only once surplus ones are gone, so that the limit holds.
    """
    shapes = {id(each.board): geometry(each.board) for each in gpus}
    hosts = [_Host(each, shapes[id(each.board)]) for each in gpus]
    by_size = sorted(wanted, key=lambda name: (-_size(shapes.values(), name), name))
    left = dict(wanted)
    for name in by_size:
        standing = [each for each in hosts if each.gpu.stands.get(name)]
        # The emptiest GPUs are released first.
        for host in sorted(standing, key=lambda each: (-each.gpu.state.instances, each.gpu.uuid)):
            while left[name] > 0 and host.may_keep(name) and host.keep(name):
                left[name] -= 1
    with_room = {}
    for name in by_size:
        left[name] = _add(hosts, name, left[name], limits[name])
        with_room[name] = wanted[name] - left[name]
    for name in by_size:
        for host in hosts:
            while left[name] > 0 and host.gpu.usable and host.may_keep(name):
                host.share[name] += 1
                left[name] -= 1
    return Shares({each.gpu.uuid: dict(each.share) for each in hosts if each.share}, with_room)


class _Host:
    def __init__(self, gpu: WarmGpu, shape: Geometry) -> None:
        self.gpu = gpu
        self.share: Counter[str] = Counter()
        self._shape = shape
        self._now = gpu.state
        self._lately = both(gpu.state, gpu.lately) if gpu.lately else gpu.state

    def may_keep(self, name: str) -> bool:
        return self.share[name] < self.gpu.stands.get(name, 0)

    def keep(self, name: str) -> bool:
        best = self._best(self._now, name)
        if best is None:
            return False
        self._take(best.placement)
        self.share[name] += 1
        return True

    def cost(self, name: str) -> tuple[int, int, int, int] | None:
        best = self._best(self._lately, name)
        return best.cost if best else None

    def reserve(self, name: str) -> None:
        if best := self._best(self._lately, name):
            self._take(best.placement)

    def _best(self, state: State, name: str) -> PlacementRank | None:
        profile = self.gpu.board.profile(name) if self.gpu.usable else None
        return self._shape.best(state, profile) if profile is not None else None

    def _take(self, placement: Placement) -> None:
        self._now = self._shape.add(self._now, placement)
        self._lately = self._shape.add(self._lately, placement)


def _add(hosts: Sequence[_Host], name: str, left: int, limit: int) -> int:
    there = sum(max(each.gpu.stands.get(name, 0), each.gpu.idle.get(name, 0)) for each in hosts)
    cheapest = [(cost, each.gpu.uuid, each) for each in hosts if left and (cost := each.cost(name)) is not None]
    heapify(cheapest)
    while left > 0 and cheapest:
        _, uuid, host = heappop(cheapest)
        left -= 1
        host.reserve(name)
        more = host.share[name] >= max(host.gpu.stands.get(name, 0), host.gpu.idle.get(name, 0))
        if there + more <= limit:
            there += more
            host.share[name] += 1
        if (cost := host.cost(name)) is not None:
            heappush(cheapest, (cost, uuid, host))
    return left


def _size(shapes: Iterable[Geometry], name: str) -> int:
    return max((profile.size for each in shapes if (profile := each.board.profile(name)) is not None), default=0)
