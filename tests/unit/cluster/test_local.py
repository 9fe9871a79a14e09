"""The local provider while its API server does not answer, at the start or temporarily."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.errors import Unreachable
from draco_local.cluster import attach
from draco_local.cluster.providers.local import LocalCluster
from draco_local.cluster.realnode import join
from draco_local.cluster.state import ClusterSpec, Record


@asynccontextmanager
async def nobody(_: Path) -> AsyncIterator[Client]:
    yield Client(Connection("http://127.0.0.1:1"))


def silent_once(calls: list[object]) -> Callable[..., Awaitable[None]]:
    async def answer(*asked: Any, **_: Any) -> None:
        calls.append(asked)
        if len(calls) == 1:
            raise Unreachable("no answer within 10 s")

    return answer


async def test_a_server_that_does_not_answer_once_fails_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(attach, "client_of", nobody)
    cluster = LocalCluster(Record("a"), ClusterSpec(real_nodes=1))
    installs: list[object] = []
    monkeypatch.setattr(attach, "install", silent_once(installs))
    await cluster._install({})
    joins: list[object] = []
    monkeypatch.setattr(join, "join", silent_once(joins))
    await cluster._join(["node-1"])
    assert (len(installs), len(joins)) == (2, 2)
