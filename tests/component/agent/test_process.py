"""The agent as a process: signals, options, and one sentence for every error that a person can fix."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draco_local.cluster.controlplane import ControlPlane
from tests.agents import SimulatedNode, eventually

DRACO = Path(sys.executable).with_name("draco")


def options(node: SimulatedNode, plane: ControlPlane | None = None, **changes: object) -> list[str]:
    plain: dict[str, object] = {
        "node-name": node.name,
        "kubelet-dir": node.folder,
        "cdi-dir": node.cdi,
        "state-dir": node.folder / "agent",
        **changes,
    }
    if plane:
        plain["kubeconfig"] = plane.kubeconfig
    return [f"--{name}={value}" for name, value in plain.items()]


@contextmanager
def started(node: SimulatedNode, plane: ControlPlane) -> Iterator["subprocess.Popen[bytes]"]:
    argv = [sys.executable, "-m", "draco_local.simulator.agent", f"--state={node.gpus}", *options(node, plane)]
    with (node.folder / "log").open("wb") as log, subprocess.Popen(argv, stderr=log, stdout=log) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_missing_node_name_is_a_usage_error() -> None:
    done = subprocess.run([DRACO, "agent"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--node-name" in done.stderr


def test_outside_a_pod_without_a_kubeconfig_one_sentence_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [DRACO, "agent", "--node-name=n", f"--kubelet-dir={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )
    assert done.returncode == 1
    assert "name a kubeconfig" in done.stderr
    assert "Traceback" not in done.stderr


async def test_sigterm_removes_the_sockets_keeps_the_slices_and_ends_well(
    node: SimulatedNode, served: ControlPlane
) -> None:
    with started(node, served) as process:
        await node.published(2)
        await eventually(lambda: "slices.published" in (node.folder / "log").read_text())  # logged when it is done
        await eventually(node.registration_socket.exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    assert not node.registration_socket.exists()
    assert not node.service_socket.exists()
    assert len(await node.slices()) == 1
    events = [json.loads(line)["event"] for line in (node.folder / "log").read_text().splitlines()]
    assert events[0] == "agent.starting"
    assert {"slices.published", "plugin.serving", "agent.stopping"} <= set(events)


async def test_killed_it_starts_again_on_what_it_left(node: SimulatedNode, served: ControlPlane) -> None:
    claim, rival = await node.claim("gpu-0"), await node.claim("gpu-0")
    with started(node, served) as process:
        await node.published(2)
        await eventually(node.registration_socket.exists)
        assert not (await node.prepare(claim))[claim.metadata.uid].error
        process.kill()
        process.wait(15)
    assert node.registration_socket.exists(), "a killed process leaves its socket, which the next one has to replace"
    async with node.running():

        async def answered() -> str:
            return str((await node.prepare(rival))[rival.metadata.uid].error)

        assert "still prepared for claim" in await answered()
        assert not (await node.unprepare(claim))[claim.metadata.uid].error
        assert await answered() == ""


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("other", "Driver gpu.nvidia.com is already served on this node by "),
        ("agent", f"Another Draco agent (process {os.getpid()}) uses "),
    ],
    ids=["another driver", "another agent"],  # not the process ID, which differs between workers
)
async def test_beside_another_plugin_it_ends_with_a_sentence(
    node: SimulatedNode, served: ControlPlane, state: str, sentence: str
) -> None:
    async with node.running():
        argv = [str(DRACO), "agent", *options(node, served, **{"state-dir": node.folder / state})]
        process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
        _, output = await asyncio.wait_for(process.communicate(), 60)
    errors = output.decode()
    assert process.returncode == 1
    last = errors.splitlines()[-1]
    assert last.startswith(f"Error: {sentence}")
    assert "Traceback" not in errors
