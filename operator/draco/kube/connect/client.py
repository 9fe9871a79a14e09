"""Typed calls for one object or one collection.

Owns encoding, decoding, paths and parameters of get, list, create, apply, patch, replace and delete. Keeps no objects (`informer`
does) and retries nothing (`retry` does).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from functools import cache
from typing import Any, Generic, Self, TypeVar

import msgspec

from draco.kube.collector import collector_at_rest
from draco.kube.connect.connection import Connection
from draco.kube.errors import Expired
from draco.resources.api.base import set_fields
from draco.resources.api.foreign import read, read_plain, shallow
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import Kind

T = TypeVar("T")

PAGE_SIZE = 500
PAGE_BYTES = 4 * 1024**2
"""Target page size: larger pages cost memory, smaller ones round trips."""
_TURNS_TO_SEND = 5
"""Event loop turns until a request on an open connection has reached the kernel; affects only speed."""
REQUEST_TIMEOUT_S = 30.0

Body = msgspec.Struct | Mapping[str, Any]
"""What can be written: a struct of `resources`, or a mapping where a struct would omit fields."""

Patch = Mapping[str, Any] | list[dict[str, Any]]


class ListMeta(msgspec.Struct, rename="camel"):
    """Metadata of a list response."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Undecodable(msgspec.Struct, frozen=True):
    """An object that does not fit its struct."""

    key: ObjectKey
    uid: str
    resource_version: str
    error: str


class Page(msgspec.Struct, Generic[T]):
    """One page of a collection."""

    items: list[T]
    resource_version: str
    undecodable: list[Undecodable] = []


class _Items(msgspec.Struct, Generic[T]):
    metadata: ListMeta
    items: list[T] | None = None


class _Metadata(msgspec.Struct):
    metadata: ListMeta


