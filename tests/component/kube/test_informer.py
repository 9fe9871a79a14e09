"""The laws of the informer, against a real API server with all kinds of faults."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from structlog.testing import capture_logs

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection, TokenFile
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import Kind
from tests.component.kube.support import CONFIG_MAPS, QUICK, ConfigMap, a_config_map, eventually, following
from tests.doubles.faultproxy import (
    FaultProxy,
    Stream,
    answer,
    anything,
    continued_lists,
    delay,
    drop,
    error_event,
    lists,
    plain,
    streaming_lists,
    watches,
)

ROOT_CERTIFICATES = "metadata.name!=kube-root-ca.crt"


def an_informer(client: Client, namespace: str, **options: Any) -> Informer[ConfigMap]:
    options = {"field_selector": ROOT_CERTIFICATES, "clock": SystemClock(), "settings": QUICK, **options}
    return Informer(client, CONFIG_MAPS, namespace=namespace, **options)


class Recorder:
    """Replays changes as a subscriber would, and checks that each fits the previous ones."""

    def __init__(self) -> None:
        self.changes: list[Change[ConfigMap]] = []
        self.objects: dict[ObjectKey, ConfigMap] = {}

    def __call__(self, change: Change[ConfigMap]) -> None:
        key, before, after = change
        assert self.objects.get(key) == before
        assert before or after
        if before and after:
            assert before.metadata.uid == after.metadata.uid
        if after:
            self.objects[key] = after
        else:
            del self.objects[key]
        self.changes.append(change)

    @property
    def told(self) -> list[str]:
        """Names, with "+" for new, "-" for gone, "~" for changed."""
        return [
            f"{'+' if before is None else '-' if after is None else '~'}{key.name}"
            for key, before, after in self.changes
        ]


def names(informer: Informer[Any]) -> list[str]:
    return sorted(key.name for key in informer.store)


async def test_the_store_holds_what_exists_and_follows_what_happens(
    client: Client, through: Client, namespace: str
) -> None:
    await client.create(CONFIG_MAPS, a_config_map(namespace, "old"))
    informer, recorder = an_informer(through, namespace), Recorder()
    informer.subscribe(recorder)
    async with following(informer):
        assert names(informer) == ["old"]
        await client.create(CONFIG_MAPS, a_config_map(namespace, "new"))
        await client.patch(CONFIG_MAPS, ObjectKey(namespace, "new"), {"data": {"a": "1"}})
        await client.delete(CONFIG_MAPS, ObjectKey(namespace, "old"))
        await eventually(lambda: "-old" in recorder.told, "the delete is delivered")
    assert recorder.told == ["+old", "+new", "~new", "-old"]
    new = informer.store.get(ObjectKey(namespace, "new"))
    assert new is not None
    assert new.data == {"a": "1"}
    assert recorder.objects == dict(informer.store.items())


async def test_who_subscribes_late_is_told_of_everything_that_is_there(
    client: Client, through: Client, namespace: str
) -> None:
    await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    informer = an_informer(through, namespace)
    async with following(informer):
        recorder = Recorder()
        unsubscribe = informer.subscribe(recorder)
        assert recorder.told == ["+a"]
        unsubscribe()
        await client.create(CONFIG_MAPS, a_config_map(namespace, "b"))
        await eventually(lambda: "b" in names(informer), "b is known")
        assert recorder.told == ["+a"]


async def test_an_object_that_no_longer_matches_the_selector_is_gone(
    client: Client, through: Client, namespace: str
) -> None:
    labelled = ConfigMap(metadata=ObjectMeta(name="a", namespace=namespace, labels={"app": "draco"}))
    await client.create(CONFIG_MAPS, labelled)
    await client.create(CONFIG_MAPS, a_config_map(namespace, "b"))
    informer, recorder = an_informer(through, namespace, label_selector="app=draco"), Recorder()
    informer.subscribe(recorder)
    async with following(informer):
        assert names(informer) == ["a"]
        await client.patch(CONFIG_MAPS, ObjectKey(namespace, "a"), {"metadata": {"labels": {"app": None}}})
        await eventually(lambda: recorder.told == ["+a", "-a"], "a is delivered as gone")


Interruption = Callable[[FaultProxy, Stream], Awaitable[None]]


def refuse_to_resume(proxy: FaultProxy, stream: Stream) -> None:
    """The version that the silenced stream started from is forgotten."""
    version = stream.query["resourceVersion"]
    proxy.fault(lambda request: request.query.get("resourceVersion") == version, answer(410, "Expired"), times=999)


async def expired_in_the_stream(proxy: FaultProxy, stream: Stream) -> None:
    refuse_to_resume(proxy, stream)
    stream.inject(error_event(410, "Expired"))


async def server_error_in_the_stream(proxy: FaultProxy, stream: Stream) -> None:
    refuse_to_resume(proxy, stream)
    stream.inject(error_event(500, "InternalError"))


async def overload_in_the_stream(_: FaultProxy, stream: Stream) -> None:
    stream.inject(error_event(429, "TooManyRequests"))


async def a_line_that_is_not_json(_: FaultProxy, stream: Stream) -> None:
    stream.inject(b'{"type":"MODIFIED","object":{"metadata":{"na')


async def a_line_that_is_no_event(_: FaultProxy, stream: Stream) -> None:
    stream.inject(b'{"type":"SURPRISE","object":{}}')


async def the_connection_is_lost(_: FaultProxy, stream: Stream) -> None:
    stream.cut()


async def expired_on_resuming(proxy: FaultProxy, stream: Stream) -> None:
    refuse_to_resume(proxy, stream)
    stream.cut()


async def a_gateway_answers_for_the_server(proxy: FaultProxy, stream: Stream) -> None:
    proxy.fault(anything, plain(502, "<html>bad gateway</html>"), times=3)
    stream.cut()


async def refused_for_a_while(proxy: FaultProxy, stream: Stream) -> None:
    await proxy.refuse()
    await asyncio.sleep(0.3)
    await proxy.accept()


async def credentials_are_refused_for_a_while(proxy: FaultProxy, stream: Stream) -> None:
    proxy.fault(anything, answer(401, "Unauthorized"), times=4)
    stream.cut()


async def the_kind_is_not_served_for_a_while(proxy: FaultProxy, stream: Stream) -> None:
    proxy.fault(anything, answer(404, "NotFound"), times=3)
    stream.inject(error_event(410, "Expired"))


async def lists_fail_for_a_while(proxy: FaultProxy, stream: Stream) -> None:
    proxy.fault(streaming_lists, answer(500, "InternalError"), times=2)
    proxy.fault(lists, drop, times=2)
    stream.inject(error_event(410, "Expired"))


async def silence(_: FaultProxy, __: Stream) -> None:
    """Nothing more arrives, without an error: the idle timeout ends the stream."""


@pytest.mark.parametrize(
    "interrupt",
    [
        expired_in_the_stream, server_error_in_the_stream, overload_in_the_stream, a_line_that_is_not_json,
        a_line_that_is_no_event, the_connection_is_lost, expired_on_resuming, a_gateway_answers_for_the_server,
        refused_for_a_while, credentials_are_refused_for_a_while, the_kind_is_not_served_for_a_while,
        lists_fail_for_a_while, silence,
    ],
)  # fmt: skip
async def test_what_happened_unseen_is_delivered_after_any_interruption(
    client: Client, through: Client, proxy: FaultProxy, namespace: str, interrupt: Interruption
) -> None:
    for name in ("deleted", "changed", "remade", "untouched"):
        await client.create(CONFIG_MAPS, a_config_map(namespace, name))
    informer, recorder = an_informer(through, namespace), Recorder()
    informer.subscribe(recorder)
    async with following(informer):
        stream = await proxy.open_stream()
        stream.silent = True
        await client.delete(CONFIG_MAPS, ObjectKey(namespace, "deleted"))
        await client.delete(CONFIG_MAPS, ObjectKey(namespace, "remade"))
        await client.create(CONFIG_MAPS, a_config_map(namespace, "remade", again="yes"))
        await client.create(CONFIG_MAPS, a_config_map(namespace, "new"))
        await client.patch(CONFIG_MAPS, ObjectKey(namespace, "changed"), {"data": {"a": "1"}})
        await interrupt(proxy, stream)
        await eventually(lambda: {"+new", "~changed"} <= set(recorder.told), "it is delivered")
        assert names(informer) == ["changed", "new", "remade", "untouched"]
        unseen = recorder.told[4:]
        assert sorted(unseen) == ["+new", "+remade", "-deleted", "-remade", "~changed"]
        assert unseen.index("-remade") < unseen.index("+remade")
        # and the informer still follows changes
        await client.create(CONFIG_MAPS, a_config_map(namespace, "later"))
        await eventually(lambda: "later" in names(informer), "what happens later is known")
    assert recorder.objects == dict(informer.store.items())
    assert informer.counts.failures >= 1


async def test_a_line_cut_in_the_middle_is_not_lost(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    informer, recorder = an_informer(through, namespace), Recorder()
    informer.subscribe(recorder)
    async with following(informer):
        (await proxy.open_stream()).cut_next = True
        await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
        await eventually(lambda: recorder.told == ["+a"], "a is delivered, once")


async def test_a_watch_that_the_server_ends_is_resumed_where_it_ended(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    informer = an_informer(through, namespace)
    async with following(informer):
        (await proxy.open_stream()).close_after = 1
        for name in "abc":
            await client.create(CONFIG_MAPS, a_config_map(namespace, name))
        await eventually(lambda: names(informer) == ["a", "b", "c"], "all are known")
    assert informer.counts.lists == 1
    assert informer.counts.failures == 0


async def test_a_watch_that_an_overloaded_server_ends_is_resumed_without_a_new_list(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    informer = an_informer(through, namespace)
    async with following(informer):
        (await proxy.open_stream()).inject(error_event(429, "TooManyRequests"))
        await eventually(lambda: informer.counts.failures == 1, "the watch has ended")
        await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
        await eventually(lambda: names(informer) == ["a"], "what came after is known")
    assert informer.counts.lists == 1


async def test_bookmarks_move_the_version_from_which_to_resume(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    informer = an_informer(through, namespace)
    async with following(informer):
        (await proxy.open_stream()).inject(
            b'{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"123456"}}}'
        )
        await eventually(lambda: informer.counts.events == 1, "the bookmark is read")
        proxy.fault(watches, answer(500, "InternalError"))
        seen = len(proxy.streams)
        (await proxy.open_stream()).cut()
        await eventually(lambda: proxy.count(lambda query: query.get("resourceVersion") == "123456") > 0, "it is used")
        # The real server refuses a future version as too large or waits for it; either way the informer recovers.
        proxy.fault(lambda request: request.query.get("resourceVersion") == "123456", answer(410, "Expired"), times=99)
        for stream in proxy.open_streams:
            stream.cut()
        await proxy.stream_after(seen)
        await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
        await eventually(lambda: names(informer) == ["a"], "a is known")


async def test_the_first_list_is_paged_and_later_ones_are_streamed(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    for number in range(20):
        await client.create(CONFIG_MAPS, a_config_map(namespace, f"cm-{number:02}"))
    informer = an_informer(through, namespace)
    async with following(informer):
        assert len(informer.store) == 20
        assert proxy.count(lambda query: "limit" in query) == 2
        assert proxy.count(lambda query: "sendInitialEvents" in query) == 0
        (await proxy.open_stream()).inject(error_event(410, "Expired"))
        await eventually(lambda: proxy.count(lambda query: "sendInitialEvents" in query) == 1, "it is streamed")
        await client.create(CONFIG_MAPS, a_config_map(namespace, "new"))
        await eventually(lambda: len(informer.store) == 21, "new is known")
        assert proxy.count(lambda query: "limit" in query) == 2


async def test_a_server_without_streaming_lists_is_always_listed_in_pages(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    for number in range(20):
        await client.create(CONFIG_MAPS, a_config_map(namespace, f"cm-{number:02}"))
    proxy.fault(streaming_lists, answer(422, "Invalid"), times=99)
    informer = an_informer(through, namespace)
    async with following(informer):
        for name in ("first", "second"):
            (await proxy.open_stream()).inject(error_event(410, "Expired"))
            await proxy.stream_after(len(proxy.streams))
            await client.create(CONFIG_MAPS, a_config_map(namespace, name))
            await eventually(lambda name=name: name in names(informer), "it is known")
        assert len(informer.store) == 22
    assert proxy.count(lambda query: "sendInitialEvents" in query) == 1, "it is not asked for again"
    assert proxy.count(lambda query: "continue" in query) == 3


async def test_a_server_whose_streaming_lists_never_end_is_listed_in_pages(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    proxy.fault(streaming_lists, delay(60), times=999)
    informer = an_informer(through, namespace)
    async with following(informer):
        (await proxy.open_stream()).inject(error_event(410, "Expired"))
        await proxy.stream_after(len(proxy.streams))
        await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
        await eventually(lambda: names(informer) == ["a"], "a is known")
    assert proxy.count(lambda query: "sendInitialEvents" in query) == 1


async def test_a_continue_token_that_expired_starts_the_list_over(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    for number in range(20):
        await client.create(CONFIG_MAPS, a_config_map(namespace, f"cm-{number:02}"))
    proxy.fault(streaming_lists, answer(422, "Invalid"), times=99)
    proxy.fault(continued_lists, answer(410, "Expired"), times=2)
    informer = an_informer(through, namespace)
    async with following(informer):
        assert len(informer.store) == 20


async def test_a_streaming_list_that_breaks_off_is_not_taken_for_the_whole(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    for number in range(20):
        await client.create(CONFIG_MAPS, a_config_map(namespace, f"cm-{number:02}"))
    informer, recorder = an_informer(through, namespace), Recorder()
    informer.subscribe(recorder)
    async with following(informer):
        opened = len(proxy.streams)

        async def cut_soon(_: Any) -> None:
            async def cut() -> None:
                stream = await proxy.stream_after(opened)
                stream.close_after = 3

            cutters.append(asyncio.create_task(cut()))

        cutters: list[asyncio.Task[None]] = []
        proxy.fault(streaming_lists, cut_soon)
        (await proxy.open_stream()).inject(error_event(410, "Expired"))
        await proxy.stream_after(opened + 1)
        await asyncio.gather(*cutters)
        await client.create(CONFIG_MAPS, a_config_map(namespace, "new"))
        await eventually(lambda: len(informer.store) == 21, "new is known")
    assert not [told for told in recorder.told if told.startswith("-")]


class PauseRecorder(SystemClock):
    """Records requested sleeps without sleeping."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("code", [403, 404, 410, 429, 500])
