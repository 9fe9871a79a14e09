"""`draco top`: read what the agents report of usage, once or again and again. `overview.usage` adds it up, `screen` shows it."""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from draco.cli.input.reading import Reader, cluster_with_dra, without_kinds
from draco.cli.options import output_option, with_cluster
from draco.cli.output import print_document, visible, warn
from draco.cli.tables import print_screen
from draco.cli.top import screen
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.overview.usage import By, SortBy, UsageDocument, usage
from draco.resources.kinds import GPU_USAGES

_CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"


class _Wish(msgspec.Struct, frozen=True):
    """What to show."""

    by: By
    sort_by: SortBy
    namespace: str
    node: str


@click.command()
@with_cluster
@click.option(
    "--by", type=click.Choice([*map(str, By)]), default=str(By.CLAIM), show_default=True, help="What a row stands for."
)
@click.option(
    "--sort-by",
    type=click.Choice([*map(str, SortBy)]),
    default=str(SortBy.UTILIZATION),
    show_default=True,
    help="The greatest first.",
)
@click.option("-n", "--namespace", default="", help="Only what pods of this namespace use.")
@click.option("--node", default="", metavar="NAME", help="Only this node.")
@click.option("--once", is_flag=True, help="Print once, as when the output is no terminal.")
@click.option(
    "--interval",
    "every_s",
    type=click.FloatRange(min=1.0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings of the cluster.",
)
@output_option("text", "json", text="json: one document of a stable schema, once.")
def command(
    kubeconfig: Path | None,
    context: str | None,
    *,
    by: str,
    sort_by: str,
    namespace: str,
    node: str,
    once: bool,
    every_s: float,
    output: str,
) -> None:
    """Show how much GPU memory and time claims, pods, namespaces or GPUs use, the greatest first.

    Updates until Ctrl-C. The agents read their GPUs every 15 seconds. Reads only.

    \b
    draco top
    draco top --by namespace --sort-by memory --once
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    wish = _Wish(By(by), SortBy(sort_by), namespace, node)
    if output == "json":
        print_document(asyncio.run(_read_once(kubeconfig, context, wish)))
    elif once or not sys.stdout.isatty():
        _show(asyncio.run(_read_once(kubeconfig, context, wish)))
    else:
        asyncio.run(_follow(kubeconfig, context, wish, every_s))


async def _read_once(kubeconfig: Path | None, context: str | None, wish: _Wish) -> UsageDocument:
    async with cluster_with_dra(kubeconfig, context) as (client, _):
        return await _read(client, wish)


async def _follow(kubeconfig: Path | None, context: str | None, wish: _Wish, every_s: float) -> None:
    clock = SystemClock()
    async with cluster_with_dra(kubeconfig, context) as (client, _):
        while True:
            found = await _read(client, wish)
            click.echo(_CLEAR, nl=False)
            _show(found)
            await clock.sleep(every_s)


async def _read(client: Client, wish: _Wish) -> UsageDocument:
    reader = Reader(client)
    usages = await reader.all_if_served(GPU_USAGES, "nothing is known of usage")
    if usages is None:
        raise without_kinds(client, GPU_USAGES)
    found = usage(
        usages,
        by=wish.by,
        sort_by=wish.sort_by,
        namespace=wish.namespace,
        node=wish.node,
        now=datetime.now(UTC),
    )
    return msgspec.structs.replace(found, notes=sorted(reader.unread))


def _show(found: UsageDocument) -> None:
    warn(found.notes)
    print_screen(lambda console: screen.show(visible(found), console, datetime.now(UTC)))
    warn(screen.remarks(found))
