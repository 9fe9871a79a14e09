"""Certificates of endpoints, read from a folder (a mounted Secret) and reloaded when they change.

Owns an endpoint's TLS context, and the messages about certificates that are unusable or that clients refuse, which a handshake in
memory detects. Creates no certificates: the chart, cert-manager or the administrator does.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Gauge

from draco.resources.errors import DracoError

log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 1.0
_SAID_EVERY = timedelta(days=1)
_SOON = timedelta(days=14)
"""A certificate should be replaced this long before its end, or in the last tenth of its life if that is shorter."""
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, to read the dates of an expired certificate too."""

_RENEW = (
    "renew it: if cert-manager issues it, its Certificate says what failed; if the chart made it, delete its Secret and run "
    "`helm upgrade`"
)


class CertificateUnusable(DracoError):
    """An endpoint has no usable certificate."""


class CertificateProblem(StrEnum):
    """Why clients refuse a certificate, or soon will."""

    UNUSABLE = "Unusable"
    EXPIRED = "Expired"
    NOT_YET_VALID = "NotYetValid"
    OTHER_NAME = "OtherName"
    EXPIRING = "Expiring"


class CertificateFault(msgspec.Struct, frozen=True):
    """A problem and its sentence."""

    problem: CertificateProblem
    sentence: str


class Validity(msgspec.Struct, frozen=True):
    """The certificate in a file as clients see it. `fault` is why they refuse it at any time; None if they do not."""

    file: Path
    starts: datetime
    ends: datetime
    fault: CertificateFault | None

    def finding(self, now: datetime) -> CertificateFault | None:
        """The problem at this time; None if there is none."""
        if now >= self.ends:
            return CertificateFault(
                CertificateProblem.EXPIRED, f"{self.file} expired at {self.ends:%Y-%m-%d %H:%M} UTC; {_RENEW}"
            )
        if now < self.starts:
            return CertificateFault(
                CertificateProblem.NOT_YET_VALID,
                f"{self.file} is valid only from {self.starts:%Y-%m-%d %H:%M} UTC on; set this node's clock, or {_RENEW}",
            )
        if self.fault is None and self.ends - now < min(_SOON, (self.ends - self.starts) / 10):
            return CertificateFault(
                CertificateProblem.EXPIRING, f"{self.file} expires at {self.ends:%Y-%m-%d %H:%M} UTC; {_RENEW}"
            )
        return self.fault


