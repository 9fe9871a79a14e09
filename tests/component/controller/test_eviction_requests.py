"""EvictionRequests on an API server of Kubernetes 1.37: Draco requests evictions, and leaves no request behind.

No controller of 1.37 acts on them; if a test needs one, it acts as such a controller.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from draco.controller.maintenance.eviction_requests import EvictionRequests
from draco.controller.view import ClusterView
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.discovery import discover_for_operator
from draco.kube.errors import ApiStatus, NotFound, from_status
from draco.maintenance.draining import drain
from draco.maintenance.draining.eviction_requests import REQUESTER, request_key
from draco.resources.api.evictions import EvictionRequest
from draco.resources.api.maintenance import MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_MAINTENANCES, EVENTS, EVICTION_REQUESTS, MAINTENANCE_BUDGETS, PODS
from draco_local.cluster.controlplane import ControlPlane
from tests.component.chart.rendering import render
from tests.component.controller.replicas import an_api_server_of, an_operator, until
from tests.component.controller.test_draining import DrainLab
from tests.component.controller.test_rights import SUBJECTS, USER
from tests.component.controller.test_rights import kind as rbac

pytestmark = [pytest.mark.usefixtures("crds"), pytest.mark.other_version]

VERSION = "1.37.2"
SERVED = ("--api-versions", "lifecycle.k8s.io/v1alpha1/EvictionRequest")
"""As on a cluster that serves them."""
DRACOS = {"app.kubernetes.io/managed-by": "draco.dev"}
SOON = timedelta(seconds=1)


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with an_api_server_of(VERSION, tmp_path_factory.mktemp("eviction-requests") / "state") as plane:
        yield plane


@pytest.fixture
def served(newest: ControlPlane) -> ControlPlane:
    """The server of `client`, `namespace` and `crds`."""
    return newest


class RequestLab(DrainLab):
    """A lab whose cluster may act on EvictionRequests."""

    async def eviction_requests(self) -> list[EvictionRequest]:
        return await self.client.list(EVICTION_REQUESTS, namespace=self.namespace)

    async def request_made(self) -> EvictionRequest:
        async def look() -> EvictionRequest | None:
            return next(iter(await self.eviction_requests()), None)

        return await until(look, what="an EvictionRequest")

    async def no_requests(self) -> None:
        async def look() -> bool:
            return not await self.eviction_requests()

        await until(look, what="the withdrawal of the EvictionRequest")

    async def take_on(self, request: EvictionRequest, *failed: str) -> None:
        """Act as the cluster's controller: take a request on, or give it up with a reason."""
        moment = "2026-01-01T00:00:00Z"
        conditions = [
            {"type": "Failed", "status": "True", "reason": each, "message": "", "lastTransitionTime": moment}
            for each in failed
        ]
        status = {"observedGeneration": request.metadata.generation, "conditions": conditions}
        await self.client.patch(EVICTION_REQUESTS, request.metadata.key, {"status": status}, subresource="status")


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[RequestLab]:
    features = await discover_for_operator(client)
    assert features.taint_rules is not None
    made = RequestLab(client, namespace, rules=features.taint_rules)
    await made.publish()
    await made.hold("claim", "gpu-3")
    yield made
    await made.clean()


def following(client: Client, view: ClusterView) -> EvictionRequests:
    """An operator's EvictionRequests, with no budget paused."""
    return EvictionRequests(client, EVICTION_REQUESTS, view, paused=lambda _: "", knows_what_is_paused=lambda: True)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the cluster a second to take a request on."""
    monkeypatch.setattr(drain, "TAKEN_ON_WITHIN", SOON)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give it so much time that no timeout takes effect."""
    monkeypatch.setattr(drain, "TAKEN_ON_WITHIN", timedelta(hours=1))
    monkeypatch.setattr(drain, "_ENTRUSTED_EVERY", timedelta(hours=1))


