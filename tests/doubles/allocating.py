"""Draco's allocator without an API server, a handover or limits: everything is permitted, and nothing is recorded."""

from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.allocations import ClaimAllocations
from draco.controller.view import ClusterView
from draco.controller.workers.pool import Workers
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.kube.listeners import Listeners
from draco.placing.groups.group import ClaimGroup, GroupPlacement


class Permissive:
    """Stands for the handover, the limits and the recorder: every GPU is Draco's, and nothing is limited."""

    owned = frozenset({GpuPlace("gpu.nvidia.com", "node-0", "gpu-0")})
    preemptible = spread = withheld = frozenset[Any]()
    version = 0

    def __init__(self) -> None:
        self.when_owned, self.when_changed = Listeners[[]](), Listeners[[]]()

    def record(self, *_: Any, **__: Any) -> None:
        """Records nothing."""

    def not_owned(self) -> list[Any]:
        return []

    def gives_out(self, _: Any) -> bool:
        return True

    def begin(self, _: Any) -> "Permissive":
        return self

    def foreseen(self, _: ClaimGroup) -> str:
        return ""

    def within(self, _: ClaimGroup, placement: GroupPlacement) -> GroupPlacement:
        return placement

    def tell(self) -> None:
        """There is nothing to report."""


def permissive_allocations(
    view: ClusterView, workers: Workers, client: object = None, events: object = None
) -> ClaimAllocations:
    """The allocator of the view's claims; without a client, it must not read or write."""
    permissive = cast("Any", Permissive())
    return ClaimAllocations(
        cast("Client", client),
        view,
        permissive,
        workers,
        cast("EventRecorder", events or permissive),
        guard=permissive,
        count=Counter("allocated", "", registry=CollectorRegistry()),
        count_late=Counter("late", "", registry=CollectorRegistry()),
        overdue_s=600.0,
        tell_after_s=600.0,
    )
