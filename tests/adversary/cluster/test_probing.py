"""Probing at rest: GPUs whose allocator changed, and the verdict on unusable ones."""

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest

from tests.adversary.cluster import probing
from tests.adversary.cluster.observer.allocators import Traded
from tests.adversary.cluster.observer.api import Answer
from tests.adversary.cluster.observer.world import DeviceName
from tests.adversary.cluster.probing import Probing

HERE = Traded(DeviceName("gpu.nvidia.com", "node", "gpu-0"), "GPU-1", is_dracos=False)
THERE = Traded(DeviceName("gpu.nvidia.com", "node", "gpu-1"), "GPU-2", is_dracos=True)


def tried(
    monkeypatch: pytest.MonkeyPatch, *, phase: str, taken: bool = False, looked_at: bool = True
) -> tuple[Any, list[str]]:
    """Probe GPUs. `looked_at`: whether the scheduler knows the pod and its claim."""
    monkeypatch.setattr(probing, "WITHIN_S", 2.0)
    monkeypatch.setattr(probing, "UNTOLD_S", 4.0)
    monkeypatch.setattr(probing, "POLL_S", 1.0)
    monkeypatch.setattr(asyncio, "sleep", lambda _: _nothing())
    observer: Any = Mock(counts=Counter(), world=Mock(pods={}))
    observer.traded.side_effect = [[HERE, THERE], *([[] if taken else [HERE, THERE]] * 20)]
    written = []

    async def write(method: str, path: str, body: Any = None) -> Answer:
        written.append(f"{method} {path.rpartition('/')[2]}")
        if body and body["kind"] == "Pod":
            conditions = [{"type": "PodScheduled", "status": "False"}] if looked_at else []
            observer.world.pods[body["metadata"]["name"]] = body | {
                "status": {"phase": phase, "conditions": conditions}
            }
        return Answer(200, {})

    asyncio.run(Probing(observer, write).run())
    return observer, written


async def _nothing() -> None:
    return None


def test_a_gpu_of_each_allocator_is_tried_out_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    observer, written = tried(monkeypatch, phase="Running")
    assert set(observer.counts) == {"GPUs used again by Draco", "GPUs used again by the scheduler"}
    assert sorted(written) == sorted(
        [f"POST {what}" for what in ("pods", "resourceclaims")] * 2 + [f"DELETE probe-{each}" for each in (1, 1, 2, 2)]
    )
    assert not observer.violated.called


def test_a_gpu_that_is_of_no_use_is_told_unless_it_was_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    observer, _ = tried(monkeypatch, phase="Pending")
    assert {call.args[0].law for call in observer.violated.call_args_list} == {"not used again"}
    observer, _ = tried(monkeypatch, phase="Pending", taken=True)
    assert not observer.violated.called


def test_what_the_scheduler_has_not_been_told_of_is_not_held_against_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    observer, written = tried(monkeypatch, phase="Pending", looked_at=False)
    assert not observer.violated.called
    assert observer.counts == {"probes that the scheduler never looked at": 2}
    assert len(written) == 8
