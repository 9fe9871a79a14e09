"""Transport to one API server.

Owns sessions, TLS, timeouts, credentials on the wire, and the translation of every failure into `errors`. Knows no kinds and
keeps no state of the cluster. Every request has a timeout; TLS is always verified.
"""

import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, Self
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp

from draco import __version__
from draco.kube.errors import ApiError, Unauthorized, Unreachable, from_response

CONNECT_TIMEOUT_S = 10.0
MAX_PARALLEL_REQUESTS = 100
_CHUNK_BYTES = 4 * 1024**2


class Credentials(Protocol):
    """Supplies the Authorization header."""

    async def authorization(self) -> str:
        """The header's value; "" for none (client certificates need none)."""
        ...

    async def renew(self, rejected: str) -> str:
        """A value to try after a 401 for `rejected`; the same value if there is no better one."""
        ...


class NoToken:
    """Client certificates, or an anonymous connection."""

    async def authorization(self) -> str:
        """Always ""."""
        return ""

    async def renew(self, rejected: str) -> str:
        """Always ""."""
        return rejected


class TokenFile:
    """A bearer token in a file that others replace (service account, tokenFile). Checked before each request by one stat."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._header = ""

    async def authorization(self) -> str:
        """The file's current token, or the last one while the file is unreadable."""
        self._refresh()
        return self._header

    async def renew(self, rejected: str) -> str:  # noqa: ARG002 - whatever was refused, only the file can know better
        """Read the file again, even if it looks unchanged."""
        self._seen = None
        self._refresh()
        return self._header

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._seen:
                self._header = f"Bearer {self._path.read_text().strip()}"
                self._seen = seen
        except OSError as error:
            # A projected volume is swapped by renaming a link: for a moment the file may be missing.
            if not self._header:
                raise Unauthorized(
                    401, "NoToken", f"cannot read the token file {self._path}: {error.strerror}"
                ) from error


