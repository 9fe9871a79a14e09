"""An operator that led, stalled and continues: the API server refuses its earlier decisions once another leads.

The operators run with the tokens of pods. Only the API server knows that the first one no longer leads: it still believes that
it does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.ownership.register import RegisterStore
from draco.controller.app import Operator
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.election import LeadershipLost
from draco.kube.errors import Invalid
from draco.resources.api.allocation import RegisteredLeader
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import ALLOCATION_REGISTERS, CLAIMS, LEASES, PODS
from draco.resources.names import OPERATOR_LEASE
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import (
    ALLOCATING,
    REGISTER,
    ChartParts,
    Guarded,
    end_lease,
    make_claim,
    until_allocated,
)
from tests.component.allocation.operator_pods import OperatorPod, operator_pod
from tests.component.allocation.preempting import of_priority, permit, priorities, staying
from tests.component.allocation.published import publishing
from tests.component.allocation.test_kills import Lab
from tests.component.allocation.test_race import no_device_in_two_claims
from tests.component.chart.rendering import NAMESPACE
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import make_pod
from tests.requests import RefusedError, call

__all__ = ["priorities"]

FIRST, SECOND = (msgspec.structs.replace(ALLOCATING, identity=each) for each in ("first", "second"))
NODE = "sim-1"
GPU = GpuPlace("gpu.nvidia.com", "node", "gpu-0")
LEASE = LEASES.path(ObjectKey(NAMESPACE, OPERATOR_LEASE))
NAMED = ALLOCATION_REGISTERS.path(REGISTER)
ALLOCATION = {"devices": {"results": [{"request": "gpu", "driver": GPU.driver, "pool": GPU.pool, "device": GPU.gpu}]}}
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/allocationregisters.draco.dev"
NOT_HANDED_OVER = "Draco allocates only GPUs that were handed over to it"
DOES_NOT_LEAD = "this operator does not lead: second allocates for Draco now"


class Standstill:
    """From the request that `begins` on, an operator's requests wait until they are released."""

    def __init__(self, begins: Callable[[str, str, set[str]], bool]) -> None:
        self._begins = begins
        self._seen: set[str] = set()
        self._go_on: list[Callable[[str, str], bool]] = []
        self._changed = asyncio.Condition()
        self.has_begun = asyncio.Event()
        self.looked = 0
        """How often it has read the Lease since then."""

    async def __call__(self, method: str, path: str) -> None:
        """Called before each request."""
        if not self.has_begun.is_set() and self._begins(method, path, self._seen):
            self.has_begun.set()
        self._seen.add(f"{method} {path}")
        if not self.has_begun.is_set():
            return
        async with self._changed:
            await self._changed.wait_for(lambda: any(each(method, path) for each in self._go_on))
        self.looked += (method, path) == ("GET", LEASE)

    async def let_go(self, which: Callable[[str, str], bool]) -> None:
        """Release these requests, too."""
        async with self._changed:
            self._go_on.append(which)
            self._changed.notify_all()


def is_allocation(method: str, path: str) -> bool:
    return method == "PATCH" and "/resourceclaims/" in path and path.endswith("/status")


def is_no_renewal(method: str, path: str) -> bool:
    return not (method == "PUT" and path == LEASE)


def is_any(_method: str, _path: str) -> bool:
    return True


