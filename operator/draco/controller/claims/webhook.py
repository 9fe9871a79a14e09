"""The endpoint that the API server asks about claims, over TLS.

Owns the server, its certificate and the reload of it. Why it is a small endpoint of our own rather than Kopf's:
docs/design/0001-kopf.md.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from prometheus_client import Counter

from draco.controller.claims.admission import Admission, AdmissionMode, NotAReview
from draco.endpoints import serving
from draco.kube.clock import Clock
from draco.resources.errors import DracoError

log = structlog.get_logger(__name__)

PATH = "/validate/claims"
_RELOAD_EVERY_S = 1.0
_LARGEST_BYTES = 8 << 20
"""An update carries the object twice, and etcd takes 1.5 MiB of each."""


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how claims are reviewed. `certificates` is a folder with tls.crt and tls.key, as a Secret is mounted."""

    host: str = "0.0.0.0"  # noqa: S104 - the API server comes from another host
    port: int = 9443
    certificates: Path
    client_ca: Path | None = None
    """File with the authorities of which a caller must show a certificate; None: anyone may ask."""
    mode: AdmissionMode = AdmissionMode.WARN
    timeout_s: float = 2.0
    """How long the API server waits; the answer is there a quarter earlier."""


class CertificateUnusable(DracoError):
    """The endpoint has no certificate that it could show."""


class Certificate:
    """A certificate and its key in a folder, loaded again when they change there.

    With `client_ca`, only who shows a certificate of one of the authorities in that file is listened to.
    """

    def __init__(self, folder: Path, client_ca: Path | None = None) -> None:
        self._files = (folder / "tls.crt", folder / "tls.key")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = self._state()
        self._load()
        if client_ca is not None:
            self._require(client_ca)

    def reload(self) -> None:
        """Show what is in the folder now; what was shown before, if that cannot be used (it is said in the log once)."""
        state = self._state()
        if state == self._loaded:
            return
        self._loaded = state
        try:
            self._load()
        except CertificateUnusable as error:
            log.warning("webhook.certificate_unusable", error=str(error))
        else:
            log.info("webhook.certificate_loaded", file=str(self._files[0]))

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


def webhook_app(admission: Admission, reviews: Counter) -> web.Application:
    """The endpoint as an application."""

    async def validate(request: web.Request) -> web.Response:
        try:
            answer, outcome = await admission.review(await request.read())
        except NotAReview as error:
            return web.Response(status=400, text=f"{error}\n")
        reviews.labels(str(outcome)).inc()
        return web.Response(body=answer, content_type="application/json")

    app = web.Application(client_max_size=_LARGEST_BYTES)
    app.add_routes([web.post(PATH, validate)])
    return app


@asynccontextmanager
async def serving_webhook(settings: WebhookSettings, app: web.Application) -> AsyncIterator[Certificate]:
    """Serve until left; yields the certificate, for `keep_fresh`. Raises CertificateUnusable and PortTaken."""
    certificate = Certificate(settings.certificates, settings.client_ca)
    async with serving(
        app, settings.host, settings.port, tls=certificate.context, what="the webhook", option="--webhook-listen"
    ):
        yield certificate


async def keep_fresh(certificate: Certificate, clock: Clock) -> None:
    """Reload the certificate when it is rotated, until cancelled."""
    while True:
        await clock.sleep(_RELOAD_EVERY_S)
        certificate.reload()
