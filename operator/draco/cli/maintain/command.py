"""`draco maintain`: take devices out of service, follow progress, and return them. Asks before it evicts pods."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec

from draco.cli.input.reading import NO_OPERATOR, group_members
from draco.cli.input.words import DURATION_HELP, NO_LIMIT
from draco.cli.maintain import changes, screen
from draco.cli.maintain.cluster import MaintainedCluster, change, create, on_cluster
from draco.cli.maintain.following import follow
from draco.cli.maintain.requests import StartOptions, manifest_of, request_of
from draco.cli.options import gathered, output_option, with_cluster
from draco.cli.output import CommandError, ask, echo, echo_lines, print_document, print_yaml, warn
from draco.maintenance.selecting.rehearsal import Rehearsal, rehearse
from draco.overview.maintenances import PAUSE, claims_held, maintenance_view, pause_warning
from draco.overview.status_schema import MaintenanceView
from draco.resources.api.base import OutputStruct
from draco.resources.api.maintenance import DeadlineAction, DeviceMaintenance, DrainPolicy, MaintenanceRehearsal
from draco.resources.api.slices import published_devices
from draco.resources.kinds import DEVICE_MAINTENANCES, MAINTENANCE_BUDGETS
from draco.resources.texts import counted

SCHEMA = "draco.dev/maintenance/v1"
"""Schema of the JSON document. Fields are only added under one name."""
Command = TypeVar("Command", bound=Callable[..., Any])

_START_OPTIONS = (
    click.argument("target", default="", metavar="[NAME | POOL/DEVICE]"),
    click.option("--node", default="", metavar="NODE", help="Devices that are for this node alone."),
    click.option("--pool", default="", metavar="POOL", help="Devices of this pool."),
    click.option("--driver", default="", metavar="DRIVER", help="Devices of this driver."),
    click.option("--device", default="", metavar="DEVICE", help="Devices with this name."),
    click.option("--class", "device_class", default="", metavar="CLASS", help="Devices of this DeviceClass."),
    click.option(
        "--selector", multiple=True, metavar="CEL", help="Devices for which this CEL expression is true; repeatable."
    ),
    click.option("--reason", default="", metavar="TEXT", help="The reason, for people who find the taint."),
    click.option(
        "--wait",
        "drain",
        flag_value=DrainPolicy.WAIT,
        type=DrainPolicy,
        default=DrainPolicy.WAIT,
        help="Wait until the pods on the devices have ended.  [default]",
    ),
    click.option(
        "--evict",
        "drain",
        flag_value=DrainPolicy.EVICT,
        type=DrainPolicy,
        help="Evict them, as disruption budgets allow.",
    ),
    click.option(
        "--no-execute",
        "drain",
        flag_value=DrainPolicy.NO_EXECUTE,
        type=DrainPolicy,
        help="Evict them; after half an hour delete the rest, regardless of disruption budgets.",
    ),
    click.option(
        "--drain-wait",
        default="",
        metavar="DURATION",
        help=f"Grace period before pods are evicted: {DURATION_HELP}.",
    ),
    click.option("--require-approval", is_flag=True, help="Start only after `draco maintain approve`."),
    click.option("--start-at", default="", metavar="TIME", help="Not before this time, such as 2026-12-24T22:00."),
    click.option(
        "--window",
        multiple=True,
        metavar="WINDOW",
        help="Start only in this weekly window: '[DAYS] HH:MM DURATION [TIMEZONE]'; repeatable.",
    ),
    click.option(
        "--deadline", default="", metavar="DURATION", help="Time after isolation by which the devices must be free."
    ),
    click.option(
        "--give-up",
        "deadline_action",
        flag_value=DeadlineAction.CANCEL,
        type=DeadlineAction,
        default=DeadlineAction.FAIL,
        help="If the deadline is missed, cancel and return the devices instead of failing with them isolated.",
    ),
    click.option(
        "--work",
        default="",
        metavar="CRONJOB",
        help="Suspended CronJob in the namespace of Draco's Jobs, from which Draco creates a Job for each GPU.",
    ),
    click.option(
        "--verify",
        default="",
        metavar="HOW",
        help="Who verifies the devices after the work: agent (default), person, or job:CRONJOB.",
    ),
    click.option(
        "--allow-most-of-class",
        is_flag=True,
        help="Start even if this takes more than half of a DeviceClass out of service.",
    ),
)


class MaintenanceList(OutputStruct, frozen=True, kw_only=True):
    """Requests, and whether an operator carries them out. `unread` lists what could not be read."""

    schema: str = SCHEMA
    maintenances: list[MaintenanceView]
    operated: bool | None = None
    paused: str = ""
    unread: list[str] = []


class StartPreview(OutputStruct, frozen=True, kw_only=True):
    """What a request would do. `problem` says why it would not start; "" if it would."""

    schema: str = "draco.dev/maintenance-preview/v1"
    name: str
    problem: str
    devices: list[str]
    rehearsal: MaintenanceRehearsal
    unread: list[str] = []


@click.group()
def command() -> None:
    """Take devices out of service and bring them back, without touching their node.

    New claims immediately avoid the devices and everything on the same hardware; the node's other GPUs keep working.
    """


@command.command()
@gathered(StartOptions, _START_OPTIONS)
@click.option("--dry-run", is_flag=True, help="Show what would be done, have the server check it, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before pods are evicted.")
@on_cluster
@output_option("text", "yaml", "json", text="yaml: print the manifest. json: what it would do. Both write nothing.")
async def start(cluster: MaintainedCluster, *, sources: StartOptions, dry_run: bool, yes: bool, output: str) -> None:
    """Start maintenance of devices: show what it would do, then create a DeviceMaintenance.

    \b
    draco maintain start gpu-node-0/gpu-3 --reason "reseat the board"
    draco maintain start --node gpu-node-0 --evict --drain-wait 30m
    draco maintain start firmware --class h100 --require-approval --window "Sat,Sun 22:00 6h Europe/Berlin"
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    slices = await cluster.slices()
    names = {each.metadata.name for each in cluster.requests}
    request = request_of(sources, published_devices(slices), names, now=datetime.now(UTC))
    if output == "yaml":
        print_yaml(manifest_of(request))
        return
    found = rehearse(request, await cluster.rehearsed(slices))
    if output == "json":
        print_document(_preview(request, found, cluster))
        return
    if found.problem:
        _warn(cluster)
        raise CommandError(
            f"the request would not start, so it was not created: {found.problem} To create it anyway, "
            "apply what `-o yaml` prints."
        )
    echo_lines(screen.preview(request, found, await cluster.budgets()))
    _warn(cluster)
    if not (dry_run or sources.require_approval):
        _ask(request.spec.drain.policy, found.summary.pods, yes=yes)
    name = request.metadata.name
    spec = msgspec.to_builtins(request.spec)
    await create(cluster.client, DEVICE_MAINTENANCES, name, spec, dry_run=dry_run)
    echo(f"devicemaintenance/{name} created{' (server dry run)' if dry_run else ''}")
    if not dry_run:
        echo(f"See its progress: draco maintain status {name} --watch")