class Evictions:
    """Records the pods that the Eviction API was asked to evict."""

    def __init__(self) -> None:
        self.pods: list[str] = []

    async def __call__(self, method: str, path: str) -> None:
        if method == "POST" and path.endswith("/eviction"):
            self.pods.append(path.rsplit("/", 2)[1])


@pytest.mark.usefixtures("soon")
async def test_a_request_is_made_and_nobody_takes_it_on_so_the_pod_is_evicted(
    served: ControlPlane, lab: RequestLab
) -> None:
    """This is the case in Kubernetes 1.37, which has no controller for them."""
    uid = await lab.pod("web", "claim")
    evictions = Evictions()
    async with an_operator(served, before_requests=evictions):
        key = await lab.drain()
        request = await lab.request_made()
        assert request.spec.requester == REQUESTER
        assert request.spec.target.pod is not None
        assert (request.spec.target.pod.uid, request.spec.intent) == (uid, "Eviction")
        assert request.metadata.finalizers == []
        assert evictions.pods == []
        await lab.gone("web")
        await lab.no_requests()
        await lab.let_go(ObjectKey(lab.namespace, "claim"))
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
    assert evictions.pods == ["web"]
    said = {each.reason for each in await lab.client.list(EVENTS, namespace=lab.namespace)}
    assert {"PodEvictionRequested", "PodEvicted"} <= said


async def test_a_pod_that_the_cluster_makes_leave_is_not_evicted_and_what_holds_it_up_is_said(
    served: ControlPlane, lab: RequestLab
) -> None:
    await lab.pod("web", "claim")
    budget = await lab.budget("keep", "web", allows=0, healthy=2, wants=2)
    evictions = Evictions()
    async with an_operator(served, before_requests=evictions):
        key = await lab.drain()
        await lab.take_on(await lab.request_made())
        said = await lab.says(key, f"PodDisruptionBudget {budget} can never be met")
        assert said.status.phase is MaintenancePhase.DRAINING
        await lab.client.delete(PODS, ObjectKey(lab.namespace, "web"), grace_period_s=0)
        await lab.no_requests()
        await lab.let_go(ObjectKey(lab.namespace, "claim"))
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
    assert evictions.pods == []


async def test_a_pod_with_eviction_responders_of_its_own_is_left_to_them(served: ControlPlane, lab: RequestLab) -> None:
    await lab.pod("web", "claim", responders=["example.com/mover"])
    evictions = Evictions()
    async with an_operator(served, before_requests=evictions):
        key = await lab.drain()
        await lab.take_on(await lab.request_made())
        await lab.says(key, f"Waiting for eviction responder example.com/mover of pod {lab.namespace}/web")
    assert evictions.pods == []


@pytest.mark.usefixtures("late")
async def test_what_the_cluster_gives_up_is_evicted_at_once(served: ControlPlane, lab: RequestLab) -> None:
    await lab.pod("web", "claim")
    budget = await lab.budget("keep", "web", allows=0, healthy=2, wants=2)
    evictions = Evictions()
    async with an_operator(served, before_requests=evictions):
        key = await lab.drain()
        request = await lab.request_made()
        await lab.take_on(request)
        await lab.says(key, f"PodDisruptionBudget {budget} can never be met")
        assert evictions.pods == []
        await lab.take_on(request, "NoFurtherResponder")

        async def asked() -> bool:
            return evictions.pods == ["web"]

        await until(asked, what="what is asked of the Eviction API")


@pytest.mark.usefixtures("late")
async def test_a_tenant_that_withdraws_the_request_gains_nothing(served: ControlPlane, lab: RequestLab) -> None:
    await lab.pod("web", "claim")
    async with an_operator(served):
        await lab.drain()
        request = await lab.request_made()
        await lab.client.patch(EVICTION_REQUESTS, request.metadata.key, {"spec": {"intent": "Withdrawn"}})
        await lab.gone("web")
        await lab.no_requests()


