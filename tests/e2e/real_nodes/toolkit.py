"""NVIDIA's hook for memory limits, which agents of the image carry, for agents that run outside of it.

Owns building it from the image's pinned modules, once per content. Where cgroups of version 1 are mounted, too, it runs where it
sees version 2 alone, like the agent. Run as a module it only builds; `scripts/test` does this first.
"""

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

from draco.agent.containers.toolkit import NVML_HOOK
from draco_local.cluster.programs import binaries, gocache, toolchain
from draco_local.cluster.progress import LineProgress, SilentProgress
from draco_local.cluster.realnode import cgroup
from draco_local.cluster.realnode.agent import SEEING_VERSION_2

_MODULE = Path(__file__).parents[3] / "requirements" / "toolkit"
_PACKAGE = "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook"


def put_hook(folder: Path) -> None:
    """Put the hook into a folder, under the name that the agent looks for."""
    program, place = built(), folder / NVML_HOOK
    if not cgroup.mounted().unified:
        place.symlink_to(program)
        return
    place.write_text(f'#!/bin/sh\nexec {shlex.join([*SEEING_VERSION_2, str(program)])} "$@"\n')
    place.chmod(0o755)


def built() -> Path:
    """The program, which is built if the modules changed."""
    pinned = b"".join((_MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))
    cache = binaries.cache_folder()
    program = cache / "oracle" / f"{NVML_HOOK}-{hashlib.sha256(pinned).hexdigest()[:16]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        with LineProgress().step("Building NVIDIA's hook (usually a minute or less, once)"), gocache.shared(cache):
            go = toolchain.find_go(toolchain.go_directive(_MODULE), cache=cache, progress=SilentProgress())
            subprocess.run(
                [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", unfinished, _PACKAGE],
                cwd=_MODULE,
                env=os.environ | gocache.settings(cache) | {"CGO_ENABLED": "1"},
                check=True,
            )
        unfinished.rename(program)
    return program


if __name__ == "__main__":
    built()
