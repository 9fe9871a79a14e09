"""`draco mps`: the program of the DaemonSet that keeps MPS control daemons. The work is done by `draco.mps`."""

from typing import Any

import click

from draco.mps.process import run, with_options


@click.command()
@with_options
def command(**options: Any) -> None:
    """Keep the MPS control daemons that this node's claims need.

    The agent says which these are, in a folder that both see. The daemons go on when this program ends or is replaced. Runs on
    every GPU node, from a DaemonSet of its own, with the node's processes (hostPID).
    """
    run(**options)
