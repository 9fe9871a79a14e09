"""Building the programs of a cluster from pinned Go modules.

Owns what is built how, and that nobody ever sees half of a build: programs appear in the cache by one rename each, and two
processes never build the same module at once.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from draco.cluster import locks, toolchain, versions
from draco.cluster.errors import BinariesMissing
from draco.cluster.progress import Progress

MODULES = Path(__file__).parent / "modules"
_NO_NETWORK = (
    "dial tcp",
    "no such host",
    "i/o timeout",
    "connection refused",
    "TLS handshake",
    "unexpected EOF",
    "proxyconnect",
)
_POLL_S = 0.5


class Recipe(NamedTuple):
    """How the programs of one module are built. `usually` is how long that takes from nothing on two cores."""

    packages: Mapping[str, str]
    linker_flags: str
    tags: str
    usually: str


def recipe(module: str) -> Recipe:
    """The recipe of a module folder's name, such as "kubernetes-1.36.3"."""
    name, _, version = module.rpartition("-")
    match name:
        case "kubernetes":
            major, minor, _ = versions.parse(version)
            variable = "-X k8s.io/component-base/version"
            return Recipe(
                packages={program: f"k8s.io/kubernetes/cmd/{program}" for program in KUBERNETES_PROGRAMS},
                linker_flags=(
                    f"{variable}.gitVersion=v{version} {variable}.gitMajor={major} {variable}.gitMinor={minor} "
                    f"{variable}.gitTreeState=clean"
                ),
                tags="",
                usually="5 minutes",
            )
        case "etcd":
            return Recipe({"etcd": "go.etcd.io/etcd/server/v3"}, "", "", "half a minute")
        case "containerd":
            commands = "github.com/containerd/containerd/v2/cmd"
            return Recipe(
                packages={name: f"{commands}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
                linker_flags=f"-X github.com/containerd/containerd/v2/version.Version=v{version}",
                tags="no_btrfs no_aufs no_zfs no_devmapper",
                usually="a minute",
            )
        case "helm":
            flags = f"-X helm.sh/helm/v4/internal/version.version=v{version}"
            return Recipe({"helm": "helm.sh/helm/v4/cmd/helm"}, flags, "", "2 minutes")
        case _:
            raise ValueError(f"no recipe for module {module}")


KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kube-proxy",
)


def build(
    module: str,
    programs: Sequence[str],
    *,
    cache: Path,
    progress: Progress,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Build `programs` of `module` into `cache`/bin/`module`; raises BinariesMissing with what to do if that cannot be."""
    environ = os.environ if environ is None else environ
    source = MODULES / module
    if not (source / "go.mod").exists():
        raise BinariesMissing(
            f"{' and '.join(programs)} of {module.replace('-', ' ')} cannot be built here (pinned are "
            f"{', '.join(sorted(path.name for path in MODULES.iterdir()))}): name a folder that holds them with --bin-dir."
        )
    target = cache / "bin" / module

    def missing() -> list[str]:
        return [program for program in programs if not os.access(target / program, os.X_OK)]

    told: list[str] = []

    def waiting(holder: str) -> None:
        if not told:
            told.append(holder)
            progress.note(f" • Waiting for process {holder or 'of another user'}, which is building {module} ...")

    with locks.waited_for(cache / "bin" / f".{module}.lock", waiting):
        if not (wanted := missing()):
            return  # that other process built them
        for left_over in (cache / "bin").glob(f".{module}.*.tmp"):
            shutil.rmtree(left_over, ignore_errors=True)
        go = toolchain.find_go(toolchain.go_directive(source), cache=cache, progress=progress, environ=environ)
        _build(go, module, wanted, cache=cache, progress=progress, environ=environ)


def _build(
    go: Path, module: str, programs: Sequence[str], *, cache: Path, progress: Progress, environ: Mapping[str, str]
) -> None:
    how = recipe(module)
    target = cache / "bin" / module
    temporary = Path(tempfile.mkdtemp(prefix=f".{module}.", suffix=".tmp", dir=cache / "bin"))
    try:
        command = [
            *(go, "build", "-v", "-trimpath", "-mod=readonly", "-ldflags", f"-s -w {how.linker_flags}".strip()),
            *(("-tags", how.tags) if how.tags else ()),
            *("-o", f"{temporary}/" if len(programs) > 1 else temporary / programs[0]),
            *(how.packages[program] for program in programs),
        ]
        settings = {
            **environ,
            "CGO_ENABLED": "0",
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
            "GOFLAGS": "-buildvcs=false",
        }
        log = cache / "bin" / f"{module}.build.log"
        name = module.replace("-", " ")
        step = f"Building {name} from source ({', '.join(programs)}; usually {how.usually}, once)"
        with progress.step(step) as detail:
            code = _run(command, directory=MODULES / module, environ=settings, log=log, detail=detail)
            if code != 0:
                raise BinariesMissing(_why(log, name, programs))
        target.mkdir(parents=True, exist_ok=True)
        for program in programs:
            (temporary / program).replace(target / program)
        log.unlink(missing_ok=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run(
    command: Sequence[str | Path],
    *,
    directory: Path,
    environ: Mapping[str, str],
    log: Path,
    detail: Callable[[str], None],
) -> int:
    """Run the compiler and tell how far it is; when this run is interrupted, so is everything the compiler started."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=dict(environ),
            start_new_session=True,
        )
    try:
        while child.poll() is None:
            time.sleep(_POLL_S)
            detail(_how_far(log))
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait()
    return child.returncode


def _how_far(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    downloads = sum(line.startswith("go: downloading") for line in lines)
    compiled = len(lines) - downloads
    if compiled:
        return f"{compiled} packages compiled"
    return f"{downloads} modules downloaded" if downloads else "starting"


def _why(log: Path, name: str, programs: Sequence[str]) -> str:
    """One sentence for a failed build, and what to do about it."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = next((line for line in lines if any(sign in line for sign in _NO_NETWORK)), None)
    if told:
        return (
            f"{name} cannot be built because its Go modules cannot be downloaded ({told[-200:]}); connect this machine "
            f"to the network, or name a folder that holds {', '.join(programs)} with --bin-dir."
        )
    if any("no space left on device" in line for line in lines):
        return f"{name} cannot be built because the disk is full; free about 6 GB, or name a folder with --bin-dir."
    last = lines[-1] if lines else "go said nothing"
    return f"{name} could not be built ({last[-200:]}; all that go said is in {log}); name a folder with --bin-dir."
