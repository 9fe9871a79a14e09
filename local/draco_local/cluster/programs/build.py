"""Building the programs of a cluster from pinned Go modules.

Owns how each program is built, and the sentence for each failure. The caller decides where programs are kept, and lets no two
processes build the same at once.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from draco_local.cluster.errors import BinariesMissing
from draco_local.cluster.programs import gocache, multicall, toolchain, versions
from draco_local.cluster.progress import Progress

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
_ENOUGH_MIB = 2048
"""What linking Kubernetes takes: with a limit below it, Go would do little but collect garbage."""
_DOWNLOADS_AT_ONCE = 16
"""Go downloads as many modules at once as it may use processors, and waits for the network most of that time."""


class Recipe(NamedTuple):
    """How the programs of one module are built. `usually` is how long that takes on two cores with empty caches.

    `source` writes the main package of one program that contains all requested ones; without it each is a package of its own.
    `folders` are folders of a module that are copied, not built, by the name under which they are kept.
    """

    packages: Mapping[str, str]
    linker_flags: str
    tags: str
    usually: str
    source: Callable[[Sequence[str]], str] | None = None
    folders: Mapping[str, tuple[str, Sequence[str]]] = MappingProxyType({})


def recipe(module: str) -> Recipe:
    """Return the recipe of a module folder's name, such as "kubernetes-1.36.3"."""
    name, _, version = module.partition("-")
    match name:
        case "kubernetes":
            packages = {program: f"k8s.io/kubernetes/cmd/{program}" for program in multicall.PROGRAMS}
            how = Recipe(packages, _kubernetes_version(version), "", "5 minutes", source=multicall.source)
        case "kubeadm":  # of the same module, but apart from its one program: nobody needs both in one place
            packages = {"kubeadm": "k8s.io/kubernetes/cmd/kubeadm"}
            how = Recipe(packages, _kubernetes_version(version), "", "5 minutes")
        case "etcd":
            how = Recipe({"etcd": "go.etcd.io/etcd/server/v3"}, "", "", "half a minute")
        case "containerd":
            commands = "github.com/containerd/containerd/v2/cmd"
            how = Recipe(
                packages={name: f"{commands}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
                linker_flags=f"-X github.com/containerd/containerd/v2/version.Version=v{version}",
                tags="no_btrfs no_aufs no_zfs no_devmapper",
                usually="a minute",
            )
        case "helm":
            flags = f"-X helm.sh/helm/v4/internal/version.version=v{version}"
            how = Recipe({"helm": "helm.sh/helm/v4/cmd/helm"}, flags, "", "2 minutes")
        case "kind":
            folders = {"kind-files": ("sigs.k8s.io/kind", ("images/base/files", "pkg/build/nodeimage"))}
            how = Recipe({"kind": "sigs.k8s.io/kind"}, "", "", "half a minute", folders=folders)
        case "coredns":
            how = Recipe({"coredns": "."}, "", "", "2 minutes")
        case "kindnode":
            programs = [path.parent.name for path in (MODULES / name).glob("*/main.go")]
            how = Recipe({program: f"./{program}" for program in programs}, "", "", "half a minute")
        case _:
            raise ValueError(f"no recipe for module {module}")
    return how


def _kubernetes_version(version: str) -> str:
    """Return the linker's flags that set the version of Kubernetes' programs."""
    major, minor, _ = versions.parse(version)
    variable = "-X k8s.io/component-base/version"
    return (
        f"{variable}.gitVersion=v{version} {variable}.gitMajor={major} {variable}.gitMinor={minor} "
        f"{variable}.gitTreeState=clean"
    )


def own_module() -> str:
    """Return the name of the module of Draco's own programs; its version is a hash of its files."""
    hashed = hashlib.sha256()
    folder = MODULES / "kindnode"
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        hashed.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return f"kindnode-{hashed.hexdigest()[:8]}"


def _folder_of(module: str) -> Path:
    """The folder of the go.mod with which a module's programs are built."""
    name, _, version = module.partition("-")
    return MODULES / {"kubeadm": f"kubernetes-{version}", "kindnode": name}.get(name, module)


def build(
    module: str,
    programs: Sequence[str],
    *,
    into: Path,
    cache: Path,
    progress: Progress,
    environ: Mapping[str, str],
) -> None:
    """Build `programs` of `module` into the folder `into`; raises BinariesMissing, with what to do, if that fails."""
    source = _folder_of(module)
    if not (source / "go.mod").exists():
        raise BinariesMissing(
            f"{' and '.join(programs)} of {module.replace('-', ' ')} cannot be built here (pinned are "
            f"{', '.join(sorted(path.name for path in MODULES.iterdir()))}): name a folder that holds them with --bin-dir."
        )
    follow(recipe(module), source, module, programs, into=into, cache=cache, progress=progress, environ=environ)


def follow(
    how: Recipe,
    source: Path,
    module: str,
    programs: Sequence[str],
    *,
    into: Path,
    cache: Path,
    progress: Progress,
    environ: Mapping[str, str],
) -> None:
    """Build by a recipe and the go.mod in the folder `source`; `module` is its name in the log and the messages."""
    with gocache.shared(cache):
        go = toolchain.find_go(toolchain.go_directive(source), cache=cache, progress=progress, environ=environ)
        settings = {**environ, **_memory(), **gocache.settings(cache)}
        log = cache / "bin" / f"{module}.build.log"
        name = module.replace("-", " ")
        step = f"Building {name} from source ({', '.join(programs)}; usually {how.usually}, once)"
        compiled = [program for program in programs if program in how.packages]
        commands = _commands(go, how, source, compiled, into) if compiled else []
        copied = [(program, *how.folders[program]) for program in programs if program in how.folders]
        with progress.step(step) as detail:
            for command, folder, variables in commands:
                if _run(command, directory=folder, environ={**settings, **variables}, log=log, detail=detail) != 0:
                    raise BinariesMissing(_why(log, name, programs, cache))
            for program, package, folders in copied:
                download: list[str | Path] = [go, "mod", "download", "-json", package]
                if _run(download, directory=source, environ=settings, log=log, detail=detail) != 0:
                    raise BinariesMissing(_why(log, name, programs, cache))
                _copy(_module_folder(log), folders, into / program)
        for program in compiled[1:] if how.source else ():
            (into / program).hardlink_to(into / compiled[0])
        log.unlink(missing_ok=True)


def _module_folder(log: Path) -> Path:
    """The module's folder, from the JSON at the end of `go mod download`'s output."""
    said = log.read_text()
    return Path(json.loads(said[said.index("{") :])["Dir"])


def _copy(module: Path, folders: Sequence[str], target: Path) -> None:
    """Copy folders of a downloaded module, whose files nobody may write."""
    for folder in folders:
        shutil.copytree(module / folder, target / folder)


def _memory() -> Mapping[str, str]:
    """Let the compiler use memory instead of collecting garbage, where there is enough for each of its processes."""
    fields = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    available_kib = next((int(amount) for name, amount, *_ in fields if name == "MemAvailable:"), 0)
    each_mib = available_kib // 1024 // ((os.cpu_count() or 1) + 1)
    return {"GOGC": "off", "GOMEMLIMIT": f"{each_mib}MiB"} if each_mib >= _ENOUGH_MIB else {}


def _commands(
    go: Path, how: Recipe, module: Path, programs: Sequence[str], into: Path
) -> list[tuple[list[str | Path], Path, Mapping[str, str]]]:
    """What to run, in which folder, with which further variables: first all downloads, then the build."""
    folder, packages, output = module, [how.packages[program] for program in programs], f"{into}{os.sep}"
    if how.source:
        folder = into / "source"
        folder.mkdir()
        for file in ("go.mod", "go.sum"):
            shutil.copyfile(module / file, folder / file)
        (folder / "main.go").write_text(how.source(programs))
        packages = ["."]
    if len(packages) == 1:
        output = str(into / programs[0])
    # The same flags for every module, so that the standard library is compiled once: its key in Go's cache depends on them.
    flags = ["-trimpath", "-mod=readonly", "-gcflags=all=-dwarf=false", *(("-tags", how.tags) if how.tags else ())]
    linker_flags = f"-s -w {how.linker_flags}".strip()
    listing = [go, "list", "-deps", "-f", "", *flags, *packages]
    building = [go, "build", "-v", *flags, "-ldflags", linker_flags, "-o", output, *packages]
    return [(listing, folder, {"GOMAXPROCS": str(_DOWNLOADS_AT_ONCE)}), (building, folder, {})]


def _run(
    command: Sequence[str | Path],
    *,
    directory: Path,
    environ: Mapping[str, str],
    log: Path,
    detail: Callable[[str], None],
) -> int:
    """Run the compiler and report its progress; an interrupt also ends everything that the compiler started."""
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
    # `go list` writes an empty line for each package.
    lines = [line for line in log.read_text(errors="replace").splitlines() if line]
    downloads = sum(line.startswith("go: downloading") for line in lines)
    compiled = len(lines) - downloads
    if compiled:
        return f"{compiled} packages compiled"
    return f"{downloads} modules downloaded" if downloads else "starting"


def _why(log: Path, name: str, programs: Sequence[str], cache: Path) -> str:
    """One sentence for a failed build, and what to do about it."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    reason = next((line for line in lines if any(sign in line for sign in _NO_NETWORK)), None)
    if reason:
        return (
            f"{name} cannot be built because its Go modules cannot be downloaded ({reason[-200:]}); connect this machine "
            f"to the network, or name a folder that holds {', '.join(programs)} with --bin-dir."
        )
    if any("no space left on device" in line for line in lines):
        return (
            f"{name} cannot be built because the disk is full; free about 5 GB (Go left files in "
            f"{cache / gocache.FOLDER}), or name a folder with --bin-dir."
        )
    last = lines[-1] if lines else "go said nothing"
    return f"{name} could not be built ({last[-200:]}; the output of go is in {log}); name a folder with --bin-dir."