async def test_lists_that_keep_failing_are_tried_ever_more_slowly(
    through: Client, proxy: FaultProxy, namespace: str, code: int
) -> None:
    proxy.fault(anything, answer(code), times=1000)
    clock = PauseRecorder()
    task = asyncio.create_task(an_informer(through, namespace, clock=clock).run())
    await eventually(lambda: len(clock.pauses) >= 8, "it tries again")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for number, pause in enumerate(clock.pauses[:8]):
        full = min(QUICK.longest_pause_s, QUICK.first_pause_s * 2**number)
        assert full / 2 <= pause <= full
    assert len({round(pause / min(0.3, 0.02 * 2**n), 3) for n, pause in enumerate(clock.pauses[:8])}) > 1, "no jitter"


async def test_a_list_that_works_and_a_watch_that_does_not_is_no_tight_loop(
    through: Client, proxy: FaultProxy, namespace: str
) -> None:
    proxy.fault(lambda request: watches(request) and not streaming_lists(request), answer(410, "Expired"), times=1000)
    proxy.fault(streaming_lists, answer(422, "Invalid"), times=1000)
    clock = PauseRecorder()
    informer = an_informer(through, namespace, clock=clock)
    async with following(informer):
        await eventually(lambda: len(clock.pauses) >= 8, "it tries again")
    assert all(later > earlier for earlier, later in itertools.pairwise(clock.pauses[:4]))
    assert clock.pauses[7] >= QUICK.longest_pause_s / 2


