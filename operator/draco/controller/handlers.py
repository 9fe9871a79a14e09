"""The operator in Kopf's terms: what Kopf does at start and end, with which credentials, and for which kinds.

Owns Kopf's registry and settings. The kinds are those that people write. Kopf has their only watch and hands what it sees to
their stores; nothing else happens here, so Kopf writes no annotations, finalizers or Events. `own_kinds` handles what Kopf does
not see. `kopf_thread` runs this, and is the only importer.
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
"""Tasks that Kopf forgets when a watch fails, and then waits five seconds for."""


OwnKinds = Mapping[Kind[Any], OwnKind[Any]]
Tell = Callable[..., None]
"""Calls a function with these arguments in the operator's thread, where the stores are; handlers run in Kopf's."""


def kopf_registry(connect: Connect, own_kinds: OwnKinds, tell: Tell) -> kopf.OperatorRegistry:
    """The handlers. `memo` holds the connection from start to end."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(id="draco", registry=registry, backoff=_CONNECT_AGAIN_S)
    async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True  # otherwise Kopf watches all CustomResourceDefinitions
        settings.process.ultimate_exiting_timeout = None  # Kopf must not kill the process
        settings.watching.server_timeout = 300  # shorter than a proxy's idle timeout for watches
        settings.watching.client_timeout = 310
        settings.networking.request_timeout = 30
        memo.connection = await connect()

    @kopf.on.login(id="draco", registry=registry)
    async def login(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
        # A server behind another one, such as Rancher's, prefixes all paths.
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

    # `on.event` only: all other handlers keep state in the object's annotations.
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
    """Detects lists and watch starts by their requests, since Kopf does not report them; wraps answers for Kopf's parser."""

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
"""Levels around an object in a list; a line of a watch has one."""


class ShallowContent:
    """Replaces the content of a response: the part of `aiohttp.StreamReader` that Kopf and aiohttp use.

    Kopf parses answers with Python's JSON parser, which recurses per level of nesting, and all its watches end on data that is
    too deep. Anybody who may write an object can nest part of it thousands of levels deep, for example in `managedFields`, which
    no schema limits. So anything deeper than Draco reads is replaced by null before Kopf sees it, in lists and in each line of a
    watch.
    """

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def read(self) -> bytes:
        """The whole answer."""
        return _shallow(await self._content.read())

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Complete lines, as soon as they arrive."""
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
        """The connection's error, if any."""
        return self._content.exception()

    def set_exception(self, *args: BaseException) -> None:
        """Fail the connection with this error."""
        self._content.set_exception(*args)


def _shallow(written: bytes) -> bytes:
    deepest = DEEPEST + _AROUND
    if written.count(b"{") + written.count(b"[") <= deepest:
        return written  # nearly all lines of a watch
    return shallow(written, deepest)
