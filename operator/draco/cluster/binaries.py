"""Where the programs of a cluster are: a folder the user named, the cache, or built from pinned modules.

Owns the order of the places and that all programs of Kubernetes are of one version. Building itself is in `build`.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from draco.cluster import build
from draco.cluster.errors import BinariesMissing, WrongVersion
from draco.cluster.progress import Lines, Progress, Silent
from draco.cluster.versions import DEFAULT_KUBERNETES

ETCD_MODULE = "etcd-3.6.8"
CONTAINERD_MODULE = "containerd-2.1.9"
HELM_MODULE = "helm-4.3.1"
_OTHERS = {
    "etcd": ETCD_MODULE,
    "containerd": CONTAINERD_MODULE,
    "containerd-shim-runc-v2": CONTAINERD_MODULE,
    "ctr": CONTAINERD_MODULE,
    "helm": HELM_MODULE,
}


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where built programs (in `bin/<module>`) and the toolchain that built them are kept."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draco"


def module_of(program: str, *, kubernetes: str = DEFAULT_KUBERNETES) -> str:
    """The name ("kubernetes-1.36.3") of the module that builds `program`."""
    return _OTHERS.get(program, f"kubernetes-{kubernetes}")


def find(
    *programs: str,
    kubernetes: str = DEFAULT_KUBERNETES,
    bin_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Path]:
    """The path of each program, by name.

    Looks in `bin_dir`, in the folder that KUBEBUILDER_ASSETS names, and in the cache; builds what is in none of them,
    which takes minutes the first time. Raises WrongVersion if a named folder's program is of another Kubernetes version,
    and BinariesMissing, with what to do, if something is missing and cannot be built.
    """
    environ = os.environ if environ is None else environ
    cache = cache_folder(environ)
    found: dict[str, Path] = {}
    missing: dict[str, list[str]] = {}
    for program in programs:
        module = module_of(program, kubernetes=kubernetes)
        built = cache / "bin" / module / program
        if named := _in_named_folder(program, bin_dir=bin_dir, environ=environ):
            found[program] = named
            if module not in _OTHERS.values():
                _check_version(named, kubernetes)
        else:
            found[program] = built
            if not os.access(built, os.X_OK):
                missing.setdefault(module, []).append(program)
    for module, wanted in missing.items():
        build.build(module, wanted, cache=cache, progress=progress or Silent(), environ=environ)
    return found


def kubernetes_version(*, bin_dir: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The version to run when none is asked for: that of the named folder's kube-apiserver, else the default."""
    environ = os.environ if environ is None else environ
    named = _in_named_folder("kube-apiserver", bin_dir=bin_dir, environ=environ)
    return version_of(named) if named else DEFAULT_KUBERNETES


def kubectl() -> Path:
    """The kubectl that belongs to the default version, built if need be."""
    return find("kubectl", kubernetes=kubernetes_version(), progress=Lines())["kubectl"]


def version_of(program: Path) -> str:
    """What a program of Kubernetes says its version is, like "1.36.3"; raises BinariesMissing if it says nothing."""
    arguments = ["version", "--client"] if program.name == "kubectl" else ["--version"]
    try:
        answer = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinariesMissing(f"{program} does not run on this machine ({error}): name another folder.") from error
    match = re.search(r"\bv(\d+\.\d+\.\d+\S*)", answer.stdout)
    if match is None:
        raise BinariesMissing(f"{program} does not say its version when it is run with {' '.join(arguments)}.")
    return match.group(1)


def _in_named_folder(program: str, *, bin_dir: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = [folder for folder in (bin_dir, environ.get("KUBEBUILDER_ASSETS")) if folder]
    return next((Path(folder) / program for folder in named if os.access(Path(folder) / program, os.X_OK)), None)


def _check_version(program: Path, kubernetes: str) -> None:
    if (found := version_of(program)) != kubernetes:
        raise WrongVersion(
            f"{program} is Kubernetes {found}, not {kubernetes}: ask for --kubernetes {found}, or name another folder."
        )
