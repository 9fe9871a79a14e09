"""`draco layout`: how GPUs are divided, and what a policy would change.

Owns the options and the choice of output. What is looked at is `layout_sources`; what is shown is decided in `layout_view` and
`layout_plan`, how in `layout_screen`, `layout_svg` and `layout_plan_screen`.
"""

import sys
from collections.abc import Sequence

import click
import msgspec
from rich.console import Console

from draco.cli import layout_screen, layout_svg
from draco.cli.layout_sources import LayoutSources, observe, with_layout_sources
from draco.cli.layout_view import layout_of

_UNBROKEN = 10_000
"""Lines are broken where they are made, never by the console."""


@click.group()
def command() -> None:
    """Show how GPUs are divided by MIG, and what a policy would change."""


@command.command()
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@with_layout_sources
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "svg"]),
    default="text",
    show_default=True,
    help="json: one document of a stable schema. svg: one picture.",
)
def show(*, nodes: Sequence[str], sources: LayoutSources, output: str) -> None:
    """Draw the memory units of each GPU: who has what, what is idle, what still fits.

    A bracket is an instance, a dot a free unit. Reads only, and keeps nothing.

    \b
    draco layout show
    draco layout show gpu-node-0 gpu-node-1
    draco layout show -o svg > layout.svg
    kubectl get gpunodes -o json | draco layout show -f -
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    view = layout_of(observe(sources), nodes)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(view), indent=2).decode())
    elif output == "svg":
        click.echo(layout_svg.picture(view), nl=False)
        for note in view.notes:
            click.echo(note, err=True)
    else:
        width = Console(file=sys.stdout).width
        console = Console(highlight=False, soft_wrap=True, width=_UNBROKEN)
        with console.capture() as screen:
            layout_screen.show(view, console, width)
        for line in screen.get().splitlines():
            click.echo(line.rstrip())
