"""Kopf on a real API server: the operator knows what it sees, finds what it misses, and survives its end; it writes nothing."""

import asyncio
import getpass
import json
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from draco.controller import handlers
from draco.controller.kopf_thread import KopfThread
from draco.controller.own_kinds import OwnKind
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connect, Connection
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import Unreachable
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_MAINTENANCES, LEASES
from draco.resources.names import ANNOTATION_TROUBLES
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import an_operator, settings_for_test, until
from tests.component.kube.support import eventually
from tests.doubles.faultproxy import Action, FaultProxy, answer, error_event, watches

pytestmark = pytest.mark.usefixtures("crds")


class RecordingConnection(Connection):
    """Records the methods of all requests made through its sessions."""

    def __init__(self, real: Connection, methods: list[str]) -> None:
        self.__dict__.update(real.__dict__)
        self._methods = methods

    def lend_session(self, *middlewares: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        return super().lend_session(*middlewares, self._keep)

    async def _keep(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        self._methods.append(request.method)
        return await send(request)


class Lab:
    """Kopf in its thread, and what it feeds. Only Kopf lists, unless `lists`."""

    def __init__(self, client: Client, connect: Connect) -> None:
        self.requests: OwnKind[Any] = OwnKind(client, DEVICE_MAINTENANCES, clock=SystemClock())
        self.kopf = KopfThread(connect, {DEVICE_MAINTENANCES: self.requests}, identity="lab")
        self.changes: list[tuple[str, str]] = []
        self.requests.subscribe(lambda change: self.changes.append((change.key.name, threading.current_thread().name)))

    def knows(self, key: ObjectKey) -> bool:
        return key in self.requests.store


@asynccontextmanager
async def running(lab: Lab, *, lists: bool = False) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(lab.kopf.run())
    tasks = {task, asyncio.create_task(lab.requests.run())} if lists else {task}
    try:
        yield task
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)


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


async def test_what_exists_and_what_happens_is_known_from_kopf_which_writes_nothing(
    served: ControlPlane, client: Client
) -> None:
    methods: list[str] = []

    async def recorded() -> Connection:
        return RecordingConnection(await connect(served.kubeconfig), methods)

    there, _ = await a_request(client)
    lab = Lab(client, recorded)
    async with running(lab):
        await eventually(lambda: lab.knows(there), "what exists is known")
        came, _ = await a_request(client)
        await eventually(lambda: lab.knows(came), "what came is known")
        changed = await client.patch(DEVICE_MAINTENANCES, came, {"spec": {"reason": "changed"}})
        await eventually(lambda: lab.requests.store.get(came) == changed, "the change is known")
        await client.delete(DEVICE_MAINTENANCES, there)
        await eventually(lambda: not lab.knows(there), "what is gone is known")
    assert {thread for _, thread in lab.changes} == {threading.current_thread().name}
    assert set(methods) == {"GET"}
    after = await raw(client, came)
    assert after["metadata"]["resourceVersion"] == changed.metadata.resource_version
    assert not after["metadata"].keys() & {"annotations", "finalizers"}
    await client.delete(DEVICE_MAINTENANCES, came)


async def too_old(_: web.Request) -> web.StreamResponse:
    """A watch whose stream says that its version is too old."""
    return web.Response(body=error_event(410, "Expired") + b"\n")


@pytest.mark.parametrize("fault", [too_old, answer(410, "Expired")], ids=["in the stream", "before it"])
async def test_what_was_deleted_while_kopf_had_lost_its_place_is_found_by_a_list(
    served: ControlPlane, proxied: Path, proxy: FaultProxy, client: Client, fault: Action
) -> None:
    key, _ = await a_request(client)
    lab = Lab(client, lambda: connect(proxied))
    async with running(lab, lists=True):
        await eventually(lambda: lab.knows(key) and bool(proxy.open_streams), "it is known and watched")
        assert lab.requests.restarts == 0
        proxy.fault(watches, fault)
        async with proxy.unplugged():
            for stream in proxy.open_streams:
                stream.cut()
            await client.delete(DEVICE_MAINTENANCES, key)
        await eventually(lambda: not lab.knows(key), "what is gone is known")
        await eventually(lambda: lab.requests.restarts == 1, "the new watch is counted")


async def test_an_error_that_ends_kopf_does_not_end_the_following(
    served: ControlPlane, proxied: Path, proxy: FaultProxy, client: Client
) -> None:
    lab = Lab(client, lambda: connect(proxied))
    async with running(lab, lists=True) as task:
        (await proxy.open_stream()).inject(error_event(500, "InternalError"))
        await eventually(lambda: lab.requests.restarts == 1, "the new watch")
        key, _ = await a_request(client)
        await eventually(lambda: lab.knows(key), "what came is known")
        assert not task.done()
    await client.delete(DEVICE_MAINTENANCES, key)


def deep_request(name: str, levels: int = 4_000) -> bytes:
    """A request whose managedFields, which anybody may write and no schema bounds, are nested so deep."""
    fields = b'{"f:a":' * levels + b"{}" + b"}" * levels
    request = {
        "apiVersion": DEVICE_MAINTENANCES.api_version,
        "kind": DEVICE_MAINTENANCES.kind,
        "metadata": {
            "name": name,
            "managedFields": [
                {
                    "manager": "somebody",
                    "operation": "Update",
                    "apiVersion": DEVICE_MAINTENANCES.api_version,
                    "fieldsType": "FieldsV1",
                    "fieldsV1": "FIELDS",
                }
            ],
        },
        "spec": {"deviceSelector": {"pool": "nowhere"}},
    }
    return msgspec.json.encode(request).replace(b'"FIELDS"', fields)


async def test_what_is_nested_too_deep_for_kopf_keeps_it_from_seeing_nothing(
    served: ControlPlane, client: Client
) -> None:
    names = [f"deep-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    listed, watched = (ObjectKey("", name) for name in names)
    before, _ = await a_request(client)
    lab = Lab(client, lambda: connect(served.kubeconfig))
    try:
        await client.connection.request("POST", DEVICE_MAINTENANCES.path(), body=deep_request(listed.name))
        stored = await client.connection.request("GET", DEVICE_MAINTENANCES.path(listed))
        with pytest.raises(RecursionError):
            json.loads(stored)
        with capture_logs() as logs:
            async with running(lab):
                await eventually(lambda: lab.knows(listed) and lab.knows(before), "what exists is known")
                await eventually(lambda: lab.requests.counts.watches > 0, "the watch has begun")
                await client.connection.request("POST", DEVICE_MAINTENANCES.path(), body=deep_request(watched.name))
                await eventually(lambda: lab.knows(watched), "what came is known")
                after, _ = await a_request(client)
                await eventually(lambda: lab.knows(after), "and what came after it")
                assert lab.requests.counts.watches == 1, "it is the same watch"
        assert {each["event"] for each in logs} <= {"kopf.loaded"}
    finally:
        for key in (listed, watched):
            await client.delete(DEVICE_MAINTENANCES, key)


@asynccontextmanager
async def below_a_path(proxy: FaultProxy) -> AsyncIterator[str]:
    """The server's address behind a proxy with a path prefix, as with Rancher."""

    async def forward(request: web.Request) -> web.StreamResponse:
        async with session.get(f"{proxy.url}/{request.match_info['path']}", params=request.query) as answered:
            response = web.StreamResponse(status=answered.status, headers={"Content-Type": answered.content_type})
            await response.prepare(request)
            async for chunk in answered.content.iter_any():
                await response.write(chunk)
            return response

    app = web.Application()
    app.router.add_get("/k8s/clusters/c-1/{path:.*}", forward)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/k8s/clusters/c-1"
        finally:
            await runner.cleanup()


async def test_kopfs_watch_is_noticed_on_a_server_that_is_reached_below_a_path(
    proxy: FaultProxy, client: Client
) -> None:
    async with below_a_path(proxy) as server:

        async def connected() -> Connection:
            return Connection(server)

        lab = Lab(client, connected)
        async with running(lab):
            await eventually(lambda: lab.requests.counts.watches > 0, "the watch is noticed")
            assert lab.requests.unwatched_s == 0


async def test_kopf_is_started_again_when_it_cannot_start(served: ControlPlane, client: Client) -> None:
    attempts: list[int] = []

    async def flaky() -> Connection:
        attempts.append(1)
        if len(attempts) == 1:
            raise Unreachable("not yet")
        return await connect(served.kubeconfig)

    key, _ = await a_request(client)
    lab = Lab(client, flaky)
    async with running(lab) as task:
        await eventually(lambda: lab.knows(key), "what exists is known")
        assert not task.done()
    await client.delete(DEVICE_MAINTENANCES, key)


async def test_an_operator_without_kopf_works_from_lists_and_says_so_until_kopf_runs(
    served: ControlPlane, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = handlers.kopf_registry
    broken = True

    def registry(*args: Any) -> kopf.OperatorRegistry:
        if broken:
            raise RuntimeError("Kopf is broken here")
        return whole(*args)

    monkeypatch.setattr(handlers, "kopf_registry", registry)
    settings = settings_for_test(unserved_after_s=1.0, retry_period_s=0.2)
    lease = ObjectKey(settings.namespace, settings.lease_name)

    async def told() -> str:
        return (await client.get(LEASES, lease)).metadata.annotations.get(ANNOTATION_TROUBLES, "")

    async with an_operator(served, settings) as (operator, task):
        await eventually(lambda: operator.election.leading, "it leads")
        await until(told, what="the lease says it")
        said = await told()
        assert said.startswith("Kopf does not run: DeviceMaintenance, ")
        assert "objects are listed every few seconds instead of watched" in said

        def unwatched_s() -> list[float]:
            values = [
                operator.metrics.registry.get_sample_value("draco_kopf_unwatched_seconds", {"kind": kind})
                for kind in ("DeviceMaintenance", "MigPolicy")
            ]
            return [value for value in values if value is not None]

        assert min(unwatched_s()) > 1.0
        assert operator.report.not_ready() == []
        key, _ = await a_request(client)

        async def seen() -> bool:
            return (await client.get(DEVICE_MAINTENANCES, key)).status.phase is not None

        await until(seen, what="a request is seen all the same")
        broken = False

        async def well() -> bool:
            return not await told()

        await until(well, what="the lease takes it back")
        assert unwatched_s() == [0.0, 0.0]
        assert not task.done()
    await client.delete(DEVICE_MAINTENANCES, key)


async def test_kopf_runs_for_a_user_without_a_name(
    served: ControlPlane, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containers: the image has no /etc/passwd."""

    def nameless() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nameless)
    key, _ = await a_request(client)
    lab = Lab(client, lambda: connect(served.kubeconfig))
    async with running(lab):
        await eventually(lambda: lab.knows(key), "what exists is known")
    await client.delete(DEVICE_MAINTENANCES, key)


async def test_stopping_ends_kopfs_thread(served: ControlPlane, client: Client) -> None:
    def kopf_threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "kopf"}

    before = kopf_threads()
    key, _ = await a_request(client)
    lab = Lab(client, lambda: connect(served.kubeconfig))
    async with running(lab):
        await eventually(lambda: lab.knows(key), "what exists is known")
        (thread,) = kopf_threads() - before
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
    await client.delete(DEVICE_MAINTENANCES, key)


async def test_a_watch_that_kopf_leaves_open_is_no_error_of_the_operators(
    served: ControlPlane, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def never() -> Connection:
        raise AssertionError("Kopf does not run here")

    lab = Lab(client, never)
    open_still: list[AsyncIterator[int]] = []

    async def watch() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise RuntimeError("generator didn't stop after athrow()")

    async def watch_until_the_end() -> None:
        open_still.append(watch())
        await anext(open_still[0])
        await lab.kopf._stop.wait()

    lab.kopf._run_kopf = watch_until_the_end  # type: ignore[method-assign]
    async with running(lab):
        await eventually(lambda: bool(open_still), "it watches")
    await eventually(lab.kopf._loop.is_closed, "its loop is closed")
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]


async def test_the_operator_reconciles_what_kopf_sees(served: ControlPlane, client: Client) -> None:
    async with an_operator(served) as (operator, _):
        await eventually(lambda: operator.view.maintenances.counts.watches > 0, "Kopf's watch")
        key, _ = await a_request(client)

        async def seen() -> bool:
            return (await client.get(DEVICE_MAINTENANCES, key)).status.phase is not None

        await until(seen)
        metadata = (await raw(client, key))["metadata"]
        assert {entry["manager"] for entry in metadata["managedFields"]} == {"draco", "draco-operator"}
        assert not metadata.keys() & {"annotations", "finalizers"}
    await client.delete(DEVICE_MAINTENANCES, key)