@pytest.fixture
def pods(control_plane: ControlPlane, guarded: Guarded, tmp_path: Path) -> Iterator[dict[str, OperatorPod]]:
    """Two pods by name."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(operator_pod(control_plane, tmp_path, name)) for name in ("one", "two")}


@pytest.fixture
async def emptied(handed_over: Client, namespace: str) -> AsyncIterator[None]:
    """Empty the namespace, so that operators of other tests find nothing in it."""
    yield
    await Lab(handed_over, namespace).clear()


async def leader(client: Client) -> RegisteredLeader | None:
    return (await client.get(ALLOCATION_REGISTERS, REGISTER)).spec.leader


async def until_leads(client: Client, expected: RegisteredLeader) -> None:
    async def named() -> bool:
        return await leader(client) == expected

    await until(named, what=f"{expected} in the register")


def ending(**options: Any) -> dict[str, Any]:
    return {"ends": (LeadershipLost,), **options}


@pytest.mark.usefixtures("priorities", "emptied")
@pytest.mark.parametrize("is_in_pod", [True, False], ids=["in a pod", "in no pod"])
async def test_what_a_leader_had_begun_before_it_stood_still_is_refused_once_the_next_gives_out(
    guarded: Guarded,
    pods: dict[str, OperatorPod],
    handed_over: Client,
    namespace: str,
    is_in_pod: bool,
) -> None:
    """Both decide on the only GPU, for two claims. A second operator outside a pod may allocate, too."""

    def begins(method: str, path: str, _: object) -> bool:
        # It may first deallocate claims of other tests, for which a leader needs no entry.
        return is_allocation(method, path) and f"/namespaces/{namespace}/" in path

    standstill = Standstill(begins)
    async with (
        no_device_in_two_claims(handed_over),
        publishing(handed_over, [NODE], 1),
        an_operator(pods["one"], FIRST, **ending(before_requests=standstill)) as (first, _),
    ):
        await make_claim(handed_over, namespace, "of-the-first")
        await asyncio.wait_for(standstill.has_begun.wait(), 60)
        assert await leader(handed_over) == RegisteredLeader(identity="first", pod_uid=pods["one"].uid)
        await make_claim(handed_over, namespace, "of-the-second")
        await make_pod(handed_over, namespace, "pod", "of-the-second", **of_priority("high"))
        await end_lease(handed_over)
        async with an_operator(pods["two"] if is_in_pod else guarded, SECOND):
            await until_allocated(handed_over, namespace, "of-the-second")
            expected = RegisteredLeader(identity="second", pod_uid=pods["two"].uid if is_in_pod else "")
            assert await leader(handed_over) == expected
            await standstill.let_go(is_allocation)
            assert DOES_NOT_LEAD in await until_answered(handed_over, first, namespace)
            await standstill.let_go(is_no_renewal)
            await until_gives_out_nothing(first)
            assert await leader(handed_over) == expected
            await standstill.let_go(is_any)


@pytest.mark.usefixtures("priorities", "emptied")
@pytest.mark.parametrize("is_next_in_pod", [True, False], ids=["by one in a pod", "by one in no pod"])
async def test_a_leader_that_stood_still_before_it_evicted_pods_is_refused_once_it_is_followed(
    guarded: Guarded,
    pods: dict[str, OperatorPod],
    handed_over: Client,
    namespace: str,
    is_next_in_pod: bool,
) -> None:
    """Nothing waits for its victim's devices any more. The second one has allocated: API servers follow its entry."""

    def begins(method: str, path: str, seen: set[str]) -> bool:
        # The one before is a dry run.
        return path.endswith("/eviction") and f"{method} {path}" in seen

    standstill = Standstill(begins)
    await permit(handed_over)
    async with (
        publishing(handed_over, [NODE], 2),
        an_operator(pods["one"], FIRST, **ending(before_requests=standstill)) as (first, _),
    ):
        for name in ("in-the-way", "of-low"):
            await make_claim(handed_over, namespace, name)
            await until_allocated(handed_over, namespace, name)
        await make_pod(handed_over, namespace, "low", "of-low", **of_priority("low"))
        await make_claim(handed_over, namespace, "of-high")
        await make_pod(handed_over, namespace, "high", "of-high", **of_priority("high"))
        await asyncio.wait_for(standstill.has_begun.wait(), 60)
        await end_lease(handed_over)
        async with an_operator(pods["two"] if is_next_in_pod else guarded, SECOND):
            for kind, name in ((PODS, "high"), (CLAIMS, "of-high"), (CLAIMS, "in-the-way")):
                await handed_over.delete(kind, ObjectKey(namespace, name))
            await make_claim(handed_over, namespace, "next")
            await until_allocated(handed_over, namespace, "next")
            await standstill.let_go(lambda _, path: path.endswith("/eviction"))
            await until_refused(first)
            assert await staying(handed_over, namespace) == {"low"}
            await standstill.let_go(is_no_renewal)
            await until_gives_out_nothing(first)
            await standstill.let_go(is_any)


