"""Which changes make Draco look for claims to allocate, without an API server."""

from typing import cast

import msgspec
import pytest

from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import PodStatus, Toleration
from tests.builders import a_claim, a_device_class, a_pod
from tests.doubles.allocating import permissive_allocations
from tests.doubles.clock import ManualClock
from tests.doubles.workers import UnaskedWorkers
from tests.unit.controller.watching import tell


class Woken:
    """Counts how often changes of claims on the watch woke the allocator."""

    def __init__(self) -> None:
        self.times, clock = 0, ManualClock()
        self.view = ClusterView(cast("Client", None), None, clock=clock)
        made = permissive_allocations(self.view, UnaskedWorkers())
        made.subscribe(self._wake)

    def _wake(self, _: str) -> None:
        self.times += 1

    def by(self, claim: ResourceClaim) -> bool:
        """Whether this change of a claim wakes the allocator."""
        before = self.times
        self.view.claims._publish(self.view.claims.store.put(claim))
        return self.times > before


@pytest.fixture
def woken() -> Woken:
    return Woken()


def test_a_new_claim_without_a_pod_is_looked_at_though_nothing_else_changes(woken: Woken) -> None:
    assert woken.by(a_claim("new"))


def test_a_claim_whose_allocation_was_taken_back_is_looked_at(woken: Woken) -> None:
    assert woken.by(a_claim("taken", on=["node-0/gpu-0"]))
    assert woken.by(a_claim("taken"))


def test_a_claim_that_goes_on_waiting_is_not_looked_at_for_its_metadata(woken: Woken) -> None:
    """The finalizer that is added before the allocation is such a change."""
    claim = a_claim("waits")
    assert woken.by(claim)
    metadata = msgspec.structs.replace(claim.metadata, finalizers=["one"], resource_version="2")
    assert not woken.by(msgspec.structs.replace(claim, metadata=metadata))


def test_a_pod_that_waits_and_tolerates_more_is_looked_at(woken: Woken) -> None:
    pod = a_pod("waits", claims=["claim"])
    tell(woken.view, pod)
    before = woken.times
    tell(woken.view, msgspec.structs.replace(pod, status=PodStatus(phase="Pending")))
    assert woken.times == before
    spec = msgspec.structs.replace(pod.spec, tolerations=[Toleration(key="maintenance", operator="Exists")])
    tell(woken.view, msgspec.structs.replace(pod, spec=spec))
    assert woken.times == before + 1


def test_the_topology_of_a_device_class_is_looked_at(woken: Woken) -> None:
    plain = a_device_class("gpu.draco.dev")
    tell(woken.view, plain)
    before = woken.times
    meta = msgspec.structs.replace(plain.metadata, annotations={"draco.dev/topology": "spread"})
    tell(woken.view, msgspec.structs.replace(plain, metadata=meta))
    assert woken.times == before + 1
