"""MigPolicy on a real API server, with a stand-in for the nodes' agents."""

import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest

from draco.controller.gpu_nodes.reconciler import GpuNodeReconciler
from draco.controller.health.decisions import HealthDecisions
from draco.controller.mig.decisions import MigDecisions
from draco.controller.mig.policies import MigPolicyReconciler
from draco.controller.mig.repair import RepairReconciler
from draco.controller.sharing.decisions import SharingDecisions
from draco.controller.view import ClusterView
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import Conflict, NotFound
from draco.kube.listeners import Listeners
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import GpuMig, GpuNode, InstanceUse, MigPolicy, MigPolicyConflict, WantedGpu
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES, LEASES, MIG_POLICIES, NODES, SLICES
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_gpu_uuid, a_mig_instance, a_mig_node, a_slice
from tests.component.controller.replicas import an_operator, settings_for_test, until
from tests.component.controller.test_maintenance import was_current_a_moment_ago

pytestmark = pytest.mark.usefixtures("crds")

OFF = GpuMig(capable=True)
ON = GpuMig(capable=True, enabled=True)
HALVES = {"name": "halves", "instances": [{"profile": "3g.40gb", "count": 2}]}


class Silent:
    """Advises nothing."""

    def __init__(self) -> None:
        self.on_advice = Listeners[[]]()

    def advice(self, policy: str) -> str:
        return ""


class Lab:
    """Nodes with two H100s each and a label of their own, and policies that select it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.mark = f"lab-{uuid.uuid4().hex[:8]}"
        self.policies: list[str] = []
        self.nodes: list[str] = []

    async def node(self, *gpus: GpuMig, labels: dict[str, str] | None = None) -> str:
        name = f"{self.mark}-node-{len(self.nodes)}"
        self.nodes.append(name)
        await self.client.create(NODES, {"metadata": {"name": name, "labels": labels or {"lab": self.mark}}})
        await self.client.create(GPU_NODES, {"metadata": {"name": name}})
        await self.report(name, *(gpus or (OFF, OFF)))
        return name

    async def report(self, name: str, *gpus: GpuMig) -> None:
        """The agent's report once it has seen the current spec."""
        generation = (await self.gpu_node(name)).metadata.generation
        seen = a_mig_node(name, gpus=gpus, board=BOARDS["H100-80GB"], observed_generation=generation)
        await self.client.apply(
            GPU_NODES, ObjectKey("", name), {"status": as_json(seen.status)}, manager="agent", subresource="status"
        )

    async def policy(self, name: str, **spec: Any) -> ObjectKey:
        key = ObjectKey("", f"{self.mark}-{name}")
        plain = {"mode": "Dynamic", "nodeSelector": {"matchLabels": {"lab": self.mark}}}
        await self.client.create(MIG_POLICIES, {"metadata": {"name": key.name}, "spec": {**plain, **spec}})
        self.policies.append(key.name)
        return key

    async def gpu_node(self, name: str) -> GpuNode:
        return await self.client.get(GPU_NODES, ObjectKey("", name))

    async def wanted(self, node: str, **expected: str) -> list[WantedGpu]:
        """The wanted state of the node's GPUs, once they belong to the expected policies: gpu0="name"."""
        owners = {a_gpu_uuid(node, int(gpu[-1])): f"{self.mark}-{policy}" for gpu, policy in expected.items()}

        async def settled() -> tuple[list[WantedGpu]] | None:
            gpus = (await self.gpu_node(node)).spec.gpus
            return (gpus,) if {each.uuid: each.policy for each in gpus} == owners else None

        (found,) = await until(settled, what=f"{node}: {owners}")
        return found

    async def says(self, key: ObjectKey, message: str) -> MigPolicy:
        async def look() -> MigPolicy | None:
            policy = await self.client.get(MIG_POLICIES, key)
            return policy if message in policy.status.message else None

        try:
            return await until(look)
        except AssertionError:
            said = (await self.client.get(MIG_POLICIES, key)).status.message
            raise AssertionError(f"{key} says {said!r}, not {message!r}") from None

    async def clean(self) -> None:
        for kind, names in ((MIG_POLICIES, self.policies), (GPU_NODES, self.nodes), (NODES, self.nodes)):
            for name in names:
                with suppress(NotFound):
                    await self.client.delete(kind, ObjectKey("", name))


def as_json(struct: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(struct))


@pytest.fixture
async def lab(client: Client) -> AsyncIterator[Lab]:
    made = Lab(client)
    yield made
    await made.clean()


