"""Operators for tests: in this process, able to die after any write, or as separate processes."""

import asyncio
import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec

from draco.controller.app import Operator
from draco.controller.settings import OperatorSettings
from draco.kube.clock import Clock, SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.connect.kubeconfig import connect
from draco.kube.discovery import discover_for_operator, kubernetes_minor
from draco.kube.election import LeadershipLost
from draco.kube.errors import ApiStatus, Unreachable, from_status
from draco_local.cluster.controlplane import STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from tests.agents import growing_pauses
from tests.conftest import DIES_WITH_THE_TESTS
from tests.doubles import nursery

R = TypeVar("R")


class Reachable(Protocol):
    """What is served somewhere."""

    @property
    def kubeconfig(self) -> Path: ...


def settings_for_test(**changes: Any) -> OperatorSettings:
    """Settings with short delays, a free port, and a separate lease."""
    name = uuid.uuid4().hex[:8]
    defaults = OperatorSettings(
        namespace="default",
        identity=f"replica-{name}",
        lease_name=f"operator-{name}",
        http_host="127.0.0.1",
        http_port=0,
        pending_after_s=0.0,
        settle_s=0.1,
    )
    return msgspec.structs.replace(defaults, **changes)


class Died(BaseException):
    """The operator's process ended here, as far as the test is concerned."""


_NOT_KEPT = ("/leases", "/authorization.k8s.io/", "/authentication.k8s.io/")


class MortalConnection(Connection):
    """A connection whose process dies after `writes` writes, before it sees the last one's answer.

    Only writes to paths that contain `to` count. Leases and reviews of its identity and rights do not.
    """

    def __init__(self, real: Connection, writes: int, to: str = "") -> None:
        self.__dict__.update(real.__dict__)
        self.left = writes
        self.to = to
        self.dead = False

    async def request(self, method: str, path: str, **rest: Any) -> bytes:
        if self.dead:
            raise Unreachable("the process is dead")
        answer = await super().request(method, path, **rest)
        is_kept = self.to in path and not any(part in path for part in _NOT_KEPT)
        if method != "GET" and is_kept and "dryRun" not in str(rest.get("params")):
            self.left -= 1
            if self.left == 0:
                self.dead = True
                raise Died(f"after {method} {path}")
        return answer


class FlakyConnection(Connection):
    """A connection on which the next writes to Events fail with these codes. The list may be extended.

    Failed writes are not made, except with 0: then the write is made and its answer lost.
    """

    def __init__(self, real: Connection, codes: list[int]) -> None:
        self.__dict__.update(real.__dict__)
        self.left = codes

    async def request(self, method: str, path: str, **rest: Any) -> bytes:
        if method == "GET" or "/events/" not in path or not self.left:
            return await super().request(method, path, **rest)
        code = self.left.pop(0)
        if not code:
            await super().request(method, path, **rest)
            raise Unreachable("the answer was lost")
        raise from_status(ApiStatus(code=code, reason="Injected"))


