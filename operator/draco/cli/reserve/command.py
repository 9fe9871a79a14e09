"""`draco reserve`: create a reservation and wait for it, or list the existing ones. `requests` parses the command line."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from draco.cli.input.reading import NO_OPERATOR, operated, without_kinds
from draco.cli.input.words import NO_LIMIT, limit_s
from draco.cli.options import gathered, output_option, with_cluster
from draco.cli.output import CommandError, echo, print_yaml
from draco.cli.reserve.requests import DEFAULT_CLASS, ReserveOptions, spec_of
from draco.cli.tables import print_table, table
from draco.cli.writing import create, manifest
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.connect.retry import TRANSIENT
from draco.kube.errors import Forbidden, NotFound
from draco.resources.api.claims import MAX_RESULTS
from draco.resources.api.meta import ObjectKey, find_condition
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import DEVICE_RESERVATIONS
from draco.resources.texts import shown

_LOOK_EVERY_S: Final = 0.5
_RESERVATION = (
    click.option(
        "--class", "device_class", default="", metavar="CLASS", help=f"DeviceClass.  [default: {DEFAULT_CLASS}]"
    ),
    click.option(
        "--selector",
        multiple=True,
        metavar="CEL",
        help="Only devices for which this CEL expression is true; repeatable.",
    ),
    click.option(
        "--devices", default=1, show_default=True, type=click.IntRange(1, MAX_RESULTS), help="Devices of each claim."
    ),
    click.option(
        "--template",
        default="",
        metavar="NAME",
        help="ResourceClaimTemplate to use instead of --class, --selector and --devices.",
    ),
    click.option("--count", default=1, show_default=True, type=click.IntRange(1, 256), help="How many claims."),
    click.option(
        "--topology",
        default="",
        metavar="HOW",
        help="sameNode, sameNVLinkDomain, spread, or the key of a node label that all nodes must share.",
    ),
    click.option("--priority-class", default="", metavar="NAME", help="PriorityClass.  [default: the cluster's]"),
    click.option(
        "--for", "duration", default="", metavar="DURATION", help="Duration, such as 2h30m.  [default: no end]"
    ),
    click.option("--until", default="", metavar="TIME", help="End, such as 2030-01-31T18:00."),
)


@click.command()
@click.argument("name", default="", metavar="[NAME]")
@gathered(ReserveOptions, _RESERVATION)
@click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace.  [default: the context's]")
@click.option("-A", "--all-namespaces", is_flag=True, help="Without NAME: list those of all namespaces.")
@click.option("--dry-run", is_flag=True, help="Have the server check the reservation, and create nothing.")
@click.option("--wait", is_flag=True, help="Wait until all claims have devices.")
@click.option(
    "--timeout",
    default=NO_LIMIT,
    metavar="DURATION",
    help="With --wait: stop after this time, such as 30m; 0s is no limit.",
)
@with_cluster
@output_option("text", "yaml", text="yaml: print the manifest, and create nothing.")
def command(
    *,
    name: str,
    sources: ReserveOptions,
    namespace: str,
    all_namespaces: bool,
    dry_run: bool,
    wait: bool,
    timeout: str,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
) -> None:
    """Reserve devices for future pods, or list reservations (without NAME).

    \b
    draco reserve train --count 8 --topology sameNVLinkDomain --for 4h --wait
    draco reserve demo --class mig.draco.dev --until 2030-01-31T18:00

    The claims are called NAME-0, NAME-1 and so on; a pod uses one by its name (resourceClaimName).
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    if not name and sources != ReserveOptions():
        raise CommandError("a reservation needs a name: draco reserve NAME, with these options.")
    if wait and (dry_run or output == "yaml"):
        raise CommandError("there is nothing to wait for: leave --wait out, or create the reservation.")
    if not wait and timeout != NO_LIMIT:
        raise CommandError("--timeout limits --wait: add --wait, or leave it out.")
    limit_s(timeout)  # validate before anything is created

    async def work() -> None:
        async with Client(await connect(kubeconfig, context)) as client:
            here = namespace or client.connection.namespace
            if not name:
                _list(await _read(client, "" if all_namespaces else here), all_namespaces)
                return
            key, spec = ObjectKey(here, name), spec_of(name, sources, datetime.now(UTC))
            if output == "yaml":
                print_yaml(manifest(DEVICE_RESERVATIONS, key, spec))
                return
            made = await create_reservation(client, key, spec, dry_run=dry_run)
            echo(f"devicereservation/{name} created{' (server dry run)' if dry_run else ''}")
            if wait:
                await wait_until_ready(client, made, timeout)
            elif not dry_run:
                echo(f"See its status: draco reserve --namespace {here}")

    asyncio.run(work())


