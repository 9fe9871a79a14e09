"""The search: depth first; the first complete solution wins.

Owns the order of attempts and backtracking, on a stack of open choices because a pod may have any number of claims. Claims,
requests and devices are tried in their given order; within a request, each device comes after the previous one, so that sets are
tried, not permutations. `attempt` records what is taken and decides whether a device fits.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from draco.allocation.errors import AllocationError, SearchTooLong
from draco.allocation.fleet.pools import Candidate
from draco.allocation.search.attempt import Attempt, TakenDevice
from draco.allocation.search.requests import ExpandedClaim, Request
from draco.resources.api.claims import MAX_RESULTS


class _Failure(Enum):
    NO_DEVICE = "no device"
    TOO_MANY = "too many devices for one claim"
    """Other devices for earlier requests do not help: only an alternative with fewer devices does."""


class _Place(msgspec.Struct, frozen=True):
    """A position: the next device, its request, and its first candidate."""

    claim: int
    request: int = 0
    alternative: int = -1
    """-1 while none is chosen."""
    device: int = 0
    start: int = 0


class _Choice(msgspec.Struct):
    """An open choice: of an alternative if `request` is None, else of a device."""

    place: _Place
    request: Request | None = None
    trial: TakenDevice | None = None
    only_too_many: bool = True
    """Whether every alternative so far needed too many devices."""


class Search:
    """One search over the usable candidates of a node, in order."""

    def __init__(
        self, claims: Sequence[ExpandedClaim], candidates: Sequence[Candidate], attempt: Attempt, *, max_steps: int
    ) -> None:
        self._claims = claims
        self._candidates = candidates
        self._attempt = attempt
        self._steps_left = max_steps
        self._stack: list[_Choice] = []

    def run(self) -> bool:
        """Whether all claims got devices, now in the attempt. Raises AllocationError; SearchTooLong after `max_steps` devices."""
        place: _Place | _Failure | None = _Place(0)
        while True:
            if place is None:
                return True
            if isinstance(place, _Place):
                place = self._descend(place)
            elif (back := self._back(place)) is None:
                return False
            else:
                place = back

    def chosen(self) -> dict[tuple[int, int], int]:
        """The alternative of each request (claim, request) after a successful search."""
        return {
            (choice.place.claim, choice.place.request): choice.place.alternative
            for choice in self._stack
            if choice.request is None
        }

    def _descend(self, place: _Place) -> _Place | _Failure | None:
        """Open the next choice and make its first attempt. None: everything is chosen."""
        if place.claim >= len(self._claims):
            return None
        requests = self._claims[place.claim].requests
        if place.request >= len(requests):
            return _Place(place.claim + 1)
        if place.alternative >= 0:
            return self._open(requests[place.request][place.alternative], place)
        first = _Place(place.claim, place.request, 0)
        self._stack.append(_Choice(first))
        return first

    def _open(self, request: Request, place: _Place) -> _Place | _Failure:
        """Look for the next device of a request, or continue with the next request."""
        if place.device >= request.count:
            if request.all_devices is not None and not request.all_devices:
                return _Failure.NO_DEVICE
            return _Place(place.claim, place.request + 1)
        if request.count - place.device > MAX_RESULTS - self._attempt.taken(place.claim):
            return self._fail(place, _Failure.TOO_MANY)
        choice = _Choice(place, request)
        self._stack.append(choice)
        return self._next_device(choice, place.start)

    def _fail(self, place: _Place, failure: _Failure) -> _Failure:
        """The failure at a place, for the choices of its own claim to handle."""
        below = self._stack[-1].place.claim if self._stack else -1
        if failure is _Failure.TOO_MANY and below != place.claim:
            if place.claim == 0:
                raise AllocationError("allocation max size exceeded")
            return _Failure.NO_DEVICE
        return failure

    def _back(self, failure: _Failure) -> _Place | _Failure | None:
        """Undo the last choice and make its next attempt. None: no choice is left."""
        if not self._stack:
            return None
        choice = self._stack[-1]
        if choice.request is None:
            return self._next_alternative(choice, failure)
        if choice.trial is not None:
            self._attempt.undo(choice.trial)
            choice.trial = None
        if failure is _Failure.TOO_MANY or choice.request.all_devices is not None:
            self._stack.pop()
            return self._fail(choice.place, failure)
        return self._next_device(choice, choice.place.start)

    def _next_alternative(self, choice: _Choice, failure: _Failure) -> _Place | _Failure:
        place = choice.place
        choice.only_too_many &= failure is _Failure.TOO_MANY
        alternatives = self._claims[place.claim].requests[place.request]
        if place.alternative + 1 < len(alternatives):
            choice.place = _Place(place.claim, place.request, place.alternative + 1)
            return choice.place
        self._stack.pop()
        return self._fail(place, _Failure.TOO_MANY if choice.only_too_many else _Failure.NO_DEVICE)

    def _next_device(self, choice: _Choice, start: int) -> _Place | _Failure:
        """Try the choice's next candidates; returns the place of the next device after success."""
        place, request = choice.place, choice.request
        if request is None:
            raise TypeError("a choice of an alternative has no devices")
        if request.all_devices is not None:
            choice.trial = self._attempt.must(place.claim, request, request.all_devices[place.device])
            if choice.trial is not None:
                return _Place(place.claim, place.request, place.alternative, place.device + 1)
            self._stack.pop()
            return _Failure.NO_DEVICE
        self._steps_left -= len(self._candidates) - start
        if self._steps_left < 0:
            raise SearchTooLong("the search was given up after too many combinations of devices; ask for fewer at once")
        for index in range(start, len(self._candidates)):
            choice.trial = self._attempt.may(place.claim, request, self._candidates[index])
            if choice.trial is not None:
                self._steps_left += len(self._candidates) - index - 1
                choice.place = _Place(place.claim, place.request, place.alternative, place.device, index + 1)
                return _Place(place.claim, place.request, place.alternative, place.device + 1, index + 1)
        self._stack.pop()
        return _Failure.NO_DEVICE
