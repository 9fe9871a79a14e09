"""Which topology a group must be within, by its own annotation or by the DeviceClasses that its pods ask for."""

from typing import Any, cast

import msgspec

from draco.controller.allocation.gang_reading import Gangs
from draco.controller.allocation.queue.refusals import NodeRefusals
from draco.controller.allocation.queue.waiting import WaitingGroups
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import PodStatus
from draco.resources.api.meta import ObjectMeta
from draco.resources.kinds import DEVICE_RESERVATIONS
from tests.builders import a_claim, a_device_class, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.watching import collection_of

TOPOLOGY = "draco.dev/topology"
SIZE = {"kueue.x-k8s.io/pod-group-total-count": "2"}
LABELS = {"kueue.x-k8s.io/pod-group-name": "train"}


class World:
    """Pods of a group of two; by pod, the class that its claim asks for."""

    def __init__(self, *classes: DeviceClass) -> None:
        clock = ManualClock()
        self.view = ClusterView(cast("Client", None), None, clock=clock, allocates=True)
        self.waiting = WaitingGroups(self.view, Gangs(self.view), cast("NodeRefusals", self), lambda _: False)
        self.put(*classes)

    def nodes(self, _: str) -> list[str]:
        """No node refused a pod."""
        return []

    def put(self, *objects: Any) -> None:
        for item in objects:
            collection_of(self.view, type(item).__name__).store.put(item)

    def member(self, name: str, device_class: str, *on: str, topology: str = "") -> None:
        annotations = {**SIZE, **({TOPOLOGY: topology} if topology else {})}
        node, phase = ("node-0", "Running") if on else ("", "Pending")
        status = PodStatus(phase=phase)
        pod = a_pod(name, claims=[name], labels=LABELS, annotations=annotations, node=node, status=status)
        self.put(pod, a_claim(name, device_class=device_class, on=on))

    def group(self) -> WaitingGroup:
        (found,) = self.waiting.groups()
        return found


def a_reserved_claim(name: str, **claim: Any) -> ResourceClaim:
    reservation = name.partition("-")[0]
    owner = DEVICE_RESERVATIONS.owner(ObjectMeta(name=reservation, namespace="default", uid=reservation))
    made = a_claim(name, device_class="plain", **claim)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=[owner]))


def a_class(name: str, topology: str = "", allocator: str = "operator") -> DeviceClass:
    made = a_device_class(name)
    meta = msgspec.structs.replace(
        made.metadata, labels={"draco.dev/allocator": allocator}, annotations={TOPOLOGY: topology} if topology else {}
    )
    return msgspec.structs.replace(made, metadata=meta)


GPU, MIG, PLAIN = a_class("gpu", "sameNode"), a_class("mig", "spread"), a_class("plain")


def test_a_group_goes_by_the_one_topology_of_its_device_classes() -> None:
    world = World(GPU, PLAIN)
    world.member("a", "plain")
    world.member("b", "gpu")
    assert (world.group().group.topology, world.group().unready) == ("sameNode", "")


def test_a_group_whose_device_classes_differ_waits_and_says_so_unless_it_says_itself_where_it_is_to_be() -> None:
    world = World(GPU, MIG)
    world.member("a", "gpu")
    world.member("b", "mig")
    assert "asks for DeviceClasses of different topologies: gpu has sameNode, mig has spread" in world.group().unready
    world.member("a", "gpu", topology="rack")
    assert (world.group().group.topology, world.group().unready) == ("rack", "")


def test_a_pod_that_is_replaced_goes_by_the_device_classes_of_those_that_run_as_well() -> None:
    world = World(GPU, PLAIN)
    world.member("a", "gpu", "node-0/gpu-0")
    world.member("b", "plain")
    assert world.group().group.topology == "sameNode"


