"""Scores of places, why one is worse than another in words, and the order of nodes: the best place first.

A group changes the order: its members share nodes where no other criterion is worse. Does not search.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from draco.resources.texts import counted


class PlacementScore(NamedTuple):
    """Smaller is better; earlier fields take precedence."""

    alternatives: tuple[int, ...] = ()
    """The alternative (`firstAvailable`) of each request: an earlier one always wins."""
    loss: int = 0
    """What the GPUs can no longer host, in compute slices (see `mig.geometry`); 1 for a GPU that cannot be partitioned."""
    gpus: int = 0
    minus_instances: int = 0
    """Minus the number of partitions in use on these GPUs."""
    units_left: int = 0
    """Units that remain free on these GPUs."""
    minus_start: int = 0
    """Minus the sum of the partitions' starts."""
    unlinked: int = 0
    """Pairs of GPUs without an NVLink."""
    distance: int = 0
    """Sum over all pairs of GPUs: 0 on one PCIe root, 1 on one NUMA node, else 2."""
    misalignment: int = 0
    """The same over pairs with the pod's devices of other drivers."""
    crowding: int = 0
    """GPUs that stay idle on the node; with spreading, GPUs in use there."""
    cut_links: int = 0
    """NVLinks from these GPUs to free ones."""

    @property
    def takes_whole_gpus(self) -> bool:
        """Whether it uses idle GPUs entirely, so that the node's remaining room is whole idle GPUs."""
        return not (self.units_left or self.minus_instances)

    def __str__(self) -> str:
        said = [f"capability loss {self.loss}", counted(self.gpus, "GPU")]
        if self.minus_instances:
            said.append(f"{counted(-self.minus_instances, 'partition')} there already")
        if self.unlinked:
            said.append(f"{counted(self.unlinked, 'pair')} without NVLink")
        if self.distance:
            said.append(f"distance {self.distance}")
        if self.misalignment:
            said.append(f"distance {self.misalignment} to the pod's other devices")
        said.append(f"node {self.crowding}")
        return ", ".join(said)


_WORSE: Final[Mapping[str, Callable[[int, int], str]]] = {
    "loss": lambda there, here: (
        f"There more of what the GPUs can still host would be lost: {counted(there, 'compute slice')} instead of {here}."
    ),
    "gpus": lambda there, here: f"There it would take {counted(there, 'GPU')} instead of {here}.",
    "minus_instances": lambda there, here: (
        f"Its GPUs are emptier: {counted(-there, 'partition')} in use there instead of {-here}."
    ),
    "units_left": lambda there, here: f"More would stay free on its GPUs: {counted(there, 'unit')} instead of {here}.",
    "minus_start": lambda there, here: (
        f"The partition would start lower on its GPU, where more profiles may start: at {-there} instead of {-here}."
    ),
    "unlinked": lambda there, here: f"There {counted(there, 'pair')} of GPUs would have no NVLink, instead of {here}.",
    "distance": lambda there, here: (
        f"Its GPUs are farther from each other, by PCIe roots and NUMA nodes: {there} instead of {here}."
    ),
    "misalignment": lambda there, here: (
        f"Its GPUs are farther from the pod's other devices, by PCIe roots and NUMA nodes: {there} instead of {here}."
    ),
    "crowding": lambda there, here: f"Its node is emptier: {counted(there, 'GPU')} would stay idle instead of {here}.",
    "cut_links": lambda there, here: (
        f"There {counted(there, 'NVLink')} to free GPUs would go unused, instead of {here}."
    ),
}
"""The reason for each criterion if it is the first that differs."""


def why_worse(score: PlacementScore, best: PlacementScore, *, spread: str = "") -> str:
    """One sentence: why the place with `score` lost. `spread` is the sentence if the node's use decides."""
    if score.alternatives != best.alternatives:
        return "There the claims would get a later alternative of firstAvailable."
    for field, said in _WORSE.items():
        there, here = getattr(score, field), getattr(best, field)
        if there != here:
            return spread if spread and field == "crowding" else said(there, here)
    return "It is as good: of equal places Draco takes the first by name."


class RestOfGroup(NamedTuple):
    """The rest of a group when a member is placed: `nodes` of placed members, and `devices` that the others want.

    A group ends as a whole: on few nodes it then frees whole nodes, on many it leaves gaps.
    """

    nodes: Collection[str] = ()
    devices: int = 0


ALONE = RestOfGroup()


class RankedNode(NamedTuple):
    """The best place on a node."""

    score: PlacementScore
    name: str


class NodeRanking:
    """Nodes ordered by score, then name."""

    def __init__(self) -> None:
        self._order: list[RankedNode] = []
        self._scores: dict[str, PlacementScore] = {}

    def add(self, score: PlacementScore, name: str) -> None:
        """Add a node, which must be new."""
        self._scores[name] = score
        insort(self._order, RankedNode(score, name))

    def remove(self, name: str) -> None:
        """Remove a node, if known."""
        score = self._scores.pop(name, None)
        if score is not None:
            del self._order[bisect_left(self._order, RankedNode(score, name))]

    def clear(self) -> None:
        """Remove all nodes."""
        self._order.clear()
        self._scores.clear()

    def in_order(self, nodes: Collection[str]) -> Iterator[RankedNode]:
        """These nodes, the best first."""
        return (each for each in self._order if each.name in nodes)

    def first(self, nodes: Collection[str], rest: RestOfGroup, is_spread: Callable[[str], bool]) -> RankedNode | None:
        """The node for a member: among the best, one that suits the group. `is_spread` nodes are chosen by use alone."""
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
    """The nodes in an order that differ from the best only in their use."""

    def __init__(self, order: list[RankedNode], best: PlacementScore) -> None:
        self._order = order
        self._best = best
        self._end = bisect_left(
            order, RankedNode(best._replace(misalignment=best.misalignment + 1, crowding=0, cut_links=0), "")
        )

    def has(self, score: PlacementScore) -> bool:
        """Whether a score differs from the best only in use."""
        return score._replace(crowding=0, cut_links=0) == self._best._replace(crowding=0, cut_links=0)

    def by_room(self, devices: int) -> Iterator[RankedNode]:
        """Nodes with at least `devices` idle GPUs, the fullest first; then the others, the emptiest first."""
        enough = self._from(devices)
        yield from self._order[enough : self._end]
        end = enough
        while end and self.has(self._order[end - 1].score):
            start = self._from(self._order[end - 1].score.crowding)
            yield from self._order[start:end]
            end = start

    def _from(self, crowding: int) -> int:
        return bisect_left(self._order, RankedNode(self._best._replace(crowding=crowding, cut_links=0), ""))
