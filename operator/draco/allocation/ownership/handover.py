"""Hands GPUs over from kube-scheduler to Draco and back, so that two allocators can never allocate the same GPU.

Owns the order of the steps. The register is a list in the cluster that an admission policy reads: Draco alone may allocate GPUs
in it, everyone but Draco all others. To Draco: the agent taints the GPU's devices, the GPU is added to the register, and after
the settle time, in which everyone observes the change, Draco may allocate it. Back: Draco stops allocating, the GPU leaves the
register, and only then is the taint removed. A claim keeps its devices throughout.

The register also names the operator that may allocate. A new leader enters itself first, and allocates after the settle time,
when writes of the previous leader are visible. Pure: the caller reads, writes and tells the time.
"""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from draco.resources.names import DeviceKey, PoolKey, gpu_name


class GpuPlace(NamedTuple):
    """A GPU by where it is published. `gpu` is the name of the whole device; it includes the partitions."""

    driver: str
    pool: str
    gpu: str

    @classmethod
    def of(cls, device: DeviceKey) -> "GpuPlace":
        """The GPU of a device or partition."""
        return cls(device.driver, device.pool, gpu_name(device.device))

    @property
    def pool_key(self) -> PoolKey:
        """The pool of the GPU."""
        return PoolKey(self.driver, self.pool)


class HandoverInput(msgspec.Struct, frozen=True, kw_only=True):
    """The current state: GPUs that policies give to Draco, those whose published devices are all tainted, those in the register.

    `left` are no longer published, but a claim of Draco's holds devices of them, which it may take back while the GPUs are in the
    register. `leads`: the register names this operator.
    """

    wanted: frozenset[GpuPlace]
    tainted: frozenset[GpuPlace]
    registered: frozenset[GpuPlace]
    leads: bool
    left: frozenset[GpuPlace] = frozenset()


class HandoverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted state: GPUs in the register, tainted, and allocated by Draco. Plan again after `look_again_s` at the latest.

    `enter`: the register must name this operator, if it still leads. `look_again_s` is 0 while the register differs from the
    plan: writing it may take so long that the plan has changed.
    """

    enter: bool
    register: frozenset[GpuPlace]
    taint: frozenset[GpuPlace]
    owned: frozenset[GpuPlace]
    look_again_s: float | None = None


class Handovers:
    """Remembers when each step was first seen done. Losing this with the process only costs a delay."""

    def __init__(self, settle_s: float) -> None:
        """`settle_s`: how long API servers and schedulers may take to observe a handover."""
        self._settle_s = settle_s
        self._tainted: dict[GpuPlace, float] = {}
        self._registered: dict[GpuPlace, float] = {}
        self._let_go: dict[GpuPlace, float] = {}
        self._leads_since_s: float | None = None

    def begin_again(self) -> None:
        """Restart all waits: the register was recreated, so others could allocate meanwhile, even if its content is the same."""
        self._registered.clear()
        self._leads_since_s = None

    def plan(self, seen: HandoverInput, now_s: float) -> HandoverPlan:
        """Plan the next step of each GPU."""
        if not seen.leads:
            self._leads_since_s = None
        elif self._leads_since_s is None:
            self._leads_since_s = now_s
        _note(self._tainted, seen.tainted, now_s)
        for place in self._registered.keys() - seen.registered:
            self._let_go[place] = now_s
        _note(self._registered, seen.registered, now_s)
        for place in list(self._let_go):
            if place in seen.registered or now_s - self._let_go[place] >= self._settle_s:
                del self._let_go[place]
        ready = seen.wanted & seen.tainted
        register = {
            place for place in ready if place in seen.registered or self._is_settled(self._tainted, place, now_s)
        }
        ours: dict[GpuPlace, float] = {}
        if self._leads_since_s is not None:
            ours = {place: max(self._leads_since_s, self._registered[place]) for place in register & seen.registered}
        owned = {place for place in ours if self._is_settled(ours, place, now_s)}
        rests = [self._tainted[place] for place in ready - register]
        rests += [ours[place] for place in ours.keys() - owned]
        rests += self._let_go.values()
        enter, registered = not seen.leads and bool(seen.wanted or seen.registered), frozenset(register) | seen.left
        waits_s = [since_s + self._settle_s - now_s for since_s in rests]
        waits_s += [0.0] if enter or registered != seen.registered else []
        return HandoverPlan(
            enter=enter,
            register=registered,
            taint=seen.wanted | seen.registered | self._let_go.keys(),
            owned=frozenset(owned),
            look_again_s=min(waits_s, default=None),
        )

    def _is_settled(self, since: dict[GpuPlace, float], place: GpuPlace, now_s: float) -> bool:
        return now_s - since[place] >= self._settle_s


def _note(since: dict[GpuPlace, float], places: Collection[GpuPlace], now_s: float) -> None:
    for place in since.keys() - set(places):
        del since[place]
    for place in places:
        since.setdefault(place, now_s)
