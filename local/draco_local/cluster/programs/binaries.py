"""Finds the programs of a cluster: in a folder the user named, in the cache, at their publishers, or built from pinned modules.

Owns the order of these places, the check that all programs of Kubernetes have one version, and the cache: a program appears
there by one rename, so nobody ever sees half of one, and no two processes provide the same at once.
"""

import contextlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from draco_local.cluster import locks
from draco_local.cluster.errors import BinariesMissing, WrongVersion
from draco_local.cluster.programs import build, download, gocache
from draco_local.cluster.programs.download import ChecksummedFile, DownloadFailed, releases
from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES
from draco_local.cluster.progress import Progress, SilentProgress

MIRROR = "DRACO_MIRROR"
"""Environment variable with the mirror to use where none is named."""
ETCD_MODULE = "etcd-3.6.8"
CONTAINERD_MODULE = "containerd-2.1.9"
HELM_MODULE = "helm-4.3.1"
KIND_MODULE = "kind-0.33.0"
COREDNS_MODULE = "coredns-1.14.3"
KIND_FILES = "kind-files"
"""A folder among the programs: the parts of kind's module that describe its nodes."""
_OTHERS = {
    "etcd": ETCD_MODULE,
    "containerd": CONTAINERD_MODULE,
    "containerd-shim-runc-v2": CONTAINERD_MODULE,
    "ctr": CONTAINERD_MODULE,
    "helm": HELM_MODULE,
    "kind": KIND_MODULE,
    KIND_FILES: KIND_MODULE,
    "coredns": COREDNS_MODULE,
}
_OURS = frozenset({"crictl", "kindnetd", "pause", "runc-bounded"})
"""Small programs of kind's nodes, whose source comes with Draco."""
_VERSION_BY = {"kubectl": ["version", "--client"], "kubeadm": ["version", "--output=short"]}


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return where built programs (in `bin/<module>`) and the toolchain that built them are kept."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draco"


def module_of(program: str, *, kubernetes: str = DEFAULT_KUBERNETES) -> str:
    """Return the name ("kubernetes-1.36.3") of the module that builds `program`."""
    if program in _OURS:
        return build.own_module()
    return _OTHERS.get(program, f"{'kubeadm' if program == 'kubeadm' else 'kubernetes'}-{kubernetes}")


def find(
    *programs: str,
    kubernetes: str = DEFAULT_KUBERNETES,
    bin_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    mirror: str = "",
) -> dict[str, Path]:
    """Find the path of each program, by name.

    Looks in `bin_dir`, in the folder that KUBEBUILDER_ASSETS names, and in the cache. A program that is in none of them is
    downloaded from its publisher, or from `mirror`, if SHA256SUMS has its checksum and the site answers within seconds; else it
    is built, which takes minutes. Raises WrongVersion if a named folder's program is of another Kubernetes version,
    WrongChecksum if a download does not match its checksum, and BinariesMissing, with what to do, if a missing program cannot
    be built.
    """
    environ = os.environ if environ is None else environ
    mirror = mirror or environ.get(MIRROR, "")
    download.check_mirror(mirror)
    progress = progress or SilentProgress()
    cache = cache_folder(environ)
    found: dict[str, Path] = {}
    missing: dict[str, list[str]] = {}
    for program in programs:
        module = module_of(program, kubernetes=kubernetes)
        built = cache / "bin" / module / program
        if named := _in_named_folder(program, bin_dir=bin_dir, environ=environ):
            found[program] = named
            if module.endswith(f"-{kubernetes}"):
                _check_version(named, kubernetes)
        else:
            found[program] = built
            if not os.access(built, os.X_OK):
                missing.setdefault(module, []).append(program)
    if missing:
        offered = _offered(missing, mirror=mirror, progress=progress)
        with gocache.shared(cache):
            for module, wanted in missing.items():
                _provide(module, wanted, offered.get(module, []), cache=cache, progress=progress, environ=environ)
    return found


