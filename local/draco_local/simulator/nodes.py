"""Simulated GPU nodes, hundreds in one process: `python -m draco_local.simulator.nodes`.

Owns putting one node together (simulated NVML, a real agent, a stand-in for kubelet) and running many side by side, so that a
failure on one stays there.
"""

import asyncio
import hashlib
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import structlog

from draco.agent.app import run_agent
from draco.agent.settings import AgentSettings
from draco.kube.clock import Clock, SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.events.events import EventRecorder
from draco.logs import LEVELS, configure_log
from draco.resources.errors import DracoError
from draco.resources.names import NVIDIA_DRIVER, NodeName
from draco_local.simulator.gpus import boards, procfs, state, sysfs
from draco_local.simulator.kubelet.node_object import NodeObject, NodeShape
from draco_local.simulator.kubelet.podfeed import PodFeed
from draco_local.simulator.kubelet.pods import node_ip
from draco_local.simulator.kubelet.port import ServingCertificate, answering
from draco_local.simulator.kubelet.standin import Kubelet, KubeletSettings
from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.nvml.nvidia_smi import SimulatedSmi

log = structlog.get_logger(__name__)

LONGEST_SOCKET_PATH = 107
"""The longest address of a Unix socket on Linux, in bytes without the final zero."""
_LONGEST_FOLDER = 40
AGENT_RESTART_S = 5.0
NODE_RESTART_S = 5.0


class TooLongForSockets(DracoError):
    """A node's folder is too deep for Unix sockets in it."""


class SimulatedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes to run: `count` identical ones from `<prefix>-<first>` on, each with a folder of its own below `root`.

    At most `starting_at_once` nodes start at the same time. Without `serving` nothing answers on kubelet's port.
    """

    root: Path
    count: int = 3
    gpus: int = 8
    board: str = "H100-80GB"
    prefix: str = "gpu-node"
    first: int = 0
    driver: str = NVIDIA_DRIVER
    noop_drivers: frozenset[str] = frozenset()
    shape: NodeShape = NodeShape()
    wipe_after_s: float = 30.0
    starting_at_once: int = 8
    serving: ServingCertificate | None = None
    namespace: str = ""
    """Where the agents renew their leases; "" for none."""

    def names(self) -> list[NodeName]:
        """The nodes' names."""
        return [NodeName(f"{self.prefix}-{index}") for index in range(self.first, self.first + self.count)]

    def check(self) -> None:
        """TooLongForSockets when the sockets of some node would not fit their address."""
        longest = max(
            (self.root.absolute() / folder_of(name) for name in self.names()),
            key=lambda path: len(bytes(path)),
            default=None,
        )
        socket = f"plugins/{self.driver}/dra.sock"
        if longest and len(bytes(longest / socket)) > LONGEST_SOCKET_PATH:
            raise TooLongForSockets(
                f"The folder {self.root} is too deep for simulated nodes: the socket {longest / socket} would exceed "
                f"{LONGEST_SOCKET_PATH} bytes; name a shorter one with --root."
            )


def folder_of(node: str) -> str:
    """The name of a node's folder: the node's name, shortened where it would make socket paths too long."""
    if len(node) <= _LONGEST_FOLDER:
        return node
    return f"{node[:23].rstrip('.-')}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"


async def run_nodes(nodes: SimulatedNodes, client: Client, *, clock: Clock) -> None:
    """Run all nodes until cancelled."""
    nodes.check()
    events = EventRecorder(client, controller="kubelet", instance="simulated-nodes", clock=clock)
    feed = PodFeed(client, events=events, clock=clock)
    starting = asyncio.Semaphore(nodes.starting_at_once)
    async with AsyncExitStack() as stack:
        ports: Mapping[str, int] = {}
        if nodes.serving:
            ports = await stack.enter_async_context(answering(map(node_ip, nodes.names()), nodes.serving))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(events.run(), name="events")
        tasks.create_task(feed.run(), name="pods")
        for name in nodes.names():
            port = ports.get(node_ip(name), 0)
            node = partial(SimulatedNode, name, nodes, client, feed=feed, clock=clock, kubelet_port=port)
            tasks.create_task(_keep(node, starting, clock), name=f"node {name}")


async def _keep(make: Callable[[], "SimulatedNode"], starting: asyncio.Semaphore, clock: Clock) -> None:
    """Run one node, and set it up again from its files when it fails: the others must not end with it."""
    while True:
        node = make()
        try:
            await node.run(starting)
        except Exception as error:
            log.exception("node.failed", node=node.name, error=str(error), again_in_s=NODE_RESTART_S)
        finally:
            node.leave()
        await clock.sleep(NODE_RESTART_S)


