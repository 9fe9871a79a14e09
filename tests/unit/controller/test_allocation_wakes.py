"""What makes Draco look for claims that wait for it, without an API server."""

from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from draco.controller.allocation.allocations import ClaimAllocations
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from tests.builders import a_claim
from tests.doubles.clock import ManualClock


class Nothing:
    """Hands nothing over, limits nothing, and says nothing."""

    def when_owned(self, _: Any) -> None:
        pass

    def when_changed(self, _: Any) -> None:
        pass


class Woken:
    """How often the one key was woken by what the watch told of claims."""

    def __init__(self) -> None:
        self.times, clock = 0, ManualClock()
        self.view = ClusterView(cast("Client", None), None, clock=clock)
        none, count = cast("Any", Nothing()), Counter("allocated", "", registry=CollectorRegistry())
        made = ClaimAllocations(
            cast("Client", None),
            self.view,
            none,
            none,
            none,
            guard=none,
            clock=clock,
            count=count,
            overdue_s=1.0,
            tell_after_s=1.0,
        )
        made.subscribe(self._wake)

    def _wake(self, _: str) -> None:
        self.times += 1

    def by(self, claim: ResourceClaim) -> bool:
        """Whether this change of a claim wakes it."""
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
    """The finalizer that comes before the allocation is such a change."""
    claim = a_claim("waits")
    assert woken.by(claim)
    metadata = msgspec.structs.replace(claim.metadata, finalizers=["one"], resource_version="2")
    assert not woken.by(msgspec.structs.replace(claim, metadata=metadata))
