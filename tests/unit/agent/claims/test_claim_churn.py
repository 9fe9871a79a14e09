"""However many claims come and go while an agent runs, it keeps nothing of those that have gone."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from draco.agent.claims.leftover_claims import LeftoverClaims
from draco.agent.claims.work import ClaimWork
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim, PreparedDevice
from draco.agent.report.claim_status import ClaimReporter
from draco.agent.state.node import NodeState
from draco.kube.connect.client import Client
from draco.kube.errors import Invalid, NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.names import NVIDIA_DRIVER, ClaimUid, GpuUuid
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.builders import a_claim
from tests.doubles.clock import ManualClock
from tests.doubles.reached import grown, reached_from
from tests.unit.agent.mig_node import MigNode, build

WARM, CLAIMS, ON_DISK = 20, 10_000, 60


def claim_of(number: int, device: str = "gpu-0") -> ResourceClaim:
    found: ResourceClaim = a_claim(f"claim-{number}", on=[f"node-0/{device}"])
    return found


def prepared(number: int) -> PreparedClaim:
    device = PreparedDevice(request="gpu", pool="node-0", device="gpu-0", gpu=GpuUuid("GPU-0"), minor=0)
    return PreparedClaim(
        uid=ClaimUid(claim_of(number).metadata.uid),
        namespace="default",
        name=f"claim-{number}",
        state=PreparationState.PREPARED,
        devices=[device],
    )


def churned(root: object, one: Callable[[int], None], claims: int) -> dict[str, int]:
    """What the root holds more of after this many claims have come and gone."""
    for number in range(WARM):
        one(number)
    before = reached_from(root, but=(SimulatedNvml,))
    for number in range(WARM, WARM + claims):
        one(number)
    return grown(before, reached_from(root, but=(SimulatedNvml,)), by=10)


async def settled() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


class Server:
    """An API server that knows the claims in `there`, and refuses each report."""

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal
        self.there: dict[str, Any] = {}

    async def get(self, _: object, key: ObjectKey) -> Any:
        if key.name not in self.there:
            raise NotFound(404, "NotFound", "gone")
        return self.there[key.name]

    async def apply(self, *_: object, **__: object) -> Any:
        raise Invalid(422, "Invalid", self.refusal)


SPACED = "status.allocation: Invalid value: {}: field is immutable"


@pytest.mark.parametrize(
    ("refusal", "goes_first", "claims"),
    [(SPACED, "record", CLAIMS), (SPACED, "claim", 500), ("no", "record", 500), ("no", "claim", 500)],
)
async def test_of_reports_that_were_refused_nothing_is_left_with_the_claims(
    refusal: str, goes_first: str, claims: int
) -> None:
    server, clock = Server(refusal), ManualClock()
    on_record: dict[ClaimUid, PreparedClaim] = {}
    reporter = ClaimReporter(
        cast("Client", server),
        driver=NVIDIA_DRIVER,
        pool="node-0",
        claims=lambda: on_record,
        health=list,
        usage=dict,
        clock=clock,
    )

    async def churn(numbers: range) -> None:
        for number in numbers:
            claim = prepared(number)
            on_record[claim.uid] = claim
            server.there = {claim.name: claim_of(number)}
            reporter.touch(claim)
            await settled()
            if goes_first == "claim":
                server.there.clear()
            on_record.clear()
            reporter.touch(claim)
            await settled()
            server.there.clear()
            if number % 500 == 0:
                await clock.advance(120)
        await clock.advance(120)

    with capture_logs() as logs:
        running = asyncio.create_task(reporter.run())
        await churn(range(WARM))
        before = reached_from(reporter)
        await churn(range(WARM, WARM + claims))
        assert grown(before, reached_from(reporter), by=10) == {}
        assert sum(each["event"] == "claim.status_refused" for each in logs) >= claims // 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_of_claims_that_are_gone_and_cannot_be_given_up_nothing_is_left_with_them() -> None:
    on_record: dict[ClaimUid, PreparedClaim] = {}

    async def never(_: ClaimUid) -> None:
        raise AssertionError("nobody knows who uses its devices")

    async def unknown(_: PreparedClaim) -> None:
        return None

    leftovers = LeftoverClaims(
        cast("Client", Server("")),
        NodeState(ManualClock()),
        cast("Checkpoint", SimpleNamespace(claims=on_record)),
        cast("ClaimWork", SimpleNamespace(running=unknown, unprepare=never)),
        driver=NVIDIA_DRIVER,
        tell=lambda *_: None,
        clock=ManualClock(),
        confirm_s=0.0,
    )

    async def churn(numbers: range) -> None:
        for start in numbers[::100]:
            on_record.clear()
            on_record.update({each.uid: each for each in map(prepared, range(start, min(start + 100, numbers.stop)))})
            await leftovers.look(on_record)

    with capture_logs() as logs:
        await churn(range(WARM))
        before = reached_from(leftovers)
        await churn(range(WARM, WARM + CLAIMS))
        assert len(logs) == WARM + CLAIMS, "each is told of"
        on_record.clear()
        await leftovers.look(on_record)
    assert grown(before, reached_from(leftovers), by=10) == {}


@pytest.mark.parametrize("device", ["gpu-0", "gpu-0-mig-1g10gb-19-0"])
def test_of_claims_that_were_prepared_and_given_up_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    build(tmp_path, mig=device != "gpu-0")
    node = MigNode(tmp_path)

    def one(number: int) -> None:
        claim = claim_of(number, device)
        node.prepare(claim)
        node.unprepare(claim)

    assert churned(node, one, ON_DISK) == {}
