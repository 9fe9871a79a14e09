"""Evictions from devices under maintenance, on a real API server, which enforces PodDisruptionBudgets."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_MAINTENANCES, EVENTS, POD_DISRUPTION_BUDGETS, PODS, Kind
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_maintenance import Lab

pytestmark = pytest.mark.usefixtures("crds")

RAW_PODS: Kind[Any] = Kind("", "v1", "pods", "Pod", True, dict)
RAW_BUDGETS: Kind[Any] = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, dict)


class DrainLab(Lab):
    """A lab with pods that hold devices; tests act as kubelet and kube-controller-manager."""

    async def pod(
        self, name: str, claim: str, *, grace_s: int = 0, responders: Sequence[str] = (), **metadata: Any
    ) -> str:
        """A running pod that holds the claim. Returns its UID."""
        spec: dict[str, Any] = {
            "nodeName": self.pool,
            "terminationGracePeriodSeconds": grace_s,
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        }
        if responders:
            spec["evictionResponders"] = [{"name": each, "priority": 10000} for each in responders]
        key = ObjectKey(self.namespace, name)
        labels = {"app": name, **metadata.pop("labels", {})}
        body = {"metadata": {"name": name, "namespace": self.namespace, "labels": labels, **metadata}, "spec": spec}
        made = await self.client.create(PODS, body)
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.client.patch(PODS, key, {"status": ready}, subresource="status")
        held = await self.client.get(CLAIMS, ObjectKey(self.namespace, claim))
        users = [{"resource": "pods", "name": each.name, "uid": each.uid} for each in held.status.reserved_for]
        users.append({"resource": "pods", "name": name, "uid": made.metadata.uid})
        await self.client.patch(CLAIMS, held.metadata.key, {"status": {"reservedFor": users}}, subresource="status")
        return made.metadata.uid

    async def budget(self, name: str, app: str, *, allows: int, healthy: int = 1, wants: int = 1) -> ObjectKey:
        key = ObjectKey(self.namespace, name)
        spec = {"minAvailable": wants, "selector": {"matchLabels": {"app": app}}}
        made = await self.client.create(
            RAW_BUDGETS, {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec}
        )
        await self.allow(key, allows, healthy=healthy, wants=wants, generation=made["metadata"]["generation"])
        return key

    async def allow(self, key: ObjectKey, allows: int, *, healthy: int, wants: int, generation: int = 1) -> None:
        status = {
            "observedGeneration": generation,
            "disruptionsAllowed": allows,
            "currentHealthy": healthy,
            "desiredHealthy": wants,
            "expectedPods": healthy,
        }
        await self.client.patch(POD_DISRUPTION_BUDGETS, key, {"status": status}, subresource="status")

    async def let_go(self, key: ObjectKey) -> None:
        """Deallocate a claim as kube-controller-manager does once its pods are gone."""
        released = {"status": {"allocation": None, "reservedFor": None}}
        await self.client.patch(CLAIMS, key, released, subresource="status")

    async def drain(self, name: str = "swap-fan", *, device: str = "gpu-3", **drain: Any) -> ObjectKey:
        key = ObjectKey("", f"{name}-{self.pool}")
        selector = {"driver": self.driver, "pool": self.pool, "device": device}
        spec = {"deviceSelector": selector, "drain": {"policy": "Evict", **drain}}
        await self.client.create(DEVICE_MAINTENANCES, {"metadata": {"name": key.name}, "spec": spec})
        self.requests.append(key.name)
        return key

    async def exists(self, pod: str) -> bool:
        try:
            await self.client.get(PODS, ObjectKey(self.namespace, pod))
        except NotFound:
            return False
        return True

    async def gone(self, *pods: str) -> None:
        async def look() -> bool:
            return not any([await self.exists(pod) for pod in pods])

        await until(look, what=f"the eviction of {', '.join(pods)}")

    async def evicted(self, name: str) -> None:
        """Wait until the pod is evicted, and end it as kubelet does.

        If the client dies during an eviction, the API server may leave the pod to kubelet even without a grace period.
        """

        async def look() -> bool:
            try:
                found = await self.client.get(PODS, ObjectKey(self.namespace, name))
                if found.metadata.deletion_timestamp is not None:
                    await self.client.delete(PODS, found.metadata.key, uid=found.metadata.uid, grace_period_s=0)
            except NotFound:
                return True
            return False

        await until(look, what=f"the eviction of {name}")

    async def says(self, key: ObjectKey, *texts: str) -> DeviceMaintenance:
        async def look() -> DeviceMaintenance | None:
            found = await self.client.get(DEVICE_MAINTENANCES, key)
            return found if all(text in found.status.message for text in texts) else None

        try:
            return await until(look, what=f"{key} says {texts}", within_s=30)
        except AssertionError as error:
            found = await self.client.get(DEVICE_MAINTENANCES, key)
            raise AssertionError(f"it says {found.status.phase}: {found.status.message}") from error


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[DrainLab]:
    made = DrainLab(client, namespace)
    await made.publish()
    yield made
    await made.clean()


async def test_only_the_pods_that_hold_the_device_are_evicted_each_once(served: ControlPlane, lab: DrainLab) -> None:
    await lab.hold("shared", "gpu-3")
    await lab.hold("other", "gpu-4")
    for pod in ("one", "two"):
        await lab.pod(pod, "shared")
    bystander = await lab.pod("bystander", "other")
    posts: list[str] = []

    async def count(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/eviction"):
            posts.append(path.rsplit("/", 2)[1])

    async with an_operator(served, before_requests=count):
        key = await lab.drain()
        await lab.gone("one", "two")
        assert (await lab.client.get(DEVICE_MAINTENANCES, key)).status.draining_at is not None
        await lab.let_go(ObjectKey(lab.namespace, "shared"))
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
    assert sorted(posts) == ["one", "two"]
    assert (await lab.client.get(PODS, ObjectKey(lab.namespace, "bystander"))).metadata.uid == bystander
    said = {
        each.involved_object.name: each.message
        for each in await lab.client.list(EVENTS, namespace=lab.namespace)
        if each.involved_object and each.reason == "PodEvicted"
    }
    assert said.keys() == {"one", "two"}
    assert said["one"] == f"Evicted, because it holds gpu-3 of {lab.pool}, in maintenance for {key.name}."


async def test_a_budget_is_heeded_and_named_until_it_allows_the_eviction(served: ControlPlane, lab: DrainLab) -> None:
    await lab.hold("claim", "gpu-3")
    await lab.pod("web", "claim")
    budget = await lab.budget("keep", "web", allows=0, healthy=2, wants=2)
    async with an_operator(served):
        key = await lab.drain()
        said = await lab.says(key, f"PodDisruptionBudget {budget} can never be met")
        assert said.status.phase is MaintenancePhase.DRAINING
        assert await lab.exists("web")
        await lab.allow(budget, 1, healthy=3, wants=2)
        await lab.gone("web")


async def test_two_budgets_for_one_pod_are_both_named(served: ControlPlane, lab: DrainLab) -> None:
    """The API server answers such an eviction with 500."""
    await lab.hold("claim", "gpu-3")
    await lab.pod("web", "claim")
    for name in ("one", "two"):
        await lab.budget(name, "web", allows=1, healthy=2)
    async with an_operator(served):
        key = await lab.drain()
        await lab.says(key, f"{lab.namespace}/one, {lab.namespace}/two cover it")
        assert await lab.exists("web")


async def test_a_pod_that_a_finalizer_keeps_is_asked_once_and_the_grace_is_the_requests(
    served: ControlPlane, lab: DrainLab
) -> None:
    await lab.hold("claim", "gpu-3")
    await lab.pod("kept", "claim", grace_s=3600, finalizers=["example.com/never"])
    pod = ObjectKey(lab.namespace, "kept")
    async with an_operator(served):
        key = await lab.drain(gracePeriodSeconds=7)

        async def is_ending() -> bool:
            return (await lab.client.get(PODS, pod)).metadata.deletion_timestamp is not None

        await until(is_ending, what="the eviction")
        assert (await lab.client.get(PODS, pod)).metadata.deletion_grace_period_seconds == 7
        await lab.says(key, "1 pod is leaving")
    await lab.client.patch(PODS, pod, {"metadata": {"finalizers": None}})
    await lab.client.delete(PODS, pod, grace_period_s=0)


async def test_a_pod_of_the_same_name_that_came_since_is_not_touched(served: ControlPlane, lab: DrainLab) -> None:
    """It was created while the other one's eviction was under way."""
    await lab.hold("claim", "gpu-3")
    await lab.hold("other", "gpu-4")
    await lab.pod("web", "claim")
    replaced: list[str] = []

    async def replace(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/web/eviction") and not replaced:
            await lab.client.delete(PODS, ObjectKey(lab.namespace, "web"), grace_period_s=0)
            replaced.append(await lab.pod("web", "other"))

    async with an_operator(served, before_requests=replace):
        key = await lab.drain()
        await lab.says(key, f"claim {lab.namespace}/claim is reserved for a pod that is gone")
        await lab.client.patch(
            CLAIMS, ObjectKey(lab.namespace, "claim"), {"status": {"reservedFor": None}}, subresource="status"
        )
        await lab.says(key, "no pod uses it", f"kubectl delete resourceclaim -n {lab.namespace} claim")
    found = await lab.client.get(PODS, ObjectKey(lab.namespace, "web"))
    assert [found.metadata.uid] == replaced
    assert found.metadata.deletion_timestamp is None


async def test_a_pod_that_two_requests_want_gone_is_evicted_and_both_go_on(served: ControlPlane, lab: DrainLab) -> None:
    await lab.hold("claim", "gpu-3")
    await lab.pod("web", "claim")
    async with an_operator(served):
        keys = [await lab.drain(name) for name in ("one", "two")]
        await lab.gone("web")
        await lab.let_go(ObjectKey(lab.namespace, "claim"))

        async def settled() -> bool:
            phases = {(await lab.client.get(DEVICE_MAINTENANCES, key)).status.phase for key in keys}
            return MaintenancePhase.IN_MAINTENANCE in phases and MaintenancePhase.DRAINING not in phases

        await until(settled, what="one in maintenance, the other after it")


@pytest.mark.parametrize("writes", range(1, 7))
async def test_an_operator_that_dies_after_any_write_leaves_a_drain_that_goes_on(
    served: ControlPlane, lab: DrainLab, writes: int
) -> None:
    await lab.hold("claim", "gpu-3")
    await lab.pod("web", "claim")
    key = await lab.drain()
    async with an_operator(served, dies_after_writes=writes) as (_, task):

        async def over() -> bool:
            return task.done() or not await lab.exists("web")

        await until(over, what="its death, or the eviction")
    async with an_operator(served):
        await lab.evicted("web")
        await lab.let_go(ObjectKey(lab.namespace, "claim"))
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
