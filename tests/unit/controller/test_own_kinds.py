"""What is known about a kind that Kopf watches, in whatever order its events and Draco's lists arrive."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from draco.controller.own_kinds import OwnKind, OwnKindSettings
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client, Undecodable
from draco.kube.connect.connection import Connection
from draco.kube.errors import ApiStatus, NotFound, from_status
from draco.kube.watch.store import Change
from draco.kube.watch.watching import ListedCollection, Removal, Upsert
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_MAINTENANCES
from tests.builders import a_maintenance
from tests.doubles.clock import ManualClock

KEY = ObjectKey("", "swap-fan")


def at(version: int, uid: str = "uid-1") -> DeviceMaintenance:
    made = a_maintenance(KEY.name)
    metadata = msgspec.structs.replace(made.metadata, uid=uid, resource_version=str(version))
    return msgspec.structs.replace(made, metadata=metadata)


def listed(version: int, *objects: DeviceMaintenance) -> ListedCollection[DeviceMaintenance]:
    return ListedCollection({each.metadata.key: each for each in objects}, str(version), [])


class Lab:
    def __init__(self, connection: Connection | None = None, **settings: float) -> None:
        client = Client(connection or Connection("http://127.0.0.1:1"))
        self.own: OwnKind[DeviceMaintenance] = OwnKind(
            client,
            DEVICE_MAINTENANCES,
            clock=SystemClock(),
            settings=OwnKindSettings(**settings),
        )
        self.changes: list[Change[DeviceMaintenance]] = []
        self.own.subscribe(self.changes.append)

    def saw(self, obj: DeviceMaintenance) -> None:
        self.own.seen(Upsert(obj), obj.metadata.resource_version)

    def saw_gone(self, version: int) -> None:
        self.own.seen(Removal(KEY), str(version))

    @property
    def known(self) -> str | None:
        found = self.own.store.get(KEY)
        return found.metadata.resource_version if found else None


async def test_a_kind_is_unwatched_from_the_first_end_of_kopf_to_its_next_watch() -> None:
    clock = ManualClock()
    own: OwnKind[DeviceMaintenance] = OwnKind(
        Client(Connection("http://127.0.0.1:1")), DEVICE_MAINTENANCES, clock=clock
    )
    own.watching()
    assert own.unwatched_s == 0
    for _ in range(3):
        own.unwatched()
        await clock.advance(50)
    assert own.unwatched_s == 150
    own.absent()
    assert own.unwatched_s == 0, "nobody can watch what is not served"
    own.heard()
    assert own.unwatched_s == 150
    own.watching()
    assert own.unwatched_s == 0


def test_the_newest_version_counts_whoever_brings_it() -> None:
    lab = Lab()
    lab.own.take(listed(5, at(5)))
    lab.saw(at(7))
    lab.saw(at(6))
    assert lab.known == "7"
    lab.own.take(listed(6, at(6)))
    assert lab.known == "7"
    lab.own.take(listed(8, at(8)))
    assert lab.known == "8"


def test_what_came_after_a_list_was_made_is_not_lost_by_it() -> None:
    lab = Lab()
    lab.saw(at(7))
    lab.own.take(listed(6))
    assert lab.known == "7"


def test_what_a_newer_list_lacks_does_not_come_back_with_an_event_of_before() -> None:
    lab = Lab()
    lab.own.take(listed(4, at(4)))
    lab.own.take(listed(9))
    lab.saw(at(8))
    assert lab.known is None


def test_what_was_deleted_does_not_come_back_with_a_list_of_before() -> None:
    lab = Lab()
    lab.own.take(listed(4, at(4)))
    lab.saw_gone(7)
    lab.own.take(listed(6, at(4)))
    assert lab.known is None
    lab.saw(at(5))
    assert lab.known is None
    lab.own.take(listed(8))
    lab.saw(at(9, "uid-2"))
    assert lab.known == "9"


def test_a_deletion_that_comes_late_does_not_take_what_was_made_under_the_same_name() -> None:
    lab = Lab()
    lab.own.take(listed(4, at(4)))
    lab.saw(at(8, "uid-2"))
    lab.saw_gone(7)
    assert lab.known == "8"
    assert [(bool(each.before), bool(each.after)) for each in lab.changes] == [
        (False, True),
        (True, False),
        (False, True),
    ]


def test_an_object_that_cannot_be_read_leaves_its_earlier_version_and_a_first_one_nothing() -> None:
    lab = Lab()
    lab.own.take(listed(4))
    lab.own.seen(Undecodable(KEY, "uid-1", "5", "odd"), "5")
    assert lab.known is None
    lab.saw(at(6))
    lab.own.seen(Undecodable(KEY, "uid-1", "7", "odd"), "7")
    assert lab.known == "6"
    lab.own.take(ListedCollection({}, "8", [Undecodable(KEY, "uid-1", "7", "odd")]))
    assert lab.known == "6"
    assert lab.own.counts.undecodable == 3


def test_a_watch_that_has_to_be_begun_anew_is_counted_and_one_that_goes_on_is_not() -> None:
    lab = Lab()
    lab.own.listing()
    for _ in range(3):
        lab.own.watching()
    assert lab.own.restarts == 0
    lab.own.listing()
    assert (lab.own.restarts, lab.own.counts.watches) == (1, 3)


class Answering(Connection):
    """An API server with these objects, or one that does not serve the kind."""

    def __init__(self, *objects: DeviceMaintenance, served: bool = True) -> None:
        super().__init__("http://127.0.0.1:1")
        self.objects, self.served = objects, served

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        assert method == "GET"
        if not self.served:
            raise NotFound(404, "NotFound", "no such kind")
        if path != DEVICE_MAINTENANCES.path():
            if not self.objects:
                raise from_status(ApiStatus(code=404, reason="NotFound"))
            return msgspec.json.encode(self.objects[0])
        return msgspec.json.encode({"metadata": {"resourceVersion": "9"}, "items": self.objects})


@asynccontextmanager
async def following(own: OwnKind[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(own.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - any condition, polled with a deadline
            await asyncio.sleep(0.005)


async def test_a_reconciler_learns_whether_what_it_planned_on_is_still_so() -> None:
    server = Answering(at(4))
    lab = Lab(server)
    lab.own.take(listed(4, at(4)))
    assert await lab.own.is_current(at(4))
    server.objects = (at(5),)
    assert not await lab.own.is_current(at(4))
    assert lab.known == "5"
    server.objects = ()
    assert not await lab.own.is_current(at(5))
    assert lab.known is None


async def test_a_kind_that_is_served_and_not_watched_has_kopf_look_again() -> None:
    server = Answering(at(4), served=False)
    lab = Lab(server, unwatched_after_s=0.0, unwatched_list_every_s=0.01, first_pause_s=0.01, longest_pause_s=0.01)
    again: list[bool] = []
    lab.own.start_again = lambda: again.append(lab.own.synced.is_set())
    async with following(lab.own):
        await until(lambda: lab.own.unserved_s > 0)
        assert not again
        server.served = True
        await until(lambda: bool(again))
        assert (lab.known, lab.own.unserved_s) == ("4", 0.0)
        server.objects = ()
        lab.own.watching()
        await until(lambda: lab.known is None)


@pytest.mark.parametrize("happens", ["watching", "unwatched"])
async def test_what_was_deleted_is_found_by_a_list_when_a_watch_begins_and_when_it_ends(happens: str) -> None:
    server = Answering(at(4))
    lab = Lab(server, list_every_s=999.0, unwatched_list_every_s=999.0)
    lab.own.watching()
    async with following(lab.own):
        await until(lambda: lab.known == "4")
        server.objects = ()
        getattr(lab.own, happens)()
        await until(lambda: lab.known is None)
