"""A day of tenants whose objects come and go: the leading operator holds no more afterwards than after the first hour.

The clock is manual. Allocations are tested on a real API server (`tests/component/allocation/test_churn.py`).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.controller.metrics import OperatorMetrics
from draco.controller.reconcilers import Reconcilers
from draco.controller.settings import OperatorSettings
from draco.controller.view import ClusterView
from draco.controller.workers.messages import (
    Answer,
    AskQuestions,
    Changes,
    Failed,
    Outward,
    PendingAnswer,
    Question,
    Reply,
    claims_of,
)
from draco.controller.workers.process import FleetProcessHandle
from draco.kube.connect.client import Client, decode, encode, encode_plain
from draco.kube.discovery import Features
from draco.kube.errors import Forbidden, NotFound
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import CelSelector, DeviceSelector, ResourceClaim
from draco.resources.api.core import PodStatus
from draco.resources.api.limits import Namespace
from draco.resources.api.meta import Condition, ObjectKey, ObjectMeta
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec, ReservationTemplate
from draco.resources.api.scheduling import PodGroup
from draco.resources.kinds import CLAIMS, POD_GROUPS, TAINT_RULES, Kind
from draco.resources.names import ALLOCATED_BY_OPERATOR, LABEL_ALLOCATOR, SCHEDULING_GATE
from draco.resources.names import NVIDIA_DEVICE_CLASS as CLASS
from tests.builders import a_claim, a_device_class, a_limit, a_pod, a_uid
from tests.doubles.clock import ManualClock
from tests.doubles.reached import grown, reached_from
from tests.unit.controller.watching import forget, tell

HOURS: Final = 24
ROUND_S: Final = 40.0
"""Seconds of activity per hour; the rest of the hour is quiet."""
LATENCY_S: Final = 0.2
"""How long the API server takes for a write."""
FORBIDDEN: Final = "forbidden"
"""A namespace in which the API server refuses Draco's writes."""
FATAL: Final = "fatal"
"""A namespace whose questions crash the process that answers them."""
OTHERS: Final = "others"
"""A DeviceClass that kube-scheduler allocates."""
KEPT: Final = 1
"""How many entries the bounded memories of the workers keep in this test."""
REFUSED = PodStatus(conditions=[Condition(type="PodScheduled", status="False", reason="Unschedulable")])
FEATURES = Features(
    dra=True,
    taint_rules=TAINT_RULES[0],
    partitionable_devices=True,
    binding_conditions=True,
    device_taints=True,
    device_status=True,
    pod_groups=POD_GROUPS[0],
)


class Answering:
    """A process that answers each question immediately."""

    def __init__(self) -> None:
        self._version = 0
        self._replies: asyncio.Queue[Outward] = asyncio.Queue()

    async def send(self, message: Changes | AskQuestions) -> None:
        if isinstance(message, Changes):
            self._version = message.version
            return
        for number, question in message.questions:
            self._replies.put_nowait(Reply(number, self._answer(question), self._version, 0.01))

    def _answer(self, question: Question) -> Answer:
        name = claims_of(question)[0].metadata
        if name.namespace == FATAL:
            return Failed("its process was killed by signal 9")
        whose = (
            f" for pod {name.name}" if message_number(name.name) % 2 else ""
        )  # such an answer is not true of other pods
        return PendingAnswer(f"No GPU is free{whose}.", "InUse")

    async def replies(self) -> AsyncIterator[list[Outward]]:
        while True:
            yield [await self._replies.get()]

    async def end(self) -> None:
        pass


