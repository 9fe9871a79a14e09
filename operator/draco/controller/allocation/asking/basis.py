"""What it rests on who gets which devices: the whole list.

A group that found no place is asked about again once something else is known than then. So whatever a question contains, and
whatever decides whether its answer is carried out, is in `Basis`, or else is the group's own (`Wanted`). What is missing here
leaves a group waiting for ever beside free devices: each entry has a test that takes it out and sees just that. What wakes the
decision is in `wakes`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.resources.api.core import PodSpec
from draco.resources.names import DeviceKey, PoolKey


class Basis(NamedTuple):
    """What a placement rests on, beside the group that it is for."""

    fleet: int
    """The version of what is published, tainted, and allocated by the claims that the watch has told of, and of the nodes."""
    limits: int
    """The version of what is permitted to whom. What namespaces hold is in `fleet`, and what they are about to in `writes`."""
    nominations: int
    """The version of what is kept for groups of a higher priority."""
    writes: int
    """How many writes of allocations have ended. One on its way counts as made, in a question and in those after it in the same
    one. If it is made, `fleet` tells so; if it is not, nothing else does."""
    owned: frozenset[GpuPlace]
    """The GPUs that may be given out."""
    withheld: frozenset[GpuPlace]
    """Those that are published as Draco's and may not."""
    preemptible: frozenset[GpuPlace]
    """Those from which pods may be evicted."""
    spread: frozenset[PoolKey]
    """The pools whose nodes are filled evenly."""
    taken_over: frozenset[DeviceKey]
    """What is on its way from a reservation to a claim."""
    kept: frozenset[DeviceKey]
    """What is kept for the group that has waited too long, and which group that is."""
    head: str

    def __str__(self) -> str:
        """With numbers in place of GPUs: there may be thousands."""
        shown = {name: len(each) if isinstance(each, frozenset) else each for name, each in self._asdict().items()}
        return ", ".join(f"{name}={each}" for name, each in shown.items())


class Wanted(NamedTuple):
    """What decides about a group's place and is its own: pods come and go, or are changed, and so are its terms.

    In no order: whatever the watch tells of a pod, also of its status alone, makes it the last of its group.
    """

    claims: frozenset[str]
    pods: Mapping[str, PodSpec]
    needed: int
    topology: str
    priority: int | None
    """What is kept from it, and who may leave for it: a PodGroup's may change, a reservation's is found out after it was made."""
    may_preempt: bool

    @classmethod
    def by(cls, waiting: WaitingGroup) -> "Wanted":
        """What the group wants now."""
        group, members = waiting.group, waiting.group.members
        return cls(
            frozenset(claim.metadata.uid for each in members for claim in (*each.claims, *each.others)),
            {pod.metadata.uid: pod.spec for each in members for pod in each.pods},
            group.needed,
            group.topology,
            waiting.priority,
            waiting.may_preempt,
        )