async def test_the_server_says_how_long_to_wait(through: Client, proxy: FaultProxy, namespace: str) -> None:
    proxy.fault(anything, answer(429, "TooManyRequests", {"Retry-After": "17"}))
    clock = PauseRecorder()
    async with following(an_informer(through, namespace, clock=clock)):
        assert clock.pauses[0] == 17


async def test_a_rotated_token_is_taken_up_without_losing_anything(
    client: Client, proxy: FaultProxy, namespace: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    accepted = ["Bearer first"]
    proxy.fault(
        lambda request: request.headers.get("Authorization") not in accepted, answer(401, "Unauthorized"), times=999
    )
    async with Client(Connection(proxy.url, credentials=TokenFile(token))) as rotating:
        informer = an_informer(rotating, namespace)
        async with following(informer):
            accepted[:] = ["Bearer second"]
            token.write_text("second")
            (await proxy.open_stream()).cut()
            await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
            await eventually(lambda: names(informer) == ["a"], "a is known")


class StrictMap(ApiStruct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, Literal["fine", "better"]] = {}


STRICT_MAPS = Kind("", "v1", "configmaps", "ConfigMap", True, StrictMap)


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_object_that_cannot_be_read_is_left_out_and_the_others_are_followed(
    client: Client, through: Client, proxy: FaultProxy, namespace: str, streaming: bool
) -> None:
    if not streaming:
        proxy.fault(streaming_lists, answer(422, "Invalid"), times=999)
    await client.create(CONFIG_MAPS, a_config_map(namespace, "good", a="fine"))
    await client.create(CONFIG_MAPS, a_config_map(namespace, "odd", a="strange"))
    await client.create(CONFIG_MAPS, a_config_map(namespace, "turning", a="fine"))
    informer = Informer(
        through, STRICT_MAPS, namespace=namespace, field_selector=ROOT_CERTIFICATES, clock=SystemClock(),
        settings=QUICK,
    )  # fmt: skip
    with capture_logs() as logs:
        async with following(informer):
            assert names(informer) == ["good", "turning"]
            await client.patch(CONFIG_MAPS, ObjectKey(namespace, "turning"), {"data": {"a": "strange"}})
            await client.patch(CONFIG_MAPS, ObjectKey(namespace, "good"), {"data": {"a": "better"}})
            good = ObjectKey(namespace, "good")
            await eventually(lambda: informer.store.get(good).data == {"a": "better"}, "good is followed")  # type: ignore[union-attr]
            assert names(informer) == ["good", "turning"], "the earlier version stays"
            (await proxy.open_stream()).inject(error_event(410, "Expired"))
            await proxy.stream_after(len(proxy.streams))
            await client.create(CONFIG_MAPS, a_config_map(namespace, "later", a="fine"))
            await eventually(lambda: "later" in names(informer), "it goes on after a relist")
            assert names(informer) == ["good", "later", "turning"], "and stays through a relist"
            await client.delete(CONFIG_MAPS, ObjectKey(namespace, "turning"))
            await eventually(lambda: names(informer) == ["good", "later"], "its deletion is seen all the same")
            await client.patch(CONFIG_MAPS, ObjectKey(namespace, "odd"), {"data": {"a": "fine"}})
            await eventually(lambda: names(informer) == ["good", "later", "odd"], "a mended one is taken in")
    assert informer.counts.undecodable >= 4
    keys = {entry["key"] for entry in logs if entry["event"] == "informer.undecodable"}
    assert keys == {f"{namespace}/odd", f"{namespace}/turning"}


async def test_a_subscriber_that_raises_keeps_nothing_from_the_others(
    client: Client, through: Client, namespace: str
) -> None:
    informer, recorder = an_informer(through, namespace), Recorder()

    def faulty(_: Change[ConfigMap]) -> None:
        raise RuntimeError("subscriber")

    informer.subscribe(faulty)
    informer.subscribe(recorder)
    async with following(informer):
        await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
        await eventually(lambda: recorder.told == ["+a"], "the other is told")
        assert names(informer) == ["a"]
    assert informer.counts.failures == 0


async def test_silence_is_visible(through: Client, proxy: FaultProxy, namespace: str) -> None:
    informer = an_informer(through, namespace)
    async with following(informer):
        async with proxy.unplugged():
            await eventually(lambda: informer.silent_s > 1, "silence is counted")
        await eventually(lambda: informer.silent_s < 1, "and ends with the next sign of life", within_s=60)


async def test_a_large_object_is_one_line(client: Client, through: Client, namespace: str) -> None:
    informer = an_informer(through, namespace)
    async with following(informer):
        await client.create(CONFIG_MAPS, a_config_map(namespace, "large", text="x" * 900_000))
        await eventually(lambda: names(informer) == ["large"], "it is known")


FAULTS: dict[str, Callable[[FaultProxy, Stream], None]] = {
    "cut": lambda _, stream: stream.cut(),
    "cut in the middle": lambda _, stream: setattr(stream, "cut_next", True),
    "mangle": lambda _, stream: setattr(stream, "mangle_next", True),
    "silence": lambda _, stream: setattr(stream, "silent", True),
    "end": lambda _, stream: setattr(stream, "close_after", 1),
    "expired": lambda _, stream: stream.inject(error_event(410, "Expired")),
    "error": lambda _, stream: stream.inject(error_event(500, "InternalError")),
    "overload": lambda _, stream: stream.inject(error_event(429, "TooManyRequests")),
    "no resume": lambda proxy, _: proxy.fault(watches, answer(410, "Expired")),
    "no streaming list": lambda proxy, _: proxy.fault(streaming_lists, answer(500), times=2),
    "lists fail": lambda proxy, _: proxy.fault(lists, answer(503), times=2),
    "continue expired": lambda proxy, _: proxy.fault(continued_lists, answer(410, "Expired")),
    "dropped": lambda proxy, _: proxy.fault(anything, drop),
    "unauthorized": lambda proxy, _: proxy.fault(anything, answer(401, "Unauthorized"), times=2),
}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_under_any_sequence_of_faults_the_store_ends_as_the_server_is(
    client: Client, through: Client, proxy: FaultProxy, namespace: str, seed: int
) -> None:
    random = Random(seed)
    settings = type(QUICK)(
        idle_timeout_s=0.5, watch_timeout_s=2, first_pause_s=0.01, longest_pause_s=0.1, page_size=5, list_timeout_s=5
    )
    informer, recorder = an_informer(through, namespace, settings=settings), Recorder()
    informer.subscribe(recorder)
    existing: set[str] = set()
    used: set[str] = set()
    async with following(informer):
        for step in range(400):
            name = f"cm-{random.randrange(20):02}"
            key = ObjectKey(namespace, name)
            if name not in existing:
                await client.create(CONFIG_MAPS, a_config_map(namespace, name, step=str(step)))
                existing.add(name)
            elif random.random() < 0.5:
                await client.patch(CONFIG_MAPS, key, {"data": {"step": str(step)}})
            else:
                await client.delete(CONFIG_MAPS, key)
                existing.discard(name)
            if random.random() < 0.3 and proxy.open_streams:
                fault = random.choice(sorted(FAULTS))
                used.add(fault)
                FAULTS[fault](proxy, proxy.open_streams[-1])
            if random.random() < 0.2:
                await asyncio.sleep(random.random() * 0.1)
        proxy.heal()
        truth = {
            obj.metadata.key: obj
            for obj in await client.list(CONFIG_MAPS, namespace=namespace, field_selector=ROOT_CERTIFICATES)
        }
        await eventually(lambda: dict(informer.store.items()) == truth, "the store is as the server")
    assert recorder.objects == truth
    assert len(used) > len(FAULTS) / 2
    assert informer.counts.failures > 10


@pytest.mark.parametrize("refused", [anything, watches], ids=["all", "the watch"])
async def test_a_kind_that_need_not_be_readable_counts_as_synced_and_says_whether_it_is_read(
    client: Client, through: Client, proxy: FaultProxy, namespace: str, refused: Callable[[Any], bool]
) -> None:
    is_permitted = False
    proxy.fault(lambda request: not is_permitted and refused(request), answer(403, "Forbidden"), times=1000)
    informer = an_informer(through, namespace, optional=True)
    async with following(informer):
        await eventually(lambda: informer.forbidden, "the right is missing")
        await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
        if refused is watches:
            await eventually(lambda: names(informer) == ["a"], "it is listed again, as that is permitted")
        is_permitted = True
        await eventually(lambda: not informer.forbidden and names(informer) == ["a"], "it is read")