class CertificateMetrics:
    """The certificate metrics of one program. `troubles` has a sentence for each use with a problem."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.troubles: dict[str, str] = {}
        self._expires = Gauge(
            "draco_certificate_expiration_timestamp_seconds",
            "When the certificate of an endpoint expires, in seconds since 1970.",
            ["use"],
            registry=registry,
        )
        self._problem = Gauge(
            "draco_certificate_problem",
            "1 for each problem of an endpoint's certificate; the log says what to do.",
            ["use", "problem"],
            registry=registry,
        )

    def show(self, use: str, validity: Validity | None, finding: CertificateFault | None) -> None:
        """Export the finding for one use."""
        if finding is not None:
            self.troubles[use] = f"The certificate of the endpoint for {use} is unfit: {finding.sentence}."
        else:
            self.troubles.pop(use, None)
        if validity is not None:
            self._expires.labels(use).set(validity.ends.timestamp())
        for problem in CertificateProblem:
            self._problem.labels(use, problem.value).set(finding is not None and finding.problem is problem)


class Certificate:
    """A certificate and its key in a folder, as tls.crt and tls.key.

    `use` names the endpoint in messages, `name` is the DNS name that clients ask for ("" if unknown). No certificate is shown
    before `load` or `reload` succeeded. With `client_ca`, clients must show a certificate of one of its authorities.
    """

    def __init__(self, folder: Path, *, use: str, name: str = "", client_ca: Path | None = None) -> None:
        self.use = use
        self._name = name
        self._files = (folder / "tls.crt", folder / "tls.key")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen: list[tuple[int, int, int] | None] | None = None
        self._validity: Validity | None = None
        self._unusable: CertificateFault | None = None
        self._said: tuple[CertificateFault, datetime] | None = None
        if client_ca is not None:
            self._require(client_ca)

    def load(self) -> None:
        """Show the certificate in the folder. Raises CertificateUnusable."""
        self._seen = [_stamp(file) for file in self._files]
        try:
            # Load it into another context first: a certificate without its key must not spoil the one in use.
            validity = examine(*self._files, name=self._name)
            self.context.load_cert_chain(*self._files)
        except OSError as error:  # includes SSLError
            raise CertificateUnusable(
                f"cannot use {self._files[0]} with {self._files[1]} ({error.strerror or error}); put a certificate and its "
                "private key there, both in PEM"
            ) from error
        self._validity = validity

    def reload(self) -> None:
        """Show the certificate in the folder; keep the previous one if it is unusable."""
        if [_stamp(file) for file in self._files] == self._seen:
            return
        try:
            self.load()
        except CertificateUnusable as error:
            self._unusable = CertificateFault(CertificateProblem.UNUSABLE, str(error))
        else:
            self._unusable = None
            log.info("certificate.loaded", use=self.use, file=str(self._files[0]))

    def finding(self, now: datetime) -> CertificateFault | None:
        """The problem of the latest files, or else of the certificate in use; None if there is none."""
        return self._unusable or (self._validity.finding(now) if self._validity else None)

    @asynccontextmanager
    async def kept_fresh(
        self, metrics: CertificateMetrics, *, sleep: Callable[[float], Awaitable[None]], now: Callable[[], datetime]
    ) -> AsyncIterator[None]:
        """Reload on file changes and report problems, until the context ends."""
        looking = asyncio.create_task(self._look(metrics, sleep, now), name=f"certificate of {self.use}")
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait({looking})

    async def _look(
        self, metrics: CertificateMetrics, sleep: Callable[[float], Awaitable[None]], now: Callable[[], datetime]
    ) -> None:
        while True:
            self.reload()
            found = self.finding(now())
            metrics.show(self.use, self._validity, found)
            self._say(found, now())
            await sleep(_LOOK_EVERY_S)

    def _say(self, found: CertificateFault | None, now: datetime) -> None:
        if found is None:
            self._said = None
        elif self._said is None or self._said[0] != found or now - self._said[1] >= _SAID_EVERY:
            self._said = (found, now)
            log.warning("certificate.unfit", use=self.use, problem=found.problem.value, error=found.sentence)

    def _require(self, client_ca: Path) -> None:
        try:
            self.context.load_verify_locations(cafile=client_ca)
        except OSError as error:  # includes SSLError
            raise CertificateUnusable(
                f"cannot use the authorities in {client_ca} ({error.strerror or error}); put the certificate there, in PEM, of "
                "the authority that signs the API server's client certificate for webhooks"
            ) from error
        self.context.verify_mode = ssl.CERT_REQUIRED


def examine(file: Path, key: Path, *, name: str) -> Validity:
    """Examine a certificate as a client that asks for `name` ("" for any). Raises OSError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cafile=file)  # whether the CA is trusted is up to clients
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    shown = _shown(server, client, "")
    starts, ends = (
        datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown[end])), UTC) for end in ("notBefore", "notAfter")
    )
    try:
        _shown(server, client, name)
    except ssl.SSLCertVerificationError:
        sentence = (
            f"{file} is not valid for {name}, the name that clients use: put a certificate with that DNS name there"
        )
        return Validity(file, starts, ends, CertificateFault(CertificateProblem.OTHER_NAME, sentence))
    return Validity(file, starts, ends, None)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _shown(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> dict[str, object]:
    """The peer certificate that a client sees when it asks for `name` ("" for any), in memory. Raises SSLError."""
    client.check_hostname = bool(name)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=name or None),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):  # a handshake takes at most four rounds
        for side in sides:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return dict(sides[0].getpeercert() or {})
