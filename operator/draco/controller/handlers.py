"""The operator in Kopf's terms: what Kopf does at the start and at the end, as whom, and for which kinds.

Owns Kopf's registry and settings. The kinds are those that people write, and Kopf has their only watch: what it sees is handed to
their stores, and nothing else is done here, so Kopf writes nothing, neither annotations nor finalizers nor Events. What Kopf does
not see is `own_kinds`' business; where it runs is `kopf_thread`'s, which alone imports this module.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import kopf
import msgspec

from draco.controller.own_kinds import OwnKind
from draco.kube.connect.client import Undecodable, convert
from draco.kube.connect.connection import Connect
from draco.kube.watch.watching import Removal, Upsert, WatchEvent
from draco.resources.api.foreign import DEEPEST, shallow
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import Kind

_CONNECT_AGAIN_S = 2.0
_LEFT_RUNNING = ("watcher for ", "stop-flag waiter")
"""Tasks that Kopf forgets when one watch fails, and then waits for, for five seconds."""


OwnKinds = Mapping[Kind[Any], OwnKind[Any]]
Tell = Callable[..., None]
"""Has a function called with these arguments in the operator's thread, where the stores are; the handlers run in Kopf's."""


def kopf_registry(connect: Connect, own_kinds: OwnKinds, tell: Tell) -> kopf.OperatorRegistry:
    """The handlers. `memo` holds the connection from the start to the end."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(id="draco", registry=registry, backoff=_CONNECT_AGAIN_S)
    async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True  # else Kopf wants to watch all CustomResourceDefinitions
        settings.process.ultimate_exiting_timeout = None  # the process is not Kopf's to kill
        settings.watching.server_timeout = 300  # before a proxy gives up on a silent watch
        settings.watching.client_timeout = 310
        settings.networking.request_timeout = 30
        memo.connection = await connect()

    @kopf.on.login(id="draco", registry=registry)
    async def login(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
        # A server that is reached through another one, such as Rancher's, has a path of its own before all others.
        before = urlsplit(memo.connection.server).path
        by_path = {before + kind.path(): own for kind, own in own_kinds.items()}
        session = memo.connection.lend_session(_watch_listener(by_path, tell))
        return kopf.AiohttpSession(server=memo.connection.server, aiohttp_session=session)

    @kopf.on.cleanup(id="draco", registry=registry)
    async def clean_up(memo: kopf.Memo, **_: Any) -> None:
        for own in own_kinds.values():
            tell(own.unwatched)
        left = [task for task in asyncio.all_tasks() if task.get_name().startswith(_LEFT_RUNNING)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await memo.connection.close()

    for own in own_kinds.values():
        _follow(registry, own, tell)
    return registry


def _follow(registry: kopf.OperatorRegistry, own: OwnKind[Any], tell: Tell) -> None:
    kind = own.kind

    # `on.event` only: every other kind of handler keeps its state in annotations of the object.
    @kopf.on.event(kind.group, kind.version, kind.plural, id=kind.kind.lower(), registry=registry)
    async def follow(event: kopf.RawEvent, **_: Any) -> None:
        tell(own.seen, _read(kind, event), event["object"]["metadata"]["resourceVersion"])


def _read(kind: Kind[Any], event: kopf.RawEvent) -> WatchEvent[Any]:
    body = event["object"]
    meta = body["metadata"]
    key = ObjectKey(meta.get("namespace", ""), meta["name"])
    if event["type"] == "DELETED":
        return Removal(key)
    try:
        return Upsert(convert(kind, body))
    except msgspec.ValidationError as error:
        return Undecodable(key, meta["uid"], meta["resourceVersion"], str(error))


def _watch_listener(by_path: Mapping[str, OwnKind[Any]], tell: Tell) -> aiohttp.ClientMiddlewareType:
    """Kopf tells nobody when it lists and when a watch begins, so its requests do; and it is given what it can read."""

    async def observe(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        own = by_path.get(request.url.path) if request.method == "GET" else None
        watches = "watch" in request.url.query
        if own and not watches:
            tell(own.listing)
        response = await send(request)
        response.content = ShallowContent(response.content)  # type: ignore[assignment]
        if own and watches and response.status < 300:
            tell(own.watching)
        return response

    return observe


_AROUND: Final = 2
"""Levels around an object in a list; in the line of a watch there is one."""


class ShallowContent:
    """Takes the place of the content of an answer: that of `aiohttp.StreamReader` which Kopf and aiohttp use.

    Kopf reads answers with Python's own JSON parser, which takes a level of the stack for each level of nesting, and ends all its
    watches on what is too deep for that. Anybody who may write an object can nest a part of it thousands of levels deep, be it
    only in `managedFields`, which no schema bounds. So what is nested more deeply than Draco reads is null before Kopf sees it,
    in a list and in each line of a watch.
    """

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def read(self) -> bytes:
        """The whole answer."""
        return _shallow(await self._content.read())

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """The lines, each whole, as soon as they are complete."""
        begun: list[bytes] = []
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                yield _shallow(b"".join([*begun, line])) + b"\n"
                begun.clear()
            begun.append(rest)
        if last := b"".join(begun):
            yield _shallow(last)

    def exception(self) -> BaseException | None:
        """What the connection failed with."""
        return self._content.exception()

    def set_exception(self, *args: BaseException) -> None:
        """The connection fails with this."""
        self._content.set_exception(*args)


def _shallow(written: bytes) -> bytes:
    deepest = DEEPEST + _AROUND
    if written.count(b"{") + written.count(b"[") <= deepest:
        return written  # nearly all lines of a watch
    return shallow(written, deepest)