@pytest.mark.usefixtures("soon")
async def test_a_tenant_that_takes_the_name_of_the_request_gains_nothing(served: ControlPlane, lab: RequestLab) -> None:
    uid = await lab.pod("web", "claim")
    taken = {
        "metadata": {"name": f"draco-{uid}", "namespace": lab.namespace},
        "spec": {"target": {"pod": {"name": "web", "uid": uid}}, "requester": "example.com/x", "intent": "Withdrawn"},
    }
    await lab.client.create(EVICTION_REQUESTS, taken)
    async with an_operator(served):
        await lab.drain()
        await lab.gone("web")
    assert [each.spec.requester for each in await lab.eviction_requests()] == ["example.com/x"]


async def test_a_replica_that_no_longer_leads_withdraws_nothing_that_is_wanted(
    served: ControlPlane, client: Client, lab: RequestLab
) -> None:
    """It knows the pod, but not the maintenance yet."""
    await lab.pod("web", "claim")
    async with an_operator(served):
        await lab.drain()
        request = await lab.request_made()
        await lab.take_on(request)
    clock = SystemClock()
    view = ClusterView(client, None, clock=clock)
    late = following(client, view)
    followed = (view.pods, view.claims, late.informer)
    tasks = [asyncio.create_task(each.run()) for each in followed]
    try:
        for each in followed:
            await each.synced.wait()
        await late.reconcile(request.metadata.key)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert [each.metadata.uid for each in await lab.eviction_requests()] == [request.metadata.uid]


async def test_a_request_that_was_withdrawn_counts_no_more_though_the_watch_has_not_told_of_it(
    client: Client, lab: RequestLab
) -> None:
    """Otherwise the pod would still count as requested, no new request would follow, and it would be evicted without one."""
    await lab.pod("web", "claim")
    clock = SystemClock()
    view = ClusterView(client, None, clock=clock)
    requests = following(client, view)
    followed = (view.pods, requests.informer)
    tasks = [asyncio.create_task(each.run()) for each in followed]
    try:
        for each in followed:
            await each.synced.wait()
        pod = await client.get(PODS, ObjectKey(lab.namespace, "web"))
        assert await requests.make(pod)

        async def followed_so_far() -> bool:
            return requests.informer.store.get(request_key(pod)) is not None and pod in view.pods.store.values()

        await until(followed_so_far, what="the request in the store")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await requests.reconcile(request_key(pod))  # no maintenance wants it
    await lab.no_requests()
    assert requests.of([pod]) == {}
    assert await requests.make(pod)
    assert set(requests.of([pod]) or ()) == {pod.metadata.uid}


async def test_two_maintenances_make_one_request_which_goes_with_the_second(
    served: ControlPlane, lab: RequestLab
) -> None:
    """The pod holds a device of each."""
    await lab.hold("two", "gpu-4", "gpu-5")
    await lab.pod("web", "two")
    async with an_operator(served):
        one, two = await lab.drain("one", device="gpu-4"), await lab.drain("two", device="gpu-5")
        request = await lab.request_made()
        await lab.take_on(request)
        for key in (one, two):
            await lab.phase(key, MaintenancePhase.DRAINING)
        await lab.client.patch(DEVICE_MAINTENANCES, one, {"spec": {"cancelled": True}})
        await lab.phase(one, MaintenancePhase.CANCELLED)
        await lab.says(two, "1 pod is leaving")
        assert [each.metadata.uid for each in await lab.eviction_requests()] == [request.metadata.uid]
        await lab.client.delete(DEVICE_MAINTENANCES, two)
        await lab.no_requests()
    assert await lab.exists("web")


