"""Leader election on a real API server: who leads, when it changes hands, and that two never lead at once."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from draco.kube.client import Client
from draco.kube.clock import SystemClock
from draco.kube.election import LeaderElection, LeadershipLost, LeaseTerms
from draco.resources.kinds import LEASES
from draco.resources.leases import Lease
from draco.resources.meta import ObjectKey
from tests.component.kube.support import eventually
from tests.doubles.faultproxy import FaultProxy, answer, delay, writes

TERMS = LeaseTerms(duration_s=2, renew_deadline_s=1.2, retry_s=0.2)


class Body:
    """A leading body. Notes when it led, and leads until told otherwise."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.ended: float | None = None
        self.end = asyncio.Event()
        self.error: Exception | None = None
        self.last_words_s = 0.0

    async def __call__(self) -> None:
        self.began = time.monotonic()
        try:
            await self.end.wait()
            if self.error:
                raise self.error
        except asyncio.CancelledError:
            await asyncio.sleep(self.last_words_s)
            raise
        finally:
            self.ended = time.monotonic()

    @property
    def leads(self) -> bool:
        return self.began is not None and self.ended is None


@pytest.fixture
def key(namespace: str) -> ObjectKey:
    return ObjectKey(namespace, "leader")


def a_candidate(client: Client, key: ObjectKey, identity: str, terms: LeaseTerms = TERMS) -> LeaderElection:
    return LeaderElection(client, key, identity=identity, clock=SystemClock(), random=Random(identity), terms=terms)


@asynccontextmanager
async def running(awaitable: Awaitable[None]) -> AsyncIterator["asyncio.Future[None]"]:
    task = asyncio.ensure_future(awaitable)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def read(client: Client, key: ObjectKey) -> Lease:
    return await client.get(LEASES, key)


async def test_the_first_leads_and_the_lease_says_so(client: Client, key: ObjectKey) -> None:
    body = Body()
    one = a_candidate(client, key, "one")
    async with running(one.run(body)):
        await eventually(lambda: body.leads, "one leads")
        first = await read(client, key)
        assert first.spec.holder_identity == "one"
        assert first.spec.lease_duration_seconds == 2
        assert first.spec.lease_transitions == 0
        await eventually(lambda: one.since_renewal_s > 0.1, "time passes")
        await eventually(lambda: one.since_renewal_s < 0.1, "it is renewed")
        later = await read(client, key)
        assert later.spec.renew_time != first.spec.renew_time
        assert later.spec.acquire_time == first.spec.acquire_time
        assert one.leading


async def test_while_one_leads_another_waits(client: Client, key: ObjectKey) -> None:
    first, second = Body(), Body()
    async with running(a_candidate(client, key, "one").run(first)):
        await eventually(lambda: first.leads, "one leads")
        two = a_candidate(client, key, "two")
        async with running(two.run(second)):
            await asyncio.sleep(TERMS.duration_s * 1.5)  # nothing to wait for: the point is that nothing happens
            assert second.began is None
            assert two.holder == "one"
            assert not two.leading


async def test_a_killed_leader_is_replaced_when_its_lease_has_run_out(
    client: Client, through: Client, proxy: FaultProxy, key: ObjectKey
) -> None:
    first, second = Body(), Body()
    async with running(a_candidate(through, key, "one").run(first)) as killed:
        await eventually(lambda: first.leads, "one leads")
        async with running(a_candidate(client, key, "two").run(second)):
            await asyncio.sleep(TERMS.retry_s * 3)
            await proxy.refuse()  # a killed process releases nothing
            died = time.monotonic()
            killed.cancel()
            await eventually(lambda: second.leads, "two leads")
            assert second.began is not None
            # since the last renewal, which was at most one retry before; the candidate looks once per retry
            assert TERMS.duration_s - 2 * TERMS.retry_s <= second.began - died <= TERMS.duration_s + 3 * TERMS.retry_s
            lease = await read(client, key)
            assert lease.spec.holder_identity == "two"
            assert lease.spec.lease_transitions == 1


async def cable_out(proxy: FaultProxy, stack: list[Callable[[], Awaitable[None]]]) -> None:
    unplugged = proxy.unplugged()
    await unplugged.__aenter__()

    async def plug_in() -> None:
        await unplugged.__aexit__(None, None, None)

    stack.append(plug_in)


async def port_closed(proxy: FaultProxy, stack: list[Callable[[], Awaitable[None]]]) -> None:
    await proxy.refuse()


async def writes_fail(proxy: FaultProxy, stack: list[Callable[[], Awaitable[None]]]) -> None:
    proxy.fault(writes, answer(500, "InternalError"), times=1000)


@pytest.mark.parametrize("cut", [cable_out, port_closed, writes_fail])
async def test_a_leader_cut_off_from_the_server_ends_before_another_leads(
    client: Client,
    through: Client,
    proxy: FaultProxy,
    key: ObjectKey,
    cut: Callable[[FaultProxy, list[Callable[[], Awaitable[None]]]], Awaitable[None]],
) -> None:
    first, second = Body(), Body()
    stack: list[Callable[[], Awaitable[None]]] = []
    async with running(a_candidate(through, key, "one").run(first)) as leader:
        await eventually(lambda: first.leads, "one leads")
        async with running(a_candidate(client, key, "two").run(second)):
            await asyncio.sleep(TERMS.retry_s * 3)
            await cut(proxy, stack)
            with pytest.raises(LeadershipLost, match="could not renew"):
                await asyncio.wait_for(leader, 10)
            assert second.began is None
            assert first.ended is not None
            await eventually(lambda: second.leads, "two leads")
            assert second.began is not None
            assert first.ended < second.began
            for undo in stack:
                await undo()


