"""Finding and loading the node's NVML wherever the driver is installed, and no other library of the node."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from draco.agent.hardware.driver_root import LOADED, DriverRoot, resolved
from draco_local.simulator.driver import library, service
from draco_local.simulator.gpus import state

OTHER_GLIBC = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "libcuda.so.1")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.make(tmp_path_factory.mktemp("library"))


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which a process reaches the simulated driver of a node with two GPUs."""
    state.create(tmp_path / "gpus.json", board="H100-80GB", gpus=2, node_name="n")
    socket = Path(f"/tmp/draco-root-{os.getpid()}.sock")
    with service.serving(tmp_path / "gpus.json", socket):
        yield {**os.environ, library.SOCKET_VARIABLE: str(socket), "STATE": str(tmp_path / "gpus.json")}


def install(nvml: Path, folder: Path, version: str = "580.95.05") -> Path:
    """A driver's library folder on a node with another glibc: a process that loads that glibc dies."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in OTHER_GLIBC:
        (folder / name).write_bytes(b"\x7fELF of another release")
    file = folder / f"libnvidia-ml.so.{version}"
    shutil.copy(nvml, file)
    link = folder / "libnvidia-ml.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(file.name)
    return file


def run(program: str, root: Path, environment: dict[str, str]) -> str:
    """Run a part of the agent in a process of its own, since a library cannot be reliably unloaded from this one."""
    start = f"""
from pathlib import Path
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import DriverReloaded
from draco.agent.hardware.nvml_library import NodeLibrary
ROOT = Path({str(root)!r})
def mapped():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({{line.split(maxsplit=5)[5] for line in lines if str(ROOT) in line}})
nvml = Nvml(load=NodeLibrary(DriverRoot(Path("/"), ROOT)).load)
"""
    done = subprocess.run(
        [sys.executable, "-c", start + program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]  # logs come before it


@pytest.mark.parametrize(
    "folder",
    [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib64",
        "usr/lib",
        "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
        "home/kubernetes/bin/nvidia/lib64",
    ],
)
def test_of_a_node_with_another_glibc_nvml_alone_is_loaded(
    folder: str, compiled: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    file = install(compiled, tmp_path / "root" / folder)
    said = run("nvml.open(); print(len(nvml.gpus()), *mapped())", tmp_path / "root", environment)
    assert said == f"2 {file}"


def test_after_an_upgrade_of_the_driver_the_new_nvml_is_loaded_and_the_old_one_gone(
    compiled: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = tmp_path / "root/usr/lib64"
    install(compiled, folder)
    new = folder / "libnvidia-ml.so.595.58.03"
    program = f"""
import os, shutil
from draco_local.simulator.accidents import faults
nvml.open()
shutil.copy(mapped()[0], {str(new)!r})
os.unlink(mapped()[0]); os.unlink({str(folder / "libnvidia-ml.so.1")!r})
os.symlink({new.name!r}, {str(folder / "libnvidia-ml.so.1")!r})
faults.reload_driver(Path(os.environ["STATE"]), version="595.58.03")
try:
    nvml.gpus()
except DriverReloaded:
    nvml.close(); nvml.open()
