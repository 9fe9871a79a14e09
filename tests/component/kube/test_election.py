"""Leader election on a real API server: who leads, when it changes hands, and that two never lead at once.

Time passes by the test's clock and stands still during requests, so the server's speed does not matter.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from draco.kube.connect.client import Client
from draco.kube.election import LeaderElection, LeadershipLost, LeaseTerms
from draco.resources.api.core import Lease
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import LEASES
from tests.doubles.clock import ManualClock
from tests.doubles.faultproxy import FaultProxy, answer, writes

TERMS = LeaseTerms(duration_s=6, renew_deadline_s=4.5, retry_s=0.5)
STEP_S = 0.1


class Time(ManualClock):
    """A clock that runs within `eventually`, except while a candidate waits for the server."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def eventually(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"not within a minute: {what}"
            await self.pass_on(STEP_S)

    async def pass_on(self, seconds: float) -> None:
        """Let this many seconds pass, whenever no candidate waits for the server."""
        end = self.monotonic() + seconds
        while self.monotonic() < end - STEP_S / 10:
            if not self.asked:
                await self.advance(STEP_S)
            await asyncio.sleep(0.002)

    async def ended(self, task: "asyncio.Future[None]") -> None:
        """Let time pass until the task is done, no faster than real time during requests. Then await it."""
        deadline = time.monotonic() + 60
        while not task.done():
            assert time.monotonic() < deadline, "it does not end"
            if self.asked:
                await asyncio.sleep(STEP_S)
            await self.advance(STEP_S)
            await asyncio.wait({task}, timeout=0.002)
        await task


class Counted(Client):
    """A candidate's client: time stands still during its requests."""

    def __init__(self, client: Client, clock: Time) -> None:
        self.__dict__.update(client.__dict__)
        self._clock = clock

    async def get(self, *arguments: Any, **options: Any) -> Any:
        return await self._counted(super().get(*arguments, **options))

    async def create(self, *arguments: Any, **options: Any) -> Any:
        return await self._counted(super().create(*arguments, **options))

    async def replace(self, *arguments: Any, **options: Any) -> Any:
        return await self._counted(super().replace(*arguments, **options))

    async def _counted(self, answer: Awaitable[Any]) -> Any:
        self._clock.asked += 1
        try:
            return await answer
        finally:
            self._clock.asked -= 1


class Body:
    """The work of a leader: records when it led, and leads until told to end."""

    def __init__(self, clock: Time) -> None:
        self.clock = clock
        self.began: float | None = None
        self.ended: float | None = None
        self.end = asyncio.Event()
        self.error: Exception | None = None
        self.last_words_s = 0.0

    async def __call__(self) -> None:
        self.began = self.clock.monotonic()
        try:
            await self.end.wait()
            if self.error:
                raise self.error
        except asyncio.CancelledError:
            await self.clock.sleep(self.last_words_s)
            raise
        finally:
            self.ended = self.clock.monotonic()

    @property
    def leads(self) -> bool:
        return self.began is not None and self.ended is None


@pytest.fixture
def key(namespace: str) -> ObjectKey:
    return ObjectKey(namespace, "leader")


@pytest.fixture
def clock() -> Time:
    return Time()


def a_candidate(client: Client, key: ObjectKey, identity: str, clock: Time, **rest: Any) -> LeaderElection:
    return LeaderElection(Counted(client, clock), key, identity=identity, clock=clock, terms=TERMS, **rest)


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


async def test_the_first_leads_and_the_lease_says_so(client: Client, key: ObjectKey, clock: Time) -> None:
    body = Body(clock)
    one = a_candidate(client, key, "one", clock)
    async with running(one.run(body)):
        await clock.eventually(lambda: body.leads, "one leads")
        first = await read(client, key)
        assert first.spec.holder_identity == "one"
        assert first.spec.lease_duration_seconds == 6
        assert first.spec.lease_transitions == 0
        await clock.pass_on(TERMS.retry_s)
        await clock.eventually(lambda: one.since_renewal_s < TERMS.retry_s, "it is renewed")
        later = await read(client, key)
        assert later.spec.renew_time != first.spec.renew_time
        assert later.spec.acquire_time == first.spec.acquire_time
        assert one.leading


