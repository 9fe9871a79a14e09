"""Certificates that endpoints show: read from a folder, as a Secret is mounted, and read again when they change there.

Owns the TLS context of an endpoint and the sentences for a certificate that cannot be used. Makes no certificates: they are the
chart's, cert-manager's or the administrator's.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from draco.resources.errors import DracoError

log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 1.0


class CertificateUnusable(DracoError):
    """An endpoint has no certificate that it could show."""


class Certificate:
    """A certificate and its key in a folder, as tls.crt and tls.key; `use` says what shows it.

    Nothing is shown until `load` or `reload` found one. With `client_ca`, only who shows a certificate of one of the authorities
    in that file is listened to.
    """

    def __init__(self, folder: Path, *, use: str, client_ca: Path | None = None) -> None:
        self.use = use
        self._files = (folder / "tls.crt", folder / "tls.key")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen: list[tuple[int, int, int] | None] | None = None
        if client_ca is not None:
            self._require(client_ca)

    def load(self) -> None:
        """Show what is in the folder. Raises CertificateUnusable."""
        self._seen = self._state()
        self._load()

    def reload(self) -> None:
        """Show what is in the folder now; what was shown before, if that cannot be used (it is said in the log once)."""
        if self._state() == self._seen:
            return
        try:
            self.load()
        except CertificateUnusable as error:
            log.warning("certificate.unusable", use=self.use, error=str(error))
        else:
            log.info("certificate.loaded", use=self.use, file=str(self._files[0]))

    @asynccontextmanager
    async def kept_fresh(self, sleep: Callable[[float], Awaitable[None]]) -> AsyncIterator[None]:
        """Reload when the files change, until left."""
        looking = asyncio.create_task(self._look(sleep), name=f"certificate of {self.use}")
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait({looking})

    async def _look(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        while True:
            self.reload()
            await sleep(_LOOK_EVERY_S)

    def _load(self) -> None:
        try:
            # Into a context of its own first: a certificate without its key must not spoil the one in use.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self._files)
            self.context.load_cert_chain(*self._files)
        except OSError as error:  # SSLError is one
            raise CertificateUnusable(
                f"cannot use {self._files[0]} with {self._files[1]} ({error.strerror or error}); put a certificate and its "
                "private key there, both in PEM"
            ) from error

    def _require(self, client_ca: Path) -> None:
        try:
            self.context.load_verify_locations(cafile=client_ca)
        except OSError as error:  # SSLError is one
            raise CertificateUnusable(
                f"cannot use the authorities in {client_ca} ({error.strerror or error}); put the certificate there, in PEM, of "
                "the authority that signs the API server's client certificate for webhooks"
            ) from error
        self.context.verify_mode = ssl.CERT_REQUIRED

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
