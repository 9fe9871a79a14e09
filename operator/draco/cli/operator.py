"""`draco operator`: options, environment, logs and signals of the process. The operator itself is `draco.controller`."""

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import structlog

from draco.controller.app import ClusterChanged, run_operator
from draco.controller.kopf_thread import quiet_kopf
from draco.controller.settings import OperatorSettings
from draco.controller.webhook.claim_advice import AdmissionMode
from draco.controller.webhook.server import WebhookSettings
from draco.kube.connect.connection import Connect, Connection
from draco.kube.connect.kubeconfig import connect
from draco.kube.election import LeadershipLost
from draco.logs import LEVELS, configure_log
from draco.options import ListenAddress, MetricsSettings, Seconds, both_or_neither, option, with_metrics
from draco.resources.errors import leaves

log = structlog.get_logger(__name__)

_DEFAULT = OperatorSettings(identity="")


def _setting(name: str, field: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option of one settings field, with the field's default."""
    return option(name, field, default=getattr(_DEFAULT, field), **more)


@click.command(context_settings={"show_default": True})
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig to use instead of the usual ones.")
@click.option("--context", help="Context of the kubeconfig.")
@_setting("--namespace", "namespace", help="Namespace of the Lease.")
@option(
    "--identity",
    default=socket.gethostname,
    show_default="the host's name",
    help="Name of this replica.",
)
@option(
    "--listen",
    type=ListenAddress(),
    default=f"{_DEFAULT.http_host}:{_DEFAULT.http_port}",
    help="Address of /livez and /readyz, and of /metrics unless it has one of its own; port 0 takes a free one.",
)
@with_metrics
@option("--log-level", type=click.Choice(LEVELS), default="info", help="Log level.")
@_setting(
    "--pending-after",
    "pending_after_s",
    type=Seconds(min=0),
    help="Seconds that a pod waits for its claims before Events say why; none if the scheduler rejects it. Also how long all of "
    "its claims must fit before Events say so.",
)
@_setting(
    "--settle",
    "settle_s",
    type=Seconds(min=0),
    help="Seconds that devices must stay isolated and free before maintenance may start.",
)
@_setting(
    "--idle-grace",
    "idle_grace_s",
    type=Seconds(min=0),
    help="Seconds that a claim must be idle before it is released, where a MigPolicy's repair permits that.",
)
@_setting(
    "--run-jobs",
    "run_jobs",
    is_flag=True,
    help="Run Jobs for maintenance: work on a GPU, and its verification.",
)
@_setting(
    "--job-namespace", "job_namespace", help="Namespace of these Jobs and of the CronJobs that they are made from."
)
@_setting(
    "--allocate",
    "allocate",
    is_flag=True,
    help="Allocate the GPUs that MigPolicies hand over to Draco (spec.allocator: Operator).",
)
@_setting(
    "--handover-settle",
    "handover_settle_s",
    type=Seconds(min=0),
    help="Seconds to wait for API servers and schedulers to observe a handover.",
)
@_setting(
    "--overdue-after",
    "overdue_s",
    type=Seconds(min=0),
    help="Seconds that a group of claims waits before devices that become free are kept for it.",
)
@_setting(
    "--leak-after",
    "leak_after_s",
    type=Seconds(min=0),
    help="Seconds that a PodGroup without a pod may keep devices before its Event says so.",
)
@_setting(
    "--mass-outage",
    "mass_outage_percent",
    type=click.FloatRange(min=0, max=100),
    help="Fence no further node while more than this percentage of the agents, and at least three, are silent.",
)
@_setting(
    "--rediscover",
    "rediscover_s",
    type=Seconds(min=0.1),
    metavar="SECONDS",
    help="How often to re-check cluster features.",
)
@option(
    "--webhook-listen",
    type=ListenAddress(),
    help="Address of the webhook that reviews claims when they are written, over TLS; off unless given.",
)
@option(
    "--webhook-certificates",
    type=click.Path(path_type=Path),
    help="Folder with the webhook's tls.crt and tls.key.",
)
@option(
    "--webhook-name",
    default="",
    help="DNS name that the API server expects in that certificate; the log warns if it has another.",
)
@option(
    "--webhook-client-ca",
    type=click.Path(path_type=Path),
    help="CA file for the client certificate of the API server; with it, the webhook refuses all other clients.",
)
@option(
    "--webhook-timeout",
    type=Seconds(min=0, min_open=True),
    default=WebhookSettings(certificates=Path()).timeout_s,
    help="Seconds that the API server waits for advice on claims and Draco's kinds; the webhook answers within three quarters of "
    "that.",
)
@option(
    "--webhook-mode",
    type=click.Choice([mode.value for mode in AdmissionMode], case_sensitive=False),
    default=AdmissionMode.WARN.value,
    help="Warn of claims that are allocated but never start a pod (a failing selector, a refused configuration), or deny them.",
)
@_setting(
    "--lease-duration",
    "lease_duration_s",
    type=click.IntRange(min=1),
    help="Seconds of silence after which a leader is replaced.",
)
@_setting(
    "--renew-deadline",
    "renew_deadline_s",
    type=Seconds(min=0, min_open=True),
    help="Seconds without renewal after which a leader stops.",
)
@_setting(
    "--retry-period",
    "retry_period_s",
    type=Seconds(min=0, min_open=True),
    help="Seconds between attempts to take or renew the lease.",
)
def command(
    *,
    kubeconfig: Path | None,
    context: str | None,
    identity: str,
    listen: tuple[str, int],
    metrics: MetricsSettings | None,
    log_level: str,
    webhook_listen: tuple[str, int] | None,
    webhook_certificates: Path | None,
    webhook_name: str,
    webhook_client_ca: Path | None,
    webhook_timeout: float,
    webhook_mode: str,
    **settings: Any,
) -> None:
    """Watch the whole cluster's GPUs and claims.

    Explains pending claims in Events and carries out DeviceMaintenance requests. Usually runs as a Deployment of two replicas,
    of which one leads. When the cluster's features change, such as after a change of feature gates, it logs this and restarts
    itself.
    """
    lease_s, renew_s, retry_s = (settings[f"{name}_s"] for name in ("lease_duration", "renew_deadline", "retry_period"))
    if not lease_s > renew_s > retry_s:
        raise click.UsageError(
            f"--lease-duration ({lease_s} s) must be longer than --renew-deadline ({renew_s:g} s), and that longer than "
            f"--retry-period ({retry_s:g} s)."
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
    made = OperatorSettings(
        identity=f"{identity}_{secrets.token_hex(4)}",  # a restarted container has the same pod name
        http_host=listen[0] or _DEFAULT.http_host,
        http_port=listen[1],
        confirm_s=min(settings["rediscover_s"], _DEFAULT.confirm_s),
        webhook=webhook,
        metrics=metrics,
        **settings,
    )

    async def connected() -> Connection:
        return await connect(kubeconfig, context)

    try:
        asyncio.run(_run(made, connected))
    except ExceptionGroup as group:
        if changed := _within(group, ClusterChanged):
            log.warning("cluster.changed", changes=str(changed))
            start_anew()
        lost = _within(group, LeadershipLost)
        if lost is None:
            raise
        log.error("operator.leadership_lost", error=str(lost))  # noqa: TRY400 - the sentence is enough, without a traceback
        raise click.exceptions.Exit(1) from None


def start_anew() -> NoReturn:
    """Restart this process in place. The pod's container keeps running, so there is no restart backoff."""
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
    """The first error of this type in the group, at any depth."""
    return next((error for error in leaves(group) if isinstance(error, kind)), None)
