"""`draco simulate`: what would happen, without touching the cluster.

Owns the options, and what of the command each of them starts. Scenarios are `simulate_scenarios`.
"""

import sys
from pathlib import Path

import click

from draco.cli import simulate_scenarios


@click.command()
@click.option(
    "--scenarios",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True, exists=True),
    metavar="FILE",
    required=True,
    help='JSON lines, each {"name", "objects": […], "node", "claims": ["namespace/name"]}, answered one by one; - reads '
    "standard input.",
)
def command(scenarios: Path) -> None:
    """Say what would be allocated, without touching the cluster."""
    _answer(scenarios)


def _answer(scenarios: Path) -> None:
    """Write one line for each line of the file, as soon as it is known."""
    with click.open_file(str(scenarios), "rb") as stream:
        for line in simulate_scenarios.answers(simulate_scenarios.lines_of(stream)):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