def test_a_device_class_of_kube_schedulers_says_nothing_about_where_dracos_claims_go() -> None:
    world = World(GPU, a_class("nic", "spread", allocator=""))
    world.member("a", "gpu")
    world.member("b", "gpu")
    nic = a_claim("nic", device_class="nic", on=["node-0/nic-0"])
    pod = a_pod("b", claims=["b", "nic"], labels=LABELS, annotations=SIZE, status=PodStatus(phase="Pending"))
    world.put(nic, pod)
    assert (world.group().group.topology, world.group().unready) == ("sameNode", "")


def test_a_claim_whose_pod_has_ended_gets_devices_again_when_that_is_deleted_or_another_waits() -> None:
    world = World(PLAIN)
    world.put(a_claim("named", device_class="plain"))
    assert [each.uid for each in world.waiting.groups()]
    ended = a_pod("ended", claims=["named"], node="node-0", status=PodStatus(phase="Succeeded"))
    world.put(ended)
    assert world.waiting.groups() == []
    world.put(a_pod("next", claims=["named"], status=PodStatus(phase="Pending")))
    assert [each.group.members[0].pods[0].metadata.name for each in world.waiting.groups()] == ["next"]


def test_a_reserved_claim_that_a_pod_has_used_to_its_end_waits_alone_and_the_others_go_on() -> None:
    world = World(PLAIN)
    world.put(*(a_reserved_claim(f"train-{number}") for number in range(2)))
    assert {each.metadata.name for each in world.group().group.claims} == {"train-0", "train-1"}
    world.put(a_pod("ended", claims=["train-0"], node="node-0", status=PodStatus(phase="Succeeded")))
    assert [each.metadata.name for each in world.group().group.claims] == ["train-1"]
    world.put(a_pod("also", claims=["train-1"], node="node-0", status=PodStatus(phase="Failed")))
    assert world.waiting.groups() == []


def test_a_claim_that_was_made_for_a_pod_is_asked_about_with_it_before_the_pods_status_names_it() -> None:
    world = World(PLAIN)
    pod = a_pod("pod", templates=["gpu"])
    claim = a_claim("pod-gpu-x7", device_class="plain", made_for=("pod", "gpu"))
    world.put(pod, claim)
    (member,) = world.group().group.members
    assert (member.pods, member.claims) == ([pod], [claim])


def test_a_pod_waits_until_all_of_its_claims_are_made() -> None:
    world = World(PLAIN)
    world.put(a_pod("pod", templates=["gpu", "nic"]))
    world.put(a_claim("pod-gpu-x7", device_class="plain", made_for=("pod", "gpu")))
    assert not world.waiting.groups()
    world.put(a_claim("pod-nic-y8", device_class="plain", made_for=("pod", "nic")))
    assert [each.metadata.name for each in world.group().group.claims] == ["pod-gpu-x7", "pod-nic-y8"]


def test_a_group_with_enough_pods_goes_on_without_one_whose_claim_is_being_deleted() -> None:
    """Kubernetes no longer starts that pod, however long another finalizer keeps the claim."""
    world = World(PLAIN)
    for name in ("a", "b", "c"):
        world.member(name, "plain")
    world.put(a_claim("a", device_class="plain", deleting=True))
    found = world.group()
    assert [each.pods[0].metadata.name for each in found.group.members] == ["b", "c"]
    assert (found.group.needed, found.unready) == (2, "")


def test_a_group_that_needs_a_pod_whose_claim_is_being_deleted_waits_and_says_so() -> None:
    world = World(PLAIN)
    world.member("a", "plain")
    world.member("b", "plain")
    world.put(a_claim("a", device_class="plain", deleting=True))
    assert world.group().unready == "Of Kueue pod group default/train, claim a of pod a is being deleted."


def test_the_claims_of_a_reservation_need_not_be_near_one_that_is_being_deleted() -> None:
    world = World(PLAIN)
    for name, on, deleting in (("0", ["node-0/gpu-0"], True), ("1", ["node-0/gpu-1"], False), ("2", [], False)):
        world.put(a_reserved_claim(f"evening-{name}", on=on, deleting=deleting))
    assert [each.metadata.name for each in world.group().group.placed] == ["evening-1"]