async def until_refused(operator: Operator) -> None:
    """Wait until an eviction of this operator is refused."""

    async def refused() -> bool:
        count = {"outcome": "refused"}
        return operator.metrics.registry.get_sample_value("draco_preemption_evictions_total", count) == 1

    await until(refused, what="the answer to the eviction")


async def until_answered(client: Client, operator: Operator, namespace: str) -> str:
    """Why the operator's allocation was refused; "made" if it was stored."""

    async def answered() -> str:
        claim = await client.get(CLAIMS, ObjectKey(namespace, "of-the-first"))
        refusals = [each for each in operator.report.troubles() if "does not let Draco allocate" in each]
        return "made" if claim.status.allocation else "; ".join(refusals)

    return await until(answered, what="an answer to the first one's allocation")


async def until_gives_out_nothing(operator: Operator) -> None:
    assert operator.reconcilers.allocation is not None
    handover = operator.reconcilers.allocation.handover

    async def nothing() -> bool:
        return not handover.owned

    await until(nothing, what="the first one stops giving out")


@pytest.mark.parametrize("at", ["the Lease", "the register"])
async def test_a_leader_that_stood_still_before_it_entered_itself_does_not_once_another_leads(
    pods: dict[str, OperatorPod], handed_over: Client, at: str
) -> None:
    """It had read the register, and was about to read the Lease or to write."""

    def begins(method: str, path: str, seen: set[str]) -> bool:
        at_lease = f"GET {NAMED}" in seen and (method, path) == ("GET", LEASE)
        return at_lease if at == "the Lease" else (method, path) == ("PATCH", NAMED)

    standstill = Standstill(begins)
    async with (
        publishing(handed_over, [NODE], 1),
        an_operator(pods["one"], FIRST, **ending(before_requests=standstill)) as (first, _),
    ):
        await asyncio.wait_for(standstill.has_begun.wait(), 60)
        await end_lease(handed_over)
        async with an_operator(pods["two"], SECOND):
            entered = RegisteredLeader(identity="second", pod_uid=pods["two"].uid)
            await until_leads(handed_over, entered)
            await standstill.let_go(is_no_renewal)

            async def has_looked_twice() -> bool:
                return standstill.looked > 1

            await until(has_looked_twice, what="the first one looks at the Lease")
            assert await leader(handed_over) == entered
            await until_gives_out_nothing(first)
            await standstill.let_go(is_any)


class Writers:
    """Clients with the right to allocate, by pod; "" is outside any pod."""

    def __init__(self, clients: dict[str, Client], key: ObjectKey) -> None:
        self.clients = clients
        self._key = key

    async def who_may(self) -> set[str]:
        """The clients whose allocation the API server accepts. Each deallocates again.

        None until the API server has seen in the register that the GPU was handed over.
        """
        found: set[str] = set()
        for name, client in self.clients.items():
            try:
                await self._write(client, ALLOCATION)
            except Invalid as error:
                if NOT_HANDED_OVER in str(error):
                    return set()
                assert "this operator does not lead: " in str(error)  # noqa: PT017 - one of several answers
                continue
            found.add(name)
            await self._write(client, None)
        return found

    async def take_back(self, allocated_by: str) -> None:
        """Check that each client may deallocate what this one allocates."""
        for each in self.clients.values():
            await self._write(self.clients[allocated_by], ALLOCATION)
            await self._write(each, None)

    async def _write(self, client: Client, allocation: object) -> None:
        await client.patch(CLAIMS, self._key, {"status": {"allocation": allocation}}, subresource="status")


