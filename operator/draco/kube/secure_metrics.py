"""Metrics over TLS, for those whom the API server lets read them.

Owns the settings, and how endpoint, certificate and the question of access come together. Without a usable certificate nobody
is answered, and the program does its work all the same: it looks for one until there is.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from draco.certificates import Certificate
from draco.endpoints import metrics_app, serving
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.delegation import DelegatedAccess


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where metrics are served over TLS. `certificates` is a folder with tls.crt and tls.key, as a Secret is mounted."""

    host: str = "0.0.0.0"  # noqa: S104 - scrapes come from other hosts
    port: int = 8443
    certificates: Path


@asynccontextmanager
async def serving_metrics(
    settings: MetricsSettings, metrics: Callable[[], CollectorRegistry], *, client: Client, clock: Clock
) -> AsyncIterator[int]:
    """Serve until left; yields the port. `metrics` is called for each scrape. Raises PortTaken."""
    certificate = Certificate(settings.certificates, use="metrics")
    app = metrics_app(metrics, DelegatedAccess(client, clock))
    async with (
        certificate.kept_fresh(clock.sleep),
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
