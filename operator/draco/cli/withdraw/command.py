"""`draco withdraw`: before Draco is uninstalled, take back what it wrote on objects of other kinds. `plan` decides what."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from draco.cli.input.reading import cluster_with_dra
from draco.cli.options import with_cluster
from draco.cli.output import CommandError, echo, warn
from draco.cli.withdraw.cluster import Withdrawal
from draco.cli.withdraw.plan import WithdrawalPlan
from draco.overview.installation import Workload
from draco.resources.kinds import Kind
from draco.resources.names import DeviceKey
from draco.resources.texts import counted, listed

_NAMED: Final = 5
_ANSWERS_S: Final = 30.0


@click.command()
@with_cluster
@click.option("-n", "--namespace", default="draco-system", show_default=True, help="Draco's namespace.")
@click.option(
    "--job-namespace", default="draco-jobs", show_default=True, help="Namespace of Draco's Jobs; empty if it runs none."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and change nothing.")
@click.option("--force", is_flag=True, help="Return devices in maintenance to service, too.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of the whole command.",
)
def command(
    *,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    job_namespace: str,
    dry_run: bool,
    force: bool,
    timeout_s: float,
) -> None:
    """Remove what Draco has written, before it is uninstalled.

    Deletes the operator and the agents, then removes what they wrote outside of Draco's own kinds: ResourceSlices, taint rules,
    conditions and annotations of nodes, states of devices in claims, scheduling gates, leases. Keeps and lists what pods use and
    what people created. `helm uninstall` does this automatically. It can be repeated at any time.
    """

    async def work() -> None:
        async with cluster_with_dra(kubeconfig, context) as (client, features):
            withdrawal = Withdrawal(
                client, namespace, features.taint_rules, job_namespace=job_namespace, within_s=timeout_s
            )
            try:
                # The withdrawal observes the timeout itself; this one is for a server that does not answer.
                async with asyncio.timeout(timeout_s + _ANSWERS_S):
                    if dry_run:
                        _show(await withdrawal.read(), await withdrawal.workloads())
                    else:
                        await _do(withdrawal, force=force)
            except TimeoutError:
                raise CommandError(
                    f"not everything was removed within {timeout_s:.0f} s: run this again, with a longer --timeout."
                ) from None

    asyncio.run(work())


async def _do(withdrawal: Withdrawal, *, force: bool) -> None:
    first = await withdrawal.read()
    if first.isolated and not force:
        raise CommandError(_in_maintenance(first.isolated))
    warn(first.stays)
    await withdrawal.stop()
    await withdrawal.take_back()
    echo("Nothing that Draco wrote is left outside of its own kinds.")


def _show(first: WithdrawalPlan, workloads: Sequence[tuple[Kind[Any], Workload]]) -> None:
    for kind, each in workloads:
        echo(f"{kind.kind.lower()}.apps/{each.metadata.name} deleted (dry run)")
    for reversal in first.reversals:
        echo(f"{reversal} (dry run)")
    warn(first.stays)
    if first.isolated:
        warn([_in_maintenance(first.isolated)])


def _in_maintenance(isolated: tuple[DeviceKey, ...]) -> str:
    names = listed((f"{each.pool}/{each.device}" for each in isolated), _NAMED)
    return (
        f"{counted(len(isolated), 'device')} in maintenance ({names}) would return to service unverified: finish or cancel "
        "these DeviceMaintenances first (`draco status` lists them), or repeat this with --force."
    )
