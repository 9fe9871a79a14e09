"""What allocated claims hold: devices, shares of devices, and amounts of shared capacities, in exact billionths.

Kept per claim, so that it can be updated claim by claim. Administrative access holds nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Self, TypeVar

from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey
from draco.resources.quantity import Quantity

Key = TypeVar("Key")


@lru_cache(maxsize=8192)
def amount(text: str) -> int:
    """A quantity in billionths."""
    return Quantity.parse(text).nanos


class AllocatedState:
    """Devices in use, and the claims that hold them."""

    def __init__(self) -> None:
        self._claims: dict[ObjectKey, list[DeviceRequestAllocationResult]] = {}
        self._holders: dict[DeviceKey, tuple[ObjectKey, ...]] = {}
        self._whole: Counter[DeviceKey] = Counter()
        self._shares: dict[DeviceKey, Counter[str]] = {}
        self._consumed: dict[DeviceKey, Counter[str]] = {}

    @classmethod
    def of(cls, claims: Iterable[ResourceClaim]) -> Self:
        """The state of these claims."""
        state = cls()
        for claim in claims:
            state.put_claim(claim)
        return state

    def put_claim(self, claim: ResourceClaim) -> None:
        """Add or replace a claim. Raises QuantityError, having changed nothing."""
        results = [result for result in claim.results if not result.admin_access]
        for result in results:
            for text in result.consumed_capacity.values():
                amount(text)
        self.remove_claim(claim.metadata.key)
        if not results:
            return
        self._claims[claim.metadata.key] = results
        for result in results:
            self._count(result, +1)
        for device in {result.key for result in results}:
            self._holders[device] = (*self._holders.get(device, ()), claim.metadata.key)

    def remove_claim(self, key: ObjectKey) -> None:
        """Remove a claim, if known."""
        results = self._claims.pop(key, ())
        for result in results:
            self._count(result, -1)
        for device in {result.key for result in results}:
            others = tuple(each for each in self._holders[device] if each != key)
            if others:
                self._holders[device] = others
            else:
                del self._holders[device]

    def _count(self, result: DeviceRequestAllocationResult, step: int) -> None:
        key = result.key
        if result.share_id is None:
            _add(self._whole, key, step)
            return
        shares = self._shares.setdefault(key, Counter())
        before = shares[result.share_id]
        _add(shares, result.share_id, step)
        if not shares:
            del self._shares[key]
        # A share in transfer from one claim to another is known twice, and consumed once.
        if result.consumed_capacity and not min(before, before + step):
            consumed = self._consumed.setdefault(key, Counter())
            for name, text in result.consumed_capacity.items():
                consumed[name] += step * amount(text)
        if not shares:
            self._consumed.pop(key, None)

    def held_by(self, claim: ObjectKey) -> set[DeviceKey]:
        """The devices that a claim holds or shares."""
        return {result.key for result in self._claims.get(claim, ())}

    def holds(self, device: DeviceKey) -> bool:
        """Whether a claim holds the device exclusively."""
        return device in self._whole

    def shares(self, device: DeviceKey) -> bool:
        """Whether a claim has a share of the device."""
        return device in self._shares

    def has_share(self, device: DeviceKey, share_id: str) -> bool:
        """Whether a claim has this share of the device."""
        return share_id in self._shares.get(device, ())

    def uses(self, device: DeviceKey) -> bool:
        """Whether any claim holds the device or a share of it."""
        return device in self._holders

    def holders(self, device: DeviceKey) -> Sequence[ObjectKey]:
        """The claims that hold the device or a share, sorted."""
        return sorted(self._holders.get(device, ()))

    def consumed(self, device: DeviceKey) -> Mapping[str, int]:
        """The consumed amount of each capacity of a shared device, in billionths."""
        return self._consumed.get(device, {})

    def devices(self) -> Iterable[DeviceKey]:
        """Every device in use."""
        return self._holders.keys()


def _add(counts: Counter[Key], key: Key, step: int) -> None:
    counts[key] += step
    if not counts[key]:
        del counts[key]
