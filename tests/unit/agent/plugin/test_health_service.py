"""How often device health is streamed: on every change, and again before kubelet considers it out of date."""

import asyncio
from typing import Any

import pytest

from draco.agent.hardware.monitor import HardwareView
from draco.agent.plugin.health_service import HealthService

QUIET = asyncio.timeout


async def test_what_does_not_change_is_told_again_long_before_kubelet_calls_it_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited_s: list[float] = []

    def at_once(seconds: float) -> asyncio.Timeout:
        waited_s.append(seconds)
        return QUIET(0)

    service = HealthService(pool="node-0", timeout_s=30)
    service.update(HardwareView())
    stream: Any = service.watch(None, None)
    monkeypatch.setattr(asyncio, "timeout", at_once)
    told = [await anext(stream) for _ in range(3)]
    await stream.aclose()
    assert len(told) == 3
    assert waited_s == [10.0, 10.0], "one may be lost, and the next comes in time"