@pytest.fixture
async def writers(
    guarded: Guarded, pods: dict[str, OperatorPod], client: Client, namespace: str
) -> AsyncIterator[Writers]:
    await make_claim(client, namespace, "claim")
    async with AsyncExitStack() as stack:
        places = {**pods, "": guarded}
        clients = {
            name: Client(await stack.enter_async_context(await connect(each.kubeconfig)))
            for name, each in places.items()
        }
        yield Writers(clients, ObjectKey(namespace, "claim"))


async def test_only_the_pod_that_the_register_names_may_allocate_or_those_in_none_where_it_names_none(
    pods: dict[str, OperatorPod], writers: Writers
) -> None:
    """A token bound to no pod may not allocate while a pod leads. While an operator outside a pod leads, no pod may.

    All may deallocate.
    """
    store = RegisterStore(writers.clients[""])
    register = await store.make()
    for named, expected in (
        (None, {"one", "two", ""}),
        (RegisteredLeader(identity="a", pod_uid=pods["one"].uid), {"one"}),
        (RegisteredLeader(identity="b", pod_uid=pods["two"].uid), {"two"}),
        (RegisteredLeader(identity="c"), {""}),
    ):
        register = await store.write(register, [GPU], named)
        assert register.leader == named

        async def as_expected(expected: set[str] = expected) -> bool:
            return await writers.who_may() == expected

        await until(as_expected, within_s=30, what=f"the API server goes by {named}")
        for name in expected:
            await writers.take_back(name)


async def until_goes_by(plane: ControlPlane, definition: dict[str, Any], *, keeps_leader: bool) -> None:
    """Apply this definition and wait until the API server reads registers by it."""
    call(plane, "PATCH", f"{CRD}?fieldManager=tests&force=true", definition)
    register: dict[str, Any] = {"apiVersion": ALLOCATION_REGISTERS.api_version, "kind": ALLOCATION_REGISTERS.kind}
    register |= {"metadata": {"name": REGISTER.name}, "spec": {"leader": {"identity": "probe"}}}

    async def as_expected() -> bool:
        try:
            made = call(plane, "POST", f"{ALLOCATION_REGISTERS.path()}?dryRun=All", register)
        except RefusedError:  # API servers that had the chart's policies enforce them for another second.
            return False
        return ("leader" in made["spec"]) == keeps_leader

    await until(as_expected, what=f"registers that {'keep' if keeps_leader else 'lose'} their leader")


@pytest.fixture
async def without_leader(control_plane: ControlPlane, crds: None, chart_parts: ChartParts) -> AsyncIterator[None]:
    """An older version's CustomResourceDefinition. It is applied while the chart's policies, which depend on it, are absent."""
    chart_parts.uninstall()
    definition = call(control_plane, "GET", CRD)
    plain = {"apiVersion": "apiextensions.k8s.io/v1", "kind": definition["kind"], "spec": definition["spec"]}
    plain["metadata"] = {"name": definition["metadata"]["name"]}
    older = msgspec.json.decode(msgspec.json.encode(plain))
    del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["leader"]
    try:
        await until_goes_by(control_plane, older, keeps_leader=False)
        yield
    finally:
        chart_parts.uninstall()
        await until_goes_by(control_plane, plain, keeps_leader=True)


@pytest.mark.usefixtures("without_leader", "emptied")
async def test_without_the_leader_in_the_definition_draco_allocates_and_says_what_is_missing(
    pods: dict[str, OperatorPod], handed_over: Client, namespace: str
) -> None:
    """An older definition with this version's chart.

    The definition comes first: an API server that already reads the register for the chart's policies refuses claims for a second
    while the definition changes.
    """
    async with publishing(handed_over, [NODE], 1), an_operator(pods["one"], FIRST) as (operator, _):
        await make_claim(handed_over, namespace, "claim")
        await until_allocated(handed_over, namespace, "claim")
        assert await leader(handed_over) is None
        assert any("does not record the leader" in each for each in operator.report.troubles())