class Connection:
    """Requests to one API server.

    `server` is the base URL without a trailing slash. `tls` None means plain http, which is only for a server on this machine.
    `proxy` is a URL, or "" for the usual environment variables. `namespace` is the credentials' default namespace.
    """

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        tls_server_name: str = "",
        proxy: str = "",
        namespace: str = "default",
    ) -> None:
        self.server = server.rstrip("/")
        self.namespace = namespace
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._credentials: Credentials = credentials if credentials is not None else NoToken()
        self._tls_server_name = tls_server_name or None
        self._proxy = proxy or environment_proxy(self.server)
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_s: float = 30.0,
    ) -> bytes:
        """Send one request and return the response body. `timeout_s` covers everything, including connecting. Raises ApiError."""
        session = self._session(MAX_PARALLEL_REQUESTS)
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        headers = {"Content-Type": content_type} if body is not None else {}
        async with (
            self._failures_as_api_errors(timeout_s),
            self._answer(
                session, method=method, path=path, params=params, body=body, headers=headers, timeout=timeout
            ) as response,
        ):
            return await response.read()

    @asynccontextmanager
    async def lines(
        self, path: str, *, params: Mapping[str, str] | None = None, idle_timeout_s: float = 60.0
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Open a stream of lines (a watch). Yields batches of complete lines that arrived together, without newlines.

        Ends normally if the server ends the stream between two lines. Raises Unreachable if it is cut inside a line, if the
        connection is lost, or if nothing arrives for `idle_timeout_s`; other ApiErrors for an error response.
        """
        session = self._session(0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_timeout_s)
        async with (
            self._failures_as_api_errors(idle_timeout_s),
            self._answer(
                session, method="GET", path=path, params=params, body=None, headers={}, timeout=timeout
            ) as response,
        ):
            yield self._split(response)

    def lend_session(self, *middlewares: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        """Lend a session with TLS and credentials, through `middlewares`. The caller's loop owns it; the caller closes it."""

        async def authorize(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            request.server_hostname = self._tls_server_name
            authorization = await self._credentials.authorization()
            if authorization:
                request.headers["Authorization"] = authorization
            response = await send(request)
            if response.status == 401:
                renewed = await self._credentials.renew(authorization)
                if renewed != authorization:
                    response.release()
                    request.headers["Authorization"] = renewed
                    return await send(request)
            return response

        return aiohttp.ClientSession(
            connector=self._session(0).connector,
            connector_owner=False,
            headers={"User-Agent": f"draco/{__version__}"},
            middlewares=(*middlewares, authorize),
            proxy=self._proxy,
        )

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        self._closed = True
        for session in self._sessions.values():
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _session(self, limit: int) -> aiohttp.ClientSession:
        """The session with this limit of connections; 0 for none: a watch holds one for minutes and must not block requests."""
        if self._closed:
            raise Unreachable(f"the connection to {self.server} is closed")
        if limit not in self._sessions:
            headers = {
                "Accept": "application/json",
                # Inside a cluster bandwidth is cheaper than gzip, for the server as well.
                "Accept-Encoding": "identity",
                "User-Agent": f"draco/{__version__}",
            }
            connector = aiohttp.TCPConnector(ssl=self._tls, limit=limit)
            self._sessions[limit] = aiohttp.ClientSession(
                connector=connector, headers=headers, read_bufsize=_CHUNK_BYTES
            )
        return self._sessions[limit]

    @asynccontextmanager
    async def _answer(
        self,
        session: aiohttp.ClientSession,
        *,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        headers: dict[str, str],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's description of several timeouts
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful response; a 401 is retried once with renewed credentials."""
        authorization = await self._credentials.authorization()
        for last in (False, True):
            if authorization:
                headers["Authorization"] = authorization
            async with session.request(
                method,
                self.server + path,
                params=params,
                data=body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                proxy=self._proxy,
                server_hostname=self._tls_server_name,
            ) as response:
                if response.status < 300:
                    yield response
                    return
                error = from_response(response.status, response.headers, await response.read())
            if not isinstance(error, Unauthorized):
                raise error
            renewed = await self._credentials.renew(authorization)
            if last or renewed == authorization:
                raise self._refused(error)
            authorization = renewed

    async def _split(self, response: aiohttp.ClientResponse) -> AsyncIterator[list[bytes]]:
        rest: list[bytes] = []  # joined only when its line ends: one object can be megabytes long
        async for chunk in response.content.iter_any():
            *complete, tail = chunk.split(b"\n")
            if complete:
                if rest:
                    rest.append(complete[0])
                    complete[0] = b"".join(rest)
                    rest.clear()
                yield [line for line in complete if line]
            if tail:
                rest.append(tail)
        if rest:
            raise Unreachable(f"the API server at {self.server} ended a stream in the middle of a line")

    @asynccontextmanager
    async def _failures_as_api_errors(self, timeout_s: float) -> AsyncIterator[None]:
        try:
            yield
        except aiohttp.ConnectionTimeoutError as error:
            limit_s = min(timeout_s, CONNECT_TIMEOUT_S)
            raise Unreachable(
                f"cannot reach the API server at {self.server}: no answer within {limit_s:g} s; is the cluster up?"
            ) from error
        except TimeoutError as error:
            raise Unreachable(f"the API server at {self.server} did not answer within {timeout_s:g} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise Unreachable(
                f"the certificate of the API server at {self.server} is not trusted: "
                f"{_certificate_fault(error)}; does the kubeconfig belong to this cluster?"
            ) from error
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(
                f"cannot reach the API server at {self.server}: {_os_fault(error)}; is the cluster up?"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"lost the connection to the API server at {self.server}: {_os_fault(error)}") from error
        except RuntimeError as error:
            if not self._closed:
                raise
            raise Unreachable(f"the connection to {self.server} is closed") from error

    def _refused(self, error: ApiError) -> Unauthorized:
        return Unauthorized(
            401,
            error.reason,
            f"the API server at {self.server} does not accept these credentials: {error.message}",
            error.retry_after_s,
        )


Connect = Callable[[], Awaitable[Connection]]


def trust(ca: Path | str | None) -> ssl.SSLContext:
    """TLS that trusts the CA in this file, or the system's CAs if None. Raises OSError, also for a file without certificates."""
    tls = ssl.create_default_context(cafile=ca)
    # Newer Pythons reject CAs without a key identifier by default, and many clusters' CAs have none.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def environment_proxy(server: str) -> str | None:
    """The proxy for this server from HTTPS_PROXY, HTTP_PROXY and NO_PROXY; never one for a server on this machine."""
    url = urlsplit(server)
    host = url.hostname or ""
    if host == "localhost" or _is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies_environment().get(url.scheme)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _certificate_fault(error: aiohttp.ClientConnectorCertificateError) -> str:
    fault = error.certificate_error
    return getattr(fault, "verify_message", "") or str(fault)


def _os_fault(error: BaseException) -> str:
    """The operating system's error text, in lower case, without the host and port that aiohttp adds."""
    inner = getattr(error, "os_error", error)
    words = getattr(inner, "strerror", None) or str(inner) or type(error).__name__
    if isinstance(inner, ConnectionRefusedError):
        words = "connection refused"
    return words[:1].lower() + words[1:]