class Day:
    """A leading operator, and an API server that accepts its writes except in one namespace."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        client = cast("Client", self)
        self.view = ClusterView(client, FEATURES.taint_rules, clock=self.clock, pod_groups=FEATURES.pod_groups)
        self.metrics = OperatorMetrics()
        self.made = Reconcilers(
            OperatorSettings(identity="me", allocate=True),
            client,
            FEATURES,
            view=self.view,
            metrics=self.metrics,
            minor=36,
        )
        self.made.workers._start = self._start
        self.made.agent_leases.informer.synced.set()
        self.writes: Counter[str] = Counter()
        self._versions = count(1)

    async def _start(self) -> FleetProcessHandle:
        return cast("FleetProcessHandle", Answering())

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.made.lead()), asyncio.create_task(self.made.workers.run())]
        try:
            yield
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def list(self, *_: object, **__: object) -> list[Any]:
        return []

    async def get(self, kind: Kind[Any], key: ObjectKey, **_: object) -> Any:
        found = self.view.collections[kind.kind].store.get(key) if kind.kind in self.view.collections else None
        if found is None:
            raise NotFound(404, "NotFound", f"{key} is not there")
        return found

    async def create(self, kind: Kind[Any], obj: Any, **_: object) -> Any:
        made = decode(kind, encode(kind, obj))
        return await self._written(kind, made.metadata.key, made, is_new=True)

    async def apply(self, kind: Kind[Any], key: ObjectKey, obj: Any, *, manager: str, subresource: str = "") -> Any:
        if not subresource:
            return await self._written(kind, key, decode(kind, encode(kind, obj)))
        known = await self.get(kind, key)
        status = msgspec.convert(encode_plain(kind, obj)["status"], type(known.status))
        return await self._written(kind, key, msgspec.structs.replace(known, status=status))

    async def patch(self, kind: Kind[Any], key: ObjectKey, obj: Any, **_: object) -> Any:
        return await self._written(kind, key, await self.get(kind, key))

    async def delete(self, kind: Kind[Any], key: ObjectKey, **_: object) -> None:
        self.writes[f"delete {kind.kind}"] += 1
        if kind.kind in self.view.collections:
            forget(self.view, await self.get(kind, key))

    async def create_subresource(self, kind: Kind[Any], key: ObjectKey, *_: object, **__: object) -> None:
        await self._written(kind, key, await self.get(kind, key))

    async def _written(self, kind: Kind[Any], key: ObjectKey, made: Any, *, is_new: bool = False) -> Any:
        await self.clock.sleep(LATENCY_S)
        if key.namespace == FORBIDDEN:
            raise Forbidden(403, "Forbidden", f"{key} must not be written")
        self.writes[kind.kind] += 1
        meta = msgspec.structs.replace(
            made.metadata,
            name=key.name,
            namespace=key.namespace,
            uid=made.metadata.uid or a_uid(kind.kind, *key),
            resource_version=str(next(self._versions)),
        )
        made = msgspec.structs.replace(made, metadata=meta)
        collection = self.view.collections.get(kind.kind)
        if collection is not None and (is_new or key in collection.store):
            tell(self.view, made)
        return made

    async def one_round(self, number: int) -> None:
        """Tenants create objects with new names and new selectors, and delete all of them."""
        passing = Namespace(metadata=ObjectMeta(name=f"ci-{number}", uid=a_uid("namespace", f"ci-{number}")))
        made = [passing, *work("team", number), *work(passing.metadata.name, number), *work(FORBIDDEN, number)]
        doomed = made_pod(f"doomed-{number}", FATAL)
        tell(self.view, *made, *doomed)
        await self.clock.advance(ROUND_S)
        for claim in (each for each in made if isinstance(each, ResourceClaim)):
            about, note = CLAIMS.reference(claim.metadata), "It has a GPU."
            self.made.events.record(about, EventReason("Allocated", "Allocating"), note)
        self.end([*made, *doomed] if number % 2 else [*doomed, *reversed(made)])
        for namespace in ("team", FORBIDDEN):
            brief = work(namespace, number, called="brief")
            tell(self.view, *brief)
            await self.clock.advance(LATENCY_S * (number % 9) / 2)  # a write is in progress at this moment
            self.end(brief)

    def end(self, made: Iterable[Any]) -> None:
        """Delete all of it, and what Draco created for it."""
        for each in made:
            forget(self.view, each)
        for claim in [each for each in self.view.claims.store.values() if each.metadata.owner_references]:
            forget(self.view, claim)

    async def hour(self, number: int) -> None:
        """One round, then silence until the hour ends."""
        await self.one_round(number)
        await self.clock.advance(3600.0 - self.clock.monotonic() % 3600.0)

    def held(self) -> Counter[str]:
        """Everything that the operator holds in memory."""
        return reached_from(self.made, self.view, self.metrics, but=(ManualClock, Day, float, int, asyncio.Task))


def work(namespace: str, number: int, called: str = "work") -> list[Any]:
    """A pod that is refused, one behind Draco's gate, one of a group, and a reservation."""
    name = f"{called}-{number}"
    group = PodGroup(metadata=ObjectMeta(name=name, namespace=namespace, uid=a_uid("group", namespace, name)))
    return [
        *made_pod(f"{name}-waits", namespace),
        *made_pod(f"{name}-gated", namespace, gates=[SCHEDULING_GATE], device_class=OTHERS),
        group,
        *made_pod(f"{name}-grouped", namespace, pod_group=name),
        DeviceReservation(
            metadata=ObjectMeta(
                name=name, namespace=namespace, uid=a_uid("reservation", namespace, name), generation=1
            ),
            spec=DeviceReservationSpec(template=ReservationTemplate(spec=a_selective_claim(name, namespace).spec)),
        ),
    ]


def made_pod(name: str, namespace: str, device_class: str = CLASS, **pod: Any) -> list[Any]:
    """A pod with its claim."""
    claim = a_selective_claim(name, namespace, device_class)
    return [claim, a_pod(name, namespace=namespace, claims=[name], status=PodStatus() if pod else REFUSED, **pod)]


def message_number(name: str) -> int:
    return sum(map(ord, name))


def a_selective_claim(name: str, namespace: str, device_class: str = CLASS) -> ResourceClaim:
    claim: ResourceClaim = a_claim(name, namespace=namespace, device_class=device_class)
    request = claim.spec.devices.requests[0]
    assert request.exactly is not None
    selector = DeviceSelector(cel=CelSelector(expression=f"device.driver == '{namespace}/{name}'"))
    exactly = msgspec.structs.replace(request.exactly, selectors=[selector])
    devices = msgspec.structs.replace(claim.spec.devices, requests=[msgspec.structs.replace(request, exactly=exactly)])
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


async def test_after_a_day_of_churn_an_operator_holds_what_it_held_after_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("draco.controller.workers.past_costs._REMEMBERED", KEPT)
    monkeypatch.setattr("draco.controller.workers.fair_queue._KEPT_NAMESPACES", KEPT)
    day = Day()
    labels = {LABEL_ALLOCATOR: ALLOCATED_BY_OPERATOR}
    ours = msgspec.structs.replace(a_device_class(), metadata=ObjectMeta(name=CLASS, labels=labels))
    tell(day.view, ours, a_device_class(OTHERS), a_limit(devices=1))
    with capture_logs() as logs:
        async with day.leading():
            for hour in range(HOURS):
                await day.hour(hour)
                logs.clear()
                if not hour:
                    first = day.held()
            last = day.held()
    assert grown(first, last, by=0) == {}