async def test_a_policy_is_written_to_its_gpus_and_counts_as_applied_when_the_agent_says_so(
    served: ControlPlane, lab: Lab
) -> None:
    node = await lab.node()
    async with an_operator(served):
        key = await lab.policy(
            "p", warm=[{"profile": "1g.10gb", "count": 2}], exclude=[a_gpu_uuid(node, 1)], reset={"permit": "Always"}
        )
        (wanted,) = await lab.wanted(node, gpu0="p")
        assert (wanted.mode, wanted.reset_permitted) == ("Dynamic", True)
        assert [(each.profile, each.count) for each in wanted.warm] == [("1g.10gb", 2)]
        waiting = await lab.says(key, "1 of 1 GPU not done yet")
        assert (waiting.status.gpus, waiting.status.applied, waiting.status.changing) == (1, 0, 1)
        await lab.report(node, ON, OFF)
        done = await lab.says(key, "1 GPU set up as the policy asks.")
        assert (done.status.applied, done.status.observed_generation) == (1, done.metadata.generation)
    before = await lab.gpu_node(node)
    async with an_operator(served) as (operator, _):

        async def idle() -> bool:
            queue = operator.reconcilers["gpu-nodes"].queue
            return operator.election.leading and not (queue.depth or queue.longest_running_s)

        await until(idle)
    assert (await lab.gpu_node(node)).metadata.resource_version == before.metadata.resource_version