class ObservedConnection(Connection):
    """A connection that calls `before` with the method and path of each request; it may fail or delay the request.

    `told` is called with a watch's path before each of its events is passed on, and may hold it back.
    """

    def __init__(
        self,
        real: Connection,
        before: Callable[[str, str], Awaitable[None]],
        told: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.__dict__.update(real.__dict__)
        self._before = before
        self._told = told

    async def request(self, method: str, path: str, **rest: Any) -> bytes:
        await self._before(method, path)
        return await super().request(method, path, **rest)

    @asynccontextmanager
    async def lines(self, path: str, **rest: Any) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        async with super().lines(path, **rest) as batches:
            yield batches if self._told is None else self._passed_on(path, batches, self._told)

    async def _passed_on(
        self, path: str, batches: AsyncIterator[list[bytes]], told: Callable[[str], Awaitable[None]]
    ) -> AsyncIterator[list[bytes]]:
        async for batch in batches:
            await told(path)
            yield batch


@contextmanager
def an_api_server_of(version: str, folder: Path) -> Iterator[ControlPlane]:
    """An API server of another Kubernetes version, with its store in `folder`, which is emptied afterwards."""
    programs = binaries.find(*STORE, kubernetes=version)
    plane = ControlPlane(folder, Settings(programs=programs, kubernetes=version, enter=DIES_WITH_THE_TESTS))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(folder / "etcd", ignore_errors=True)


@asynccontextmanager
async def an_operator(
    served: Reachable,
    settings: OperatorSettings | None = None,
    *,
    dies_after_writes: int = 0,
    dies_of_writes_to: str = "",
    events_fail_with: list[int] | None = None,
    without_taint_rules: bool = False,
    before_requests: Callable[[str, str], Awaitable[None]] | None = None,
    before_news: Callable[[str], Awaitable[None]] | None = None,
    clock: Clock | None = None,
    ends: tuple[type[BaseException], ...] = (Died,),
) -> AsyncIterator[tuple[Operator, "asyncio.Task[None]"]]:
    """A running operator and its task; stopped at the end, unless it ended with one of `ends`.

    Fails if the operator made a decision only because of its recheck every minute.
    """
    clock, stop = clock or SystemClock(), asyncio.Event()
    connection = await connect(served.kubeconfig)
    if dies_after_writes:
        connection = MortalConnection(connection, dies_after_writes, dies_of_writes_to)
    if events_fail_with is not None:
        connection = FlakyConnection(connection, events_fail_with)
    if before_requests is not None:
        connection = ObservedConnection(connection, before_requests, before_news)
    async with connection:
        client = Client(connection, manager="draco-operator")
        features = await discover_for_operator(client, allocates=bool(settings and settings.allocate))
        if without_taint_rules:
            features = msgspec.structs.replace(features, taint_rules=None)

        async def connected() -> Connection:
            return await connect(served.kubeconfig)

        operator = Operator(
            settings or settings_for_test(),
            client,
            features,
            minor=await kubernetes_minor(client),
            connect=connected,
            clock=clock,
        )
        operator.reconcilers.workers._start = nursery.start
        task = asyncio.create_task(operator.run(stop))
        try:
            yield operator, task
        finally:
            stop.set()
            try:
                async with asyncio.timeout(60):
                    await task
            except BaseExceptionGroup as group:
                if group.split(ends)[1] is not None:
                    raise
        late = operator.metrics.registry.get_sample_value("draco_allocation_late_decisions_total")
        assert late == 0, "the operator was not woken for something that it had to allocate: see its log"


@asynccontextmanager
async def two_leaders(served: Reachable, settings: OperatorSettings, **options: Any) -> AsyncIterator[None]:
    """Two operators that both lead with one identity. One that ends releases the lease. `options` are for the first."""
    both = (Died, LeadershipLost)
    async with an_operator(served, settings, ends=both, **options), an_operator(served, settings, ends=both):
        yield


async def until(look: Callable[[], Awaitable[R | None]], *, within_s: float = 60.0, what: str = "it") -> R:
    """The first true result of `look`, polled at growing intervals. Fails after `within_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    for pause_s in growing_pauses():
        answer = await look()
        if answer:
            return answer
        if loop.time() > deadline:
            break
        await asyncio.sleep(pause_s)
    raise AssertionError(f"{what} did not happen within {within_s:g} s")


class Process:
    """`draco operator` as a separate process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, served: ControlPlane, folder: Path, *options: str, **environ: str) -> "Process":
        log = folder / f"operator-{uuid.uuid4().hex[:6]}.log"
        with log.open("w") as stream:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "draco", "operator", "--kubeconfig", str(served.kubeconfig)),
                *("--listen", "127.0.0.1:0", *options),
                stdout=stream,
                stderr=stream,
                env={**os.environ, **environ},
            )
        return cls(process, log)

    def events(self) -> list[Mapping[str, Any]]:
        """Its log events."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    @property
    def output(self) -> str:
        """Its whole output."""
        return self._log.read_text()

    async def get(self, path: str) -> tuple[int, str]:
        """One request to its endpoints; (0, "") while it does not serve."""
        port = next((event["port"] for event in self.events() if event["event"] == "http.serving"), None)
        if port is None or self._process.returncode is not None:
            return 0, ""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}{path}") as response,
            ):
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""

    async def leads(self) -> bool:
        """Whether its metrics say so."""
        return "draco_leader 1.0" in (await self.get("/metrics"))[1]

    async def end(self, number: int = signal.SIGTERM, *, within_s: float = 60.0) -> int:
        """Send a signal and return the exit status."""
        if self._process.returncode is None:
            self._process.send_signal(number)
        async with asyncio.timeout(within_s):
            return await self._process.wait()

    async def wait(self, *, within_s: float) -> int:
        """Wait for it to end; returns the exit status."""
        async with asyncio.timeout(within_s):
            return await self._process.wait()

    async def kill(self) -> None:
        """Kill it if it is still running."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
