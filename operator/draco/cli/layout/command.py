"""`draco layout`: how GPUs are divided, and what a policy would change. `draco.overview` decides what is shown."""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import click
from rich.console import Console

from draco.cli.input.manifests import Sources
from draco.cli.layout import plan_screen as layout_plan_screen
from draco.cli.layout import screen as layout_screen
from draco.cli.layout import svg as layout_svg
from draco.cli.layout.sources import observe, with_layout_sources
from draco.cli.options import output_option
from draco.cli.output import print_document, visible, warn
from draco.cli.tables import print_screen
from draco.overview.layout_plan import plan as plan_of
from draco.overview.layouts import layout_of

_NARROWEST = 40


@click.group()
def command() -> None:
    """Show how GPUs are divided by MIG, and what a policy would change."""


@command.command()
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@with_layout_sources
@output_option("text", "json", "svg", text="json: one document of a stable schema. svg: one picture.")
def show(*, nodes: Sequence[str], sources: Sources, output: str) -> None:
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
        print_document(view)
    elif output == "svg":
        click.echo(layout_svg.picture(view), nl=False)
        warn(view.notes)
    else:
        most = max(layout_screen.MOST_NODES, len(nodes))  # show every node named on the command line
        _print(lambda console, width: layout_screen.show(visible(view), console, width, most))


@command.command()
@with_layout_sources
@click.option(
    "--delete",
    "deleted",
    multiple=True,
    metavar="NAME",
    help="Plan the deletion of this MigPolicy; repeatable, also with -f.",
)
@output_option("text", "json", text="json: one document of a stable schema, with every GPU.")
def plan(*, sources: Sources, deleted: Sequence[str], output: str) -> int:
    """Show what applying or deleting MigPolicies would do to each GPU.

    Shows which instances are created, which idle ones are destroyed, which claims must end first, where a reset is needed, and
    where the policy cannot be applied, with the nearest layout that can. Decides as the operator does, with every other policy of
    the cluster. Changes nothing. The exit status is 0 if nothing is wrong, 1 if a policy cannot be applied somewhere, 2 if the
    command line is wrong.

    \b
    draco layout plan -f policy.yaml
    draco layout plan --delete old-policy
    draco layout plan -f policy.yaml --delete old-policy
    draco layout plan -f policy.yaml -f gpunodes.json -o json
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    if not sources.filenames and not deleted:
        raise click.UsageError("There is nothing to plan: give MigPolicies with -f, or name some with --delete.")
    seen = observe(sources, deleted)
    if not seen.asked and not seen.deleted:
        raise click.UsageError(
            "The files hold no MigPolicy: give those that you mean to apply with -f, or name some with --delete."
        )
    view = plan_of(seen, datetime.now(UTC))
    if output == "json":
        print_document(view)
    else:
        _print(lambda console, width: layout_plan_screen.show(visible(view), console, width))
    return 0 if view.applicable else 1


def _print(show: Callable[[Console, int], None]) -> None:
    width = max(Console(file=sys.stdout).width, _NARROWEST)
    print_screen(lambda console: show(console, width))
