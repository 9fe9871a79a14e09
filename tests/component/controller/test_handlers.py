"""Kopf on a real API server: its handlers wake, it writes nothing, and its end is not ours."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from draco.cluster.controlplane import ControlPlane
from draco.controller.kopf_thread import OwnKinds
from draco.kube.client import Client
from draco.kube.connection import Connection
from draco.kube.errors import Unreachable
from draco.kube.kubeconfig import connect
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco.resources.meta import ObjectKey
from tests.component.controller.replicas import an_operator, until

pytestmark = pytest.mark.usefixtures("crds")


class RecordingConnection(Connection):
    """Keeps the methods of all requests made through sessions that it lends."""

    def __init__(self, real: Connection, methods: list[str]) -> None:
        self.__dict__.update(real.__dict__)
        self._methods = methods

    def lend_session(self) -> aiohttp.ClientSession:
        session = super().lend_session()
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._keep)
        trace.freeze()
        session.trace_configs.append(trace)
        return session

    async def _keep(self, _: Any, __: Any, started: aiohttp.TraceRequestStartParams) -> None:
        self._methods.append(started.method)


@asynccontextmanager
async def running(own_kinds: OwnKinds) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(own_kinds.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def a_request(client: Client) -> tuple[ObjectKey, str]:
    key = ObjectKey("", f"kopf-{uuid.uuid4().hex[:8]}")
    made = await client.create(
        DEVICE_MAINTENANCES, {"metadata": {"name": key.name}, "spec": {"deviceSelector": {"pool": "nowhere"}}}
    )
    return key, made.metadata.uid


async def raw(client: Client, key: ObjectKey) -> dict[str, Any]:
    answer = await client.connection.request("GET", DEVICE_MAINTENANCES.path(key))
    decoded: dict[str, Any] = msgspec.json.decode(answer)
    return decoded


async def test_its_handler_wakes_for_what_exists_and_what_comes_and_kopf_writes_nothing(
    served: ControlPlane, client: Client
) -> None:
    woken: list[tuple[str, str]] = []
    methods: list[str] = []

    async def recorded() -> Connection:
        return RecordingConnection(await connect(served.kubeconfig), methods)

    there, there_uid = await a_request(client)
    own_kinds = OwnKinds(
        recorded, {DEVICE_MAINTENANCES: lambda uid: woken.append((uid, threading.current_thread().name))}
    )
    async with running(own_kinds):

        async def has_woken(uid: str, times: int) -> bool:
            return [each for each, _ in woken].count(uid) >= times

        await until(lambda: has_woken(there_uid, 1), what="the wake-up for what exists")
        came, came_uid = await a_request(client)
        await until(lambda: has_woken(came_uid, 1), what="the wake-up for what came")
        await client.patch(DEVICE_MAINTENANCES, came, {"spec": {"reason": "changed"}})
        changed = await raw(client, came)
        await until(lambda: has_woken(came_uid, 2), what="the wake-up for a change")
    assert {thread for _, thread in woken} == {threading.current_thread().name}
    assert set(methods) == {"GET"}
    after = await raw(client, came)
    assert after["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
    for key in (there, came):
        metadata = (await raw(client, key))["metadata"]
        assert "annotations" not in metadata
        assert "finalizers" not in metadata
        await client.delete(DEVICE_MAINTENANCES, key)


async def test_kopf_is_started_again_when_it_ends(served: ControlPlane, client: Client) -> None:
    woken: list[str] = []
    attempts: list[int] = []

    async def flaky() -> Connection:
        attempts.append(1)
        if len(attempts) == 1:
            raise Unreachable("not yet")
        return await connect(served.kubeconfig)

    key, uid = await a_request(client)
    own_kinds = OwnKinds(flaky, {DEVICE_MAINTENANCES: woken.append})
    async with running(own_kinds) as task:

        async def has_woken() -> bool:
            return uid in woken

        await until(has_woken)
        assert own_kinds.restarts == 1
        assert not task.done()
    await client.delete(DEVICE_MAINTENANCES, key)


async def test_stopping_ends_kopfs_thread(served: ControlPlane, client: Client) -> None:
    def kopf_threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "kopf"}

    before = kopf_threads()
    woken: list[str] = []
    key, uid = await a_request(client)
    async with running(OwnKinds(lambda: connect(served.kubeconfig), {DEVICE_MAINTENANCES: woken.append})):

        async def has_woken() -> bool:
            return uid in woken

        await until(has_woken)
        (thread,) = kopf_threads() - before
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
    await client.delete(DEVICE_MAINTENANCES, key)


async def test_the_operator_runs_kopf_and_reconciles_what_it_wakes(served: ControlPlane, client: Client) -> None:
    async with an_operator(served) as (operator, _):
        operator.view.maintenances._subscribers.clear()  # only Kopf is left to wake the reconciler
        key, _ = await a_request(client)

        async def seen() -> bool:
            return (await client.get(DEVICE_MAINTENANCES, key)).status.phase is not None

        await until(seen)
        metadata = (await raw(client, key))["metadata"]
        assert {entry["manager"] for entry in metadata["managedFields"]} == {"draco", "draco-operator"}
        assert not metadata.keys() & {"annotations", "finalizers"}
    await client.delete(DEVICE_MAINTENANCES, key)