class _Identity(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    metadata: _Identity = _Identity()


class Client:
    """Typed access through one connection. `manager` is the field manager of writes other than apply."""

    def __init__(self, connection: Connection, *, manager: str = "draco") -> None:
        self.connection = connection
        self._manager = manager

    async def get(
        self, kind: Kind[T], key: ObjectKey, *, subresource: str = "", timeout_s: float = REQUEST_TIMEOUT_S
    ) -> T:
        """Read one object. Raises NotFound, or another ApiError."""
        answer = await self.connection.request("GET", kind.path(key, subresource=subresource), timeout_s=timeout_s)
        return decode(kind, answer)

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """Read a whole collection in pages, as a snapshot. Raises msgspec.ValidationError for an object that does not fit."""
        params = selectors(label_selector, field_selector)
        items: list[T] = []
        for limit in (PAGE_SIZE, 0):
            try:
                async with aclosing(self.pages(kind, namespace=namespace, params=params, limit=limit)) as pages:
                    async for page in pages:
                        if page.undecodable:
                            first = page.undecodable[0]
                            raise msgspec.ValidationError(f"{kind.kind} {first.key}: {first.error}")
                        items += page.items
                break
            except Expired:
                if not items:
                    raise
                # The snapshot is gone (compaction during a slow list): read everything in one response.
                items.clear()
        return items

    async def list_page(
        self, kind: Kind[T], *, namespace: str = "", params: Mapping[str, str] | None = None
    ) -> Page[T]:
        """Read a whole collection in one response. Objects that do not fit their struct are set apart."""
        [page] = [each async for each in self.pages(kind, namespace=namespace, params=params)]
        return page

    async def pages(
        self,
        kind: Kind[T],
        *,
        namespace: str = "",
        params: Mapping[str, str] | None = None,
        limit: int = 0,
        timeout_s: float = 60.0,
    ) -> AsyncGenerator[Page[T], None]:
        """Read a snapshot of a collection in pages, the first of `limit` objects (0: all). Raises ApiError (Expired if slow)."""

        def fetch(token: str) -> asyncio.Task[bytes]:
            paging = {"limit": str(limit or ""), "continue": token}
            query = {**(params or {}), **{name: value for name, value in paging.items() if value}}
            path = kind.path(namespace=namespace)
            return asyncio.create_task(self.connection.request("GET", path, params=query, timeout_s=timeout_s))

        following: asyncio.Task[bytes] | None = fetch("")
        try:
            while following:
                answer = await following
                following = None
                if limit and (token := token_of(answer)):
                    # Claims are small and slices are not: choose a limit that gives pages of about the target size.
                    limit = max(1, min(4 * limit, limit * PAGE_BYTES // max(1, len(answer))))
                    # The server prepares the next page while this one is decoded, if it has the request by then.
                    following = fetch(token)
                    for _ in range(_TURNS_TO_SEND):
                        await asyncio.sleep(0)
                yield decode_page(kind, answer)
        finally:
            if following:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def create(self, kind: Kind[T], obj: Body, *, timeout_s: float = REQUEST_TIMEOUT_S) -> T:
        """Create an object and return it as stored. Raises AlreadyExists, or another ApiError."""
        manifest = encode_plain(kind, obj)
        namespace = manifest.get("metadata", {}).get("namespace", "")
        if kind.namespaced and not namespace:
            raise ValueError(f"a {kind.kind} needs metadata.namespace")
        answer = await self.connection.request(
            "POST",
            kind.path(namespace=namespace),
            params={"fieldManager": self._manager},
            body=msgspec.json.encode(manifest),
            timeout_s=timeout_s,
        )
        return decode(kind, answer)

    async def create_subresource(
        self, kind: Kind[Any], key: ObjectKey, subresource: str, body: Mapping[str, Any], *, dry_run: bool = False
    ) -> dict[str, Any]:
        """POST to a subresource, such as a pod's eviction or binding; return the plain response. A dry run changes nothing."""
        answer = await self.connection.request(
            "POST",
            kind.path(key, subresource=subresource),
            params={"fieldManager": self._manager, **({"dryRun": "All"} if dry_run else {})},
            body=msgspec.json.encode(body),
        )
        decoded: dict[str, Any] = read_plain(answer)
        return decoded

    async def apply(self, kind: Kind[T], key: ObjectKey, obj: Body, *, manager: str, subresource: str = "") -> T:
        """Server-side apply as `manager`: creates the object, or changes exactly the fields in `obj`.

        Fields that `manager` applied before and that are missing from `obj` are released; fields of other managers are taken
        over. A resourceVersion in `obj` is a precondition.
        """
        manifest = encode_plain(kind, obj)
        metadata = dict(manifest.get("metadata", {}))
        metadata["name"] = key.name
        if key.namespace:
            metadata["namespace"] = key.namespace
        manifest["metadata"] = metadata
        answer = await self.connection.request(
            "PATCH",
            kind.path(key, subresource=subresource),
            params={"fieldManager": manager, "force": "true"},
            body=msgspec.json.encode(manifest),
            content_type="application/apply-patch+yaml",
        )
        return decode(kind, answer)

    async def patch(
        self,
        kind: Kind[T],
        key: ObjectKey,
        patch: Patch,
        *,
        subresource: str = "",
    ) -> T:
        """Patch an object: a mapping is a merge patch, a list is a JSON patch (whose failed `test` raises Invalid)."""
        form = "json-patch" if isinstance(patch, list) else "merge-patch"
        answer = await self.connection.request(
            "PATCH",
            kind.path(key, subresource=subresource),
            params={"fieldManager": self._manager},
            body=msgspec.json.encode(patch),
            content_type=f"application/{form}+json",
        )
        return decode(kind, answer)

    async def replace(
        self,
        kind: Kind[T],
        key: ObjectKey,
        obj: Body,
        *,
        subresource: str = "",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> T:
        """Replace a whole object. Raises Conflict if it changed since its resourceVersion.

        A struct holds only the fields Draco reads, so any others would be lost. Use it for kinds whose struct is complete, or
        pass a mapping.
        """
        answer = await self.connection.request(
            "PUT",
            kind.path(key, subresource=subresource),
            params={"fieldManager": self._manager},
            body=encode(kind, obj),
            timeout_s=timeout_s,
        )
        return decode(kind, answer)

    async def delete(
        self,
        kind: Kind[Any],
        key: ObjectKey,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_s: int | None = None,
        propagation: str = "",
    ) -> None:
        """Delete an object; with `uid` or `resource_version` only that one, else Conflict. Raises NotFound if it is gone.

        `propagation` is for objects that it owns: Foreground, Background or Orphan; "" for its kind's default.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid or resource_version:
            seen = {"uid": uid, "resourceVersion": resource_version}
            options["preconditions"] = {name: value for name, value in seen.items() if value}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        if propagation:
            options["propagationPolicy"] = propagation
        await self.connection.request("DELETE", kind.path(key), body=msgspec.json.encode(options))

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    """Query parameters for the selectors that are set."""
    params = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in params.items() if value}


def encode_plain(kind: Kind[Any], obj: Body) -> dict[str, Any]:
    """Encode an object as a mapping, with its apiVersion and kind."""
    plain = msgspec.to_builtins(obj) if isinstance(obj, msgspec.Struct) else obj
    return {**plain, "apiVersion": kind.api_version, "kind": kind.kind}


def encode(kind: Kind[Any], obj: Body) -> bytes:
    """Encode an object as JSON, with its apiVersion and kind."""
    return msgspec.json.encode(encode_plain(kind, obj))


def decode(kind: Kind[T], answer: bytes | msgspec.Raw) -> T:
    """Decode an object from JSON. Raises msgspec.DecodeError (ValidationError if it does not fit)."""
    decoder = _decoder(kind)
    try:
        item: T = read(decoder, answer)
    except msgspec.ValidationError:
        item = convert(kind, read_plain(shallow(bytes(answer))))
    return item


def convert(kind: Kind[T], plain: object) -> T:
    """Convert an object from plain JSON types. Raises msgspec.ValidationError if it does not fit."""
    try:
        item: T = msgspec.convert(plain, kind.type)
    except msgspec.ValidationError:
        # API servers write null for some lists that were never set: rare, so handled only here.
        item = msgspec.convert(set_fields(plain), kind.type)
    return item


def token_of(answer: bytes) -> str:
    """The continue token, "" on the last page, read without decoding the objects."""
    # The API server writes the metadata of its own kinds before the items, and that of custom resources after them.
    if (start := answer.find(b',"items":[')) > 0:
        with suppress(msgspec.MsgspecError):
            return read(_metadata_decoder, answer[:start] + b"}").metadata.continue_
    return read(_metadata_decoder, answer).metadata.continue_


def decode_page(kind: Kind[T], answer: bytes) -> Page[T]:
    """Decode a list response. Fast if every object fits; object by object if one does not."""
    undecodable: list[Undecodable] = []
    try:
        with collector_at_rest():
            page = read(_page_decoder(kind), answer)
        metadata, items = page.metadata, page.items or []
    except msgspec.ValidationError:
        raw = read(_raw_page_decoder, answer)
        metadata, items = raw.metadata, []
        for one in raw.items or []:
            try:
                items.append(decode(kind, one))
            except msgspec.ValidationError as error:
                undecodable.append(identify(one, str(error)))
    return Page(items, metadata.resource_version, undecodable)


def identify(raw: bytes | msgspec.Raw, error: str) -> Undecodable:
    """Identify the object by the part of it that always fits."""
    identity = read(_named_decoder, raw).metadata
    return Undecodable(ObjectKey(identity.namespace, identity.name), identity.uid, identity.resource_version, error)


@cache
def _decoder(kind: Kind[Any]) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind.type)


@cache
def _page_decoder(kind: Kind[Any]) -> "msgspec.json.Decoder[_Items[Any]]":
    return msgspec.json.Decoder(_Items[kind.type])  # type: ignore[name-defined]


_metadata_decoder = msgspec.json.Decoder(_Metadata)
_raw_page_decoder = msgspec.json.Decoder(_Items[msgspec.Raw])
_named_decoder = msgspec.json.Decoder(_Named)
