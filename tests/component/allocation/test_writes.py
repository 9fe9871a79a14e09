"""Allocations written to a real API server whose answers are lost, late or refusals: none is made twice or forgotten."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from draco.controller.allocation.writing.writes import FINALIZER, AllocationWrites
from draco.controller.view import ClusterView
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import ApiStatus, Unreachable, from_status
from draco.kube.events.events import EventRecorder
from draco.resources.api.claims import AllocationResult, DeviceAllocationResult, ResourceClaim
from draco.resources.api.claims import DeviceRequestAllocationResult as Result
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco_local.cluster.controlplane import ControlPlane

LOST, NOT_SENT = "lost", "not sent"


class TroubledConnection(Connection):
    """A connection on which patches fail in turn: with a code, LOST (written, no answer), NOT_SENT, or "" (no failure)."""

    def __init__(self, real: Connection) -> None:
        self.__dict__.update(real.__dict__)
        self.troubles: list[int | str] = []

    async def request(self, method: str, path: str, **rest: Any) -> bytes:
        trouble = self.troubles.pop(0) if method == "PATCH" and self.troubles else ""
        if isinstance(trouble, int):
            raise from_status(ApiStatus(code=trouble, reason="Injected"))
        if trouble == NOT_SENT:
            raise Unreachable("no connection")
        answer = await super().request(method, path, **rest)
        if trouble == LOST:
            raise Unreachable("the answer was lost")
        return answer


class Lab:
    def __init__(self, client: Client, connection: TroubledConnection, namespace: str) -> None:
        self.client, self.connection, self.namespace = client, connection, namespace
        self.count = Counter("allocated", "", registry=CollectorRegistry())
        writer, self.clock = Client(connection), SystemClock()
        events = EventRecorder(writer, controller="tests", instance="tests", clock=self.clock)
        self.view = ClusterView(writer, None, clock=self.clock)
        self.writes = AllocationWrites(writer, self.view, events, count=self.count)

    async def claim(self) -> ResourceClaim:
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.draco.dev"}}
        meta = {"name": "claim", "namespace": self.namespace}
        return await self.client.create(CLAIMS, {"metadata": meta, "spec": {"devices": {"requests": [request]}}})

    async def write(self, claim: ResourceClaim, *troubles: int | str) -> None:
        self.connection.troubles = list(troubles)
        await self.writes.write(claim, a_result("gpu-0"))

    async def stored(self) -> ResourceClaim:
        return await self.client.get(CLAIMS, ObjectKey(self.namespace, "claim"))

    @property
    def waits(self) -> bool:
        """Whether a write is to be retried."""
        return self.next_s < float("inf")

    @property
    def next_s(self) -> float:
        """Seconds until the next retry."""
        return self.writes.next_s(self.clock.monotonic())

    @property
    def counted(self) -> float:
        return next(each.value for metric in self.count.collect() for each in metric.samples if "total" in each.name)


def a_result(device: str) -> AllocationResult:
    found = Result(request="gpu", driver="gpu.nvidia.com", pool="node", device=device)
    return AllocationResult(devices=DeviceAllocationResult(results=[found]))


@pytest.fixture
async def lab(api_server: ControlPlane, client: Client, namespace: str) -> AsyncIterator[Lab]:
    async with await connect(api_server.kubeconfig) as connection:
        yield Lab(client, TroubledConnection(connection), namespace)


async def test_a_claim_gets_the_finalizer_and_the_allocation(lab: Lab) -> None:
    claim = await lab.claim()
    await lab.write(claim)
    stored = await lab.stored()
    assert (stored.metadata.finalizers, stored.results) == ([FINALIZER], a_result("gpu-0").devices.results)
    assert stored.status.allocation is not None
    assert stored.status.allocation.allocation_timestamp is not None
    assert [each.results for each in lab.writes.claims] == [stored.results]  # the watch has not delivered it yet
    assert (lab.waits, lab.counted) == (False, 1)


@pytest.mark.parametrize("trouble", [NOT_SENT, LOST, 500, 503, 429])
async def test_an_allocation_that_is_not_answered_stays_taken_and_is_made_once(lab: Lab, trouble: int | str) -> None:
    claim = await lab.claim()
    await lab.write(claim, "", trouble)
    assert claim.metadata.key in lab.writes
    assert (lab.waits, lab.counted) == (True, 0)
    await lab.writes.again(claim.metadata.key)
    assert (await lab.stored()).results == a_result("gpu-0").devices.results
    assert claim.metadata.key in lab.writes
    assert (lab.waits, lab.counted) == (False, 1)


async def test_a_finalizer_that_was_not_answered_and_is_there_is_met_by_a_fresh_look(lab: Lab) -> None:
    """Nothing was allocated, so no device stays reserved: the claim is allocated anew in its current version."""
    await lab.write(await lab.claim(), LOST)
    await lab.writes.again(ObjectKey(lab.namespace, "claim"))
    assert ObjectKey(lab.namespace, "claim") not in lab.writes
    await lab.write(await lab.stored())
    assert (await lab.stored()).results == a_result("gpu-0").devices.results


async def test_what_somebody_else_made_of_the_claim_meanwhile_is_left_alone(lab: Lab) -> None:
    claim = await lab.claim()
    await lab.write(claim, "", NOT_SENT)
    other = msgspec.to_builtins(a_result("gpu-7"))
    await lab.client.patch(CLAIMS, claim.metadata.key, {"status": {"allocation": other}}, subresource="status")
    await lab.writes.again(claim.metadata.key)
    assert claim.metadata.key not in lab.writes
    assert (await lab.stored()).results == a_result("gpu-7").devices.results
    assert lab.counted == 0


async def test_a_claim_that_is_deleted_meanwhile_is_forgotten(lab: Lab) -> None:
    claim = await lab.claim()
    await lab.write(claim, NOT_SENT)
    await lab.client.delete(CLAIMS, claim.metadata.key)
    await lab.writes.again(claim.metadata.key)
    assert claim.metadata.key not in lab.writes


async def test_a_finalizer_that_was_written_ahead_is_not_written_again(lab: Lab) -> None:
    claim = await lab.claim()
    await lab.writes.protect(claim)
    protected = await lab.stored()
    assert protected.metadata.finalizers == [FINALIZER]
    await lab.write(claim, "", 500)  # a second patch would get this
    assert (lab.waits, lab.counted) == (False, 1)
    assert (await lab.stored()).results == a_result("gpu-0").devices.results
    for delivered in (claim, protected):  # the current version is still on its way
        lab.view.claims.store.put(delivered)
        lab.writes.settle()
        assert claim.metadata.key in lab.writes
    lab.view.claims.store.put(await lab.stored())
    lab.writes.settle()
    assert claim.metadata.key not in lab.writes


@pytest.mark.parametrize("trouble", [LOST, NOT_SENT, 500, 403])
async def test_a_finalizer_that_could_not_be_written_ahead_comes_with_the_allocation(
    lab: Lab, trouble: int | str
) -> None:
    claim = await lab.claim()
    lab.connection.troubles = [trouble]
    await lab.writes.protect(claim)
    await lab.write(claim)
    if trouble == LOST:  # the write was made after all, so the known version is outdated, as the next attempt finds
        assert (claim.metadata.key in lab.writes, lab.counted) == (False, 0)
        await lab.write(await lab.stored())
    stored = await lab.stored()
    assert (stored.metadata.finalizers, stored.results) == ([FINALIZER], a_result("gpu-0").devices.results)


@pytest.mark.parametrize("code", [403, 422])
async def test_after_a_refusal_the_claim_is_left_alone_for_a_while_longer_each_time_and_no_other(
    lab: Lab, code: int
) -> None:
    claim, key = await lab.claim(), ObjectKey(lab.namespace, "claim")
    lab.view.claims.store.put(claim)
    await lab.write(claim, "", code)
    assert (key in lab.writes, lab.writes.is_refused(key)) == (False, True)
    assert f"does not let Draco allocate claim {key}: " in lab.writes.trouble
    refused = lab.writes._refused.by_key
    ((one, pause),) = refused.items()
    other = one._replace(key=ObjectKey("", ""))
    refused[other] = pause._replace(until_s=0)
    assert f"does not let Draco allocate claims {key} and 1 more: " in lab.writes.trouble
    del refused[other]
    first_s = lab.next_s
    refused[one] = refused[one]._replace(until_s=0)  # the backoff is over
    await lab.write(claim, code)
    assert first_s < lab.next_s < 2 * first_s + 1
    assert not lab.writes.is_refused(ObjectKey(lab.namespace, "other"))
    lab.writes.settle()
    assert lab.writes.trouble
    await lab.write(await lab.stored())
    assert (lab.writes.trouble, lab.writes.is_refused(key)) == ("", False)


async def test_what_was_refused_is_forgotten_with_its_claim(lab: Lab) -> None:
    claim = await lab.claim()
    lab.view.claims.store.put(claim)
    await lab.write(claim, "", 403)
    assert lab.writes.trouble
    lab.view.claims.store.remove(claim.metadata.key)
    lab.writes.settle()
    assert (lab.writes.trouble, lab.waits) == ("", False)


async def test_a_refusal_after_a_write_that_was_not_answered_does_not_free_its_devices(lab: Lab) -> None:
    """The first request may still be carried out."""
    claim = await lab.claim()
    await lab.write(claim, "", NOT_SENT)
    lab.connection.troubles = [403]
    await lab.writes.again(claim.metadata.key)
    assert claim.metadata.key in lab.writes
    assert lab.waits


async def test_a_conflict_is_no_allocation(lab: Lab) -> None:
    claim = await lab.claim()
    await lab.client.patch(CLAIMS, claim.metadata.key, {"metadata": {"labels": {"a": "b"}}})
    await lab.write(claim)
    assert claim.metadata.key not in lab.writes
    assert ((await lab.stored()).status.allocation, lab.writes.trouble) == (None, "")
