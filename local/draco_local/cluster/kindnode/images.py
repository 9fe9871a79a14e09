"""Which of kind's node images an engine has: kind's own, and those that were made here.

Owns their names, when one must be made, and removing old ones. What is in one is in `node_image`.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from draco_local.cluster import locks
from draco_local.cluster.kindnode import node_image
from draco_local.cluster.kindnode.docker import Docker
from draco_local.cluster.programs import binaries
from draco_local.cluster.progress import Progress

_RECIPE: Final = ("archive.py", "node_image.py", "rootfs.py")
_BUILD_CONTAINERS: Final = "kind-build-"


def official(kubernetes: str) -> str:
    """Return the name of the image that kind publishes for a version of Kubernetes."""
    return f"kindest/node:v{kubernetes}"


def made_here(kubernetes: str) -> str:
    """Return the name of the image that is made here, with a hash of everything that goes into it."""
    hashed = hashlib.sha256()
    for program in node_image.PROGRAMS:
        hashed.update(binaries.module_of(program, kubernetes=kubernetes).encode())
    for recipe in _RECIPE:
        hashed.update(Path(__file__).with_name(recipe).read_bytes())
    return f"{official(kubernetes)}-draco.{hashed.hexdigest()[:8]}"


def ensure(docker: Docker, kubernetes: str, programs: Mapping[str, Path], *, folder: Path, progress: Progress) -> str:
    """Make the image here unless the engine has it, and return its name; `folder` takes temporary files."""
    name = made_here(kubernetes)

    def waiting(holder: str) -> None:
        progress.note(f" • Waiting for process {holder}, which makes a node image ...")

    with locks.waited_for(folder / ".image.lock", waiting):
        if not docker.has_image(name):
            _remove_unfinished(docker, folder)
            with tempfile.TemporaryDirectory(prefix="making.", dir=folder) as making:
                node_image.make(docker, name, kubernetes, programs=programs, folder=Path(making), progress=progress)
            _forget_older(docker, name, kubernetes)
    return name


def _remove_unfinished(docker: Docker, folder: Path) -> None:
    """Remove what a killed run left: a gigabyte in a folder, and another in a container of kind's."""
    for left_over in folder.glob("making.*"):
        shutil.rmtree(left_over, ignore_errors=True)
    listed = docker.run(["docker", "ps", "--all", "--quiet", "--filter", f"name=^{_BUILD_CONTAINERS}"])
    for container in listed.split():
        docker.run(["docker", "rm", "--force", "--volumes", container])


def _forget_older(docker: Docker, name: str, kubernetes: str) -> None:
    """Remove the images that an older Draco made of this version; those that a cluster runs stay."""
    repository, _, _ = name.partition(":")
    listed = docker.run(["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", repository])
    for other in listed.split():
        if other.startswith(f"{official(kubernetes)}-draco.") and other != name:
            docker.has("image", "rm", other)
