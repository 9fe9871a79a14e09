"""One simulated node without its agent: `python -m tests.adversary.cluster.kubelets --root FOLDER --name NODE`.

Owns running a kubelet stand-in alone. The agent, `python -m draco_local.simulator.agent`, is a separate process that can be
killed alone.
"""

import argparse
import asyncio
import signal
from pathlib import Path

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.events.events import EventRecorder
from draco.logs import configure_log
from draco.maintenance.selecting.fleet import CLIQUE_LABEL
from draco.resources.names import NodeName
from draco_local.simulator.kubelet.node_object import NodeShape
from draco_local.simulator.kubelet.podfeed import PodFeed
from draco_local.simulator.nodes import SimulatedNode, SimulatedNodes

LABEL = "adversary.example.com/node"


class NodeWithoutAgent(SimulatedNode):
    """A node whose agent runs elsewhere."""

    async def keep_agent(self) -> None:
        """Run no agent."""


async def main(kubeconfig: Path, root: Path, name: str, *, gpus: int, board: str, clique: str) -> None:
    """Run the stand-in until a signal ends it."""
    clock = SystemClock()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    labels = {LABEL: name} | ({CLIQUE_LABEL: clique} if clique else {})
    nodes = SimulatedNodes(root=root, count=1, gpus=gpus, board=board, shape=NodeShape(labels=labels))
    nodes.check()
    async with Client(await connect(kubeconfig)) as client, asyncio.TaskGroup() as tasks:
        events = EventRecorder(client, controller="kubelet", instance=name, clock=clock)
        feed = PodFeed(client, events=events, clock=clock, workers=16)
        node = NodeWithoutAgent(NodeName(name), nodes, client, feed=feed, clock=clock)
        running = [tasks.create_task(each) for each in (events.run(), feed.run(), node.run(asyncio.Semaphore()))]
        await stopped.wait()
        for each in running:
            each.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--board", default="H100-80GB")
    parser.add_argument("--clique", default="", help="the NVLink domain that the node is in")
    given = parser.parse_args()
    configure_log("info")
    asyncio.run(main(given.kubeconfig, given.root, given.name, gpus=given.gpus, board=given.board, clique=given.clique))
