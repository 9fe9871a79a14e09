"""The chart's default driver root, `/`: an agent process finds the driver in the node's own folders and mounts it from there."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from draco_local.cluster.controlplane import ControlPlane
from draco_local.simulator.driver import library, root, service
from draco_local.simulator.gpus import state
from tests.agents import SimulatedNode, eventually

CHART = Path(__file__).parents[3] / "charts" / "draco"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.usefixtures("crds")
async def test_an_agent_finds_a_driver_that_lies_in_the_nodes_own_folders(
    node: SimulatedNode, api_server: ControlPlane, tmp_path: Path
) -> None:
    version = state.load(node.gpus).driver.version
    host, socket = node.folder / "host", node.folder / "driver.sock"
    root.install(host, version, cache=tmp_path)
    claim = await node.claim("gpu-0")
    settings = node.settings()
    environment = {
        "DRACO_DRIVER_ROOT": str(yaml.safe_load((CHART / "values.yaml").read_text())["agent"]["driverRoot"]),
        "DRACO_DRIVER_ROOT_VIEW": str(host),
        "DRACO_KUBECONFIG": str(api_server.kubeconfig),
        "DRACO_NODE_NAME": node.name,
        "DRACO_KUBELET_DIR": str(settings.kubelet_dir),
        "DRACO_CDI_DIR": str(settings.cdi_dir),
        "DRACO_SYSFS_ROOT": str(settings.sysfs_root),
        "DRACO_PROC_ROOT": str(settings.proc_root),
        library.SOCKET_VARIABLE: str(socket),
    }
    with service.serving(node.gpus, socket):
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "draco", "agent", env={**os.environ, **environment}
        )
        try:
            await eventually(node.answers)
            await node.published(2)
            assert not (await node.prepare(claim))[claim.metadata.uid].error
            loaded = mapped(agent.pid)
        finally:
            agent.terminate()
            await agent.wait()
    assert f"{host}{LIBRARIES}/libnvidia-ml.so.{version}\n" in loaded
    [spec] = [json.loads(path.read_text()) for path in node.cdi.iterdir()]
    mounts = {each["containerPath"]: each["hostPath"] for each in spec["containerEdits"]["mounts"]}
    for path in (f"{LIBRARIES}/libcuda.so.{version}", "/usr/bin/nvidia-smi"):
        assert mounts[path] == path
    assert not [path for path in mounts.values() if str(host) in path]
