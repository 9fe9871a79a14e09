"""`draco operator`: watch the whole cluster's GPUs and claims.

Owns options, environment, logs and signals of the process. What the operator does is `draco.controller`.
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn, TypeVar

import click
import structlog

from draco.controller.app import ClusterChanged, run_operator
from draco.controller.claims.admission import AdmissionMode
from draco.controller.claims.webhook import WebhookSettings
from draco.controller.kopf_thread import quiet_kopf
from draco.controller.settings import OperatorSettings
from draco.kube.connect.connection import Connect, Connection
from draco.kube.connect.kubeconfig import connect
from draco.kube.election import LeadershipLost
from draco.logs import LEVELS, configure_log
from draco.options import ListenAddress, MetricsSettings, Seconds, both_or_neither, with_metrics
from draco.resources.errors import leaves

log = structlog.get_logger(__name__)

_DEFAULT = OperatorSettings(identity="")


@click.command(context_settings={"show_default": True})
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig to use instead of the usual ones.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--namespace", envvar="DRACO_NAMESPACE", default=_DEFAULT.namespace, help="Namespace of the Lease.")
@click.option(
    "--identity",
    envvar="DRACO_IDENTITY",
    default=socket.gethostname,
    show_default="the host's name",
    help="Name of this replica.",
)
@click.option(
    "--listen",
    envvar="DRACO_LISTEN",
    type=ListenAddress(),
    default=f"{_DEFAULT.http_host}:{_DEFAULT.http_port}",
    help="Address of /livez and /readyz, and of /metrics unless it has one of its own; port 0 takes a free one.",
)
@with_metrics
@click.option("--log-level", envvar="DRACO_LOG_LEVEL", type=click.Choice(LEVELS), default="info", help="Log level.")
@click.option(
    "--pending-after",
    envvar="DRACO_PENDING_AFTER",
    type=Seconds(min=0),
    default=_DEFAULT.pending_after_s,
    help="Seconds that a pod may wait for its claims before Events say why; at once when the scheduler refuses it.",
)
@click.option(
    "--settle",
    envvar="DRACO_SETTLE",
    type=Seconds(min=0),
    default=_DEFAULT.settle_s,
    help="Seconds that devices must stay isolated and free before maintenance may start.",
)
@click.option(
    "--idle-grace",
    envvar="DRACO_IDLE_GRACE",
    type=Seconds(min=0),
    default=_DEFAULT.idle_grace_s,
    help="Seconds that a claim must be idle before it is released, where a MigPolicy's repair permits that.",
)
@click.option(
    "--rediscover",
    envvar="DRACO_REDISCOVER",
    type=Seconds(min=0.1),
    default=_DEFAULT.rediscover_s,
    metavar="SECONDS",
    help="How often to find out again what the cluster can do.",
)
@click.option(
    "--webhook-listen",
    envvar="DRACO_WEBHOOK_LISTEN",
    type=ListenAddress(),
    help="Address of the webhook that reviews claims when they are written, over TLS; off unless given.",
)
@click.option(
    "--webhook-certificates",
    envvar="DRACO_WEBHOOK_CERTIFICATES",
    type=click.Path(path_type=Path),
    help="Folder with the webhook's tls.crt and tls.key.",
)
@click.option(
    "--webhook-name",
    envvar="DRACO_WEBHOOK_NAME",
    default="",
    help="DNS name that the API server expects in that certificate; the log says where it is another.",
)
@click.option(
    "--webhook-client-ca",
    envvar="DRACO_WEBHOOK_CLIENT_CA",
    type=click.Path(path_type=Path),
    help="File with the authority of the certificate that the API server shows to webhooks; then nobody else may ask.",
)
@click.option(
    "--webhook-timeout",
    envvar="DRACO_WEBHOOK_TIMEOUT",
    type=Seconds(min=0, min_open=True),
    default=WebhookSettings(certificates=Path()).timeout_s,
    help="Seconds that the API server waits for the webhook; the answer is given a quarter of that earlier.",
)
@click.option(
    "--webhook-mode",
    envvar="DRACO_WEBHOOK_MODE",
    type=click.Choice([mode.value for mode in AdmissionMode], case_sensitive=False),
    default=AdmissionMode.WARN.value,
    help="Warn of claims with a selector that fails on published devices, or deny them.",
)
@click.option(
    "--lease-duration",
    envvar="DRACO_LEASE_DURATION",
    type=click.IntRange(min=1),
    default=_DEFAULT.lease_duration_s,
    help="Seconds of silence after which a leader is replaced.",
)
@click.option(
    "--renew-deadline",
    envvar="DRACO_RENEW_DEADLINE",
    type=Seconds(min=0, min_open=True),
    default=_DEFAULT.renew_deadline_s,
    help="Seconds without renewal after which a leader stops.",
)
@click.option(
    "--retry-period",
    envvar="DRACO_RETRY_PERIOD",
    type=Seconds(min=0, min_open=True),
    default=_DEFAULT.retry_period_s,
    help="Seconds between attempts to take or renew the lease.",
)
def command(
    *,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    identity: str,
    listen: tuple[str, int],
    metrics: MetricsSettings | None,
    log_level: str,
    pending_after: float,
    settle: float,
    idle_grace: float,
    rediscover: float,
    webhook_listen: tuple[str, int] | None,
    webhook_certificates: Path | None,
    webhook_name: str,
    webhook_client_ca: Path | None,
    webhook_timeout: float,
    webhook_mode: str,
    lease_duration: int,
    renew_deadline: float,
    retry_period: float,
) -> None:
    """Watch the whole cluster's GPUs and claims.

    Explains pending claims in Events and carries out DeviceMaintenance requests. Usually runs as a Deployment of two replicas,
    of which one leads. When the cluster's features change, such as after a change of feature gates, it logs this and restarts
    itself.
    """
    if not lease_duration > renew_deadline > retry_period:
        raise click.UsageError(
            f"--lease-duration ({lease_duration} s) must be longer than --renew-deadline ({renew_deadline:g} s), and that "
            f"longer than --retry-period ({retry_period:g} s)."
        )
    both_or_neither(webhook_listen=webhook_listen, webhook_certificates=webhook_certificates)
    configure_log(log_level)
    quiet_kopf()
    webhook = None
    if webhook_listen and webhook_certificates:
        webhook = WebhookSettings(
            host=webhook_listen[0] or _DEFAULT.http_host,
            port=webhook_listen[1],
            certificates=webhook_certificates,
            name=webhook_name,
            client_ca=webhook_client_ca,
            timeout_s=webhook_timeout,
            mode=AdmissionMode(webhook_mode),
        )
    settings = OperatorSettings(
        namespace=namespace,
        identity=f"{identity}_{secrets.token_hex(4)}",  # a container restarts under the name of its pod
        lease_duration_s=lease_duration,
        renew_deadline_s=renew_deadline,
        retry_period_s=retry_period,
        http_host=listen[0] or _DEFAULT.http_host,
        http_port=listen[1],
        pending_after_s=pending_after,
        settle_s=settle,
        idle_grace_s=idle_grace,
        rediscover_s=rediscover,
        confirm_s=min(rediscover, _DEFAULT.confirm_s),
        webhook=webhook,
        metrics=metrics,
    )

    async def connected() -> Connection:
        return await connect(kubeconfig, context)

    try:
        asyncio.run(_run(settings, connected))
    except ExceptionGroup as group:
        if changed := _within(group, ClusterChanged):
            log.warning("cluster.changed", changes=str(changed))
            start_anew()
        lost = _within(group, LeadershipLost)
        if lost is None:
            raise
        log.error("operator.leadership_lost", error=str(lost))  # noqa: TRY400 - its sentence says it all
        raise click.exceptions.Exit(1) from None


def start_anew() -> NoReturn:
    """Become what this process was when it started; a pod's container goes on, and nobody waits before it starts the next."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line


async def _run(settings: OperatorSettings, connected: Connect) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run_operator(settings, connect=connected, stop=stop)
    log.info("operator.stopped")


E = TypeVar("E", bound=Exception)


def _within(group: ExceptionGroup[Exception], kind: type[E]) -> E | None:
    """Such an error in the group, however deep."""
    return next((error for error in leaves(group) if isinstance(error, kind)), None)
