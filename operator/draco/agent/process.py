"""The agent as a process: its options and its signals.

Owns what `draco agent` and the agent of a simulated node share. The caller says how to reach the API server and which NVML to
use: connecting by kubeconfig needs a library that an agent on a GPU node must not load.
"""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec
import structlog

from draco import __version__
from draco.agent.app import run_agent
from draco.agent.hardware.nvidia_smi import Smi
from draco.agent.settings import AgentSettings
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.connect.incluster import SERVICE_ACCOUNT
from draco.logs import LEVELS, configure_log
from draco.options import DriverName, HostPath, ListenAddress, Seconds, option, with_metrics
from draco.resources.names import FIELD_MANAGER_AGENT, NVIDIA_DRIVER

log = structlog.get_logger()


class ApiServerAccess(msgspec.Struct, frozen=True):
    """How to reach the API server: by a kubeconfig, or with the service account in that folder."""

    kubeconfig: Path | None
    service_account: Path


ConnectWith = Callable[[ApiServerAccess], Awaitable[Connection]]

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


def _option(name: str, *names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return option(name, *names, show_envvar=True, show_default=settings.get("default") is not None, **settings)


OPTIONS = (
    _option("--node-name", required=True, help="This node's name in Kubernetes."),
    _option("--driver", type=DriverName(), default=NVIDIA_DRIVER, help="Name of the DRA driver to serve."),
    _option(
        "--kubelet-dir",
        type=_FOLDER,
        default=Path("/var/lib/kubelet"),
        help="Kubelet's --root-dir, at the same path for the agent.",
    ),
    _option("--cdi-dir", type=_FOLDER, default=Path("/var/run/cdi"), help="Where the runtime looks for CDI specs."),
    _option(
        "--state-dir",
        type=_FOLDER,
        help="The agent's own files; must survive reboots. Default: the driver's folder below <kubelet-dir>/plugins.",
    ),
    _option("--device-root", type=_FOLDER, default=Path("/"), help="Folder whose dev/ has the device nodes."),
    _option(
        "--driver-root",
        type=_FOLDER,
        help="Host folder below which the agent looks for the NVIDIA driver, for NVML and for the driver files that containers "
        "get; / includes all usual places. Default: the linker finds NVML, and containers get no driver files.",
    ),
    _option("--driver-root-view", type=_FOLDER, help="Path of --driver-root as the agent sees it, if different."),
    _option(
        "--limit-library",
        type=HostPath(),
        default="",
        help="Path on the node of a library (HAMi-core's libvgpu.so) that containers load if a SharingPolicy's enforcement is "
        "Library. Default: none, and no GPU is shared so.",
    ),
    _option("--sysfs-root", type=_FOLDER, default=Path("/sys"), help="Where the host's /sys is seen."),
    _option("--proc-root", type=_FOLDER, default=Path("/proc"), help="Where the host's /proc is seen."),
    _option(
        "--listen",
        type=ListenAddress(),
        help="Address of /livez and /readyz, and of /metrics unless it has one of its own. Default: none.",
    ),
    with_metrics,
    _option(
        "--rescan",
        "rescan_s",
        type=Seconds(min=0.1),
        default=10.0,
        help="Seconds between two readings of the GPUs.",
    ),
    _option(
        "--take-over",
        "takes_over",
        is_flag=True,
        help="If another Draco agent serves the node, stand by until it ends instead of refusing to start, so that kubelet "
        "always has a plugin during upgrades.",
    ),
    _option(
        "--namespace",
        default="",
        help="Namespace of the Lease draco-agent-<node>, which the agent renews; if it stops, the operator keeps new claims "
        "off the node's GPUs. Default: no Lease, and the node is never fenced.",
    ),
    _option(
        "--agent-lease-duration",
        "lease_duration_s",
        type=click.IntRange(min=1, max=3600),
        default=20,
        help="Seconds without renewal after which an agent counts as lost; it renews four times as often.",
    ),
    _option(
        "--unused-after",
        "unused_after_s",
        type=Seconds(min=0),
        default=7200.0,
        help="Seconds after which a device that a claim holds and nobody uses is reported as unused in the claim's status; 0 for "
        "never.",
    ),
    _option("--kubeconfig", type=_FILE, help="Kubeconfig to use. Default: the pod's service account."),
    _option(
        "--service-account", type=_FOLDER, default=SERVICE_ACCOUNT, help="Folder of the service account's token and CA."
    ),
    _option("--log-level", type=click.Choice(LEVELS), default="info", help="What is logged, on standard error."),
)


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the agent's options; `run` takes them."""
    for each in reversed(OPTIONS):
        function = each(function)
    return function


def run(
    connect: ConnectWith,
    *,
    library: Any = None,
    smi: Smi | None = None,
    kubeconfig: Path | None,
    service_account: Path,
    log_level: str,
    **options: Any,
) -> None:
    """Run the agent until SIGTERM or SIGINT. `options` are the fields of AgentSettings. Raises DracoError, possibly in groups."""
    configure_log(log_level)
    settings = AgentSettings(**options, lease_holder=socket.gethostname())
    asyncio.run(_run(settings, connect, ApiServerAccess(kubeconfig, service_account), library, smi))


async def _run(
    settings: AgentSettings, connect: ConnectWith, access: ApiServerAccess, library: Any, smi: Smi | None
) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with Client(await connect(access), manager=FIELD_MANAGER_AGENT) as client:
        log.info("agent.starting", node=settings.node_name, driver=settings.driver, version=__version__)
        running = asyncio.create_task(run_agent(settings, client=client, library=library, smi=smi), name="agent")
        stopping = asyncio.create_task(stopped.wait(), name="signal")
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not running.done():
            log.info("agent.stopping", node=settings.node_name)
            running.cancel()
        with suppress(asyncio.CancelledError):
            await running
