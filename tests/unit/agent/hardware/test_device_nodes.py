"""Device nodes that containers need: created if missing, and reported if that is impossible."""

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draco.agent.claims import cdi
from draco.agent.errors import PrepareError
from draco.agent.hardware import device_nodes
from draco.agent.hardware.capabilities import Capabilities, CapabilityUnknown
from draco.agent.hardware.device_nodes import DeviceNodeMissing, DeviceNodes
from tests.builders import a_claim
from tests.unit.agent.claims.test_claims import ONE, TWO, Desk

KERNEL = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n234 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
ALL = {"nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}


class Host:
    """A node's /proc and /dev. mknod creates a file instead of a device node, unless it is refused."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.root = folder / "proc", folder / "host"
        self.proc.mkdir()
        (self.root / "dev").mkdir(parents=True)
        self.refused = 0
        self.made: dict[str, tuple[int, int]] = {}
        self.modes: dict[str, int] = {}
        monkeypatch.setattr(os, "mknod", self._mknod)

    def _mknod(self, path: Path, mode: int, device: int) -> None:
        if self.refused:
            raise OSError(self.refused, os.strerror(self.refused), str(path))
        if path.exists():
            raise FileExistsError(path)
        path.touch()
        assert stat.S_ISCHR(mode)
        self.made[path.name] = (os.major(device), os.minor(device))

    def kernel(self, text: str = KERNEL) -> None:
        (self.proc / "devices").write_text(text)

    def have(self, *names: str) -> None:
        for name in names:
            (self.root / "dev" / name).touch()

    def names(self) -> set[str]:
        return {one.name for one in (self.root / "dev").iterdir()}

    @property
    def nodes(self) -> DeviceNodes:
        return DeviceNodes(self.proc, self.root)

    def desk(self, folder: Path) -> Desk:
        return Desk(folder, device_root=self.root, proc=self.proc)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def named(spec: Any) -> set[str]:
    """The names of the device nodes that a spec has the runtime open on the host."""
    edits = [spec["containerEdits"], *(one["containerEdits"] for one in spec["devices"])]
    return {Path(each["hostPath"]).name for one in edits for each in one.get("deviceNodes", [])}


def test_what_nobody_has_made_since_the_node_booted_is_made_with_the_kernels_numbers(
    host: Host, tmp_path: Path
) -> None:
    host.kernel()
    desk = host.desk(tmp_path)
    desk.prepare(ONE)
    assert named(desk.spec(ONE)) == ALL == host.names()
    assert host.made == {
        "nvidia0": (195, 0),
        "nvidiactl": (195, 255),
        "nvidia-uvm": (511, 0),
        "nvidia-uvm-tools": (511, 1),
        "nvidia-modeset": (195, 254),
    }
    assert {stat.S_IMODE((host.root / "dev" / name).stat().st_mode) for name in ALL} == {0o666}


def test_drivers_before_550_have_another_name_for_their_devices(host: Host) -> None:
    host.kernel("195 nvidia-frontend\n 511 nvidia-uvm\n")
    assert (host.nodes.gpu(3), set(host.nodes.shared())) == (
        "/dev/nvidia3",
        {f"/dev/{name}" for name in ALL - {"nvidia0"}},
    )
    assert (host.made["nvidia3"], host.made["nvidiactl"]) == ((195, 3), (195, 255))


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("nvidia0", "nvidia-modprobe -c 0"),
        ("nvidiactl", "nvidia-modprobe"),
        ("nvidia-uvm", "nvidia-modprobe -u -c 0"),
    ],
)
@pytest.mark.parametrize("why", ["Read-only file system", "the kernel lists no device"])
def test_a_claim_is_refused_with_the_path_and_the_remedy_until_the_node_is_there(
    host: Host, tmp_path: Path, missing: str, remedy: str, why: str
) -> None:
    host.have(*ALL - {missing})
    if why.startswith("Read"):
        host.kernel()
        host.refused = errno.EROFS
    desk = host.desk(tmp_path)
    with pytest.raises(PrepareError) as refusal:
        desk.prepare(ONE)
    assert f"default/one cannot be prepared: The device node {host.root}/dev/{missing} is missing" in str(refusal.value)
    assert f"{why}" in str(refusal.value)
    assert f"run `{remedy}` on the node" in str(refusal.value)
    assert (desk.specs(), dict(desk.record.claims)) == ([], {})
    host.have(missing)
    desk.prepare(ONE)
    assert named(desk.spec(ONE)) == ALL


def test_with_nothing_but_one_gpus_node_there_no_claim_gets_anything(host: Host, tmp_path: Path) -> None:
    host.have("nvidia0")
    for claim in (ONE, TWO):
        with pytest.raises(PrepareError, match=r"dev/nvidia(1|ctl) is missing"):
            host.desk(tmp_path).prepare(claim)


@pytest.mark.parametrize("missing", ["nvidia-uvm-tools", "nvidia-modeset"])
def test_what_containers_can_do_without_is_left_out_where_it_is_not_there(
    host: Host, tmp_path: Path, missing: str
) -> None:
    host.have(*ALL - {missing})
    desk = host.desk(tmp_path)
    desk.prepare(ONE)
    assert named(desk.spec(ONE)) == ALL - {missing}


def test_a_spec_does_not_go_on_naming_a_node_that_has_vanished(host: Host, tmp_path: Path) -> None:
    host.have(*ALL)
    host.desk(tmp_path).prepare(ONE)
    (host.root / "dev/nvidia-uvm-tools").unlink()
    assert named(host.desk(tmp_path).spec(ONE)) == ALL - {"nvidia-uvm-tools"}
    (host.root / "dev/nvidia-uvm").unlink()
    desk = host.desk(tmp_path)
    assert (desk.specs(), desk.converged.without_node) == ([], [one.uid for one in desk.record.claims.values()])
    with pytest.raises(PrepareError, match=r"default/one cannot be prepared: .*dev/nvidia-uvm is missing"):
        desk.prepare(ONE)
    host.have("nvidia-uvm")
    assert named(host.desk(tmp_path).spec(ONE)) == ALL - {"nvidia-uvm-tools"}


def test_a_spec_that_was_written_without_a_node_that_it_needs_is_written_again(host: Host, tmp_path: Path) -> None:
    desk = host.desk(tmp_path)
    desk.prepare(ONE)
    assert named(desk.spec(ONE)) == {"nvidia0"}, "nothing tells of nodes"
    host.have(*ALL)
    assert named(host.desk(tmp_path).spec(ONE)) == ALL


@pytest.mark.parametrize("vanished", ["", "nvidia-uvm-tools"])
def test_the_spec_of_a_newer_agent_stays_unless_it_names_a_node_that_has_vanished(
    host: Host, tmp_path: Path, vanished: str
) -> None:
    host.have(*ALL)
    desk = host.desk(tmp_path)
    desk.prepare(ONE)
    path = desk.cdi.path(next(iter(desk.record.claims)))
    newer = json.loads(path.read_text())
    newer["annotations"][cdi.FORMAT] = str(cdi.FORMAT_VERSION + 1)
    newer["containerEdits"]["env"].append("MORE=1")
    path.write_text(json.dumps(newer))
    if vanished:
        (host.root / "dev" / vanished).unlink()
    kept = host.desk(tmp_path).spec(ONE)
    assert ("MORE=1" in kept["containerEdits"]["env"]) is not bool(vanished)
    assert named(kept) == ALL - {vanished}


def test_a_node_that_somebody_makes_at_the_same_time_is_fine(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.kernel()
    before: Callable[..., None] = host._mknod

    def beaten(path: Path, mode: int, device: int) -> None:
        path.touch()
        before(path, mode, device)

    monkeypatch.setattr(os, "mknod", beaten)
    assert host.nodes.gpu(0) == "/dev/nvidia0"


def test_where_nothing_tells_of_nodes_none_is_asked_for(host: Host) -> None:
    """Under WSL2, for example, where GPUs are opened through /dev/dxg."""
    assert (host.nodes.gpu(0), host.nodes.shared(), host.names()) == ("/dev/nvidia0", [], set())


def test_the_nodes_that_open_partitions_are_held_to_the_same(host: Host) -> None:
    host.have("nvidiactl")
    with pytest.raises(
        CapabilityUnknown, match=r"nvidia-caps/nvidia-cap21 is missing .*run `nvidia-modprobe -f /proc/"
    ):
        Capabilities(host.proc, host.root).ensure("/dev/nvidia-caps/nvidia-cap21")
    host.kernel()
    Capabilities(host.proc, host.root).ensure("/dev/nvidia-caps/nvidia-cap21")
    assert host.made == {"nvidia-cap21": (234, 21)}


def test_administrative_access_needs_the_nodes_as_well(host: Host, tmp_path: Path) -> None:
    host.have("nvidiactl", "nvidia-uvm")
    with pytest.raises(PrepareError, match="dev/nvidia0 is missing"):
        host.desk(tmp_path).prepare(a_claim("watch", on=["node-0/gpu-0"], admin_access=True))


def test_each_shared_node_is_known_by_its_numbers(host: Host) -> None:
    assert set(device_nodes.REQUIRED) | set(device_nodes.OPTIONAL) == set(device_nodes._SHARED)
    host.have("nvidia0")
    with pytest.raises(DeviceNodeMissing):
        host.nodes.shared()
