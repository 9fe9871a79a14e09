"""The contents of the users' image: they are sufficient, without a shell, rights or writable places."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draco.agent.containers import toolkit
from draco.agent.hardware.driver_root import DriverRoot
from draco_local.cluster.programs import binaries
from draco_local.cluster.realnode.agent import SEEING_VERSION_2
from draco_local.simulator.accidents import faults
from draco_local.simulator.driver.library import SOCKET_VARIABLE
from draco_local.simulator.driver.root import install
from draco_local.simulator.gpus import state
from scripts.image_archive import ImageArchive
from tests.e2e.kubectl import eventually

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "build" / "draco.tar"
MOST_BYTES = 150 * 10**6
SHELLS = {"sh", "bash", "dash", "ash", "zsh", "rbash", "busybox"}
MAKES_OR_INSTALLS = re.compile(
    r"(.*-)?(cc|gcc|g\+\+|c\+\+|clang|ld|make|go|rustc)(-[\d.]+)?|pip[\d.]*|pip3|uv|easy_install.*|ensurepip|pip-.*\.whl"
)
ENTER = "mount --bind $0 $0 && mount -o remount,ro,bind $0 && exec chroot --userspec=$1 $0 ${@:2}"


@pytest.fixture(scope="module")
def image() -> ImageArchive:
    return ImageArchive(ARCHIVE)


@pytest.fixture(scope="module")
def root(image: ImageArchive, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files that a container sees."""
    folder = tmp_path_factory.mktemp("root")
    folder.chmod(0o755)
    image.unpack(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def listed(root: Path, image: ImageArchive) -> dict[str, Any]:
    """The image's own list of its contents."""
    listed: dict[str, Any] = json.loads(
        root.joinpath(image.config["config"]["Labels"]["dev.draco.sbom"].lstrip("/")).read_text()
    )
    return listed


def every(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if not path.is_symlink())


def test_it_is_no_larger_than_promised(image: ImageArchive) -> None:
    assert image.compressed_bytes() < MOST_BYTES


def test_a_build_leaves_nothing_mounted() -> None:
    """Otherwise nobody could remove the folder."""
    store = binaries.cache_folder() / "images"
    assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(store) in line]


def test_it_has_the_product_and_nothing_simulated(root: Path) -> None:
    [packages] = root.glob("opt/draco/lib/python3*/site-packages")
    assert (packages / "draco" / "agent" / "app.py").exists()
    assert [str(path) for path in every(root) if re.search(r"draco_local|simulator", path.name)] == []


def test_it_has_nothing_that_compiles_or_installs(root: Path) -> None:
    found = [path for path in every(root) if path.is_file() and MAKES_OR_INSTALLS.fullmatch(path.name)]
    assert found == []


def test_all_code_is_compiled_and_no_clock_decides_whether_that_counts(root: Path) -> None:
    compiled = {path: path.read_bytes()[4:8] for path in root.glob("opt/draco/lib/python3*/site-packages/**/*.pyc")}
    assert len(compiled) > 1000
    hashed_and_not_checked = b"\x01\x00\x00\x00"
    assert {str(path) for path, flags in compiled.items() if flags != hashed_and_not_checked} == set()


def test_no_program_gives_more_rights_than_its_user_has(root: Path) -> None:
    raising = [path for path in every(root) if path.is_file() and path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
    assert raising == []


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["operator", "--help"], ["agent", "--help"], ["mps", "--help"], ["status", "--help"]],
    ids=" ".join,
)
def test_it_runs_without_a_shell_or_rights_on_a_root_that_cannot_be_written(
    image: ImageArchive, root: Path, arguments: list[str]
) -> None:
    for path in [path for path in root.rglob("*bin/*") if path.name in SHELLS]:
        path.unlink(missing_ok=True)
    config = image.config["config"]
    user, [entry], environment = (
        config["User"],
        config["Entrypoint"],
        dict(each.split("=", 1) for each in config["Env"]),
    )
    assert user == "65532:65532"
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", ENTER, str(root), user, entry, *arguments],
        env={**environment, "PATH": f"{environment['PATH']}:/usr/sbin:/sbin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "draco" in done.stdout


def test_its_hook_sets_a_memory_limit_with_the_nodes_nvml(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever C library the node has; a static program would crash in its first call of NVML."""
    gpus, socket, driver = tmp_path / "gpus.json", tmp_path / "socket", tmp_path / "driver"
    state.create(gpus, board="H100-80GB", gpus=1, node_name="node")
    faults.reload_driver(gpus, version="615")
    loaded = state.load(gpus)
    install(driver, loaded.driver.version, cache=binaries.cache_folder() / "driver")
    monkeypatch.setenv("PATH", f"{root / 'opt/draco/bin'}:{os.environ['PATH']}")
    [found] = DriverRoot(driver, driver, tmp_path).installed()
    edits = toolkit.memory_limit(found, loaded.gpus[0].uuid, 10240, keep_in=tmp_path)
    [hook] = edits.hooks
    bundle = {"ociVersion": "1.2.0", "process": {"cwd": "/", "args": ["sh"], "env": edits.env}, "root": {"path": "/"}}
    tmp_path.joinpath("config.json").write_text(json.dumps(bundle))
    container = {"ociVersion": "1.2.0", "id": "one", "status": "creating", "pid": os.getpid(), "bundle": str(tmp_path)}
    service = [sys.executable, "-m", "draco_local.simulator.driver.service", "--state", str(gpus)]
    with subprocess.Popen([*SEEING_VERSION_2, *service, "--socket", str(socket)]) as answering:
        eventually(socket.exists, what="the driver answers")
        done = subprocess.run(
            [*SEEING_VERSION_2, hook.path, *hook.args[1:]],
            input=json.dumps(container),
            env={**os.environ, SOCKET_VARIABLE: str(socket)},
            capture_output=True,
            text=True,
            check=False,
        )
        answering.kill()
    assert done.returncode == 0, done.stderr
    assert 10 << 30 in {each.hard for each in state.load(gpus).gpus[0].memory_limits.values()}


def test_every_python_package_is_listed_with_the_hash_that_is_locked(root: Path, listed: dict[str, Any]) -> None:
    locked = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    found = {path.name.rpartition(".")[0] for path in root.glob("opt/draco/lib/python3*/site-packages/*.dist-info")}
    parts = {each["purl"]: each for each in [listed["metadata"]["component"], *listed["components"]]}
    python = {purl: each for purl, each in parts.items() if purl.startswith("pkg:pypi/")}
    assert len(python) == len(found)
    for each in python.values():
        [one] = each["hashes"]
        assert one["alg"] == "SHA-256"
        assert each["name"] == "draco-dra" or f"--hash=sha256:{one['content']}" in locked


def test_every_debian_package_is_listed(root: Path, listed: dict[str, Any]) -> None:
    status = (root / "var/lib/dpkg/status").read_text(encoding="utf-8")
    paragraphs = [each for each in status.split("\n\n") if "\nStatus: install ok installed\n" in each]
    installed = {each.partition("\n")[0].removeprefix("Package: ") for each in paragraphs}
    parts = {each["name"] for each in listed["components"] if each["purl"].startswith("pkg:deb/")}
    assert parts == installed


def test_it_says_which_commit_it_is_made_of(image: ImageArchive) -> None:
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", image.config["config"]["Labels"]["org.opencontainers.image.revision"])