async def test_a_maintenance_that_is_deleted_while_no_operator_runs_leaves_no_request(
    served: ControlPlane, lab: RequestLab
) -> None:
    await lab.pod("web", "claim")
    key = await lab.drain()
    async with an_operator(served):
        await lab.take_on(await lab.request_made())
    others = {
        "target": {"pod": {"name": "web", "uid": "00000000-0000-0000-0000-000000000001"}},
        "requester": "example.com/other",
        "intent": "Eviction",
    }
    await lab.client.create(
        EVICTION_REQUESTS, {"metadata": {"name": "other", "namespace": lab.namespace, "labels": DRACOS}, "spec": others}
    )
    await lab.client.delete(DEVICE_MAINTENANCES, key)
    async with an_operator(served):

        async def only_the_other() -> bool:
            return [each.metadata.name for each in await lab.eviction_requests()] == ["other"]

        await until(only_the_other, what="the withdrawal")
    assert await lab.exists("web")


async def test_a_new_leader_evicts_nobody_before_it_knows_what_the_cluster_was_asked_for(
    served: ControlPlane, lab: RequestLab
) -> None:
    await lab.pod("web", "claim")
    key = await lab.drain()
    async with an_operator(served):
        await lab.take_on(await lab.request_made())
    evictions, answers = Evictions(), [503, 503, 503]

    async def fail(method: str, path: str) -> None:
        await evictions(method, path)
        if method == "GET" and path.endswith("/evictionrequests") and answers:
            raise from_status(ApiStatus(code=answers.pop(), reason="Injected"))

    before = await lab.client.get(DEVICE_MAINTENANCES, key)
    async with an_operator(served, before_requests=fail):
        await lab.budget("keep", "web", allows=0, healthy=2, wants=2)

        async def looked_at_again() -> bool:
            return (await lab.client.get(DEVICE_MAINTENANCES, key)).status.message != before.status.message

        await until(looked_at_again, what="a look at the maintenance")
    assert (answers, evictions.pods) == ([], [])


async def test_a_pause_withdraws_the_request_and_its_end_makes_it_again(served: ControlPlane, lab: RequestLab) -> None:
    await lab.pod("web", "claim")
    budget = ObjectKey("", f"stop-{lab.namespace}")
    await lab.client.create(MAINTENANCE_BUDGETS, {"metadata": {"name": budget.name}, "spec": {"paused": False}})
    async with an_operator(served):
        await lab.drain()
        await lab.take_on(await lab.request_made())
        await lab.client.patch(MAINTENANCE_BUDGETS, budget, {"spec": {"paused": True}})
        await lab.no_requests()
        await lab.client.patch(MAINTENANCE_BUDGETS, budget, {"spec": {"paused": False}})
        await lab.request_made()
    assert await lab.exists("web")


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(("code", "reason"), [(404, "NotFound"), (403, "Forbidden"), (422, "Invalid")])
async def test_where_the_request_is_not_taken_the_pod_is_evicted(
    served: ControlPlane, lab: RequestLab, code: int, reason: str
) -> None:
    """The kind is no longer served, or a quota or webhook refuses it."""
    await lab.pod("web", "claim")

    async def refuse(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/evictionrequests"):
            raise from_status(ApiStatus(code=code, reason=reason))

    async with an_operator(served, before_requests=refuse):
        await lab.drain()
        await lab.gone("web")


async def test_an_api_server_that_has_too_much_to_do_is_asked_again(served: ControlPlane, lab: RequestLab) -> None:
    await lab.pod("web", "claim")
    answers = [503, 429, 500]
    evictions = Evictions()

    async def fail(method: str, path: str) -> None:
        await evictions(method, path)
        if method == "POST" and path.endswith("/evictionrequests") and answers:
            raise from_status(ApiStatus(code=answers.pop(), reason="Injected"))

    async with an_operator(served, before_requests=fail):
        await lab.drain()
        await lab.request_made()
    assert (answers, evictions.pods) == ([], [])


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("writes", range(1, 9))
async def test_an_operator_that_dies_after_any_write_leaves_one_request_and_then_none(
    served: ControlPlane, lab: RequestLab, writes: int
) -> None:
    await lab.pod("web", "claim")
    pod = await lab.client.get(PODS, ObjectKey(lab.namespace, "web"))
    key = await lab.drain()
    async with an_operator(served, dies_after_writes=writes) as (_, task):

        async def over() -> bool:
            return task.done() or not await lab.exists("web")

        await until(over, what="its death, or the eviction")
    assert {each.metadata.key for each in await lab.eviction_requests()} <= {request_key(pod)}
    async with an_operator(served):
        await lab.evicted("web")
        await lab.no_requests()
        await lab.let_go(ObjectKey(lab.namespace, "claim"))
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)


