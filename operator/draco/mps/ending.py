"""Ends an MPS daemon by hand, also one that hangs under its clients: they lose their work, and the keeper starts it again.

Owns what a person may end: a daemon of this node, by the name that messages have. The keeper does the rest when it looks.
"""

from collections.abc import Iterator

from draco.agent.mps.folder import DaemonName, MpsFolder
from draco.mps.processes import NodeProcesses
from draco.resources.errors import DracoError
from draco.resources.texts import agreeing


class NoSuchDaemon(DracoError):
    """No daemon of this node has that name."""


def lines(folder: MpsFolder, processes: NodeProcesses) -> Iterator[str]:
    """The daemons of this node, for people."""
    for name in folder.names():
        wanted, state = folder.wanted(name), folder.state(name)
        whose = "no claim" if wanted is None else f"claim {wanted.claim} on {', '.join(wanted.devices)}"
        running, problem = len(processes.of(name)), state.problem and f"; {state.problem}"
        yield f"{name}: for {whose}, {running} {agreeing(running, 'process', 'processes')}{problem}"


def end(name: str, folder: MpsFolder, processes: NodeProcesses) -> int:
    """Kill a daemon with its servers; how many processes that were. Raises NoSuchDaemon."""
    if name not in folder.names():
        there = ", ".join(folder.names())
        raise NoSuchDaemon(f"This node has no MPS daemon {name}. {f'It has {there}.' if there else 'It has none.'}")
    found = len(processes.of(DaemonName(name)))
    processes.kill(DaemonName(name))
    return found
