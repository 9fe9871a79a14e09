"""Plain HTTP to the API server: JSON in, JSON out, as an administrator with a client certificate.

Owns the connection. Knows no kind and decides nothing.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp

Object = dict[str, Any]
TIMEOUT_S = 15.0
WATCH_S = 240
UNREACHABLE = 0
"""In place of a status: there was no answer."""


class Access(NamedTuple):
    """The API server's address and the client's credentials."""

    server: str
    authority: Path
    certificate: Path
    key: Path


class Answer(NamedTuple):
    """A response: status and body."""

    status: int
    body: Object

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300


class Gone(Exception):
    """A watch ended; list again."""


class Api:
    """One session. Use it in one event loop."""

    def __init__(self, access: Access) -> None:
        self._server = access.server
        self._tls = ssl.create_default_context(cafile=str(access.authority))
        self._tls.load_cert_chain(access.certificate, access.key)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls, limit=0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session:
            await self._session.close()

    async def call(self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Answer:
        """One request. PATCH is a JSON merge patch. Errors below HTTP give status UNREACHABLE."""
        assert self._session is not None
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            async with self._session.request(
                method,
                self._server + path,
                data=None if body is None else json.dumps(body),
                headers={"Content-Type": kind},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                text = await response.read()
                return Answer(response.status, json.loads(text) if text[:1] == b"{" else {"text": text.decode()})
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Answer(UNREACHABLE, {"message": f"{type(error).__name__}: {error}"})

    async def watch(self, path: str, since: str) -> AsyncIterator[tuple[str, Object]]:
        """Type and object of each change since a revision. Raises Gone when the watch ends for any reason."""
        assert self._session is not None
        query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={since}"
        separator = "&" if "?" in path else "?"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=WATCH_S + 30.0)
        try:
            async with self._session.get(f"{self._server}{path}{separator}{query}", timeout=timeout) as response:
                if response.status != 200:
                    raise Gone(f"status {response.status}")
                left = b""
                async for chunk in response.content.iter_any():
                    *lines, left = (left + chunk).split(b"\n")
                    for line in lines:
                        change = json.loads(line)
                        if change["type"] == "ERROR":
                            raise Gone(str(change["object"].get("message")))
                        yield change["type"], change["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise Gone(f"{type(error).__name__}: {error}") from error
        raise Gone("ended")
