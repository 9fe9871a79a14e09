"""The control program of several drivers: what it tells, and which protocols it knows."""

import uuid
from pathlib import Path

import pytest

from draco.agent.mps.folder import WantedDaemon, daemon_name
from tests.doubles.mps import MpsNode

GPU = f"GPU-{uuid.uuid4()}"  # other tests have daemons, too
NAME = daemon_name([GPU])


@pytest.mark.parametrize(("version", "told", "protocol"), [("580.95.05", "10752M", 2), ("615.71.09", "10G", 3)])
def test_a_limit_is_recognised_as_each_driver_tells_it(tmp_path: Path, version: str, told: str, protocol: int) -> None:
    wanted = WantedDaemon(claim="default/one", devices=[GPU], limits_mib=[10752])
    with MpsNode(tmp_path, version) as node:
        assert node.control.newest_protocol() == protocol
        node.folder.want(NAME, wanted)
        node.keeper.keep(NAME)
        pipe = node.folder.pipe(NAME)
        assert node.control.ask(pipe, "get_default_device_pinned_mem_limit 0") == told
        assert node.control.lacking(pipe, wanted) == ""
        node.control.ask(pipe, "set_default_device_pinned_mem_limit 0 512M")
        assert node.control.lacking(pipe, wanted) == "it limits each client's memory to 512M instead of 10752M"


def test_the_protocol_does_not_depend_on_the_environment_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PROTOCOL_VERSION", "3")
    with MpsNode(tmp_path, "615.71.09") as node:
        node.folder.want(NAME, WantedDaemon(claim="default/one", devices=[GPU], percentage=50))
        node.keeper.keep(NAME)
        [daemon] = node.processes.of(NAME)
        environment = Path(f"/proc/{daemon.pid}/environ").read_text().split("\0")
        assert "CUDA_MPS_PROTOCOL_VERSION=2" in environment
