"""The complete list of what a placement depends on.

A group without a place is asked about again when its basis has changed. `Basis` therefore holds everything that a question
contains or that decides whether its answer is carried out, except what belongs to the group itself (`Wanted`). A missing entry
makes a group wait forever beside free devices; a test per entry checks this. `wakes` lists what triggers the decision.
"""

from collections.abc import Mapping
from typing import NamedTuple

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.resources.api.core import PodSpec
from draco.resources.names import DeviceKey, PoolKey


class Basis(NamedTuple):
    """What a placement depends on, beside the group itself."""

    fleet: int
    """Version of published devices, taints, nodes, and allocations that the watch has delivered."""
    limits: int
    """Version of the limits. What namespaces hold is in `fleet`; their writes in flight are in `writes`."""
    nominations: int
    """Version of what is kept for groups of a higher priority."""
    writes: int
    """Number of finished writes. A write in flight counts as made; only this counter shows when one failed."""
    owned: frozenset[GpuPlace]
    """GPUs that Draco may allocate."""
    withheld: frozenset[GpuPlace]
    """GPUs published as Draco's that it must not allocate."""
    preemptible: frozenset[GpuPlace]
    """GPUs from which pods may be evicted."""
    spread: frozenset[PoolKey]
    """Pools whose nodes are filled evenly."""
    taken_over: frozenset[tuple[DeviceKey, str | None]]
    """Devices, and shares of devices by their ID, in transfer from a reservation to a claim."""
    kept: frozenset[DeviceKey]
    """Devices kept for the overdue group, and that group's UID."""
    head: str

    def __str__(self) -> str:
        """Shows counts instead of GPUs: there may be thousands."""
        shown = {name: len(each) if isinstance(each, frozenset) else each for name, each in self._asdict().items()}
        return ", ".join(f"{name}={each}" for name, each in shown.items())


class Wanted(NamedTuple):
    """What a group's placement depends on in the group itself. Unordered: any event of a pod moves it to the group's end."""

    claims: frozenset[str]
    pods: Mapping[str, PodSpec]
    needed: int
    topology: str
    priority: int | None
    """A PodGroup's may change; a reservation's is found after its creation."""
    may_preempt: bool

    @classmethod
    def by(cls, waiting: WaitingGroup) -> "Wanted":
        """The group's current requirements."""
        group, members = waiting.group, waiting.group.members
        return cls(
            frozenset(claim.metadata.uid for each in members for claim in (*each.claims, *each.others)),
            {pod.metadata.uid: pod.spec for each in members for pod in each.pods},
            group.needed,
            group.topology,
            waiting.priority,
            waiting.may_preempt,
        )