async def test_a_body_that_will_not_end_does_not_hold_up_the_news(
    through: Client, proxy: FaultProxy, key: ObjectKey
) -> None:
    body = Body()
    body.last_words_s = 60
    async with running(a_candidate(through, key, "one").run(body)) as leader:
        await eventually(lambda: body.leads, "one leads")
        began = time.monotonic()
        await proxy.refuse()
        with pytest.raises(LeadershipLost):
            await asyncio.wait_for(leader, 10)
        assert time.monotonic() - began < TERMS.duration_s + 1


async def test_a_short_outage_costs_nobody_the_lead(through: Client, proxy: FaultProxy, key: ObjectKey) -> None:
    body = Body()
    one = a_candidate(through, key, "one")
    async with running(one.run(body)):
        await eventually(lambda: body.leads, "one leads")
        proxy.fault(writes, answer(500, "InternalError"), times=2)
        proxy.fault(writes, answer(429, "TooManyRequests"), times=1)
        await eventually(lambda: proxy.count(lambda _: True) > 8, "it goes on renewing")
        assert body.leads
        await eventually(lambda: one.since_renewal_s < TERMS.retry_s, "it is renewed again")


@pytest.mark.parametrize("error", [None, RuntimeError("body")])
async def test_the_end_of_the_body_releases_the_lease_at_once(
    client: Client, key: ObjectKey, error: Exception | None
) -> None:
    first, second = Body(), Body()
    first.error = error
    async with running(a_candidate(client, key, "one").run(first)) as leader:
        await eventually(lambda: first.leads, "one leads")
        async with running(a_candidate(client, key, "two").run(second)):
            first.end.set()
            [outcome] = await asyncio.gather(leader, return_exceptions=True)
            assert outcome is error
            ended = time.monotonic()
            await eventually(lambda: second.leads, "two leads")
            assert time.monotonic() - ended < TERMS.duration_s / 2, "it did not wait for the lease to run out"


async def test_a_stopped_leader_keeps_the_lease_until_its_body_has_ended_and_then_releases_it(
    client: Client, key: ObjectKey
) -> None:
    first, second = Body(), Body()
    first.last_words_s = TERMS.duration_s * 1.2
    async with running(a_candidate(client, key, "one").run(first)) as leader:
        await eventually(lambda: first.leads, "one leads")
        async with running(a_candidate(client, key, "two").run(second)):
            leader.cancel()
            await asyncio.gather(leader, return_exceptions=True)
            assert leader.cancelled()
            assert second.began is None
            await eventually(lambda: second.leads, "two leads")
            assert first.ended is not None
            assert second.began is not None
            assert 0 < second.began - first.ended < TERMS.duration_s / 2


async def test_a_leader_whose_lease_another_took_ends_at_once(client: Client, key: ObjectKey) -> None:
    body = Body()
    async with running(a_candidate(client, key, "one").run(body)) as leader:
        await eventually(lambda: body.leads, "one leads")
        await client.patch(LEASES, key, {"spec": {"holderIdentity": "usurper"}})
        with pytest.raises(LeadershipLost, match="usurper holds the lease"):
            await asyncio.wait_for(leader, 5)
    assert body.ended is not None
    assert (await read(client, key)).spec.holder_identity == "usurper", "nothing is released that is not ours"


async def test_a_note_on_the_lease_and_its_deletion_cost_nobody_the_lead(client: Client, key: ObjectKey) -> None:
    body = Body()
    one = a_candidate(client, key, "one")
    async with running(one.run(body)):
        await eventually(lambda: body.leads, "one leads")
        await client.patch(LEASES, key, {"metadata": {"annotations": {"note": "looked at"}}})
        await eventually(lambda: one.since_renewal_s < 0.05, "it is renewed")
        await client.delete(LEASES, key)
        uid = ""
        deadline = time.monotonic() + 5
        while not uid and time.monotonic() < deadline:
            leases = await client.list(LEASES, namespace=key.namespace)
            uid = next((lease.metadata.uid for lease in leases if lease.spec.holder_identity == "one"), "")
        assert uid
        assert body.leads


async def test_the_lease_is_counted_from_the_sending_of_its_renewal(
    through: Client, proxy: FaultProxy, key: ObjectKey
) -> None:
    proxy.fault(writes, delay(0.3))
    body = Body()
    one = a_candidate(through, key, "one")
    async with running(one.run(body)):
        await eventually(lambda: body.leads, "one leads")
        assert one.since_renewal_s >= 0.3


async def test_a_write_whose_answer_was_lost_is_recognised_as_ones_own(
    through: Client, proxy: FaultProxy, key: ObjectKey
) -> None:
    proxy.fault(writes, proxy.lose_the_answer)
    body = Body()
    began = time.monotonic()
    async with running(a_candidate(through, key, "one").run(body)):
        await eventually(lambda: body.leads, "one leads")
        assert time.monotonic() - began < TERMS.duration_s


async def test_of_many_candidates_exactly_one_leads_at_any_time(client: Client, key: ObjectKey) -> None:
    leading = 0
    most = 0
    turns: list[str] = []

    def a_body(identity: str) -> Callable[[], Awaitable[None]]:
        async def body() -> None:
            nonlocal leading, most
            leading += 1
            most = max(most, leading)
            turns.append(identity)
            try:
                await asyncio.sleep(0.05)
            finally:
                leading -= 1

        return body

    async with asyncio.timeout(60):
        await asyncio.gather(
            *(a_candidate(client, key, f"candidate-{n}").run(a_body(f"candidate-{n}")) for n in range(5))
        )
    assert most == 1
    assert len(turns) == len(set(turns)) == 5


def test_terms_that_leave_no_margin_are_refused() -> None:
    with pytest.raises(ValueError, match="renew deadline"):
        LeaseTerms(duration_s=10, renew_deadline_s=10, retry_s=2)
