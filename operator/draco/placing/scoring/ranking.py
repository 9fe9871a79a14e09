"""Which node claims get, of those that have a place for them: the best place first.

Owns that order, and what a group changes of it: its members go where the others are, as long as that costs nothing else. Knows
nothing of how places are found.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from draco.placing.scoring.score import PlacementScore


class RestOfGroup(NamedTuple):
    """The rest of a group when a member is placed: `nodes` that others of it are on, and the `devices` that those to come want.

    What goes together ends together. A job on few nodes leaves whole nodes when it ends; one on many leaves gaps between others.
    """

    nodes: Collection[str] = ()
    devices: int = 0


ALONE = RestOfGroup()


class RankedNode(NamedTuple):
    """The best place on a node."""

    score: PlacementScore
    name: str


class NodeRanking:
    """Nodes in the order of their scores, then of their names."""

    def __init__(self) -> None:
        self._order: list[RankedNode] = []
        self._scores: dict[str, PlacementScore] = {}

    def add(self, score: PlacementScore, name: str) -> None:
        """Give a node its place."""
        self._scores[name] = score
        insort(self._order, RankedNode(score, name))

    def remove(self, name: str) -> None:
        """Forget a node; nothing happens if it is not there."""
        score = self._scores.pop(name, None)
        if score is not None:
            del self._order[bisect_left(self._order, RankedNode(score, name))]

    def clear(self) -> None:
        """Forget all."""
        self._order.clear()
        self._scores.clear()

    def in_order(self, nodes: Collection[str]) -> Iterator[RankedNode]:
        """Those of these nodes, the best first."""
        return (each for each in self._order if each.name in nodes)

    def first(self, nodes: Collection[str], rest: RestOfGroup, is_spread: Callable[[str], bool]) -> RankedNode | None:
        """The node for a member of a group: of the best ones, that which suits the group. `is_spread`: it goes by use alone."""
        best = next(self.in_order(nodes), None)
        if best is None or not any(rest) or is_spread(best.name):
            return best
        alike = _Alike(self._order, best.score)
        homes = [RankedNode(self._scores[name], name) for name in rest.nodes if name in nodes and name in self._scores]
        if home := [each for each in homes if alike.has(each.score)]:
            return min(home)
        if not best.score.takes_whole_gpus:
            return best
        suits = (each for each in alike.by_room(rest.devices) if each.name in nodes and not is_spread(each.name))
        return next(suits, best)


class _Alike:
    """The part of an order in which nodes differ from the best by their use alone."""

    def __init__(self, order: list[RankedNode], best: PlacementScore) -> None:
        self._order = order
        self._best = best
        self._end = bisect_left(
            order, RankedNode(best._replace(misalignment=best.misalignment + 1, crowding=0, cut_links=0), "")
        )

    def has(self, score: PlacementScore) -> bool:
        """Whether a score is part of it."""
        return score._replace(crowding=0, cut_links=0) == self._best._replace(crowding=0, cut_links=0)

    def by_room(self, devices: int) -> Iterator[RankedNode]:
        """First those on which so many GPUs stay idle, the fullest before; then the others, the emptiest before."""
        enough = self._from(devices)
        yield from self._order[enough : self._end]
        end = enough
        while end and self.has(self._order[end - 1].score):
            start = self._from(self._order[end - 1].score.crowding)
            yield from self._order[start:end]
            end = start

    def _from(self, crowding: int) -> int:
        return bisect_left(self._order, RankedNode(self._best._replace(crowding=crowding, cut_links=0), ""))