async def test_the_lease_has_the_leaders_notes_beside_those_of_others(
    client: Client, key: ObjectKey, clock: Time
) -> None:
    body, notes = Body(clock), {"a": "one", "b": ""}
    candidate = a_candidate(client, key, "one", clock, notes=lambda: notes)

    async def annotations() -> dict[str, str]:
        return (await read(client, key)).metadata.annotations

    async with running(candidate.run(body)):
        await clock.eventually(lambda: body.leads, "one leads")
        assert await annotations() == {"a": "one"}
        await client.patch(LEASES, key, {"metadata": {"annotations": {"c": "somebody's"}}})
        notes.update({"a": "", "b": "two"})
        await clock.pass_on(TERMS.retry_s)
        await clock.eventually(lambda: candidate.since_renewal_s < TERMS.retry_s, "it is renewed")
        assert await annotations() == {"b": "two", "c": "somebody's"}


async def test_while_one_leads_another_waits(client: Client, key: ObjectKey, clock: Time) -> None:
    first, second = Body(clock), Body(clock)
    async with running(a_candidate(client, key, "one", clock).run(first)):
        await clock.eventually(lambda: first.leads, "one leads")
        two = a_candidate(client, key, "two", clock)
        async with running(two.run(second)):
            await clock.pass_on(TERMS.duration_s * 1.5)  # nothing to wait for: nothing must happen
            assert second.began is None
            assert two.holder == "one"
            assert not two.leading


async def test_a_killed_leader_is_replaced_when_its_lease_has_run_out(
    client: Client, through: Client, proxy: FaultProxy, key: ObjectKey, clock: Time
) -> None:
    first, second = Body(clock), Body(clock)
    async with running(a_candidate(through, key, "one", clock).run(first)) as killed:
        await clock.eventually(lambda: first.leads, "one leads")
        async with running(a_candidate(client, key, "two", clock).run(second)):
            await clock.pass_on(TERMS.retry_s * 3)
            await proxy.refuse()  # a killed process releases nothing
            died = clock.monotonic()
            killed.cancel()
            await clock.eventually(lambda: second.leads, "two leads")
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
    clock: Time,
    cut: Callable[[FaultProxy, list[Callable[[], Awaitable[None]]]], Awaitable[None]],
) -> None:
    first, second = Body(clock), Body(clock)
    stack: list[Callable[[], Awaitable[None]]] = []
    async with running(a_candidate(through, key, "one", clock).run(first)) as leader:
        await clock.eventually(lambda: first.leads, "one leads")
        async with running(a_candidate(client, key, "two", clock).run(second)):
            await clock.pass_on(TERMS.retry_s * 3)
            await cut(proxy, stack)
            with pytest.raises(LeadershipLost, match="could not renew"):
                await clock.ended(leader)
            assert second.began is None
            assert first.ended is not None
            await clock.eventually(lambda: second.leads, "two leads")
            assert second.began is not None
            assert first.ended < second.began
            for undo in stack:
                await undo()


async def test_a_body_that_will_not_end_does_not_hold_up_the_news(
    through: Client, proxy: FaultProxy, key: ObjectKey, clock: Time
) -> None:
    body = Body(clock)
    body.last_words_s = 3600
    async with running(a_candidate(through, key, "one", clock).run(body)) as leader:
        await clock.eventually(lambda: body.leads, "one leads")
        await proxy.refuse()
        with capture_logs() as logs, pytest.raises(LeadershipLost):
            await clock.ended(leader)
    [waited_s] = [each["after_s"] for each in logs if each["event"] == "election.body_did_not_end"]
    assert waited_s <= TERMS.duration_s - TERMS.renew_deadline_s, "until nobody else can lead"


async def test_a_short_outage_costs_nobody_the_lead(
    through: Client, proxy: FaultProxy, key: ObjectKey, clock: Time
) -> None:
    body = Body(clock)
    one = a_candidate(through, key, "one", clock)
    async with running(one.run(body)):
        await clock.eventually(lambda: body.leads, "one leads")
        proxy.fault(writes, answer(500, "InternalError"), times=2)
        proxy.fault(writes, answer(429, "TooManyRequests"), times=1)
        await clock.eventually(lambda: proxy.count(lambda _: True) > 8, "it goes on renewing")
        assert body.leads
        await clock.eventually(lambda: one.since_renewal_s < TERMS.retry_s, "it is renewed again")


@pytest.mark.parametrize("error", [None, RuntimeError("body")])
async def test_the_end_of_the_body_releases_the_lease_at_once(
    client: Client, key: ObjectKey, clock: Time, error: Exception | None
) -> None:
    first, second = Body(clock), Body(clock)
    first.error = error
    async with running(a_candidate(client, key, "one", clock).run(first)) as leader:
        await clock.eventually(lambda: first.leads, "one leads")
        async with running(a_candidate(client, key, "two", clock).run(second)):
            first.end.set()
            [outcome] = await asyncio.gather(leader, return_exceptions=True)
            assert outcome is error
            ended = clock.monotonic()
            await clock.eventually(lambda: second.leads, "two leads")
            assert clock.monotonic() - ended < TERMS.duration_s / 2, "it did not wait for the lease to run out"


