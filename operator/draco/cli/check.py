"""`draco check`: whether Draco is installed and works, as `overview.installation` judges. `helm test` runs this command."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from draco.cli.input.reading import Reader, cluster_with_dra, missing_of
from draco.cli.options import output_option, with_cluster
from draco.cli.output import echo, print_document, visible
from draco.kube.clock import SystemClock
from draco.kube.discovery import kubernetes_minor
from draco.kube.errors import Forbidden
from draco.overview.installation import (
    DAEMON_SETS,
    DEPLOYMENTS,
    OPERATORS,
    RUNTIME_NODES,
    CheckReport,
    Installation,
    Verdict,
    check,
)
from draco.resources.kinds import DEVICE_CLASSES, DEVICE_MAINTENANCES, GPU_NODES, LEASES, OWN_KINDS, SLICES, Kind

_CHART: Final = "app.kubernetes.io/name=draco"
_LOOK_AGAIN_S: Final = 2.0


@click.command()
@with_cluster
@click.option("-n", "--namespace", default="", help="Look for Draco in this namespace only.  [default: in all]")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Repeat the checks until none fails, for at most this long.",
)
@output_option("text", "json")
def command(kubeconfig: Path | None, context: str | None, namespace: str, wait_s: float, output: str) -> None:
    """Check that Draco is installed and working.

    Shows for each part whether it works, and what to do if it does not. Reads only. The exit status is 1 if something fails;
    warnings do not count.
    """
    report = asyncio.run(_until_healthy(kubeconfig, context, namespace, wait_s))
    if output == "json":
        print_document(report)
    else:
        _show(visible(report))
    if not report.healthy:
        raise click.exceptions.Exit(1)


def _show(report: CheckReport) -> None:
    for each in report.findings:
        echo(f"{each.verdict:<8} {each.about:<9} {each.message}")
        if each.remedy and each.verdict is not Verdict.OK:
            echo(f"{'':<8} {'':<9} {each.remedy}")
    echo("Draco works." if report.healthy else "Some checks failed (see above).")


async def _until_healthy(kubeconfig: Path | None, context: str | None, namespace: str, wait_s: float) -> CheckReport:
    clock = SystemClock()
    deadline = clock.monotonic() + wait_s
    while True:
        report = await _read(kubeconfig, context, namespace)
        if report.healthy or clock.monotonic() + _LOOK_AGAIN_S > deadline:
            return report
        await clock.sleep(_LOOK_AGAIN_S)


async def _read(kubeconfig: Path | None, context: str | None, namespace: str) -> CheckReport:
    async with cluster_with_dra(kubeconfig, context) as (client, features):
        reader = Reader(client)

        async def ours(kind: Kind[Any], **selector: str) -> list[Any]:
            try:
                return await client.list(kind, namespace=namespace, **selector)
            except Forbidden:
                where = (
                    f"namespace {namespace}" if namespace else "the whole cluster: name a namespace with --namespace"
                )
                reader.unread.append(f"These credentials may not list {kind.plural} in {where}.")
                return []

        async with asyncio.TaskGroup() as tasks:
            minor = tasks.create_task(kubernetes_minor(client))
            operators = tasks.create_task(
                ours(DEPLOYMENTS, label_selector=f"{_CHART},app.kubernetes.io/component=operator")
            )
            agents = tasks.create_task(ours(DAEMON_SETS, label_selector=f"{_CHART},app.kubernetes.io/component=agent"))
            leases = tasks.create_task(ours(LEASES, field_selector=OPERATORS))
            classes = tasks.create_task(reader.all_if_allowed(DEVICE_CLASSES, "DeviceClasses are not checked"))
            slices = tasks.create_task(reader.all_if_allowed(SLICES, "published devices are not checked"))
            nodes = tasks.create_task(reader.all_if_allowed(RUNTIME_NODES, "container runtimes are not checked"))
            own = {
                kind: tasks.create_task(reader.all_if_served(kind, "its state is not checked")) for kind in OWN_KINDS
            }
        found = Installation(
            minor=minor.result(),
            absent_kinds=[kind.kind for kind, task in own.items() if task.result() is None],
            missing=missing_of(features),
            operators=operators.result(),
            agents=agents.result(),
            leases=leases.result(),
            slices=slices.result(),
            gpu_nodes=own[GPU_NODES].result() or [],
            nodes=nodes.result(),
            classes=classes.result(),
            maintenances=own[DEVICE_MAINTENANCES].result() or [],
            unread=sorted(reader.unread),
        )
        return check(found, now=datetime.now(UTC))