def _list(reservations: Sequence[DeviceReservation], with_namespace: bool) -> None:
    if not reservations:
        echo("No DeviceReservation found. `draco reserve --help` says how to make one.")
        return
    rows = table(*["NAMESPACE"] * with_namespace, "NAME", "CLAIMS", "RESERVED", "IN USE", "ENDS", "STATE")
    for reservation in reservations:
        meta, status = reservation.metadata, reservation.status
        end = f"{status.expires_at:%Y-%m-%dT%H:%M:%SZ}" if status.expires_at else "-"
        row = [meta.namespace] * with_namespace + [meta.name, str(reservation.spec.count)]
        row += ["-" if each is None else str(each) for each in (status.reserved, status.in_use)]
        rows.add_row(*map(shown, [*row, end, status.message or "No operator has seen it yet."]))
    print_table(rows)


async def create_reservation(
    client: Client, key: ObjectKey, spec: Mapping[str, Any], *, dry_run: bool
) -> DeviceReservation:
    """Create the reservation. Raises CommandError."""
    return await create(
        client,
        DEVICE_RESERVATIONS,
        key,
        spec,
        roles="edit or draco-devicereservations-edit in this namespace",
        taken="take another name, or delete it with "
        f"`kubectl delete devicereservation {key.name} --namespace {key.namespace}`",
        dry_run=dry_run,
    )


async def _read(client: Client, namespace: str) -> list[DeviceReservation]:
    """The reservations of a namespace; "" means all. Raises CommandError."""
    try:
        found = await client.list(DEVICE_RESERVATIONS, namespace=namespace)
    except NotFound:
        raise without_kinds(client, DEVICE_RESERVATIONS) from None
    except Forbidden as error:
        raise CommandError(f"these credentials may not list reservations there: {error}") from None
    return sorted(found, key=lambda each: each.metadata.key)


async def wait_until_ready(client: Client, reservation: DeviceReservation, limit: str) -> None:
    """Print each change of its message until it is ready. Raises CommandError if it ends, is deleted, or takes too long."""
    key, said = reservation.metadata.key, ""
    if await operated(client) is False:
        echo(NO_OPERATOR, err=True)
    try:
        async with asyncio.timeout(limit_s(limit)):
            while True:
                try:
                    now = await client.get(DEVICE_RESERVATIONS, key)
                except NotFound:
                    raise CommandError(f"{key.name} was deleted") from None
                except TRANSIENT:
                    await asyncio.sleep(_LOOK_EVERY_S)
                    continue
                if now.metadata.uid != reservation.metadata.uid:
                    raise CommandError(f"{key.name} was deleted and created again")
                if now.status.message and said != (said := now.status.message):
                    echo(shown(said))
                if _holds(now, "Ready"):
                    return
                if _holds(now, "Expired"):
                    raise CommandError(f"{key.name} ended before it was ready")
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        why = shown(said) or "no operator of Draco has processed it; `draco check` says why."
        raise CommandError(f"{key.name} is not ready after {limit}: {why}") from None


def _holds(reservation: DeviceReservation, condition: str) -> bool:
    found = find_condition(reservation.status.conditions, condition)
    return found is not None and found.status == "True" and found.observed_generation == reservation.metadata.generation
