"""The TLS endpoint that the API server asks about claims, new pods and Draco's own kinds.

Owns the server and its settings. docs/design/0001-kopf.md says why it is not Kopf's.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import Counter

from draco.certificates import Certificate, CertificateMetrics
from draco.controller.webhook.admission_review import NotAReview, ReviewOutcome
from draco.controller.webhook.claim_advice import AdmissionMode
from draco.endpoints import serving
from draco.kube.clock import Clock

PATH = "/validate/claims"
OWN_PATH = "/validate/draco"
PODS_PATH = "/mutate/pods"
_LARGEST_BYTES = 8 << 20
"""An update contains the object twice, and etcd accepts 1.5 MiB of each."""


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how objects are reviewed. `certificates` is a folder with tls.crt and tls.key, like a mounted Secret."""

    host: str = "0.0.0.0"  # noqa: S104 - the API server comes from another host
    port: int = 9443
    certificates: Path
    name: str = ""
    """The DNS name that the API server expects in the certificate; "" if unknown."""
    client_ca: Path | None = None
    """CA file for client certificates, which are then required; None: anyone may ask."""
    mode: AdmissionMode = AdmissionMode.WARN
    timeout_s: float = 2.0
    """How long the API server waits; the answer takes three quarters of that at most."""


Review = Callable[[bytes], Awaitable[tuple[bytes, ReviewOutcome]]]


def webhook_app(by_path: Mapping[str, Review], reviews: Counter) -> web.Application:
    """The endpoint as an application."""

    def answering(review: Review) -> Handler:
        async def validate(request: web.Request) -> web.StreamResponse:
            try:
                answer, outcome = await review(await request.read())
            except NotAReview as error:
                return web.Response(status=400, text=f"{error}\n")
            reviews.labels(str(outcome)).inc()
            return web.Response(body=answer, content_type="application/json")

        return validate

    app = web.Application(client_max_size=_LARGEST_BYTES)
    app.add_routes([web.post(path, answering(review)) for path, review in by_path.items()])
    return app


@asynccontextmanager
async def serving_webhook(
    settings: WebhookSettings, app: web.Application, *, certificates: CertificateMetrics, clock: Clock
) -> AsyncIterator[None]:
    """Serve until the context ends. Raises CertificateUnusable and PortTaken."""
    certificate = Certificate(settings.certificates, use="webhook", name=settings.name, client_ca=settings.client_ca)
    certificate.load()
    async with (
        certificate.kept_fresh(certificates, sleep=clock.sleep, now=clock.now),
        serving(
            app, settings.host, settings.port, tls=certificate.context, what="the webhook", option="--webhook-listen"
        ),
    ):
        yield