async def test_a_grace_period_of_the_maintenance_goes_by_the_eviction_api(
    served: ControlPlane, lab: RequestLab
) -> None:
    await lab.pod("web", "claim", grace_s=3600)
    async with an_operator(served):
        await lab.drain(gracePeriodSeconds=0)
        await lab.gone("web")
    assert await lab.eviction_requests() == []


@pytest.fixture
async def rights(client: Client, namespace: str) -> AsyncIterator[dict[str, Any]]:
    """The operator's ClusterRole as the chart makes it for this cluster, bound to a user."""
    documents = render(*SERVED)
    role = next(d for d in documents if d["kind"] == "ClusterRole" and d["metadata"]["name"] == "draco-operator")
    key = ObjectKey("", f"draco-{namespace}")
    await client.apply(rbac("ClusterRole", namespaced=False), key, {"rules": role["rules"]}, manager="tests")
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": key.name}
    binding = rbac("ClusterRoleBinding", namespaced=False)
    await client.apply(binding, key, {"roleRef": reference, "subjects": SUBJECTS}, manager="tests")
    yield role
    await client.delete(binding, key)
    await client.delete(rbac("ClusterRole", namespaced=False), key)


async def test_the_charts_role_is_what_requests_need(
    served: ControlPlane, client: Client, namespace: str, rights: dict[str, Any], tmp_path: Path
) -> None:
    """With all rights, requests are created; without any one of them they are not, and the operator evicts."""
    served.write_kubeconfig(tmp_path / "kubeconfig", USER)
    (rule,) = [each for each in rights["rules"] if "evictionrequests" in each["resources"]]

    async def takes_requests(verbs: list[str]) -> bool:
        rules = [{**each, "verbs": verbs} if each is rule else each for each in rights["rules"]]
        key = ObjectKey("", f"draco-{namespace}")
        await client.apply(rbac("ClusterRole", namespaced=False), key, {"rules": rules}, manager="tests")
        async with Client(await connect(tmp_path / "kubeconfig")) as user:

            async def settled() -> bool:
                found = (await discover_for_operator(user)).eviction_requests is not None
                return found is (verbs == rule["verbs"])

            await until(settled, what=f"what {verbs} permit", within_s=20)
        return bool(verbs == rule["verbs"])

    assert await takes_requests(rule["verbs"])
    for verb in rule["verbs"]:
        assert not await takes_requests([each for each in rule["verbs"] if each != verb])


def test_the_chart_grants_nothing_for_requests_where_the_cluster_takes_none_or_nobody_is_evicted() -> None:
    for arguments in ((), (*SERVED, "--set", "operator.evictPods=false")):
        assert "evictionrequests" not in str(render(*arguments))
    assert "evictionrequests" in str(render(*SERVED))


async def test_a_cluster_where_the_kind_is_gone_takes_no_requests(served: ControlPlane) -> None:
    async with Client(await connect(served.kubeconfig)) as client:
        assert (await discover_for_operator(client)).eviction_requests == EVICTION_REQUESTS
        request = client.connection.request

        async def gone(method: str, path: str, **rest: Any) -> bytes:
            if "/lifecycle.k8s.io/" in path:
                raise NotFound(404, "NotFound", "the server could not find the requested resource")
            return await request(method, path, **rest)

        client.connection.request = gone  # type: ignore[method-assign]
        assert (await discover_for_operator(client)).eviction_requests is None
