"""`draco mps`: the program of the DaemonSet that keeps MPS control daemons, and the end of one. `draco.mps` does the work."""

from typing import Any

import click

from draco.mps import ending
from draco.mps.process import at_hand, run, with_options
from draco.resources.texts import agreeing


@click.group(invoke_without_command=True)
@with_options
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Keep the MPS control daemons that this node's claims need.

    The agent says which these are, in a folder that both see. The daemons go on when this program ends or is replaced. Runs on
    every GPU node, from a DaemonSet of its own, with the node's processes (hostPID).
    """
    context.obj = options
    if context.invoked_subcommand is None:
        run(**options)


@command.command()
@click.argument("daemon", required=False)
@click.pass_obj
def end(options: dict[str, Any], daemon: str | None) -> None:
    """End an MPS daemon of this node, such as one that hangs; without DAEMON, list them.

    Its clients lose their work on the GPU. If a claim still has it, the keeper starts it again. Run it in the keeper's pod of the
    node, which has the settings: `kubectl exec -n NAMESPACE POD -- draco mps end DAEMON`. Messages name the daemon.
    """
    folder, processes = at_hand(options["folder"], options["proc_root"])
    if daemon is None:
        for line in ending.lines(folder, processes) if folder.names() else ("This node has no MPS daemon.",):
            click.echo(line)
        return
    killed = ending.end(daemon, folder, processes)
    click.echo(f"Killed {killed} {agreeing(killed, 'process', 'processes')}." if killed else "It does not run.")
