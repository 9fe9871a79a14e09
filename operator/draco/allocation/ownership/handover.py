"""Handing GPUs over from kube-scheduler to Draco and back, so that at no time two of them may allocate one.

Owns the order of the steps. The register is a list in the cluster that an admission policy reads: what stands there only Draco
may allocate, everything else anybody but Draco. To Draco: the agent taints the GPU's devices, the register takes the GPU in, and
once whatever was written before must have been seen, Draco may give it out. Back: Draco stops, the register lets the GPU go, and
only then the taint. A claim that holds a device keeps it throughout.

The register also names the operator that gives out, and the policy refuses allocations of any other. An operator that begins to
lead enters itself first, and gives out once whatever the one before had begun must have been seen. Pure: the caller reads, writes
and tells the time.
"""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from draco.resources.names import DeviceKey, PoolKey, gpu_name


class GpuPlace(NamedTuple):
    """A GPU by where it is published. `gpu` is the name of the whole device: its partitions are meant, too."""

    driver: str
    pool: str
    gpu: str

    @classmethod
    def of(cls, device: DeviceKey) -> "GpuPlace":
        """The GPU that a device is, or is a part of."""
        return cls(device.driver, device.pool, gpu_name(device.device))

    @property
    def pool_key(self) -> PoolKey:
        """The pool that it is in."""
        return PoolKey(self.driver, self.pool)


class HandoverInput(msgspec.Struct, frozen=True, kw_only=True):
    """What is now: GPUs that policies give to Draco, those whose published devices are all tainted, and those in the register.

    Those that have `left` are not published any more, but a claim of Draco's has devices of them, which it may take back as long
    as they stand in the register. `leads`: whether the register names the operator that asks.
    """

    wanted: frozenset[GpuPlace]
    tainted: frozenset[GpuPlace]
    registered: frozenset[GpuPlace]
    leads: bool
    left: frozenset[GpuPlace] = frozenset()


class HandoverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be: in the register, tainted, and given out by Draco. Look again after so many seconds at the latest.

    `enter`: the register is to name the operator that asks, if it still leads. That is at once as long as the register does not
    say what it is to: its writer may have taken so long that more is to be written by now.
    """

    enter: bool
    register: frozenset[GpuPlace]
    taint: frozenset[GpuPlace]
    owned: frozenset[GpuPlace]
    look_again_s: float | None = None


class Handovers:
    """Remembers since when each step was seen to be done. What is forgotten with the process costs a pause, and no more."""

    def __init__(self, settle_s: float) -> None:
        """`settle_s`: how long API servers and schedulers may take to observe a handover."""
        self._settle_s = settle_s
        self._tainted: dict[GpuPlace, float] = {}
        self._registered: dict[GpuPlace, float] = {}
        self._let_go: dict[GpuPlace, float] = {}
        self._leads_since_s: float | None = None

    def begin_again(self) -> None:
        """Hear that the register is another one than before, and may say the same: others could allocate meanwhile."""
        self._registered.clear()
        self._leads_since_s = None

    def plan(self, seen: HandoverInput, now_s: float) -> HandoverPlan:
        """What comes next for each GPU."""
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