@command.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@on_cluster
async def approve(cluster: MaintainedCluster, *, name: str, yes: bool) -> None:
    """Approve a request that waits for it, after showing what it would do."""
    request = cluster.request(name)
    wanted = changes.approval(request)
    rehearsal = request.status.rehearsal
    if rehearsal is None:
        found = rehearse(request, await cluster.rehearsed(await cluster.slices()))
        lines, pods = screen.preview(request, found, ()), found.summary.pods
    else:
        lines = [
            f"{counted(rehearsal.devices, 'device')}, the same hardware included.",
            *screen.numbers(rehearsal, request.spec.drain.policy),
        ]
        pods = rehearsal.pods
    echo_lines(lines)
    _warn(cluster)
    if wanted:
        _ask(request.spec.drain.policy, pods, yes=yes, otherwise=f"Approve {name}?")
    await _change(cluster, request, wanted, "approved")


@command.command()
@click.argument("name")
@on_cluster
async def finish(cluster: MaintainedCluster, *, name: str) -> None:
    """Report the work as done: Draco verifies the devices and returns them to service."""
    request = cluster.request(name)
    await _change(cluster, request, changes.finish(request), "finished")


@command.command()
@click.argument("name")
@on_cluster
async def cancel(cluster: MaintainedCluster, *, name: str) -> None:
    """Cancel a request: its devices return to service unrepaired."""
    request = cluster.request(name)
    await _change(cluster, request, changes.cancellation(request), "cancelled")


@command.command()
@click.argument("name", default="")
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Print each change of NAME until it ends; the command fails unless NAME completes.",
)
@click.option(
    "--timeout",
    default=NO_LIMIT,
    metavar="DURATION",
    help="With --watch: stop after this time, such as 30m; 0s is no limit.",
)
@with_cluster
@output_option("text", "json", text="json: one document of a stable schema.")
def status(*, name: str, watch: bool, timeout: str, output: str, **where: Any) -> None:
    """List the requests, or show one with its devices, claims, pods, conditions, and what to do next."""
    if watch and (not name or output == "json"):
        raise CommandError("--watch follows one request as text: give its NAME, and leave -o json out.")
    if not watch and timeout != NO_LIMIT:
        raise CommandError("--timeout limits --watch: add --watch, or leave it out.")
    if watch:
        _follow(name=name, limit=timeout, **where)
    else:
        _show(name=name, output=output, **where)


