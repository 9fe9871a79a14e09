"""The operator in Kopf's terms: what Kopf does at the start and at the end, as whom, and for which kinds.

Owns Kopf's registry and settings. The kinds are those that people write, and Kopf has their only watch: what it sees is handed to
their stores, and nothing else is done here, so Kopf writes nothing, neither annotations nor finalizers nor Events. What Kopf does
not see is `own_kinds`' business; where it runs is `kopf_thread`'s, which alone imports this module.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import kopf
import msgspec

from draco.controller.kopf_content import ShallowContent
from draco.kube.connect.connection import Connect
from draco.kube.watch.watching import Removal, WatchEvent, upsert
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import Kind

_CONNECT_AGAIN_S = 2.0
_LEFT_RUNNING = ("watcher for ", "stop-flag waiter")
"""Tasks that Kopf forgets when one watch fails, and then waits for, for five seconds."""


class KopfFeed(Protocol):
    """Where what Kopf sees goes, from Kopf's thread."""

    def listing(self, kind: Kind[Any]) -> None:
        """Kopf lists the kind."""
        ...

    def watching(self, kind: Kind[Any]) -> None:
        """A watch of the kind has begun."""
        ...

    def seen(self, kind: Kind[Any], event: WatchEvent[Any], version: str) -> None:
        """Something happened to an object of the kind."""
        ...

    def unwatched(self) -> None:
        """Kopf ends, and all its watches with it."""
        ...


def kopf_registry(connect: Connect, kinds: Sequence[Kind[Any]], feed: KopfFeed) -> kopf.OperatorRegistry:
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
        session = memo.connection.lend_session(_watch_listener({before + kind.path(): kind for kind in kinds}, feed))
        return kopf.AiohttpSession(server=memo.connection.server, aiohttp_session=session)

    @kopf.on.cleanup(id="draco", registry=registry)
    async def clean_up(memo: kopf.Memo, **_: Any) -> None:
        feed.unwatched()
        left = [task for task in asyncio.all_tasks() if task.get_name().startswith(_LEFT_RUNNING)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await memo.connection.close()

    for kind in kinds:
        _follow(registry, kind, feed)
    return registry


def _follow(registry: kopf.OperatorRegistry, kind: Kind[Any], feed: KopfFeed) -> None:
    # `on.event` only: every other kind of handler keeps its state in annotations of the object.
    @kopf.on.event(kind.group, kind.version, kind.plural, id=kind.kind.lower(), registry=registry)
    async def follow(event: kopf.RawEvent, **_: Any) -> None:
        body = event["object"]
        if event["type"] == "DELETED":
            metadata = body["metadata"]
            key = ObjectKey(metadata.get("namespace", ""), metadata["name"])
            feed.seen(kind, Removal(key), metadata["resourceVersion"])
            return
        step = upsert(kind, msgspec.json.encode(body))
        feed.seen(kind, step.event, step.version)


def _watch_listener(by_path: Mapping[str, Kind[Any]], feed: KopfFeed) -> aiohttp.ClientMiddlewareType:
    """Kopf tells nobody when it lists and when a watch begins, so its requests do; and it is given what it can read."""

    async def observe(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        kind = by_path.get(request.url.path) if request.method == "GET" else None
        watches = "watch" in request.url.query
        if kind and not watches:
            feed.listing(kind)
        response = await send(request)
        response.content = ShallowContent(response.content)  # type: ignore[assignment]
        if kind and watches and response.status < 300:
            feed.watching(kind)
        return response

    return observe
