"""List and watch of a collection in the API server's protocol.

Owns the wire side of following a collection: pages, streaming lists, watch events, bookmarks, versions, and which answers
invalidate the known version. Keeps no objects and never retries: `informer` does.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar

import msgspec

from draco.kube.collector import collector_at_rest
from draco.kube.connect.client import PAGE_SIZE, Client, Undecodable, decode, identify
from draco.kube.errors import ApiError, ApiStatus, Expired, TooManyRequests, from_status
from draco.kube.watch.store import ApiObject
from draco.resources.api.foreign import read
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import Kind

T = TypeVar("T", bound=ApiObject)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class StreamBroken(Exception):
    """The stream requires a new list: it sent an error, or a line that is no event."""


class ListedCollection(msgspec.Struct, Generic[T]):
    """A whole collection at one version."""

    objects: dict[ObjectKey, T]
    version: str
    undecodable: list[Undecodable]


class Upsert(msgspec.Struct, Generic[T], frozen=True):
    """An object was added or changed."""

    obj: T


class Removal(msgspec.Struct, frozen=True):
    """An object was deleted."""

    key: ObjectKey


class Bookmark(msgspec.Struct, frozen=True):
    """Nothing else happened up to this version. `initial_end`: all initially existing objects have been sent."""

    initial_end: bool


WatchEvent = Upsert[T] | Removal | Undecodable | Bookmark
"""Undecodable: an object was added or changed that does not fit its struct."""


class WatchStep(msgspec.Struct, Generic[T], frozen=True):
    """One event, and the version to resume from after it."""

    event: WatchEvent[T]
    version: str


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _BookmarkObject(msgspec.Struct):
    metadata: _BookmarkMeta


_event_decoder = msgspec.json.Decoder(_Event)
_bookmark_decoder = msgspec.json.Decoder(_BookmarkObject)
_status_decoder = msgspec.json.Decoder(ApiStatus)


async def list_all(
    client: Client,
    kind: Kind[T],
    *,
    timeout_s: float,
    namespace: str = "",
    params: Mapping[str, str] | None = None,
    page_size: int = PAGE_SIZE,
    keep: Callable[[T], T] = lambda obj: obj,
) -> ListedCollection[T]:
    """Read the collection in pages, the first of `page_size`, each object through `keep`. Raises ApiError (Expired if slow)."""
    listed: ListedCollection[T] = ListedCollection({}, "", [])
    async with aclosing(
        client.pages(kind, namespace=namespace, params=params, limit=page_size, timeout_s=timeout_s)
    ) as pages:
        async for page in pages:
            # Every page carries the version of the first: together they are one snapshot.
            listed.version = listed.version or page.resource_version
            with collector_at_rest():
                listed.objects.update((obj.metadata.key, keep(obj)) for obj in page.items)
            listed.undecodable += page.undecodable
    return listed


async def watch(
    client: Client,
    kind: Kind[T],
    *,
    namespace: str,
    params: Mapping[str, str],
    version: str,
    server_timeout_s: float,
    idle_timeout_s: float,
) -> AsyncGenerator[list[WatchStep[T]], None]:
    """Watch the collection from `version`; from an empty one, all existing objects are sent first (a streaming list).

    Yields an empty list when the stream is open, then batches of events. Ends when the server ends the stream normally, after
    about `server_timeout_s`. Raises Expired if the version is too old, StreamBroken if only a list can help, ApiError otherwise.
    """
    query = {
        **params,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(max(1, round(server_timeout_s))),
        "resourceVersion": version,
    }
    if not version:
        query["sendInitialEvents"] = "true"
        query["resourceVersionMatch"] = "NotOlderThan"
    path = kind.path(namespace=namespace)
    async with client.connection.lines(path, params=query, idle_timeout_s=idle_timeout_s) as stream:
        yield []  # the server has answered
        async for lines in stream:
            steps: list[WatchStep[T]] = []
            failure: Exception | None = None
            for line in lines:
                try:
                    steps.append(_step(kind, line))
                except (ApiError, StreamBroken) as error:
                    failure = error  # raised after the events before it have been applied
                    break
            if steps:
                yield steps
            if failure:
                raise failure


def _step(kind: Kind[T], line: bytes) -> WatchStep[T]:
    try:
        event = read(_event_decoder, line)
        match event.type:
            case "ADDED" | "MODIFIED":
                return _upsert(kind, event.object)
            case "DELETED":
                gone = identify(event.object, "")
                return WatchStep(Removal(gone.key), gone.resource_version)
            case "BOOKMARK":
                metadata = read(_bookmark_decoder, event.object).metadata
                ended = (metadata.annotations or {}).get(INITIAL_EVENTS_END) == "true"
                return WatchStep(Bookmark(ended), metadata.resource_version)
            case "ERROR":
                raise _stream_error(from_status(read(_status_decoder, event.object)))
            case other:
                raise StreamBroken(f"an event of the unknown type {other!r}")
    except msgspec.MsgspecError as error:
        raise StreamBroken(f"a line that is not an event: {error}") from error


def _upsert(kind: Kind[T], raw: msgspec.Raw) -> WatchStep[T]:
    try:
        obj = decode(kind, raw)
    except msgspec.ValidationError as error:
        what = identify(raw, str(error))
        return WatchStep(what, what.resource_version)
    return WatchStep(Upsert(obj), obj.metadata.resource_version)


def _stream_error(error: ApiError) -> Exception:
    # Under pressure the server ends watches with 429: the version is still good. After other errors that is unknown.
    if isinstance(error, Expired | TooManyRequests):
        return error
    return StreamBroken(f"an error {error.status} {error.reason}: {error.message}")


def cannot_stream_lists(error: Exception) -> bool:
    """Whether this error means that the server does not support streaming lists (it calls the parameters invalid)."""
    return isinstance(error, ApiError) and error.status in {400, 422}
