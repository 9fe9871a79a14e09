"""Where the programs of a cluster are: a folder the user named, or the cache.

Owns the lookup. Building what is missing is in `build`.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from draco.cluster.errors import BinariesMissing
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
    """Where built programs are kept, one folder per module and version."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "draco" / "bin"


def module_of(program: str, *, kubernetes: str = DEFAULT_KUBERNETES) -> str:
    """The folder name ("kubernetes-1.36.3") of the module that builds `program`."""
    return _OTHERS.get(program, f"kubernetes-{kubernetes}")


def find(
    *programs: str,
    kubernetes: str = DEFAULT_KUBERNETES,
    bin_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Path]:
    """The path of each program, by name; raises BinariesMissing when one is nowhere."""
    environ = os.environ if environ is None else environ
    named = [Path(folder) for folder in (bin_dir, environ.get("KUBEBUILDER_ASSETS")) if folder]
    found = {}
    for program in programs:
        folders = [*named, cache_folder(environ) / module_of(program, kubernetes=kubernetes)]
        path = next((folder / program for folder in folders if os.access(folder / program, os.X_OK)), None)
        if path is None:
            raise BinariesMissing(f"{program} is in none of {', '.join(map(str, folders))}.")
        found[program] = path
    return found


def version_of(program: Path) -> str:
    """What the program says its Kubernetes version is, like "1.36.3"; "" if it does not say."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return answer.stdout.strip().rpartition(" v")[2]