@on_cluster
async def _follow(cluster: MaintainedCluster, *, name: str, limit: str) -> None:
    _warn(cluster)
    await follow(cluster.client, cluster.request(name), limit)


@on_cluster
async def _show(cluster: MaintainedCluster, *, name: str, output: str) -> None:
    requests = [cluster.request(name)] if name else sorted(cluster.requests, key=lambda each: each.metadata.name)
    claims = {str(claim.metadata.key): claim for claim in await cluster.claims()}
    members = await group_members(cluster.reader, claims_held(requests, claims))
    paused = pause_warning(await cluster.budgets())
    views = [maintenance_view(each, claims, members) for each in requests]
    if output == "json":
        unread = cluster.reader.unread
        print_document(MaintenanceList(maintenances=views, operated=cluster.operated, paused=paused, unread=unread))
        return
    _warn(cluster)
    if paused:
        echo(paused, err=True)
    now = datetime.now(UTC)
    if name:
        (request,) = requests
        screen.show_one(views[0], request.status.rehearsal, request.spec.drain.policy, now)
    elif views:
        screen.show_list(views, now)
    else:
        echo("No DeviceMaintenance found. `draco maintain start --help` says how to start one.")


@command.command()
@on_cluster
async def pause(cluster: MaintainedCluster) -> None:
    """Stop taking devices out of service and evicting pods. Devices already out of service are left alone."""
    budget = next((each for each in await cluster.budgets() if each.metadata.name == PAUSE), None)
    if budget is None:
        await create(cluster.client, MAINTENANCE_BUDGETS, PAUSE, {"paused": True})
    elif not budget.spec.paused:
        generation = budget.metadata.generation
        await change(cluster.client, MAINTENANCE_BUDGETS, budget.metadata.key, {"paused": True}, generation)
    echo("Maintenance is paused. Resume with: draco maintain resume")
    _warn(cluster)


@command.command()
@on_cluster
async def resume(cluster: MaintainedCluster) -> None:
    """Resume maintenance after `draco maintain pause`."""
    budgets = await cluster.budgets()
    budget = next((each for each in budgets if each.metadata.name == PAUSE), None)
    if budget is not None and budget.spec.paused:
        generation = budget.metadata.generation
        await change(cluster.client, MAINTENANCE_BUDGETS, budget.metadata.key, {"paused": False}, generation)
    if others := pause_warning(each for each in budgets if each.metadata.name != PAUSE):
        raise CommandError(f"maintenance is still paused. {others}")
    echo("Maintenance is resumed.")
    _warn(cluster)


async def _change(cluster: MaintainedCluster, request: DeviceMaintenance, wanted: changes.Changes, said: str) -> None:
    """Write the changes and report them as kubectl does."""
    name = request.metadata.name
    if wanted:
        await change(cluster.client, DEVICE_MAINTENANCES, request.metadata.key, wanted, request.metadata.generation)
    echo(f"devicemaintenance/{name} {said if wanted else 'unchanged'}")
    _warn(cluster)


def _preview(request: DeviceMaintenance, found: Rehearsal, cluster: MaintainedCluster) -> StartPreview:
    return StartPreview(
        name=request.metadata.name,
        problem=found.problem,
        devices=list(map(str, found.devices)),
        rehearsal=found.summary,
        unread=cluster.reader.unread,
    )


def _ask(policy: DrainPolicy, pods: int, *, yes: bool, otherwise: str = "") -> None:
    """Ask for confirmation of evictions, or of the question in `otherwise`."""
    evicts = pods and policy is not DrainPolicy.WAIT
    if yes or not (evicts or otherwise):
        return
    remedy = "add --yes, or use --wait and let them end" if evicts and not otherwise else "add --yes"
    if evicts:
        ask(f"Evict {counted(pods, 'pod')}?", f"this evicts {counted(pods, 'pod')}", remedy)
    else:
        ask(otherwise, "this approves the request", remedy)


def _warn(cluster: MaintainedCluster) -> None:
    """Warn of what could not be read, and of a missing operator."""
    warn(cluster.reader.unread)
    if cluster.operated is False:
        echo(NO_OPERATOR, err=True)