async def test_the_older_of_two_policies_has_the_gpu_until_it_is_deleted(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node(ON, ON)
    async with an_operator(served):
        old = await lab.policy("a-old", exclude=[a_gpu_uuid(node, 1)])
        young = await lab.policy("b-young", profiles=["1g.10gb"])
        await lab.wanted(node, gpu0="a-old", gpu1="b-young")
        told = await lab.says(young, f"1 GPU that it selects belongs to the older policy {old.name}.")
        assert told.status.conflicts == [MigPolicyConflict(policy=old.name, gpus=1)]
        await lab.client.delete(MIG_POLICIES, old)
        for wanted in await lab.wanted(node, gpu0="b-young", gpu1="b-young"):
            assert wanted.profiles == ["1g.10gb"]
        await lab.client.delete(MIG_POLICIES, young)
        assert await lab.wanted(node) == []


async def test_a_policy_deleted_while_no_operator_ran_lets_go_of_its_gpus(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node()
    async with an_operator(served):
        key = await lab.policy("p")
        await lab.wanted(node, gpu0="p", gpu1="p")
    await lab.client.delete(MIG_POLICIES, key)
    async with an_operator(served):
        assert await lab.wanted(node) == []


async def test_a_layout_that_cannot_be_is_told_and_what_was_applied_stays(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node()
    async with an_operator(served):
        key = await lab.policy("p", mode="Static", layouts=[HALVES], layout="halves")
        for wanted in await lab.wanted(node, gpu0="p", gpu1="p"):
            assert [(each.profile, each.start) for each in wanted.layout] == [("3g.40gb", 0), ("3g.40gb", 4)]
        halves = ON_WITH_HALVES
        await lab.report(node, halves, halves)
        await lab.says(key, "2 GPUs set up as the policy asks.")
        before = (await lab.gpu_node(node)).spec
        too_much = {"name": "too-much", "instances": [{"profile": "4g.40gb", "count": 2}]}
        await lab.client.patch(MIG_POLICIES, key, {"spec": {"layouts": [HALVES, too_much], "layout": "too-much"}})
        told = await lab.says(key, "2 of 2 GPUs cannot be set up as the policy asks: gpu-0 of")
        assert "layout too-much: 2 x 4g.40gb" in told.status.message
        assert "nearest that can exist is 1 x 4g.40gb" in told.status.message
        assert told.status.failed == 2
        assert (await lab.gpu_node(node)).spec == before


ON_WITH_HALVES = GpuMig(
    capable=True,
    enabled=True,
    instances=[a_mig_instance(f"3g.40gb@{start}", size=4, use=InstanceUse.LAYOUT) for start in (0, 4)],
)


async def test_selectors_are_asked_about_what_is_published(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node()
    async with an_operator(served):
        expression = f'device.attributes["gpu.nvidia.com"].uuid == "{a_gpu_uuid(node, 1)}"'
        key = await lab.policy("p", deviceSelectors=[{"cel": {"expression": expression}}])
        await lab.says(key, "Matches nothing: of 2 GPUs on the nodes it selects, 2 that cannot be checked now.")
        pool = a_slice(node, ["gpu-0", "gpu-1"], name=node)
        devices = as_json(pool.spec)["devices"]
        for minor, device in enumerate(devices):
            device["attributes"]["uuid"] = {"string": a_gpu_uuid(node, minor)}
        await lab.client.create(
            SLICES, {"metadata": {"name": node}, "spec": {**as_json(pool.spec), "devices": devices}}
        )
        await lab.wanted(node, gpu1="p")
    await lab.client.delete(SLICES, ObjectKey("", node))


async def test_what_others_write_into_the_spec_does_not_stay(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node()
    by_hand = [
        {"uuid": a_gpu_uuid(node, 0), "policy": "by-hand", "mode": "Static", "profiles": ["1g.10gb"]},
        {"uuid": "GPU-of-nobody", "policy": "by-hand", "mode": "Disabled"},
    ]
    await lab.client.patch(GPU_NODES, ObjectKey("", node), {"spec": {"gpus": by_hand}})
    async with an_operator(served):
        await lab.policy("p")
        for wanted in await lab.wanted(node, gpu0="p", gpu1="p"):
            assert (wanted.mode, wanted.profiles) == ("Dynamic", [])
        await lab.client.patch(GPU_NODES, ObjectKey("", node), {"spec": {"gpus": by_hand}})
        await lab.wanted(node, gpu0="p", gpu1="p")


async def test_a_node_that_loses_its_label_is_let_go(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node()
    async with an_operator(served):
        key = await lab.policy("p")
        await lab.wanted(node, gpu0="p", gpu1="p")
        await lab.client.patch(NODES, ObjectKey("", node), {"metadata": {"labels": {"lab": None}}})
        assert await lab.wanted(node) == []
        await lab.says(key, "Matches nothing: spec.nodeSelector selects none of")


async def test_a_node_without_gpunode_gets_none(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node()
    async with an_operator(served):
        key = await lab.policy("p")
        await lab.wanted(node, gpu0="p", gpu1="p")
        await lab.client.delete(GPU_NODES, ObjectKey("", node))
        await lab.says(key, "Matches nothing")
    with pytest.raises(NotFound):
        await lab.gpu_node(node)


async def test_the_second_replica_goes_on_where_the_first_one_died(served: ControlPlane, lab: Lab) -> None:
    node = await lab.node()
    # A lease of the default length: a replica must survive a delay of a second or two on a busy machine.
    settings = settings_for_test(retry_period_s=0.2)
    async with an_operator(served, settings, dies_after_writes=1) as (_, first):
        key = await lab.policy("p")

        async def dead() -> bool:
            return first.done()

        await until(dead)
    await lab.client.delete(LEASES, ObjectKey(settings.namespace, settings.lease_name))  # as if it had expired
    async with an_operator(served, msgspec.structs.replace(settings, identity="second")):
        await lab.wanted(node, gpu0="p", gpu1="p")
        await lab.report(node, ON, ON)
        await lab.says(key, "2 GPUs set up as the policy asks.")  # the first one cannot have said this


async def test_a_replica_that_sees_an_old_state_writes_nothing(
    served: ControlPlane, lab: Lab, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await lab.node()
    key = await lab.policy("p")
    clock = SystemClock()
    view = ClusterView(client, None, clock=clock)
    decisions = MigDecisions(view)
    health = HealthDecisions(view)
    seen, policy = await lab.gpu_node(node), await client.get(MIG_POLICIES, key)
    view.gpu_nodes.store.put(seen)
    view.nodes.store.put(await client.get(NODES, ObjectKey("", node)))
    view.mig_policies.store.put(policy)
    await lab.report(node, ON, ON)
    await client.patch(MIG_POLICIES, key, {"spec": {"mode": "Disabled"}})
    with pytest.raises(Conflict):
        await GpuNodeReconciler(client, view, decisions, health, sharing=SharingDecisions(view)).reconcile(node)
    reconciler = MigPolicyReconciler(client, view, decisions, adviser=cast("RepairReconciler", Silent()))
    monkeypatch.setattr(view.mig_policies, "is_current", was_current_a_moment_ago)
    with pytest.raises(Conflict):
        await reconciler.reconcile(policy.metadata.uid)
    assert (await lab.gpu_node(node)).spec.gpus == []
    await client.delete(GPU_NODES, ObjectKey("", node))
    with suppress(Conflict):
        await GpuNodeReconciler(client, view, decisions, health, sharing=SharingDecisions(view)).reconcile(node)
    with pytest.raises(NotFound):
        await lab.gpu_node(node)


async def test_the_table_of_policies_reads_like_a_dashboard(served: ControlPlane, lab: Lab, client: Client) -> None:
    await lab.node(ON, ON)
    async with an_operator(served):
        key = await lab.policy("p", mode="Static", layouts=[HALVES], layout="halves")
        await lab.says(key, "2 of 2 GPUs not done yet")
        accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        url = f"{client.connection.server}{MIG_POLICIES.path(key)}"
        async with client.connection.lend_session() as session, session.get(url, headers=accept) as answer:
            table = await answer.json()
        columns = [each["name"] for each in table["columnDefinitions"]]
        assert columns == ["Name", "Mode", "Layout", "GPUs", "Applied", "Changing", "Failed", "Age", "Message"]
        shown = dict(zip(columns, table["rows"][0]["cells"], strict=True))
        assert [shown[name] for name in columns[1:7]] == ["Static", "halves", 2, 0, 2, 0]
        assert shown["Message"].startswith("2 of 2 GPUs not done yet: gpu-0 of ")
