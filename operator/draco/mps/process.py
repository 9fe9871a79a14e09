"""The keeper as a process: its options and its signals. Owns the order of start and end; the daemons go on without it."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
import structlog

from draco import __version__
from draco.agent.files import Files
from draco.agent.hardware.driver_program import DriverPrograms
from draco.agent.hardware.driver_root import DriverRoot, loaded_version
from draco.agent.mps.control import MpsControl
from draco.agent.mps.folder import MpsFolder
from draco.kube.clock import Clock, SystemClock
from draco.logs import LEVELS, configure_log
from draco.mps.daemons import NodeDaemons
from draco.mps.keeper import MpsKeeper
from draco.mps.processes import NodeProcesses
from draco.options import option

log = structlog.get_logger()

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
_OPTIONS: Final = (
    option(
        "--mps-folder",
        "folder",
        type=_FOLDER,
        required=True,
        show_envvar=True,
        help="Where the node's agent says what its claims need: mps below the agent's own files. The same path on the node.",
    ),
    option(
        "--driver-root",
        type=_FOLDER,
        show_envvar=True,
        help="Host folder below which the NVIDIA driver is looked for. Default: its programs are on the path.",
    ),
    option(
        "--driver-root-view", type=_FOLDER, show_envvar=True, help="Path of --driver-root as seen here, if different."
    ),
    option(
        "--proc-root",
        type=_FOLDER,
        default=Path("/proc"),
        show_envvar=True,
        show_default=True,
        help="Where the host's /proc is seen.",
    ),
    option(
        "--cgroup-root",
        type=_FOLDER,
        default=Path("/sys/fs/cgroup"),
        show_envvar=True,
        show_default=True,
        help="Where the host's cgroups (version 2) are seen: daemons get their own, and so outlive this program's container.",
    ),
    option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_envvar=True,
        show_default=True,
        help="What is logged, on standard error.",
    ),
)
_TURN_S: Final = 0.5


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the keeper's options; `run` takes them."""
    for each in reversed(_OPTIONS):
        function = each(function)
    return function


def at_hand(folder: Path, proc_root: Path) -> tuple[MpsFolder, NodeProcesses]:
    """The node's daemons, for a person's command."""
    return MpsFolder(folder, Files()), NodeProcesses(proc_root)


def run(
    *,
    folder: Path,
    driver_root: Path | None,
    driver_root_view: Path | None,
    proc_root: Path,
    cgroup_root: Path,
    log_level: str,
) -> None:
    """Keep the node's daemons until SIGTERM or SIGINT."""
    configure_log(log_level)
    shared, processes = at_hand(folder, proc_root)
    root = None if driver_root is None else DriverRoot(driver_root, driver_root_view or driver_root, proc_root)
    programs, clock = DriverPrograms(root), SystemClock()
    keeper = MpsKeeper(
        shared,
        MpsControl(programs),
        processes,
        NodeDaemons(shared, programs, proc=proc_root, cgroups=cgroup_root),
        version=lambda: loaded_version(proc_root),
        clock=clock,
    )
    asyncio.run(_run(keeper, shared, clock))


async def _run(keeper: MpsKeeper, folder: MpsFolder, clock: Clock) -> None:
    loop = asyncio.get_running_loop()
    keeping = asyncio.create_task(_keep(keeper, folder, clock), name="keeper")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, keeping.cancel)
    with suppress(asyncio.CancelledError):
        await keeping
    log.info("mps.stopping")


async def _keep(keeper: MpsKeeper, folder: MpsFolder, clock: Clock) -> None:
    while folder.keep() is None:  # the one that this one replaces still ends
        await clock.sleep(_TURN_S)
    log.info("mps.starting", version=__version__, folder=str(folder.root))
    await keeper.run()
