"""Which devices another device plugin may hand out, judged by its resources and sockets, and what is tainted for it."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from draco.agent.hardware.gpus import DriverInfo, Gpu, GpuMigView
from draco.agent.plugin import device_plugins
from draco.agent.plugin.device_plugins import PROBE_S, DevicePlugins, counted
from draco.agent.publish.offering import Offering
from draco.agent.state.facts import OtherAllocator
from draco.agent.state.node import NodeState
from draco.kube.connect.client import Client
from draco.resources.api.core import NodeResources
from draco.resources.names import TAINT_DEVICE_PLUGIN
from tests.builders import a_gpu
from tests.doubles.clock import ManualClock


def node(allocatable: dict[str, str], capacity: dict[str, str] | None = None) -> NodeResources:
    status = {"allocatable": allocatable, "capacity": capacity or allocatable}
    return msgspec.convert({"metadata": {"name": "node-0"}, "status": status}, NodeResources)


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ({"cpu": "8", "nvidia.com/gpu": "8"}, {"nvidia.com/gpu": True}),
        ({"nvidia.com/gpu.shared": "80"}, {"nvidia.com/gpu.shared": True}),
        (
            {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/gpu": "0"},
            {"nvidia.com/mig-1g.10gb": True, "nvidia.com/gpu": False},
        ),
        ({"nvidia.com/hostdev": "4", "amd.com/gpu": "1", "nvidia.com/rdma_shared_device_a": "63"}, {}),
    ],
)
def test_gpus_are_told_from_other_things_of_that_vendor(resources: dict[str, str], found: dict[str, bool]) -> None:
    assert counted(node(resources)) == found


def test_a_plugin_that_is_gone_is_kept_by_kubelet_with_nothing_to_allocate() -> None:
    assert counted(node({}, {"nvidia.com/gpu": "8"})) == {"nvidia.com/gpu": False}
    assert counted(node({"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "8"})) == {"nvidia.com/gpu": False}


@pytest.mark.parametrize(
    ("found", "whole", "divided"),
    [
        (OtherAllocator(), False, False),
        (OtherAllocator(("nvidia.com/gpu",)), True, True),  # MIG devices may be published as GPUs
        (OtherAllocator(("nvidia.com/mig-1g.10gb",)), False, True),
        (OtherAllocator(("nvidia.com/gpu", "nvidia.com/mig-1g.10gb")), True, True),
        (OtherAllocator((), ("nvidia-gpu.sock",)), True, True),
    ],
)
def test_what_both_would_give_out(found: OtherAllocator, whole: bool, divided: bool) -> None:
    assert (found.gives(divided=False), found.gives(divided=True)) == (whole, divided)
    assert bool(str(found)) is bool(found)


def test_only_what_both_give_out_is_tainted() -> None:
    gpus: list[Gpu] = [a_gpu(0), a_gpu(1)]
    divided = {gpus[1].uuid: GpuMigView(gpu=gpus[1].uuid, capable=True, enabled=True)}
    offer = Offering().offer(
        gpus,
        DriverInfo("580.95.05", "13.0", "13.580.95.05"),
        migs=divided,
        wanted={},
        given_out=lambda mig: mig,
        now_s=0.0,
    )
    tainted = {one.name: [(taint.key, taint.effect) for taint in one.taints] for one in offer.devices}
    assert tainted == {"gpu-0": [], "gpu-1": [(TAINT_DEVICE_PLUGIN, "NoSchedule")]}


# kubelet's folder


class Folder:
    """kubelet's device-plugins folder and its watcher, without an API server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.changes = 0
        nobody = cast("Client", None)
        self.state = NodeState(ManualClock())
        self.state.on_fact("device_plugins", self._changed)
        self.plugins = DevicePlugins(nobody, self.state, node="node-0", folder=path, clock=self.clock, check_s=1.0)

    def _changed(self, _facts: object) -> None:
        self.changes += 1

    def look(self, node: NodeResources | None = None) -> OtherAllocator | None:
        if node is not None:
            self.plugins._allocatable = counted(node)
        asyncio.run(self.plugins.look())
        return self.state.facts.device_plugins

    @contextmanager
    def listening(self, name: str) -> Iterator[None]:
        with socket.socket(socket.AF_UNIX) as served:
            served.bind(str(self.path / name))
            served.listen()
            yield

    def record(self, **registered: Any) -> None:
        data = {"PodDeviceEntries": None, "RegisteredDevices": registered}
        (self.path / "kubelet_internal_checkpoint").write_text(json.dumps({"Data": data, "Checksum": 1}))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "k").mkdir()
    found = Folder(tmp_path / "k")
    found.plugins._allocatable = {}
    return found


@pytest.mark.parametrize("name", ["nvidia-gpu.sock", "nvidia-mig-1g.10gb.sock", "nvidiaGPU-1732620000.sock"])
def test_who_listens_in_kubelets_folder_is_found_at_once_and_forgotten_when_it_is_gone(
    folder: Folder, name: str
) -> None:
    assert folder.look() == OtherAllocator()
    with folder.listening(name):
        assert folder.look() == OtherAllocator((), (name,))
    asyncio.run(folder.clock.advance(PROBE_S))
    assert folder.look() == OtherAllocator(), "its socket is left over"
    assert folder.changes == 3


@pytest.mark.parametrize("name", ["kubelet.sock", "nvidia.com_hostdev.sock", "intel-gpu.sock"])
def test_plugins_of_other_devices_are_none_of_our_business(folder: Folder, name: str) -> None:
    with folder.listening(name):
        assert folder.look() == OtherAllocator()


def test_a_socket_that_is_put_in_the_place_of_another_is_asked_at_once(folder: Folder) -> None:
    (folder.path / "nvidia-gpu.sock").touch()
    assert folder.look() == OtherAllocator()
    (folder.path / "nvidia-gpu.sock").unlink()
    with folder.listening("nvidia-gpu.sock"):
        assert folder.look() == OtherAllocator((), ("nvidia-gpu.sock",))


def test_a_socket_is_not_asked_at_every_look(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def listener(path: Path) -> int:
        asked.append(path)
        return 1

    monkeypatch.setattr(device_plugins, "listener", listener)
    with folder.listening("nvidia-gpu.sock"):
        for _ in range(5):
            folder.look()
    assert len(asked) == 1


def test_what_has_registered_is_known_before_the_node_lists_it(folder: Folder) -> None:
    folder.record(**{"nvidia.com/gpu": ["GPU-0"], "example.com/foo": ["a"], "nvidia.com/mig-1g.10gb": []})
    assert folder.look(node({"cpu": "8"})) == OtherAllocator(("nvidia.com/gpu",))
    assert folder.look(node({"nvidia.com/gpu": "1"})) == OtherAllocator(("nvidia.com/gpu",))
    assert folder.look(node({"nvidia.com/gpu": "0"})) == OtherAllocator(), "kubelet's record is late to forget"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"Data": null}', b"\xff\xfe", b'{"Data": {"RegisteredDevices": 3}}']
)
def test_a_record_that_cannot_be_read_says_nothing(folder: Folder, content: bytes) -> None:
    (folder.path / "kubelet_internal_checkpoint").write_bytes(content)
    assert folder.look() == OtherAllocator()


def test_an_agent_that_sees_no_such_folder_goes_by_the_node_alone(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "not mounted")
    assert folder.look() is None, "nothing is known"
    assert folder.look(node({"nvidia.com/gpu": "1"})) == OtherAllocator(("nvidia.com/gpu",))
    assert folder.look() == OtherAllocator(("nvidia.com/gpu",)), "the node cannot be read: it stays as it was"
