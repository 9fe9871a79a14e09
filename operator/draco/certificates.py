"""Certificates that endpoints show: read from a folder, as a Secret is mounted, and read again when they change there.

Owns the TLS context of an endpoint, and the sentences for a certificate that cannot be used or that clients refuse: what it
is good for is found out as a client does, by a handshake with ourselves. Makes no certificates: they are the chart's, cert-
manager's or the administrator's.
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
"""Before its end, or in the last tenth of its life if that is shorter, a certificate should have been replaced."""
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: of a certificate that has expired, the time is to be told."""

_RENEW = (
    "have it renewed: where cert-manager issues it, its Certificate says why it did not; one that the chart made is made again "
    "by `helm upgrade` once its Secret was deleted"
)


class CertificateUnusable(DracoError):
    """An endpoint has no certificate that it could show."""


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
    """What clients see of the certificate in a file. `fault` is why they refuse it whatever the time is."""

    file: Path
    starts: datetime
    ends: datetime
    fault: CertificateFault | None

    def finding(self, now: datetime) -> CertificateFault | None:
        """What is the matter with it now."""
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
    """What is exported of the certificates of one program. `troubles` has a sentence for each use that has one."""

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
        """Export what was found."""
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

    `use` says what shows it, and `name` is the DNS name under which it is asked for, "" where that is not known. Nothing is
    shown until `load` or `reload` found one. With `client_ca`, only who shows a certificate of one of the authorities in that
    file is listened to.
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
        """Show what is in the folder. Raises CertificateUnusable."""
        self._seen = self._state()
        try:
            # Into a context of its own first: a certificate without its key must not spoil the one in use.
            validity = examine(*self._files, name=self._name)
            self.context.load_cert_chain(*self._files)
        except OSError as error:  # SSLError is one
            raise CertificateUnusable(
                f"cannot use {self._files[0]} with {self._files[1]} ({error.strerror or error}); put a certificate and its "
                "private key there, both in PEM"
            ) from error
        self._validity = validity

    def reload(self) -> None:
        """Show what is in the folder now; what was shown before, if that cannot be used."""
        if self._state() == self._seen:
            return
        try:
            self.load()
        except CertificateUnusable as error:
            self._unusable = CertificateFault(CertificateProblem.UNUSABLE, str(error))
        else:
            self._unusable = None
            log.info("certificate.loaded", use=self.use, file=str(self._files[0]))

    def finding(self, now: datetime) -> CertificateFault | None:
        """What is the matter: with what was put there last, or else with what is shown."""
        return self._unusable or (self._validity.finding(now) if self._validity else None)

    @asynccontextmanager
    async def kept_fresh(
        self, metrics: CertificateMetrics, *, sleep: Callable[[float], Awaitable[None]], now: Callable[[], datetime]
    ) -> AsyncIterator[None]:
        """Reload when the files change, and say what is the matter with them, until left."""
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
        except OSError as error:  # SSLError is one
            raise CertificateUnusable(
                f"cannot use the authorities in {client_ca} ({error.strerror or error}); put the certificate there, in PEM, of "
                "the authority that signs the API server's client certificate for webhooks"
            ) from error
        self.context.verify_mode = ssl.CERT_REQUIRED

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(file) for file in self._files]


def examine(file: Path, key: Path, *, name: str) -> Validity:
    """What clients see of a certificate that they ask for under that name, if there is one. Raises OSError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cafile=file)  # who signed it is for clients to trust, not for us
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    shown = _shown(server, client, "")
    starts, ends = (
        datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown[end])), UTC) for end in ("notBefore", "notAfter")
    )
    try:
        _shown(server, client, name)
    except ssl.SSLCertVerificationError:
        sentence = f"{file} is not for the name {name}, under which it is asked for: put one with that DNS name there"
        return Validity(file, starts, ends, CertificateFault(CertificateProblem.OTHER_NAME, sentence))
    return Validity(file, starts, ends, None)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _shown(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> dict[str, object]:
    """What a client is shown that asks for that name, "" for any, without a network. Raises SSLError."""
    client.check_hostname = bool(name)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=name or None),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):  # messages go to and fro so often at most
        for side in sides:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return dict(sides[0].getpeercert() or {})