def kubernetes_version(*, bin_dir: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Return the version to run when none is asked for: that of the named folder's kube-apiserver, else the default."""
    environ = os.environ if environ is None else environ
    named = _in_named_folder("kube-apiserver", bin_dir=bin_dir, environ=environ)
    return version_of(named) if named else DEFAULT_KUBERNETES


def version_of(program: Path) -> str:
    """Ask what a program of Kubernetes says its version is, like "1.36.3"; raises BinariesMissing if it says nothing."""
    arguments = _VERSION_BY.get(program.name, ["--version"])
    try:
        answer = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinariesMissing(f"{program} does not run on this machine ({error}): name another folder.") from error
    match = re.search(r"\bv(\d+\.\d+\.\d+\S*)", answer.stdout)
    if match is None:
        raise BinariesMissing(f"{program} does not print its version when it is run with {' '.join(arguments)}.")
    return match.group(1)


def _offered(
    missing: Mapping[str, Sequence[str]], *, mirror: str, progress: Progress
) -> dict[str, list[ChecksummedFile]]:
    """The releases of `missing` that can be downloaded, by module; prints in one line why the others cannot."""
    if mirror == download.NONE:
        return {}
    published = [
        release
        for module, programs in missing.items()
        for release in releases(module, programs, machine=platform.machine())
    ]
    found, reasons = download.offers(published, mirror=mirror)
    if reasons:
        progress.note(f" • Not available as released programs, so they are built: {'; '.join(reasons)}.")
    offered: dict[str, list[ChecksummedFile]] = {}
    for offer in found:
        offered.setdefault(offer.release.module, []).append(offer)
    return offered


def _provide(
    module: str,
    programs: Sequence[str],
    offered: Sequence[ChecksummedFile],
    *,
    cache: Path,
    progress: Progress,
    environ: Mapping[str, str],
) -> None:
    """Put `programs` of `module` into the cache: downloaded if they are `offered`, else built."""
    target = cache / "bin" / module
    name = module.replace("-", " ")

    def waiting(holder: str) -> None:
        progress.note(f" • Waiting for process {holder or 'of another user'}, which is providing {name} ...")

    with locks.waited_for(cache / "bin" / f".{module}.lock", waiting):
        missing = [program for program in programs if not os.access(target / program, os.X_OK)]
        if not missing:
            return  # that other process provided them
        for left_over in (cache / "bin").glob(f".{module}.*.tmp"):
            shutil.rmtree(left_over, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{module}.", suffix=".tmp", dir=cache / "bin"))
        try:
            target.mkdir(parents=True, exist_ok=True)
            offered = [offer for offer in offered if not offer.release.programs.keys().isdisjoint(missing)]
            fetched = _fetched(name, offered, temporary / "fetched", progress)
            for program, path in fetched.items():
                path.replace(target / program)
            if missing := [program for program in missing if program not in fetched]:
                built = temporary / "built"  # apart from what may be left of a download: Go does not write over it
                built.mkdir()
                build.build(module, missing, into=built, cache=cache, progress=progress, environ=environ)
                for program in missing:
                    (built / program).replace(target / program)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):
                target.rmdir()  # if it stayed empty


def _fetched(name: str, offered: Sequence[ChecksummedFile], folder: Path, progress: Progress) -> dict[str, Path]:
    """Download the programs of `offered`; returns none, and prints why, if a site does not answer any more."""
    if not offered:
        return {}
    folder.mkdir()
    programs = ", ".join(program for offer in offered for program in offer.release.programs)
    try:
        with progress.step(f"Downloading {name} ({programs})") as detail:
            return download.fetch(offered, folder, detail)
    except DownloadFailed as error:
        progress.note(f" • {error}, so {name} is built.")
        return {}


def _in_named_folder(program: str, *, bin_dir: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = [folder for folder in (bin_dir, environ.get("KUBEBUILDER_ASSETS")) if folder]
    return next((Path(folder) / program for folder in named if os.access(Path(folder) / program, os.X_OK)), None)


def _check_version(program: Path, kubernetes: str) -> None:
    if (found := version_of(program)) != kubernetes:
        raise WrongVersion(
            f"{program} is Kubernetes {found}, not {kubernetes}: ask for --kubernetes {found}, or name another folder."
        )