class SimulatedNode:
    """One node: its files below `root`/<name>, its kubelet stand-in and its agent. Run it once.

    The agent uses `agent_client`, if given: so it can have other rights than the node.
    """

    def __init__(
        self,
        name: NodeName,
        nodes: SimulatedNodes,
        client: Client,
        *,
        feed: PodFeed,
        clock: Clock,
        kubelet_port: int = 0,
        agent_client: Client | None = None,
    ) -> None:
        self.name = name
        self.root = nodes.root.absolute() / folder_of(name)
        self.gpus = self.root / "gpus.json"
        self._nodes = nodes
        self._agent_client = agent_client or client
        self._feed = feed
        self._clock = clock
        self.kubelet = Kubelet(
            KubeletSettings(
                node_name=name, root=self.root, noop_drivers=nodes.noop_drivers, wipe_after_s=nodes.wipe_after_s
            ),
            client,
            node=NodeObject(name, client, shape=nodes.shape, clock=clock, kubelet_port=kubelet_port),
            clock=clock,
            wake=lambda pod: feed.wake(name, pod),
            complain=feed.complain,
        )

    async def run(self, starting: asyncio.Semaphore) -> None:
        """Run the node until cancelled. `starting` is held until it is Ready."""
        async with asyncio.TaskGroup() as tasks:
            async with starting:
                self.create_gpus()
                tasks.create_task(self.kubelet.run(), name=f"kubelet of {self.name}")
                await self.kubelet.ready.wait()
            self._feed.add(self.kubelet)
            tasks.create_task(self.keep_agent(), name=f"agent of {self.name}")

    def leave(self) -> None:
        """Take no more pods."""
        self._feed.remove(self.kubelet)

    def create_gpus(self) -> None:
        """Write the state of the node's GPUs, unless an earlier run left it: faults and repairs survive a restart."""
        if self.gpus.exists():
            found = state.load(self.gpus)
        else:
            found = state.create(self.gpus, board=self._nodes.board, gpus=self._nodes.gpus, node_name=self.name)
        sysfs.build(self.root / "sys", found)
        (self.root / "cgroup").mkdir(exist_ok=True)
        (self.root / "cgroup" / "cgroup.controllers").touch()
        procfs.build(self.gpus, found)

    async def keep_agent(self) -> None:
        """Run the agent, and start it again when it ends, as a DaemonSet would."""
        while True:
            try:
                await self.run_agent()
            except Exception as error:
                log.exception("agent.failed", node=self.name, error=str(error), again_in_s=AGENT_RESTART_S)
            await self._clock.sleep(AGENT_RESTART_S)

    def agent_settings(self) -> AgentSettings:
        """The settings of the node's agent."""
        return AgentSettings(
            node_name=self.name,
            driver=self._nodes.driver,
            kubelet_dir=self.root,
            cdi_dir=self.root / "cdi",
            sysfs_root=self.root / "sys",
            own_cgroup=self.root / "cgroup",
            proc_root=procfs.tree(self.gpus),
            namespace=self._nodes.namespace,
        )

    async def run_agent(self) -> None:
        """Run the node's agent once."""
        await run_agent(
            self.agent_settings(),
            library=SimulatedNvml(self.gpus),
            smi=SimulatedSmi(SimulatedNvml(self.gpus)),
            client=self._agent_client,
            clock=self._clock,
        )


@click.command()
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="Kubeconfig of the cluster to join."
)
@click.option("--nodes", "count", type=click.IntRange(min=0), default=3, show_default=True, help="Number of nodes.")
@click.option("--gpus", type=click.IntRange(min=0), default=8, show_default=True, help="GPUs of each node.")
@click.option("--board", default="H100-80GB", show_default=True, help="Model of the GPUs.")
@click.option(
    "--root", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for all nodes' files."
)
@click.option(
    "--name-prefix", "prefix", default="gpu-node", show_default=True, help="Nodes are called <prefix>-<number>."
)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first node.")
@click.option(
    "--driver", default=NVIDIA_DRIVER, show_default=True, help="Name of the DRA driver that the agents serve."
)
@click.option(
    "--noop-driver", "noop_drivers", multiple=True, help="A driver whose devices need no preparation (may be repeated)."
)
@click.option(
    "--kubelet-certificate",
    "serving",
    nargs=2,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="CERTIFICATE KEY",
    help="Answer on kubelet's port, with this certificate.  [default: nobody answers there]",
)
@click.option("--namespace", default="", help="Where the agents renew their leases.  [default: they renew none]")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
def main(
    kubeconfig: Path | None,
    noop_drivers: tuple[str, ...],
    serving: tuple[Path, Path] | None,
    log_level: str,
    **options: Any,
) -> None:
    """Join simulated GPU nodes to a cluster and keep them running until stopped."""
    configure_log(log_level)
    certificate = ServingCertificate(*serving) if serving else None
    nodes = SimulatedNodes(noop_drivers=frozenset(noop_drivers), serving=certificate, **options)
    try:
        asyncio.run(_main(nodes, kubeconfig))
    except DracoError as error:
        raise click.ClickException(str(error)) from error


async def _main(nodes: SimulatedNodes, kubeconfig: Path | None) -> None:
    """Run until SIGTERM or SIGINT, then let every node close its sockets."""
    nodes.check()
    boards.board_named(nodes.board)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a node keeps about ten open
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with Client(await connect(kubeconfig)) as client:
        running = asyncio.create_task(run_nodes(nodes, client, clock=SystemClock()), name="nodes")
        stopping = asyncio.create_task(stopped.wait(), name="signal")
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not running.done():
            running.cancel()
            log.info("nodes.stopping", nodes=nodes.count)
        with suppress(asyncio.CancelledError):
            await running


if __name__ == "__main__":
    main()
