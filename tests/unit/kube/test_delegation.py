"""Who may read metrics: what the API server is asked, what is cached, and how many questions strangers may cause."""

import asyncio
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.endpoints import Refusal
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.delegation import DelegatedAccess, ReviewLimits
from draco.kube.errors import ApiError, ApiStatus, Unreachable, from_status
from tests.doubles.clock import ManualClock

LIMITS = ReviewLimits()


class Reviews(Connection):
    """An API server that knows these users' tokens; the users in `may` may get /metrics."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.known = {"t-prometheus": "prometheus", "t-somebody": "somebody"}
        self.may = {"prometheus"}
        self.asked: list[dict[str, Any]] = []
        self.fails: ApiError | None = None
        self.held = asyncio.Event()
        self.held.set()

    async def request(self, method: str, path: str, *, body: bytes | None = None, **_: Any) -> bytes:
        assert (method, body is not None) == ("POST", True)
        spec = msgspec.json.decode(body or b"")["spec"]
        self.asked.append(spec)
        await self.held.wait()
        if self.fails:
            raise self.fails
        if path == "/apis/authentication.k8s.io/v1/tokenreviews":
            user = self.known.get(spec["token"])
            found = {"username": user, "uid": "u-1", "groups": ["system:authenticated"], "extra": {"pod": ["p"]}}
            return msgspec.json.encode({"status": {"authenticated": True, "user": found} if user else {}})
        assert path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return msgspec.json.encode({"status": {"allowed": spec["user"] in self.may}})


class Lab:
    def __init__(self) -> None:
        self.server, self.clock = Reviews(), ManualClock()
        self.access = DelegatedAccess(Client(self.server), self.clock, LIMITS)

    async def ask(self, token: str = "t-prometheus", address: str = "10.0.0.1") -> Refusal | None:
        return await self.access(authorization=f"Bearer {token}", address=address, verb="get", path="/metrics")

    async def status(self, token: str = "t-prometheus", address: str = "10.0.0.1") -> int:
        refusal = await self.ask(token, address)
        return refusal.status if refusal else 200


@pytest.fixture
def lab() -> Lab:
    return Lab()


async def test_who_may_is_answered_and_all_that_is_known_of_the_user_decides(lab: Lab) -> None:
    assert await lab.ask() is None
    token, access = lab.server.asked
    assert token == {"token": "t-prometheus"}
    assert access == {
        "user": "prometheus",
        "uid": "u-1",
        "groups": ["system:authenticated"],
        "extra": {"pod": ["p"]},
        "nonResourceAttributes": {"verb": "get", "path": "/metrics"},
    }


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic dXNlcg==", "t-prometheus"])
async def test_who_shows_no_token_is_told_to_and_the_api_server_is_not_asked(lab: Lab, authorization: str) -> None:
    refusal = await lab.access(authorization=authorization, address="10.0.0.1", verb="get", path="/metrics")
    assert refusal is not None
    assert (refusal.status, "send a bearer token" in refusal.sentence) == (401, True)
    assert lab.server.asked == []


async def test_a_token_that_nobody_knows_is_unauthorized_and_a_user_without_the_right_forbidden(lab: Lab) -> None:
    unknown, forbidden = await lab.ask("t-nobody"), await lab.ask("t-somebody")
    assert unknown is not None
    assert forbidden is not None
    assert (unknown.status, forbidden.status) == (401, 403)
    assert forbidden.sentence.startswith("somebody may not get /metrics: bind it to a role with nonResourceURLs")


async def test_an_answer_holds_for_a_while_and_not_longer(lab: Lab) -> None:
    assert [await lab.status() for _ in range(100)] == [200] * 100
    assert len(lab.server.asked) == 2
    lab.server.may.clear()
    await lab.clock.advance(LIMITS.allowed_s - 1)
    assert await lab.status() == 200
    await lab.clock.advance(1)
    assert await lab.status() == 403
    lab.server.may.add("prometheus")
    await lab.clock.advance(LIMITS.refused_s - 1)
    assert await lab.status() == 403
    await lab.clock.advance(1)
    assert await lab.status() == 200


async def test_an_answer_for_one_token_is_none_for_another(lab: Lab) -> None:
    assert await lab.status() == 200
    assert await lab.status("t-prometheu") == 401
    assert await lab.status("t-prometheus2") == 401


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Unreachable("no answer"), 503),
        (from_status(ApiStatus(code=500, reason="InternalError")), 503),
        (from_status(ApiStatus(code=429, reason="TooManyRequests")), 503),
        (from_status(ApiStatus(code=403, reason="Forbidden")), 500),
    ],
)
async def test_what_the_api_server_does_not_answer_lets_nobody_in_and_is_not_remembered(
    lab: Lab, fault: ApiError, status: int
) -> None:
    lab.server.fails = fault
    with capture_logs() as logs:
        assert [await lab.status() for _ in range(3)] == [status] * 3
    assert [each["event"] for each in logs] == ["metrics.unauthorized"], "it is said once, not for each scrape"
    lab.server.fails = None
    assert await lab.status() == 200


async def test_one_address_has_few_unknown_tokens_looked_up(lab: Lab) -> None:
    answers = [await lab.status(f"guess-{number}") for number in range(1000)]
    assert answers == [401] * LIMITS.burst + [429] * (1000 - LIMITS.burst)
    assert len(lab.server.asked) == LIMITS.burst
    await lab.clock.advance(LIMITS.every_s)
    assert [await lab.status(f"again-{number}") for number in range(2)] == [401, 429]
    assert await lab.status(address="10.0.0.2") == 200, "others are not kept out"


async def test_very_many_addresses_do_not_flood_the_api_server_or_keep_out_who_was_let_in_before(lab: Lab) -> None:
    assert await lab.status(address="10.0.0.1") == 200
    await lab.clock.advance(LIMITS.allowed_s)
    lab.server.asked.clear()
    answers = [await lab.status(f"guess-{number}", f"10.1.{number // 250}.{number % 250}") for number in range(1000)]
    assert len(lab.server.asked) == answers.count(401) == LIMITS.most_burst
    assert await lab.status(address="10.0.0.1") == 200


async def test_only_so_many_are_asked_about_at_once(lab: Lab) -> None:
    lab.server.held.clear()
    asking = [asyncio.create_task(lab.status(f"guess-{number}", f"10.2.0.{number}")) for number in range(15)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(lab.server.asked) == LIMITS.at_once
    lab.server.held.set()
    assert sorted(await asyncio.gather(*asking)) == [401] * LIMITS.at_once + [429] * (15 - LIMITS.at_once)
    assert await lab.status("t-somebody", "10.3.0.1") == 403, "their places are free again"


async def test_unknown_tokens_push_nobody_out_of_what_is_remembered(lab: Lab) -> None:
    assert await lab.status() == 200
    for number in range(2 * LIMITS.remembered):
        await lab.clock.advance(0.1)
        await lab.status(f"guess-{number}", f"10.1.{number // 250}.{number % 250}")
    lab.server.asked.clear()
    assert await lab.status() == 200
    assert lab.server.asked == []
