"""Finds the best devices of one node: branch and bound over all sets that `allocate` would accept.

Prunes sets that cannot beat the best so far, and all but the first of interchangeable devices. `Attempt` checks every device,
exactly as `allocate` does. The result is optimal while the effort lasts; after that, the best set so far is used, or else what
`allocate` finds.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

from draco.allocation.fleet.pools import Candidate
from draco.allocation.search.attempt import Attempt, TakenDevice
from draco.allocation.search.requests import ExpandedClaim, Request
from draco.placing.scoring.judging import NodeJudge
from draco.placing.scoring.score import PlacementScore
from draco.resources.api.claims import MAX_RESULTS


class Effort:
    """How many devices may still be tried."""

    def __init__(self, tries: int) -> None:
        self.left = tries


class FoundSet(NamedTuple):
    """A score and its devices, in the order of claims and requests."""

    score: PlacementScore
    taken: tuple[TakenDevice, ...]


class _Step(NamedTuple):
    """A position of the search: the next device of a request, and its first candidate."""

    claim: int
    request: int = 0
    alternative: int = -1
    device: int = 0
    start: int = 0


class SetSearch:
    """One search on one node. `candidates` are tried in the given order."""

    def __init__(
        self,
        claims: Sequence[ExpandedClaim],
        candidates: Sequence[Candidate],
        attempt: Attempt,
        judge: NodeJudge,
        effort: Effort,
        *,
        alike: Callable[[Candidate], Hashable],
        avoid: Collection[frozenset[int]] = (),
    ) -> None:
        """`alike` is equal for interchangeable devices; `avoid` are sets of rows to skip."""
        self._claims = claims
        self._candidates = candidates
        self._attempt = attempt
        self._judge = judge
        self._effort = effort
        self._alike = [alike(each) for each in candidates]
        self._gpus = [id(judge.room_of[each.row]) for each in candidates]
        self._touched: list[int] = []
        self._most = sum(
            max(each.count for each in alternatives) for claim in claims for alternatives in claim.requests
        )
        self._avoid = avoid
        self._alternatives: list[int] = []
        self._least = [
            sum(min(each.count for each in alternatives) for alternatives in claim.requests) for claim in claims
        ]
        self.best: FoundSet | None = None

    def run(self) -> FoundSet | None:
        """The best set; None if there is none or the effort ended first. Raises AllocationError."""
        self._descend(_Step(0))
        return self.best

    def _descend(self, step: _Step) -> None:
        if step.claim >= len(self._claims):
            self._complete()
            return
        requests = self._claims[step.claim].requests
        if step.request >= len(requests):
            self._descend(_Step(step.claim + 1))
            return
        if step.alternative < 0:
            for number in range(len(requests[step.request])):
                self._alternatives.append(number)
                if not self._is_hopeless(step):
                    self._descend(_Step(step.claim, step.request, number))
                self._alternatives.pop()
            return
        request = requests[step.request][step.alternative]
        if step.device >= request.count:
            if request.all_devices is None or request.all_devices:
                self._descend(_Step(step.claim, step.request + 1))
            return
        if request.count - step.device > MAX_RESULTS - self._attempt.taken(step.claim):
            return
        if request.all_devices is not None:
            taken = self._attempt.must(step.claim, request, request.all_devices[step.device])
            if taken is not None:
                self._descend(_Step(step.claim, step.request, step.alternative, step.device + 1))
                self._attempt.undo(taken)
            return
        self._try(step, request)

    def _try(self, step: _Step, request: Request) -> None:
        done: set[Hashable] = set()
        for index in range(step.start, len(self._candidates) - (request.count - step.device) + 1):
            if self._effort.left <= 0:
                return
            alike = (index,) if self._gpus[index] in self._touched else self._alike[index]
            if alike in done:
                continue
            self._effort.left -= 1
            taken = self._attempt.may(step.claim, request, self._candidates[index])
            done.add(alike)
            if taken is None:
                continue
            self._touched.append(self._gpus[index])
            after = _Step(step.claim, step.request, step.alternative, step.device + 1, index + 1)
            if not self._is_hopeless(after):
                self._descend(after)
            self._touched.pop()
            self._attempt.undo(taken)

    def _is_hopeless(self, step: _Step) -> bool:
        if self.best is None:
            return False
        known = tuple(self._alternatives)
        if known != self.best.score.alternatives[: len(known)]:
            return known > self.best.score.alternatives[: len(known)]
        bound = self._judge.bound(self._taken(), known, self._missing(step), self._most)
        padded = bound._replace(alternatives=self.best.score.alternatives)
        return padded >= self.best.score

    def _missing(self, step: _Step) -> int:
        """The minimum number of devices still to take."""
        taken = self._attempt.taken(step.claim)
        return max(0, self._least[step.claim] - taken) + sum(self._least[step.claim + 1 :])

    def _taken(self) -> list[TakenDevice]:
        return [each for trials in self._attempt.trials for each in trials]

    def _complete(self) -> None:
        taken = self._taken()
        if self._avoid and frozenset(each.candidate.row for each in taken) in self._avoid:
            return
        score = self._judge.score(taken, tuple(self._alternatives))
        if self.best is None or score < self.best.score:
            self.best = FoundSet(score, tuple(taken))