print(nvml.driver().driver_version, *mapped())
"""
    assert run(program, tmp_path / "root", environment) == f"595.58.03 {new}"


@pytest.mark.parametrize(
    ("name", "loaded", "mismatch"),
    [
        ("libnvidia-ml.so.580.95.05", "580.95.05", False),
        ("libnvidia-ml.so.595.58.03", "580.95.05", True),
        ("libnvidia-ml.so.570.86.15", "580.95.05", True),
        ("libnvidia-ml.so.1", "580.95.05", False),
        ("libnvidia-ml.so.595.58.03", "", False),
    ],
    ids=["the same", "upgraded", "downgraded", "no version in its name", "nothing loaded"],
)
def test_a_driver_tells_whether_its_files_go_with_what_is_loaded(
    name: str, loaded: str, mismatch: bool, tmp_path: Path
) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64" / name).touch()
    with suppress(FileExistsError):
        (tmp_path / "usr/lib64/libnvidia-ml.so.1").symlink_to(name)
    [driver] = [one for one in DriverRoot(Path("/"), tmp_path).installed() if one.folder == "usr/lib64"]
    assert bool(driver.mismatch(loaded)) == mismatch


PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc 12.2.0\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22)  Wed Jan 8\n"
BOTH = ["usr/lib64", "run/nvidia/driver/usr/lib64"]


@pytest.mark.parametrize(
    ("said", "order"),
    [
        (PROPRIETARY.format("580.95.05"), BOTH[::-1]),
        (OPEN.format("580.95.05"), BOTH[::-1]),
        (OPEN.format("535.230.02"), BOTH),
        (OPEN.format("595.58.03"), BOTH),
        ("", BOTH),
        (None, BOTH),
    ],
    ids=["the container's", "the container's, open", "the host's", "neither", "an empty file", "nothing loaded"],
)
def test_of_two_drivers_the_one_that_is_loaded_comes_first(said: str | None, order: list[str], tmp_path: Path) -> None:
    """A node may still have the distribution's packages when the GPU operator installs its driver in a container."""
    for folder, version in zip(BOTH, ("535.230.02", "580.95.05"), strict=True):
        (tmp_path / "root" / folder).mkdir(parents=True)
        (tmp_path / "root" / folder / f"libnvidia-ml.so.{version}").touch()
        (tmp_path / "root" / folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")
    if said is not None:
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc" / LOADED).write_text(said)
    found = DriverRoot(Path("/"), tmp_path / "root", tmp_path / "proc").installed()
    assert [str(one.nvml.parent.relative_to(tmp_path / "root")) for one in found] == order


def test_a_file_that_was_replaced_under_its_name_is_loaded_anew(
    compiled: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Some installers use the same file name for every version of the driver."""
    folder = tmp_path / "root/usr/lib64"
    folder.mkdir(parents=True)
    file = folder / "libnvidia-ml.so.1"
    shutil.copy(compiled, file)
    program = f"""
import os, shutil
def inodes():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {{int(line.split()[4]) for line in lines if {str(folder)!r} in line}}
nvml.open(); nvml.close()
shutil.copy({str(file)!r}, {str(folder / "new")!r})
os.replace({str(folder / "new")!r}, {str(file)!r})
nvml.open()
print(len(nvml.gpus()), inodes() == {{os.stat({str(file)!r}).st_ino}})
"""
    assert run(program, tmp_path / "root", environment) == "2 True"


def test_what_cannot_be_loaded_is_passed_over(compiled: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """Some distributions have 32-bit libraries in /usr/lib."""
    install(compiled, tmp_path / "root/usr/lib64").write_bytes(b"\x7fELF\x01")
    file = install(compiled, tmp_path / "root/usr/lib")
    said = run("nvml.open(); print(*mapped())", tmp_path / "root", environment)
    assert said == str(file)


REFUSED = """
try:
    nvml.open()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_where_no_driver_is_found_the_sentence_says_where_it_was_searched(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    said = run(REFUSED, tmp_path / "root", environment)
    assert said.startswith(
        "DriverMissing NVML is not available on this node: there is no libnvidia-ml.so.1 in usr/lib/x86_64"
    )
    assert "below /, /run/nvidia/driver and /home/kubernetes/bin/nvidia;" in said
    assert "agent.driverRoot" in said


def test_a_library_that_cannot_be_loaded_is_named_with_the_cause(
    compiled: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    file = install(compiled, tmp_path / "root/usr/lib64")
    file.write_bytes(b"no library")
    said = run(REFUSED, tmp_path / "root", environment)
    assert f"{file} cannot be loaded" in said
    assert "Repair the NVIDIA driver" in said


def test_an_absolute_link_is_followed_below_the_root(tmp_path: Path) -> None:
    """Debian's alternatives are such links."""
    libraries, alternatives = tmp_path / "usr/lib/x86_64-linux-gnu", tmp_path / "etc/alternatives"
    (libraries / "nvidia").mkdir(parents=True)
    alternatives.mkdir(parents=True)
    (libraries / "nvidia" / "libnvidia-ml.so.580.95.05").touch()
    (libraries / "nvidia" / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.95.05")
    (alternatives / "nvml").symlink_to("/usr/lib/x86_64-linux-gnu/nvidia/libnvidia-ml.so.1")
    (libraries / "libnvidia-ml.so.1").symlink_to("/etc/alternatives/nvml")
    [found] = DriverRoot(Path("/"), tmp_path).installed()
    assert found.nvml == libraries / "nvidia" / "libnvidia-ml.so.580.95.05"


def test_a_link_leads_nowhere_outside_the_root_and_round_in_circles_nowhere(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").touch()
    (root / "out").symlink_to("../../secret")
    (root / "round").symlink_to("round")
    assert resolved(root / "out", root) is None
    assert resolved(root / "round", root) is None
