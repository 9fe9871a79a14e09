"""What is written about MIG policies, and based on what: against an API server that only records requests."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec

from draco.controller.allocation.ownership.handover import HandoverReconciler
from draco.controller.gpu_nodes.reconciler import GpuNodeReconciler
from draco.controller.mig.policies import MigPolicyReconciler
from draco.controller.mig.repair import RepairReconciler
from draco.controller.sharing.decisions import SharingDecisions
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.listeners import Listeners
from draco.resources.api.draco import GpuNode, GpuNodeStatus, MigMode, MigPolicy, MigReset, ResetPermit, WantedGpu
from draco.resources.api.meta import LabelSelector, ObjectKey, TimeWindow
from tests.builders import a_mig_node, a_mig_policy, a_node, a_slice
from tests.unit.controller.mig.test_mig_decisions import H100, NOON, World, a_world

T = TypeVar("T", GpuNode, MigPolicy)

NODE = a_mig_node(board=H100)
SOMEBODY = WantedGpu(uuid="GPU-of-nobody", policy="by-hand", mode=MigMode.DISABLED)
WINDOWS = MigReset(permit=ResetPermit.IN_WINDOWS, windows=[TimeWindow(start="13:00", duration="1h")])


class Server:
    """Accepts every write. `beside` is what others wrote into the spec; server-side apply keeps it."""

    def __init__(self, *, version: str = "2", beside: tuple[WantedGpu, ...] = (), gone: bool = False) -> None:
        self.version = version
        self.beside = beside
        self.gone = gone
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def apply(self, _kind: Any, _key: ObjectKey, body: dict[str, Any], **_: Any) -> Any:
        return self._answer("apply", body, self.beside)

    async def patch(self, _kind: Any, _key: ObjectKey, body: dict[str, Any], **_: Any) -> Any:
        return self._answer("patch", body, ())

    def _answer(self, verb: str, body: dict[str, Any], beside: tuple[WantedGpu, ...]) -> Any:
        self.asked.append((verb, msgspec.json.decode(msgspec.json.encode(body))))
        if self.gone:
            raise NotFound(404, "NotFound", "not found")
        if "status" in body:
            return newer(a_mig_policy(), self.version)
        told = body["spec"]
        spec = msgspec.structs.replace(NODE.spec, gpus=[*told["gpus"], *beside], decided=told.get("decided", []))
        return newer(msgspec.structs.replace(NODE, spec=spec), self.version)


class Adviser:
    """Gives the advice in `text`."""

    def __init__(self) -> None:
        self.text = ""
        self.on_advice = Listeners[[]]()

    def advice(self, _policy: str) -> str:
        return self.text


def newer(item: T, version: str) -> T:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version=version))


def layouts(world: World, server: Server) -> GpuNodeReconciler:
    return GpuNodeReconciler(
        cast("Client", server), world.view, world.decisions, world.health, sharing=SharingDecisions(world.view)
    )


def policies(world: World, server: Server, adviser: Adviser | None = None) -> MigPolicyReconciler:
    return MigPolicyReconciler(
        cast("Client", server), world.view, world.decisions, adviser=cast("RepairReconciler", adviser or Adviser())
    )


# The wanted state of a node


async def test_what_is_wanted_is_written_only_on_top_of_what_was_seen() -> None:
    server = Server()
    await layouts(a_world(), server).reconcile("node-0")
    [(verb, body)] = server.asked
    assert (verb, body["metadata"]) == ("apply", {"uid": NODE.metadata.uid, "resourceVersion": "1"})
    assert [each["policy"] for each in body["spec"]["gpus"]] == ["policy", "policy"]


async def test_what_others_wrote_is_taken_out_on_top_of_the_own_write() -> None:
    server = Server(beside=(SOMEBODY,))
    await layouts(a_world(), server).reconcile("node-0")
    assert [verb for verb, _ in server.asked] == ["apply", "patch"]
    body = server.asked[1][1]
    assert body["metadata"] == {"uid": NODE.metadata.uid, "resourceVersion": "2"}
    assert "by-hand" not in str(body)


async def test_nothing_is_written_again_before_the_own_write_is_seen() -> None:
    world, server = a_world(), Server()
    reconciler = layouts(world, server)
    for _ in range(2):
        await reconciler.reconcile("node-0")
    assert len(server.asked) == 1
    world.put(newer(NODE, "2"))  # somebody removed it
    await reconciler.reconcile("node-0")
    assert len(server.asked) == 2


async def test_a_write_that_changed_nothing_is_not_waited_for() -> None:
    server = Server(version="1")
    reconciler = layouts(a_world(), server)
    for _ in range(2):
        await reconciler.reconcile("node-0")
    assert len(server.asked) == 2


async def test_what_is_decided_is_said_of_the_gpus_that_the_agent_reports_and_of_no_others() -> None:
    server, world = Server(), a_world()
    await layouts(world, server).reconcile("node-0")
    assert server.asked[0][1]["spec"]["decided"] == sorted(each.uuid for each in NODE.status.gpus)
    silent = msgspec.structs.replace(NODE, spec=NODE.spec, status=GpuNodeStatus())  # as its agent creates it
    world.put(newer(silent, "3"))
    server.asked.clear()
    await layouts(world, server).reconcile("node-0")
    assert not any(body["spec"].get("decided") for _, body in server.asked)


async def test_nothing_is_decided_while_nobody_knows_which_gpus_draco_allocates() -> None:
    server, world = Server(), a_world()
    handover = SimpleNamespace(to_taint=lambda _: None)
    made = GpuNodeReconciler(
        cast("Client", server),
        world.view,
        world.decisions,
        world.health,
        sharing=SharingDecisions(world.view),
        handover=cast("HandoverReconciler", handover),
    )
    await made.reconcile("node-0")
    assert "decided" not in server.asked[0][1]["spec"]
    handover.to_taint = lambda _: []
    world.put(newer(NODE, "3"))
    await made.reconcile("node-0")
    assert server.asked[1][1]["spec"]["decided"]


async def test_a_node_that_goes_while_it_is_written_is_no_trouble() -> None:
    assert await layouts(a_world(), Server(gone=True)).reconcile("node-0") is None


async def test_a_node_is_looked_at_again_when_a_window_opens() -> None:
    world = a_world(reset=WINDOWS)
    assert await layouts(world, Server()).reconcile("node-0") == timedelta(hours=1).total_seconds()
    assert (
        await layouts(
            a_world(node_selector=LabelSelector(match_labels={"no": "node"}), reset=WINDOWS), Server()
        ).reconcile("node-0")
        is None
    )


async def test_each_change_wakes_the_nodes_that_it_concerns() -> None:
    world = a_world()
    woken: list[str] = []
    world.put(a_mig_node("node-1", board=H100))
    layouts(world, Server()).subscribe(woken.append)

    def after(*changed: Any) -> list[str]:
        woken.clear()
        world.put(*changed)
        return sorted(woken)

    plain = a_node("node-1")
    labelled = msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, labels={"pool": "mig"}))
    assert after(plain) == ["node-1"]
    assert after(labelled) == ["node-1"]
    assert after(labelled) == []
    assert after(a_slice("node-1", ["gpu-0"], name="slice")) == ["node-1"]
    assert after(a_slice("node-0", ["gpu-0"], name="slice")) == ["node-0", "node-1"]
    policy = a_mig_policy()
    assert after(policy) == []
    assert after(deleted(policy)) == ["node-0", "node-1"]


def deleted(policy: MigPolicy) -> MigPolicy:
    return msgspec.structs.replace(policy, metadata=msgspec.structs.replace(policy.metadata, deletion_timestamp=NOON))


# Decisions


def test_a_policy_that_is_being_deleted_has_no_say_from_then_on() -> None:
    world = a_world()
    decision = world.decisions.of("node-0")
    assert decision is not None
    assert {each.policy for each in decision.gpus} == {"policy"}
    world.put(deleted(a_mig_policy()))
    decision = world.decisions.of("node-0")
    assert decision is not None
    assert {each.policy for each in decision.gpus} == {""}


async def test_a_policy_that_is_being_deleted_is_not_counted() -> None:
    world = a_world()
    await world.decisions.all()
    assert {name for name, _ in world.decisions.gpu_counts} == {"policy"}
    world.put(deleted(a_mig_policy()))
    assert world.decisions.gpu_counts == {}


# The status of a policy


async def test_a_status_is_written_only_on_top_of_what_was_seen_and_only_if_it_is_another() -> None:
    world, server = a_world(), Server()
    policy = newer(a_mig_policy(), "1")
    world.put(policy)
    reconciler = policies(world, server)
    await reconciler.reconcile(policy.metadata.uid)
    [(_, body)] = server.asked
    assert body["metadata"] == {"uid": policy.metadata.uid, "resourceVersion": "1"}
    await world.clock.advance(60)
    await reconciler.reconcile(policy.metadata.uid)
    assert len(server.asked) == 1, "the own write is still on its way"
    status = msgspec.convert(body["status"], type(policy.status))
    world.put(newer(msgspec.structs.replace(policy, status=status), "2"))
    await world.clock.advance(60)
    await reconciler.reconcile(policy.metadata.uid)
    assert len(server.asked) == 1, "it says that already"


async def test_a_status_is_not_written_on_top_of_what_is_so_no_more() -> None:
    world, server = a_world(), Server()
    (policy,) = world.view.mig_policies.store.values()

    async def changed(*_: Any) -> MigPolicy:
        return newer(policy, "7")

    world.get = changed  # type: ignore[assignment, method-assign]
    await policies(world, server).reconcile(policy.metadata.uid)
    assert server.asked == []
    assert [each.metadata.resource_version for each in world.view.mig_policies.store.values()] == ["7"]


async def test_a_policy_that_was_changed_is_answered_at_once() -> None:
    world, server = a_world(), Server()
    policy = newer(a_mig_policy(), "1")
    world.put(policy)
    reconciler = policies(world, server)
    await reconciler.reconcile(policy.metadata.uid)
    changed = msgspec.structs.replace(
        policy, metadata=msgspec.structs.replace(policy.metadata, generation=2, resource_version="3")
    )
    world.put(changed)
    await reconciler.reconcile(policy.metadata.uid)
    assert [body["status"]["observedGeneration"] for _, body in server.asked] == [1, 2]


async def test_a_policy_made_anew_under_its_name_has_a_status_of_its_own() -> None:
    world, server = a_world(), Server()
    again = a_mig_policy()
    again = msgspec.structs.replace(again, metadata=msgspec.structs.replace(again.metadata, uid="another"))
    world.decisions.of("node-0")
    world.put(again)
    await policies(world, server).reconcile("another")
    assert [body["metadata"]["uid"] for _, body in server.asked] == ["another"]


async def test_a_policy_that_goes_is_no_trouble_and_one_that_is_being_deleted_has_no_status() -> None:
    world, server = a_world(), Server(gone=True)
    reconciler = policies(world, server)
    await reconciler.reconcile(a_mig_policy().metadata.uid)
    assert len(server.asked) == 1
    world.put(deleted(a_mig_policy()))
    await world.clock.advance(60)
    assert await reconciler.reconcile(a_mig_policy().metadata.uid) is None
    assert len(server.asked) == 1


async def test_a_policy_is_looked_at_again_when_a_window_opens() -> None:
    world = a_world(reset=WINDOWS)
    assert await policies(world, Server()).reconcile(a_mig_policy().metadata.uid) == timedelta(hours=1).total_seconds()


async def test_advice_that_changed_wakes_every_policy() -> None:
    world, adviser = a_world(), Adviser()
    woken: list[str] = []
    policies(world, Server(), adviser).subscribe(woken.append)
    woken.clear()
    adviser.on_advice.tell()
    assert woken == [a_mig_policy().metadata.uid]
