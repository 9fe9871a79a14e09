"""The law of budgets: at no change of a rule are more GPUs out of service than a budget permits.

Owns counting GPUs by the rules that isolate them, in the order of the API server's watch, so that no moment is missed. Lowering a
budget returns no GPU to service, so a GPU is checked only against the budgets that existed when it was taken. Does no I/O.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from tests.adversary.cluster.observer.world import DeviceName, Object, World, name

BLOCKING = frozenset({"NoSchedule", "NoExecute"})
MAINTENANCE_LABEL = "draco.dev/maintenance"
CLIQUE_LABEL = "nvidia.com/gpu.clique"
KNOWN_AFTER_S = 2.0
"""A budget binds decisions only this long after it was seen here: the operator must see it first, too."""
WEIGHED_AFTER_S = 2.0
"""Requests, budgets and rules come on different watches, which may lag."""
REMEMBERED_S = 60.0
"""A percentage refers to the GPUs published in the last minute, so that a rebooting node does not lower it."""


class Gpu(NamedTuple):
    """A board and its pool."""

    pool: str
    board: str

    def __str__(self) -> str:
        return f"{self.board} of {self.pool}"


class OutOfService:
    """The GPUs that maintenance rules isolate. Told of each change of a rule in order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._gpu_of: dict[str, Gpu] = {}
        self._rules_on: Counter[Gpu] = Counter()
        self._by_pool: Counter[str] = Counter()
        self.most = 0

    @property
    def gpus(self) -> int:
        """Number of GPUs out of service."""
        return len(self._rules_on)

    def in_pools(self, pools: Iterable[str]) -> int:
        """Number of GPUs out of service in these pools."""
        return sum(self._by_pool[pool] for pool in pools)

    def changed(self, before: Object | None, after: Object | None) -> Gpu | None:
        """A rule was written or deleted. Returns the GPU that this took out of service, if any."""
        one = after or before
        assert one is not None
        uid = one["metadata"]["uid"]
        gpu = self._isolates(after) if after is not None else None
        if (old := self._gpu_of.get(uid)) == gpu:
            return None
        if old is not None:
            del self._gpu_of[uid]
            self._rules_on[old] -= 1
            if not self._rules_on[old]:
                del self._rules_on[old]
                self._by_pool[old.pool] -= 1
        if gpu is None:
            return None
        self._gpu_of[uid] = gpu
        self._rules_on[gpu] += 1
        if self._rules_on[gpu] > 1:
            return None
        self._by_pool[gpu.pool] += 1
        self.most = max(self.most, len(self._rules_on))
        return gpu

    def _isolates(self, rule: Object) -> Gpu | None:
        if owner_of(rule) == "" or rule["spec"]["taint"]["effect"] not in BLOCKING:
            return None
        selector = rule["spec"].get("deviceSelector") or {}
        device = DeviceName(*(selector.get(field) or "" for field in DeviceName._fields))
        seen = self._world.names.history.get(device)
        return Gpu(device.pool, seen[-1][1].gpu if seen else device.device)


class TooMany(NamedTuple):
    """A suspicion: too many GPUs are out of service, if the last request started after the budget was written."""

    at: float
    request: str
    gpu: Gpu
    budget: str
    since: datetime
    text: str


