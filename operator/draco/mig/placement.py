"""Where an instance goes: which GPU and which start.

Owns the rule of capability loss over several GPUs of one board. Changes no GPU and knows no claims: callers tell what is there.
"""

from collections.abc import Iterable
from typing import NamedTuple

from draco.mig.board import Placement, Profile
from draco.mig.geometry import Geometry, State


class Choice(NamedTuple):
    """A place for one instance; `gpu` is an index into what was given."""

    gpu: int
    placement: Placement

    @property
    def start(self) -> int:
        """The first memory unit."""
        return self.placement.start


class BoardPool:
    """GPUs of one board and what is on them, grouped by state: a choice looks at states, not at GPUs."""

    def __init__(self, geometry: Geometry, states: Iterable[State]) -> None:
        self.geometry = geometry
        self.states = list(states)
        self._alike: dict[State, set[int]] = {}
        for gpu, state in enumerate(self.states):
            self._alike.setdefault(state, set()).add(gpu)

    def choose(self, profile: Profile) -> Choice | None:
        """The place that costs least of what the GPUs could still host; the first GPU of several alike."""
        ranked = [
            (best.cost, best.placement, state) for state in self._alike if (best := self.geometry.best(state, profile))
        ]
        if not ranked:
            return None
        least = min(rank for rank, _, _ in ranked)
        return min(
            (Choice(min(self._alike[state]), placement) for rank, placement, state in ranked if rank == least),
            key=lambda choice: choice.gpu,
        )

    def put(self, choice: Choice) -> None:
        """An instance was made."""
        self._change(choice.gpu, self.geometry.add(self.states[choice.gpu], choice.placement))

    def take(self, choice: Choice) -> None:
        """An instance is gone."""
        self._change(choice.gpu, self.geometry.remove(self.states[choice.gpu], choice.placement))

    def room(self, profile: Profile) -> int:
        """How many more of one profile fit as things are."""
        return sum(len(gpus) * self.geometry.room(state, profile) for state, gpus in self._alike.items())

    def _change(self, gpu: int, state: State) -> None:
        alike = self._alike[self.states[gpu]]
        alike.discard(gpu)
        if not alike:
            del self._alike[self.states[gpu]]
        self.states[gpu] = state
        self._alike.setdefault(state, set()).add(gpu)


def largest_first(profiles: Iterable[Profile]) -> list[Profile]:
    """The order in which to place several at once: what is hardest to place comes first."""
    return sorted(profiles, key=lambda each: (-each.size, len(each.starts)))
