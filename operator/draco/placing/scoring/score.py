"""How good a place for claims is, in words why another one is worse, and which node claims get: the best place first.

Owns the order of what counts, and what a group changes of it: its members go where the others are, as long as that costs nothing
else. Knows nothing of how places are found.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from draco.resources.texts import counted


class PlacementScore(NamedTuple):
    """Smaller is better; what stands first counts most."""

    alternatives: tuple[int, ...] = ()
    """Which of its alternatives (`firstAvailable`) each request gets: an earlier one always wins."""
    loss: int = 0
    """What the GPUs could still host and then no longer can, in compute slices (see `mig.geometry`); 1 for a GPU that
    cannot be divided."""
    gpus: int = 0
    """On how many GPUs it is."""
    minus_instances: int = 0
    """Of these GPUs, how many partitions in use they have already."""
    units_left: int = 0
    """Of these GPUs, how much is free afterwards."""
    minus_start: int = 0
    """Where the partitions start."""
    unlinked: int = 0
    """Pairs of GPUs that have no NVLink between them."""
    distance: int = 0
    """Over all pairs of GPUs: 0 on one PCIe root, 1 on one NUMA node, else 2."""
    misalignment: int = 0
    """The same over pairs with a device of another driver that the pod has, too."""
    crowding: int = 0
    """GPUs that are left idle on the node; where claims are spread, GPUs in use there."""
    cut_links: int = 0
    """NVLinks from these GPUs to others that are free, and stay without their partner."""

    @property
    def takes_whole_gpus(self) -> bool:
        """Whether GPUs that were idle are in use as a whole then, so that idle GPUs are what is left of a node."""
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
"""What is to be said where this is the first thing that differs."""


def why_worse(score: PlacementScore, best: PlacementScore, *, spread: str = "") -> str:
    """One sentence: why the place with `score` lost to the best one. `spread` is said where the node's use decides."""
    if score.alternatives != best.alternatives:
        return "There the claims would get a later alternative of firstAvailable."
    for field, said in _WORSE.items():
        there, here = getattr(score, field), getattr(best, field)
        if there != here:
            return spread if spread and field == "crowding" else said(there, here)
    return "It is as good: of equal places Draco takes the first by name."


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