class BudgetLaw:
    """Told of each change of a rule and of a budget. Judges a suspicion when the request's status was seen, too."""

    def __init__(self, world: World) -> None:
        self.out = OutOfService(world)
        self._world = world
        self._since: dict[str, datetime] = {}
        self._started: set[tuple[str, Gpu]] = set()
        self._doubted: list[TooMany] = []
        self._published: deque[tuple[float, frozenset[Gpu]]] = deque()
        self._came: dict[Gpu, datetime] = {}

    def budget_changed(self, before: Object | None, after: Object | None, clock: datetime) -> None:
        """A budget was written or deleted."""
        one = after or before
        assert one is not None
        uid = one["metadata"]["uid"]
        if after is None:
            self._since.pop(uid, None)
        elif before is None or before.get("spec") != after.get("spec"):
            self._since[uid] = clock

    def slices_changed(self, now: float, clock: datetime) -> None:
        """The published devices changed."""
        gpus = {Gpu(device.pool, self._board(device)) for device, _ in self._world.published()}
        for gpu in gpus:
            self._came.setdefault(gpu, clock)
        self._published.append((now, frozenset(gpus)))
        while len(self._published) > 1 and self._published[1][0] < now - REMEMBERED_S:
            self._published.popleft()

    def rule_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A rule was written or deleted."""
        gpu = self.out.changed(before, after)
        if after is not None and after["spec"]["taint"]["effect"] not in BLOCKING:
            # A request that only announces again must ask the budgets before it continues.
            self._started = {each for each in self._started if each[0] != owner_of(after)}
        if gpu is None or after is None or (owner_of(after), gpu) in self._started:
            return  # the rule was deleted by hand and is back: the GPU was taken long ago
        self._started.add((owner_of(after), gpu))
        for uid, budget in self._world.budgets.items():
            if uid in self._since and (text := self._exceeds(budget, gpu)):
                self._doubted.append(TooMany(now, owner_of(after), gpu, uid, self._since[uid], text))

    def weighed(self, now: float) -> Iterator[tuple[str, str]]:
        """Suspicions that proved right, each with a key and a text."""
        for one in [each for each in self._doubted if now - each.at >= WEIGHED_AFTER_S]:
            self._doubted.remove(one)
            if self._since.get(one.budget) != one.since:
                continue  # the budget changed meanwhile: unclear whether before the rule was written
            request = self._world.requests.get(one.request)
            started = moment(((request or {}).get("status") or {}).get("isolatedAt"))
            if request is None or started is None or (started - one.since).total_seconds() <= KNOWN_AFTER_S:
                continue
            if not (self._came.get(one.gpu, started) > started and names_pools(request)):
                yield f"{one.budget} {one.request} {one.gpu}", f"{name(request)} took {one.gpu}, {one.text}"

    def _exceeds(self, budget: Object, gpu: Gpu) -> str:
        spec = budget.get("spec") or {}
        if spec.get("paused"):
            return f"while budget {name(budget)} is paused"
        within = self._within(spec.get("per"), gpu.pool)
        out = self.out.gpus if within is None else self.out.in_pools(within)
        where = "" if within is None else f" of {', '.join(sorted(within))}"
        for limit, why in self._limits(spec, within):
            if out > limit:
                return f"the {out}. GPU{where} out of service, and budget {name(budget)} permits {limit} ({why})"
        return ""

    def _within(self, per: object, pool: str) -> frozenset[str] | None:
        """The pools, named like their nodes, in which a budget counts GPUs together; None: all pools."""
        if per not in {"Node", "NVLinkDomain"}:
            return None
        cliques = {
            name(node): (node["metadata"].get("labels") or {}).get(CLIQUE_LABEL) for node in self._world.nodes.values()
        }
        clique = cliques.get(pool) if per == "NVLinkDomain" else None
        return frozenset({pool}) | {node for node in cliques if clique and cliques[node] == clique}

    def _limits(self, spec: Mapping[str, object], within: Collection[str] | None) -> Iterator[tuple[int, str]]:
        if isinstance(most := spec.get("maxDevices"), int):
            yield most, "maxDevices"
        if isinstance(share := spec.get("maxPercent"), int):
            known = {gpu for _, gpus in self._published for gpu in gpus if within is None or gpu.pool in within}
            yield max(len(known) * share // 100, 1 if share else 0), f"{share} % of {len(known)}"

    def _board(self, device: DeviceName) -> str:
        seen = self._world.names.history.get(device)
        return seen[-1][1].gpu if seen else device.device


def names_pools(request: Object) -> bool:
    """Whether it selects whole pools: GPUs that join them later are isolated without asking a budget."""
    selector = request["spec"].get("deviceSelector") or {}
    return not any(selector.get(field) for field in ("device", "deviceClassName", "selectors"))


def owner_of(rule: Object) -> str:
    """UID of the DeviceMaintenance that owns the rule; empty for other rules."""
    for owner in rule["metadata"].get("ownerReferences") or []:
        if owner.get("kind") == "DeviceMaintenance":
            return str(owner["uid"])
    return str((rule["metadata"].get("labels") or {}).get(MAINTENANCE_LABEL) or "")


def moment(text: object) -> datetime | None:
    """Parse a time of the API."""
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None
