"""Why an agent is not ready, as its readiness probe reports it."""

import asyncio
import threading
from pathlib import Path

import pytest

from draco.agent.app import Agent
from draco.agent.containers.common_edits import CommonEdits
from draco.agent.files import Files
from draco.agent.hardware.gpus import DriverInfo
from draco.agent.hardware.monitor import HardwareView
from draco.agent.hardware.nvml import Nvml
from draco.agent.publish.publisher import SlicePublisher
from draco.agent.report.readiness import UNSERVED_S
from draco.agent.settings import AgentSettings
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco_local.simulator.gpus import state
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.agents import eventually
from tests.doubles.clock import ManualClock


@pytest.mark.parametrize(("for_s", "said"), [(0.0, False), (UNSERVED_S, False), (UNSERVED_S + 1, True)])
async def test_an_agent_whose_cluster_serves_no_slices_for_long_is_not_ready_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_s: float, said: bool
) -> None:
    monkeypatch.setattr(SlicePublisher, "unserved_s", property(lambda _: for_s))
    state.create(tmp_path / "gpus.json", gpus=1, node_name="node-0")
    async with Client(Connection("http://127.0.0.1:1")) as client:
        agent = Agent(
            AgentSettings(node_name="node-0", state_dir=tmp_path),
            client,
            Nvml(SimulatedNvml(tmp_path / "gpus.json")),
            clock=ManualClock(),
            files=Files(),
        )
        lacking = agent._lacking()
    sentence = f"The cluster has not served ResourceSlices for {for_s:.0f} s."
    assert [each for each in lacking if "has not served" in each] == ([sentence] if said else [])


def test_an_agent_whose_toolkit_hangs_ends_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        asked.set()
        go_on.wait(60)

    monkeypatch.setattr(CommonEdits, "outdated", lambda *_: True)
    monkeypatch.setattr(CommonEdits, "refresh", hangs)
    state.create(tmp_path / "gpus.json", gpus=1, node_name="node-0")

    async def main() -> None:
        async with Client(Connection("http://127.0.0.1:1")) as client:
            agent = Agent(
                AgentSettings(node_name="node-0", state_dir=tmp_path),
                client,
                Nvml(SimulatedNvml(tmp_path / "gpus.json")),
                clock=ManualClock(),
                files=Files(),
            )
            view = HardwareView(driver=DriverInfo("580.95.05", "13.0", "13.580.95.05"))
            agent.parts.state.learn(view=view)
            keeping = asyncio.create_task(agent.parts.edits_refresh.run())
            await eventually(asked.is_set)
            keeping.cancel()

    process = threading.Thread(target=asyncio.run, args=[main()], daemon=True)
    process.start()
    assert asked.wait(20)
    process.join(5)
    ended = not process.is_alive()
    go_on.set()
    assert ended, "it waits for the toolkit"
