"""Container images made from one static program, without a registry or a build tool.

Owns the docker-archive layout. Its images are busybox (for pods that try a claim) and a pause image (which holds a pod's
namespaces). Must not know about clusters: it writes a tar file, others import it.
"""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

BUSYBOX_IMAGE: Final = "draco.dev/busybox:1"
PAUSE_IMAGE: Final = "draco.dev/pause:1"
EXAMPLES_IMAGE: Final = "docker.io/library/busybox:1.37"
"""What the examples run. Real nodes have their busybox under this name too, as they have no registry to pull it from."""

BUSYBOX_PROGRAM: Final = Path("/bin/busybox")
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES: Final = MappingProxyType({"x86_64": "amd64", "aarch64": "arm64"})
"""What images call machines, by what `uname -m` calls them."""


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """One single-layer image: its names, the files and links in it, and what it runs."""

    names: Sequence[str]
    command: Sequence[str]
    files: Mapping[str, bytes]
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Iterable[str] = ("tmp", "etc", "proc", "sys", "dev", "var/run")


def write_archive(plan: ImagePlan, target: Path, *, machine: str) -> None:
    """Write `plan` as a docker-archive tar; the same plan gives the same bytes. `machine` is what `uname -m` says."""
    layer = _layer(plan)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Cmd": list(plan.command), "Env": [_PATH], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "draco"}],
        },
        sort_keys=True,
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest: list[dict[str, Any]] = [
        {"Config": config_name, "RepoTags": list(plan.names), "Layers": [f"{digest}/layer.tar"]}
    ]
    unfinished = target.with_name(f".{target.name}.unfinished")
    with tarfile.open(unfinished, "w") as archive:
        for name, content in (
            (config_name, config),
            (f"{digest}/layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add_file(archive, name, content, mode=0o644)
    unfinished.replace(target)


def busybox_image(program: Path = BUSYBOX_PROGRAM) -> ImagePlan:
    """Make an image with a shell and every small command that `program` can be."""
    names = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    return ImagePlan(
        names=(BUSYBOX_IMAGE, EXAMPLES_IMAGE),
        command=("sh",),
        files={"bin/busybox": program.read_bytes()},
        links={f"bin/{name}": "busybox" for name in sorted(names) if name != "busybox"},
    )


def pause_image(program: Path = BUSYBOX_PROGRAM) -> ImagePlan:
    """Make an image that does nothing for as long as its pod lives."""
    return ImagePlan(
        names=(PAUSE_IMAGE,),
        command=("/bin/busybox", "sleep", "2147483647"),
        files={"bin/busybox": program.read_bytes()},
        folders=(),
    )


def _layer(plan: ImagePlan) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        parents = {
            str(parent) for name in (*plan.files, *plan.links) for parent in Path(name).parents if str(parent) != "."
        }
        for folder in sorted({*parents, *plan.folders}):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            layer.addfile(entry)
        for name, content in plan.files.items():
            _add_file(layer, name, content, mode=0o755)
        for name, destination in plan.links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, destination, 0o777
            layer.addfile(entry)
    return buffer.getvalue()


def _add_file(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
