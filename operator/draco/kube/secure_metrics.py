"""Metrics over TLS, for those whom the API server lets read them.

Owns how endpoint, certificate and the question of access come together. Without a usable certificate nobody
is answered, and the program does its work all the same: it looks for one until there is.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from draco.certificates import Certificate, CertificateMetrics
from draco.endpoints import metrics_app, serving
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.delegation import DelegatedAccess
from draco.options import MetricsSettings


@asynccontextmanager
async def serving_metrics(
    settings: MetricsSettings,
    metrics: Callable[[], CollectorRegistry],
    *,
    certificates: CertificateMetrics,
    client: Client,
    clock: Clock,
) -> AsyncIterator[int]:
    """Serve until left; yields the port. Raises PortTaken.

    `metrics` is called for each scrape; `certificates` shows what is the matter with the certificate.
    """
    certificate = Certificate(settings.certificates, use="metrics", name=settings.name)
    app = metrics_app(metrics, DelegatedAccess(client, clock))
    async with (
        certificate.kept_fresh(certificates, sleep=clock.sleep, now=clock.now),
        serving(
            app,
            settings.host,
            settings.port,
            tls=certificate.context,
            what="metrics over TLS",
            option="--metrics-listen",
        ) as port,
    ):
        yield port
