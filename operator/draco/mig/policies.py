"""Rules by which an instance gets its place, ours and those of schedulers, to be replayed on the same claims.

Owns the rules and their names. Each sees a fleet and a profile and names a place; nothing is changed here.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum

from draco.mig.board import Placement, Profile
from draco.mig.geometry import Geometry
from draco.mig.placement import Choice, Pool, choose


class Policy(StrEnum):
    """Who decides."""

    SCHEDULER_1_35 = "scheduler-1.35"
    """The node with fewest claims, then any GPU of it (devices are met in no fixed order), lowest start."""
    SCHEDULER_1_36 = "scheduler-1.36"
    """The node with fewest claims, then the first GPU and lowest start: devices sorted by name."""
    STEERED = "steered"
    """The same scheduler, with devices published in the order of least capability loss."""
    OPERATOR = "operator"
    """The GPU and start of least capability loss in the whole fleet."""
    ORACLE = "oracle"
    """No placements: a claim is accepted if all together would fit, everything moved as needed. The bound."""


class Fleet:
    """Equal GPUs in nodes, and how many claims each node has."""

    def __init__(self, geometry: Geometry, gpus: int, gpus_per_node: int) -> None:
        self.geometry = geometry
        self.gpus_per_node = gpus_per_node
        self.pool = Pool(geometry, [geometry.empty] * gpus)
        self.claims = [0] * -(-gpus // gpus_per_node)

    def put(self, choice: Choice) -> None:
        """A claim got its instance."""
        self.pool.put(choice)
        self.claims[choice.gpu // self.gpus_per_node] += 1

    def take(self, choice: Choice) -> None:
        """A claim is gone, with its instance."""
        self.pool.take(choice)
        self.claims[choice.gpu // self.gpus_per_node] -= 1

    def nodes(self) -> Iterator[range]:
        """The GPUs of each node, nodes with fewest claims first: how the scheduler's default scoring spreads them."""
        for node in sorted(range(len(self.claims)), key=self.claims.__getitem__):
            first = node * self.gpus_per_node
            yield range(first, min(first + self.gpus_per_node, len(self.pool.states)))


Rule = Callable[[Fleet, Profile], Choice | None]


def rule_of(policy: Policy, chance: Callable[[int], int]) -> Rule | None:
    """The rule of a policy; None for the bound, which places nothing. `chance(n)` draws one of 0 … n-1."""
    match policy:
        case Policy.SCHEDULER_1_35:
            return lambda fleet, profile: _any_gpu(fleet, profile, chance)
        case Policy.SCHEDULER_1_36:
            return _first_gpu
        case Policy.STEERED:
            return _least_loss_in_node
        case Policy.OPERATOR:
            return lambda fleet, profile: fleet.pool.choose(profile)
        case Policy.ORACLE:
            return None


def _any_gpu(fleet: Fleet, profile: Profile, chance: Callable[[int], int]) -> Choice | None:
    for node in fleet.nodes():
        if fitting := [gpu for gpu in node if fleet.geometry.room(fleet.pool.states[gpu], profile)]:
            gpu = fitting[chance(len(fitting))]
            return Choice(gpu, _lowest(fleet, gpu, profile))
    return None


def _first_gpu(fleet: Fleet, profile: Profile) -> Choice | None:
    for node in fleet.nodes():
        for gpu in node:
            if fleet.geometry.room(fleet.pool.states[gpu], profile):
                return Choice(gpu, _lowest(fleet, gpu, profile))
    return None


def _lowest(fleet: Fleet, gpu: int, profile: Profile) -> Placement:
    return next(each for each in fleet.geometry.fits(fleet.pool.states[gpu]) if each.profile == profile)


def _least_loss_in_node(fleet: Fleet, profile: Profile) -> Choice | None:
    for node in fleet.nodes():
        if choice := choose(fleet.geometry, fleet.pool.states[node.start : node.stop], profile):
            return choice._replace(gpu=node.start + choice.gpu)
    return None
