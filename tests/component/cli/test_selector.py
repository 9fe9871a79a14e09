"""`draco selector eval` with the devices of a real API server."""

import asyncio
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draco.cli import run
from draco.cli.selector.command import command
from draco_local.cluster.controlplane import ControlPlane
from tests.doubles.faultproxy import FaultProxy, answer
from tests.requests import call


def evaluated(plane: ControlPlane, expression: str) -> Result:
    return CliRunner().invoke(command, ["eval", "--kubeconfig", str(plane.kubeconfig), "-o", "wide", expression])


def test_the_devices_of_the_cluster_are_asked(api_server: ControlPlane) -> None:
    pool = f"rack-{uuid.uuid4().hex[:6]}"
    devices = [
        {"name": "small", "capacity": {"memory": {"value": "8Gi"}}},
        {"name": "big", "capacity": {"memory": {"value": "80Gi"}}},
        {"name": "odd"},
    ]
    spec = {
        "driver": "selector.example.com",
        "allNodes": True,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    call(api_server, "POST", "/apis/resource.k8s.io/v1/resourceslices", {"metadata": {"name": pool}, "spec": spec})
    result = evaluated(
        api_server,
        'device.driver == "selector.example.com" && '
        'device.capacity["selector.example.com"].memory.compareTo(quantity("40Gi")) >= 0',
    )
    told = {
        words[1].rpartition("/")[2]: words[0]
        for line in result.output.splitlines()
        if pool in (words := line.split())[1]
    }
    assert told == {"small": "false", "big": "true", "odd": "error"}
    assert result.exit_code == 1


def test_a_cluster_that_cannot_be_reached_is_told_in_a_sentence(api_server: ControlPlane) -> None:
    result = CliRunner().invoke(command, ["eval", "--kubeconfig", "/nonexistent/config", "true"])
    assert result.exit_code != 0
    assert "/nonexistent/config" in str(result.exception) + result.output


@pytest.mark.parametrize(
    "words", [["selector", "eval", "true"], ["autoscale", "template", "n"], ["autoscale", "check"]]
)
async def test_a_cluster_without_dra_is_one_sentence(
    through_proxy: tuple[FaultProxy, Path], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path.startswith("/apis/resource.k8s.io/"), answer(404, "NotFound"), times=1000)
    assert await asyncio.to_thread(run, [*words, "--kubeconfig", str(kubeconfig)]) == 1
    assert "does not serve resource.k8s.io/v1 (Dynamic Resource Allocation)" in capsys.readouterr().err
