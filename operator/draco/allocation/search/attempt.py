"""The devices a search has taken so far, and whether one more fits.

Owns every check of one device for one request, in Kubernetes' order (which decides between an error and a mismatch), and undoing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.capacity import is_left
from draco.allocation.fleet.counters import Counters
from draco.allocation.fleet.pools import Candidate
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.constraints import Constraint
from draco.allocation.search.requests import ExpandedClaim, Request
from draco.resources.names import DeviceKey
from draco.resources.quantity import Quantity

_NOBODY: Final[frozenset[int]] = frozenset()


class TakenDevice(msgspec.Struct, frozen=True):
    """A device taken for a request, with what `undo` must give back."""

    claim: int
    request: Request
    candidate: Candidate
    joined: Sequence[Constraint]
    charged: bool
    amounts: Mapping[str, Quantity] | None
    """Amounts taken of a shared device; None for an exclusive one."""


class _Shares:
    def __init__(self) -> None:
        self.count = 0
        self.taken: dict[str, int] = {}

    def add(self, amounts: Mapping[str, Quantity], step: int) -> None:
        self.count += step
        for name, quantity in amounts.items():
            self.taken[name] = self.taken.get(name, 0) + step * quantity.nanos


class Attempt:
    """What a search holds at the moment, in addition to other claims."""

    def __init__(self, claims: Sequence[ExpandedClaim], state: AllocatedState, counters: Counters) -> None:
        self.trials: list[list[TakenDevice]] = [[] for _ in claims]
        self._claims = claims
        self._state = state
        self._counters = counters
        self._owners: dict[DeviceKey, set[int]] = {}
        self._shares: dict[DeviceKey, _Shares] = {}

    def taken(self, claim: int) -> int:
        """Number of devices a claim has so far."""
        return len(self.trials[claim])

    def may(self, claim: int, request: Request, candidate: Candidate) -> TakenDevice | None:
        """Take a device if it fits, one of many candidates. Raises AllocationError."""
        if self._is_in_use(claim, request, candidate.key) or not request.selects(candidate):
            return None
        if not self._is_enough_left(request, candidate):
            return None
        trial, _ = self._take(claim, request, candidate)
        return trial

    def must(self, claim: int, request: Request, candidate: Candidate) -> TakenDevice | None:
        """Take a device that the request needs. Raises AllocationError, also if a constraint forbids it."""
        trial, forbidden = self._take(claim, request, candidate)
        if forbidden:
            raise AllocationError(
                f"{request.label}: cannot add device {candidate.key} because a claim constraint would not be satisfied"
            )
        return trial

    def undo(self, trial: TakenDevice) -> None:
        """Give back the device taken last."""
        self.trials[trial.claim].pop()
        key = trial.candidate.key
        if trial.amounts is None:
            self._owners[key].discard(trial.claim)
        else:
            self._shares[key].add(trial.amounts, -1)
        self._release(trial.candidate, trial.joined, charged=trial.charged)

    def _take(self, claim: int, request: Request, candidate: Candidate) -> tuple[TakenDevice | None, bool]:
        """Take a device if it fits; also returns whether a constraint forbade it."""
        key, device = candidate.key, candidate.device
        if self._is_in_use(claim, request, key):
            return None, False
        shared = bool(device.allow_multiple_allocations)
        charged = bool(device.consumes_counters) and not (shared and self._is_shared(key))
        if charged and not self._counters.take(candidate):
            return None, False
        joined: list[Constraint] = []
        fits, forbidden = request.tolerates(candidate), False
        if fits:
            fits = self._join(claim, request, candidate, joined)
            forbidden = not fits
        if fits:
            fits = self._is_enough_left(request, candidate)
        if not fits:
            self._release(candidate, joined, charged=charged)
            return None, forbidden
        amounts = request.amounts(candidate) if shared else None
        trial = TakenDevice(claim, request, candidate, joined, charged, amounts)
        if amounts is None:
            self._owners.setdefault(key, set()).add(claim)
        else:
            self._shares.setdefault(key, _Shares()).add(amounts, +1)
        self.trials[claim].append(trial)
        return trial, False

    def _join(self, claim: int, request: Request, candidate: Candidate, joined: list[Constraint]) -> bool:
        for constraint in self._claims[claim].constraints:
            if constraint.applies(request.base, request.name):
                if not constraint.join(candidate.key.driver, candidate.device):
                    return False
                joined.append(constraint)
        return True

    def _release(self, candidate: Candidate, joined: Sequence[Constraint], *, charged: bool) -> None:
        for constraint in reversed(joined):
            constraint.leave()
        if charged:
            self._counters.give_back(candidate)

    def _is_in_use(self, claim: int, request: Request, key: DeviceKey) -> bool:
        owners = self._owners.get(key, _NOBODY)
        if request.admin_access:
            return claim in owners
        return bool(owners) or self._state.holds(key)

    def _is_shared(self, key: DeviceKey) -> bool:
        """Whether a share of the device exists, which has been charged for all shares."""
        shares = self._shares.get(key)
        return (shares is not None and shares.count > 0) or self._state.shares(key)

    def _is_enough_left(self, request: Request, candidate: Candidate) -> bool:
        amounts = request.amounts(candidate)
        if not amounts:
            return amounts is not None
        shares = self._shares.get(candidate.key)
        return is_left(
            amounts, candidate.device, self._state.consumed(candidate.key), shares.taken if shares is not None else {}
        )
