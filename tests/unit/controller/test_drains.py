"""What is remembered of pods that were asked to leave."""

from typing import Any, cast

import msgspec
from prometheus_client import CollectorRegistry, Counter

from draco.controller.evictions import PodEvictions
from draco.controller.maintenance.draining import PodDrains
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.resources.api.core import Pod, PodStatus
from draco.resources.api.maintenance import DeviceMaintenance, DrainPolicy, MaintenanceDrain, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from tests.builders import MOMENT, a_claim, a_device_key, a_maintenance, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import collection_of, tell

GPU = a_device_key("node-0/gpu-0")


class Server:
    """An API server that lets every pod go, and has the request as it was told of."""

    def __init__(self, request: DeviceMaintenance) -> None:
        self.request = request

    async def get(self, _: Any, __: ObjectKey) -> DeviceMaintenance:
        return self.request

    async def create_subresource(self, *_: Any, dry_run: bool) -> None:
        assert not dry_run

    def record(self, *_: Any, **__: Any) -> None:
        """Record an Event."""


def a_request() -> DeviceMaintenance:
    made = a_maintenance(phase=MaintenancePhase.DRAINING, devices=["node-0/gpu-0"], pool="node-0", device="gpu-0")
    spec = msgspec.structs.replace(made.spec, drain=MaintenanceDrain(policy=DrainPolicy.EVICT))
    return msgspec.structs.replace(
        made, spec=spec, status=msgspec.structs.replace(made.status, isolated_at=MOMENT, draining_at=MOMENT)
    )


async def test_nothing_is_remembered_of_a_pod_that_is_gone() -> None:
    """A fleet's pods are evicted by the thousand while an operator runs."""
    request = a_request()
    server, clock = Server(request), ManualClock(MOMENT)
    view = ClusterView(cast("Client", server), None, clock=clock)
    drains = PodDrains(
        cast("Client", server),
        view,
        cast("EventRecorder", server),
        evictions=PodEvictions(cast("Client", server), clock=clock),
        clock=clock,
        count=Counter("evicted", "Evicted.", ["outcome"], registry=CollectorRegistry()),
    )
    drains.subscribe(lambda _: None)
    claim = a_claim("claim", on=["node-0/gpu-0"], reserved_for=["pod"])
    pod: Pod = a_pod("pod", node="node-0", claims=["claim"], status=PodStatus(phase="Running"))
    tell(view, request, claim, pod)

    state = drains.look(request, [GPU], [claim], [], now=clock.now(), paused="")
    assert state is not None
    await drains.carry_out(request, state)
    assert len(drains._asked) == 1

    pods = collection_of(view, "Pod")
    for change in pods.store.remove(pod.metadata.key):
        for subscriber in pods._subscribers:
            subscriber(change)
    assert len(drains._asked) == 0
