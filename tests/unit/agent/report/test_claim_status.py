"""What the agent logs and does when the API server refuses its report on a claim."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.agent.record.contents import PreparedClaim
from draco.agent.report.claim_status import SPACED, ClaimReporter, with_first_board
from draco.kube.errors import Invalid
from draco.resources.api.claims import AllocatedDeviceStatus
from draco.resources.api.meta import Condition
from draco.resources.names import NVIDIA_DRIVER, ClaimUid
from tests.agents import eventually
from tests.builders import a_claim, a_gpu
from tests.doubles.clock import ManualClock
from tests.unit.agent.claims.test_sick_gpus import Desk


class Refusing:
    """An API server that refuses every report."""

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
        usage=dict,
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


def an_entry(**data: str) -> AllocatedDeviceStatus:
    conditions = [Condition(type="Ready", status="True", reason="Prepared"), Condition(type="Healthy", status="True")]
    return AllocatedDeviceStatus(
        driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0", data={"version": 1, **data}, conditions=conditions
    )


@pytest.mark.parametrize("part", [False, True])
def test_a_claim_keeps_the_board_that_it_got_and_says_that_there_is_another(part: bool) -> None:
    """For example, another machine took the deleted node's name, or the board was exchanged."""
    first, now = (
        an_entry(uuid=f"MIG-{gpu}", parentUUID=gpu) if part else an_entry(uuid=gpu) for gpu in ("GPU-a", "GPU-b")
    )
    said = with_first_board(now, first)
    assert said.data == first.data
    ready, healthy = said.conditions
    assert ready == now.conditions[0]
    assert (healthy.status, healthy.reason) == ("False", "OtherBoard")
    assert healthy.message.startswith("The claim was prepared on GPU-a, and gpu-0 is GPU-b now")
    again = with_first_board(now, said)
    assert again == said


def test_what_is_on_the_same_board_is_reported_as_it_is_now() -> None:
    made_again = an_entry(uuid="MIG-2", parentUUID="GPU-a")
    assert with_first_board(made_again, an_entry(uuid="MIG-1", parentUUID="GPU-a")) == made_again
    for nothing in (None, an_entry()):
        assert with_first_board(made_again, nothing) == made_again


async def test_a_report_on_another_board_is_written_once(tmp_path: Path) -> None:
    client, clock = Refusing("unused"), ManualClock()
    prepared: PreparedClaim = Desk(tmp_path).desk.prepare(client.claim, {"gpu-0": a_gpu(0)})
    entry = msgspec.structs.replace(an_entry(uuid="GPU-before"), pool="node-0")
    status = msgspec.structs.replace(client.claim.status, devices=[entry])
    client.claim = msgspec.structs.replace(client.claim, status=status)
    written: list[Any] = []

    async def apply(_kind: Any, _key: Any, body: Any, **_: Any) -> Any:
        written.append(body)
        devices = msgspec.convert(body["status"]["devices"], list[AllocatedDeviceStatus])
        client.claim = msgspec.structs.replace(client.claim, status=msgspec.structs.replace(status, devices=devices))

    client.apply = apply  # type: ignore[assignment, method-assign]
    reporter = ClaimReporter(
        client,  # type: ignore[arg-type]
        driver=NVIDIA_DRIVER,
        pool="node-0",
        claims=lambda: {ClaimUid(client.claim.metadata.uid): prepared},
        health=list,
        usage=dict,
        clock=clock,
    )
    running = asyncio.create_task(reporter.run())
    reporter.touch_all()
    await eventually(lambda: written)
    reporter.touch_all()
    await clock.advance(1)
    running.cancel()
    [body] = written
    [device] = body["status"]["devices"]
    assert device["data"]["uuid"] == "GPU-before"
    assert [each["reason"] for each in device["conditions"] if each["type"] == "Healthy"] == ["OtherBoard"]
