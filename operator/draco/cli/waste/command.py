"""`draco waste`: read what agents counted, and show what namespaces held without using it. `overview.waste` adds it up."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console

from draco.cli.input.reading import Reader, cluster_with_dra, without_kinds
from draco.cli.options import output_option, with_cluster
from draco.cli.output import CommandError, print_document, visible, warn
from draco.cli.tables import print_screen, table
from draco.cli.waste.forms import as_csv, as_opencost
from draco.overview.waste import MOST_DAYS, PriceList, WasteDocument, WasteRow, total, waste
from draco.resources.kinds import GPU_USAGES


@click.command()
@with_cluster
@click.option("-n", "--namespace", default="", help="Only this namespace.")
@click.option(
    "--days",
    type=click.IntRange(1, MOST_DAYS),
    default=7,
    show_default=True,
    metavar="N",
    help="How many days (UTC), with today.",
)
@click.option(
    "--prices",
    "price_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="YAML file with `currency` and `prices` for an hour, by patterns of product names.",
)
@output_option(
    "text", "json", "csv", "opencost", text="csv: for spreadsheets. opencost: as a plugin for custom costs answers."
)
def command(
    kubeconfig: Path | None,
    context: str | None,
    *,
    namespace: str,
    days: int,
    price_file: Path | None,
    output: str,
) -> None:
    """Show for how many GPU hours namespaces held devices, and how many of them they used.

    The agents count while they run, and remember 31 days. Reads only.

    \b
    draco waste
    draco waste --days 30 --prices prices.yaml -o csv
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    prices = PriceList() if price_file is None else _read_prices(price_file)
    found = asyncio.run(_read(kubeconfig, context, namespace=namespace, days=days, prices=prices))
    match output:
        case "json":
            print_document(found)
        case "csv":
            click.echo(as_csv(visible(found)), nl=False)
        case "opencost":
            print_document(as_opencost(visible(found)))
        case _:
            print_screen(lambda console: _show(visible(found), console))
    warn(found.notes)


def _read_prices(file: Path) -> PriceList:
    try:
        return msgspec.yaml.decode(file.read_bytes(), type=PriceList)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandError(
            f'{file} is no price list: {error}. Write it as "currency: USD", and "prices:" with lines like '
            '"NVIDIA H100*: 2.5"'
        ) from error


async def _read(
    kubeconfig: Path | None, context: str | None, *, namespace: str, days: int, prices: PriceList
) -> WasteDocument:
    async with cluster_with_dra(kubeconfig, context) as (client, _):
        reader = Reader(client)
        usages = await reader.all_if_served(GPU_USAGES, "nothing is known of usage")
        if usages is None:
            raise without_kinds(client, GPU_USAGES)
    today = datetime.now(UTC).date()
    found = waste(usages, today=today, days=days, prices=prices, namespace=namespace)
    lacking = sorted({row.resource for row in found.rows if row.held_cost is None}) if prices.prices else []
    notes = [f"The price list has no price for {resource}." for resource in lacking]
    return msgspec.structs.replace(found, notes=sorted(reader.unread) + notes)


def _show(found: WasteDocument, console: Console) -> None:
    if not found.rows:
        console.print(f"No claim held a GPU from {found.first} to {found.last}.")
        return
    costs = (f"COST ({found.currency})", f"UNUSED ({found.currency})") if found.priced else ()
    made = table("NAMESPACE", "RESOURCE", "HELD", "USED", "UNUSED", "UNUSED%", *costs, numbers=range(2, 6 + len(costs)))
    for row in found.rows:
        made.add_row(row.namespace, row.resource, *_figures(row, priced=found.priced))
    made.add_row("TOTAL", "", *_figures(total(found.rows), priced=found.priced))
    console.print(made)


def _figures(row: WasteRow, *, priced: bool) -> list[str]:
    share = f"{100 * row.unused_hours / row.held_hours:.0f}%" if row.held_hours else "-"
    hours = [f"{each:.1f}h" for each in (row.held_hours, row.used_hours, row.unused_hours)]
    costs = ["-" if each is None else f"{each:.2f}" for each in (row.held_cost, row.unused_cost)]
    return [*hours, share, *(costs if priced else [])]