async def test_a_stopped_leader_keeps_the_lease_until_its_body_has_ended_and_then_releases_it(
    client: Client, key: ObjectKey, clock: Time
) -> None:
    first, second = Body(clock), Body(clock)
    first.last_words_s = TERMS.duration_s * 1.2
    async with running(a_candidate(client, key, "one", clock).run(first)) as leader:
        await clock.eventually(lambda: first.leads, "one leads")
        async with running(a_candidate(client, key, "two", clock).run(second)):
            leader.cancel()
            await clock.eventually(leader.done, "it ends")
            assert leader.cancelled()
            await clock.eventually(lambda: second.leads, "two leads")
            assert first.ended is not None
            assert second.began is not None
            assert 0 <= second.began - first.ended < TERMS.duration_s / 2, "not before, and not when the lease runs out"


async def test_a_lease_that_was_written_since_it_was_last_read_is_released(
    client: Client, key: ObjectKey, clock: Time
) -> None:
    body = Body(clock)
    async with running(a_candidate(client, key, "one", clock).run(body)) as leader:
        await clock.eventually(lambda: body.leads, "one leads")
        await client.patch(LEASES, key, {"metadata": {"annotations": {"note": "looked at"}}})
        body.end.set()
        await clock.ended(leader)
    assert not (await read(client, key)).spec.holder_identity


async def test_a_leader_whose_lease_another_took_ends_at_once(client: Client, key: ObjectKey, clock: Time) -> None:
    body = Body(clock)
    async with running(a_candidate(client, key, "one", clock).run(body)) as leader:
        await clock.eventually(lambda: body.leads, "one leads")
        await client.patch(LEASES, key, {"spec": {"holderIdentity": "usurper"}})
        with pytest.raises(LeadershipLost, match="usurper holds the lease"):
            await clock.ended(leader)
    assert body.ended is not None
    assert (await read(client, key)).spec.holder_identity == "usurper", "nothing is released that is not ours"


async def test_a_note_on_the_lease_and_its_deletion_cost_nobody_the_lead(
    client: Client, key: ObjectKey, clock: Time
) -> None:
    body = Body(clock)
    one = a_candidate(client, key, "one", clock)
    async with running(one.run(body)):
        await clock.eventually(lambda: body.leads, "one leads")
        await client.patch(LEASES, key, {"metadata": {"annotations": {"note": "looked at"}}})
        await clock.pass_on(TERMS.retry_s)
        await clock.eventually(lambda: one.since_renewal_s < TERMS.retry_s, "it is renewed")
        await client.delete(LEASES, key)
        await clock.pass_on(TERMS.renew_deadline_s)
        assert (await read(client, key)).spec.holder_identity == "one"
        assert body.leads


async def test_the_lease_is_counted_from_the_sending_of_its_renewal(
    through: Client, proxy: FaultProxy, key: ObjectKey, clock: Time
) -> None:
    async def after_a_while(_: web.Request) -> None:
        clock.pass_without_a_turn(0.3)

    proxy.fault(writes, after_a_while)
    body = Body(clock)
    one = a_candidate(through, key, "one", clock)
    async with running(one.run(body)):
        await clock.eventually(lambda: body.leads, "one leads")
        assert one.since_renewal_s >= 0.3 - 1e-9


async def test_a_write_whose_answer_was_lost_is_recognised_as_ones_own(
    through: Client, proxy: FaultProxy, key: ObjectKey, clock: Time
) -> None:
    proxy.fault(writes, proxy.lose_the_answer)
    body = Body(clock)
    async with running(a_candidate(through, key, "one", clock).run(body)):
        await clock.eventually(lambda: body.leads, "one leads")
        assert clock.monotonic() < TERMS.duration_s


async def test_of_many_candidates_exactly_one_leads_at_any_time(client: Client, key: ObjectKey, clock: Time) -> None:
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
                await clock.sleep(0.05)
            finally:
                leading -= 1

        return body

    names = [f"candidate-{number}" for number in range(5)]
    all_of_them = asyncio.gather(*(a_candidate(client, key, name, clock).run(a_body(name)) for name in names))
    await clock.eventually(all_of_them.done, "each has led")
    await all_of_them
    assert most == 1
    assert len(turns) == len(set(turns)) == 5


def test_terms_that_leave_no_margin_are_refused() -> None:
    with pytest.raises(ValueError, match="renew deadline"):
        LeaseTerms(duration_s=10, renew_deadline_s=10, retry_s=2)
