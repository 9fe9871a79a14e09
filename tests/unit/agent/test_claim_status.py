"""What the agent says and does when the API server refuses its report on a claim."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from draco.agent.record.checkpoint import PreparedClaim
from draco.agent.report.claim_status import SPACED, ClaimReporter
from draco.kube.errors import Invalid
from draco.resources.names import NVIDIA_DRIVER, ClaimUid
from tests.agents import eventually
from tests.builders import a_claim, a_gpu
from tests.doubles.clock import ManualClock
from tests.unit.agent.test_sick_gpus import Desk


class Refusing:
    """Answers as the API server does that refuses every report."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence
        self.claim = a_claim("one", on=["node-0/gpu-0"])
        self.asked = 0

    async def get(self, *_: object) -> Any:
        return self.claim

    async def apply(self, *_: object, **__: object) -> Any:
        self.asked += 1
        raise Invalid(422, "Invalid", self.sentence)


@pytest.mark.parametrize(
    ("sentence", "said", "asked"),
    [
        ("status.allocation: Invalid value: {}: field is immutable", SPACED, 1),
        ("status.devices[0]: Invalid value: must be an allocated device in the claim", "must be an allocated", 3),
    ],
)
async def test_a_refusal_is_said_once_and_tried_again_only_where_that_can_help(
    tmp_path: Path, sentence: str, said: str, asked: int
) -> None:
    client, clock = Refusing(sentence), ManualClock()
    prepared: PreparedClaim = Desk(tmp_path).desk.prepare(client.claim, {"gpu-0": a_gpu(0)})
    reporter = ClaimReporter(
        client,  # type: ignore[arg-type]
        driver=NVIDIA_DRIVER,
        pool="node-0",
        claims=lambda: {ClaimUid(client.claim.metadata.uid): prepared},
        health=list,
        clock=clock,
    )
    with capture_logs() as logs:
        running = asyncio.create_task(reporter.run())
        reporter.touch_all()
        await eventually(lambda: client.asked)
        for _ in range(2):
            await clock.advance(61)
        running.cancel()
    assert client.asked == asked
    [one] = [one for one in logs if one["event"] == "claim.status_refused"]
    assert said in one["error"]
