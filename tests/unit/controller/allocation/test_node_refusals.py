"""When a node counts as one on which a pod cannot run, and that a standby replica remembers none."""

from collections.abc import Iterable
from typing import cast

import msgspec
import pytest

from draco.controller.allocation.allocations import KEY
from draco.controller.allocation.queue.refusals import NodeRefusals
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus
from draco.resources.api.core import ObjectReference, PodStatus
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from tests.builders import a_claim, a_pod
from tests.doubles.allocating import permissive_allocations
from tests.doubles.clock import ManualClock
from tests.doubles.workers import PromptWorkers
from tests.unit.controller.watching import tell

WAITS = a_pod("pod", claims=["claim"], status=PodStatus(phase="Pending"))
GROUP = ResourceClaimConsumerReference(api_group="scheduling.k8s.io", resource="podgroups", name="train", uid="train")


def held(reserved_for: Iterable[str] = (), group: bool = False) -> ResourceClaim:
    """The claim, allocated on node-0."""
    claim = a_claim("claim", on=["node-0/gpu-0"], reserved_for=reserved_for)
    assert claim.status.allocation is not None
    here = NodeSelectorRequirement(key="metadata.name", operator="In", values=["node-0"])
    only = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[here])])
    allocation = msgspec.structs.replace(claim.status.allocation, node_selector=only)
    users = [GROUP] if group else claim.status.reserved_for
    status = msgspec.structs.replace(claim.status, allocation=allocation, reserved_for=users)
    return msgspec.structs.replace(claim, status=status)


def freed(claim: ResourceClaim) -> ResourceClaim:
    return msgspec.structs.replace(claim, status=ResourceClaimStatus())


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.view = ClusterView(cast("Client", None), None, clock=self.clock)
        self.said: list[str] = []
        events = cast("EventRecorder", self)
        self.refusals = NodeRefusals(self.view, events, returned=lambda _: False)
        self.allocations = permissive_allocations(self.view, PromptWorkers(self.view), events=self)

    def record(self, regarding: ObjectReference, reason: EventReason, _: str) -> None:
        self.said.append(f"{reason.name} {regarding.name}")


@pytest.mark.parametrize("claim", [held(), held(["pod"]), held(group=True)])
def test_a_node_is_out_for_a_pod_that_lost_there_what_nobody_else_had_reserved(claim: ResourceClaim) -> None:
    world = World()
    world.refusals.follow()
    tell(world.view, WAITS, claim, freed(claim))
    assert world.refusals.nodes(WAITS.metadata.uid) == ["node-0"]
    assert world.said == ["AllocationTakenBack claim"]


@pytest.mark.parametrize("users", [["ended"], ["ended", "pod"]])
def test_what_pods_had_that_have_ended_says_nothing_of_the_node_to_the_pod_that_waits_for_it(users: list[str]) -> None:
    world = World()
    world.refusals.follow()
    claim = held(users)
    tell(world.view, WAITS, claim, freed(claim))
    assert world.refusals.nodes(WAITS.metadata.uid) == []
    assert world.said == []


async def test_a_replica_that_stands_by_takes_nothing_that_the_leader_gives_back_for_a_refusal() -> None:
    world = World()
    claim = held()
    tell(world.view, WAITS, claim, freed(claim))
    await world.allocations.reconcile(KEY)
    assert world.said == []
    tell(world.view, claim, freed(claim))
    assert world.said == ["AllocationTakenBack claim"]


async def test_a_replica_that_stands_by_remembers_nothing_of_what_is_gone() -> None:
    world = World()
    for number in range(100):
        name = f"claim-{number}"
        pod = a_pod(name, claims=[name], labels={"kueue.x-k8s.io/pod-group-name": name})
        tell(world.view, pod, a_claim(name, on=["node-0/gpu-0"]))
        world.view.claims._publish(world.view.claims.store.remove(pod.metadata.key))
        world.view.pods._publish(world.view.pods.store.remove(pod.metadata.key))
    useless = world.allocations._useless
    assert not useless._claims
    assert not useless._groups
