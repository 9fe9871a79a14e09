"""Kueue, Karpenter and kwok as programs: built once from the modules that `modules` pins, and kept in Draco's cache.

Owns how each is built. Only `make e2e-scale` builds them: the first time takes many minutes, and nothing else needs them.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from draco.resources.errors import DracoError
from draco_local.cluster import locks
from draco_local.cluster.programs import binaries, build, gocache
from draco_local.cluster.programs.build import Recipe
from draco_local.cluster.progress import LineProgress

MODULES = Path(__file__).parent / "modules"
FILES = "files"
"""The folder beside each program with its module's definitions and configuration."""

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "kueue": Recipe(
            {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
            linker_flags="-X sigs.k8s.io/kueue/pkg/version.GitVersion=v0.16.2",
            tags="",
            usually="5 minutes",
            folders={FILES: ("sigs.k8s.io/kueue", ("config",))},
        ),
        "karpenter": Recipe(
            {"karpenter": "."},
            linker_flags="",
            tags="",
            usually="4 minutes",
            folders={FILES: ("sigs.k8s.io/karpenter", ("pkg/apis/crds", "kwok/apis/crds"))},
        ),
        "kwok": Recipe({"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, linker_flags="", tags="", usually="4 minutes"),
    }
)


def find(name: str) -> Path:
    """The folder with the program `name` and its files; builds them if the cache has no build of these pins."""
    how, cache = RECIPES[name], binaries.cache_folder()
    folder = cache / "scale" / f"{name}-{_digest(name)}"
    with locks.waited_for(folder.with_name(f".{folder.name}.lock"), lambda _holder: None):
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
                built = Path(temporary) / "built"
                built.mkdir()
                build.follow(
                    how,
                    MODULES / name,
                    folder.name,
                    (*how.packages, *how.folders),
                    into=built,
                    cache=cache,
                    progress=LineProgress(),
                    environ=os.environ,
                )
                built.rename(folder)
    return folder


def _digest(name: str) -> str:
    """A digest of everything the program is built from: another pin or another recipe gives another program."""
    hashed = hashlib.sha256(repr(RECIPES[name]).encode())
    for path in sorted((MODULES / name).iterdir()):
        hashed.update(f"{path.name}\n".encode() + path.read_bytes())
    return hashed.hexdigest()[:12]


if __name__ == "__main__":
    with gocache.shared(binaries.cache_folder()):  # the builds share a Go build cache
        try:
            for each in RECIPES:
                find(each)
        except DracoError as error:
            sys.exit(f"Error: {error}")
