"""Kind's node image, made of Draco's own programs where none can be pulled.

Owns what is in it. Kind itself builds it, offline, from a base image and from an archive laid out as a release of Kubernetes.
Must not know which images an engine has already: that is in `images`.
"""

import gzip
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from draco_local.cluster.errors import ClusterError
from draco_local.cluster.kindnode import archive, rootfs
from draco_local.cluster.kindnode.archive import Image, Layer
from draco_local.cluster.kindnode.docker import Docker
from draco_local.cluster.programs import binaries
from draco_local.cluster.progress import Progress

PROGRAMS: Final = (
    *("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl", "kubeadm"),
    *("etcd", "coredns", "containerd", "containerd-shim-runc-v2", "ctr"),
    *("crictl", "kindnetd", "pause", "kind", binaries.KIND_FILES),
)
"""The programs in an image, and those that build it."""

_SERVERS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
_ON_THE_NODE: Final = ("kubelet", "kubeadm", "kubectl")
_NEED_TOOLS: Final = frozenset({"kube-proxy", "kindnetd"})
_BASE: Final = "localhost/draco-kind-base:made"
"""Kind tries to pull its base image first; for this name that fails at once."""


def make(
    docker: Docker, name: str, kubernetes: str, *, programs: Mapping[str, Path], folder: Path, progress: Progress
) -> None:
    """Build the image under this name in the engine; `folder` is for this alone."""
    with progress.step(f"Making the files of a node from Debian packages ({rootfs.DEBIAN}; usually a minute, once)"):
        files = programs[binaries.KIND_FILES] / "images/base/files"
        rootfs.write_node(folder / "node.tar", files=files, programs=programs, folder=folder)
        rootfs.write_tools(folder / "tools.tar", folder=folder)
    with progress.step(f"Making the images of Kubernetes {kubernetes}'s control plane (usually half a minute, once)"):
        _load_base(docker, folder)
        release = folder / "kubernetes-server.tar.gz"
        _write_release(release, kubernetes, programs, Layer.of(folder / "tools.tar"), folder)
    with progress.step(f"Building {name} with kind (usually half a minute, once)"):
        unpacked = folder / "unpacked"  # kind leaves there what it unpacks
        unpacked.mkdir()
        build: list[str | Path] = [
            programs["kind"],
            "build",
            "node-image",
            "--type",
            "file",
            "--base-image",
            _BASE,
            "--image",
            name,
            release,
        ]
        docker.run(["env", f"TMPDIR={unpacked}", *build])
        docker.run(["docker", "image", "rm", _BASE])


def _load_base(docker: Docker, folder: Path) -> None:
    base = Image(
        name=_BASE,
        layers=[Layer.of(folder / "node.tar")],
        entrypoint=["/usr/local/bin/entrypoint", "/sbin/init"],
        stop_signal="SIGRTMIN+3",  # systemd takes SIGTERM for something else
        variables=["container=docker"],  # by this systemd knows that it runs in a container
    )
    file = folder / "base.tar"
    archive.write(file, [base])
    (folder / "node.tar").unlink()
    docker.run(["docker", "load", "--quiet", "--input", file])
    file.unlink()


def _write_release(target: Path, kubernetes: str, programs: Mapping[str, Path], tools: Layer, folder: Path) -> None:
    """Write what kind accepts as a release of Kubernetes: its version, three programs, and the images of four others.

    Every image that a cluster needs is in the first of the four archives; the others repeat a small one.
    """
    names = image_names(kubernetes, programs)
    servers = {program: _server_layer(program, programs, folder) for program in _SERVERS}
    pause = archive.layer_of(
        dict.fromkeys(("pause", "bin/sh", "usr/local/bin/local-path-provisioner"), programs["pause"]),
        folder / "pause.tar",
    )
    layers: dict[str, tuple[Sequence[Layer], Sequence[str]]] = {
        **{program: ([servers[program]], []) for program in _SERVERS},
        "etcd": ([archive.layer_of({"usr/local/bin/etcd": programs["etcd"]}, folder / "etcd.tar")], []),
        "coredns": ([archive.layer_of({"coredns": programs["coredns"]}, folder / "coredns.tar")], ["/coredns"]),
        "pause": ([pause], ["/pause"]),
        "kindnetd": (
            [archive.layer_of({"usr/bin/kindnetd": programs["kindnetd"]}, folder / "kindnetd.tar")],
            ["/usr/bin/kindnetd"],
        ),
        # Nothing here provisions volumes: the provisioner only waits, and its helper never runs.
        "local-path-provisioner": ([pause], []),
        "local-path-helper": ([pause], ["/bin/sh"]),
    }
    if unknown := names.keys() - layers.keys():
        raise ClusterError(
            f"Kubernetes {kubernetes} and kind need images that are not made here: {', '.join(unknown)}."
        )
    images = [
        Image(names[part], [tools, *stack] if part in _NEED_TOOLS else stack, entrypoint)
        for part, (stack, entrypoint) in layers.items()
    ]
    all_of_them, small = folder / "images.tar", folder / "small.tar"
    archive.write(all_of_them, images)
    archive.write(small, [image for image in images if image.name == names["pause"]])
    with gzip.open(target, "wb", compresslevel=0) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        archive.add(tar, "kubernetes/version", f"v{kubernetes}".encode())
        for index, program in enumerate(_SERVERS):
            tar.add(small if index else all_of_them, f"kubernetes/server/bin/{program}.tar")
        for program in _ON_THE_NODE:
            entry = tarfile.TarInfo(f"kubernetes/server/bin/{program}")  # a file for each, even if they are one program
            entry.size, entry.mode = programs[program].stat().st_size, 0o755
            with programs[program].open("rb") as file:
                tar.addfile(entry, file)
    all_of_them.unlink()


def _server_layer(program: str, programs: Mapping[str, Path], folder: Path) -> Layer:
    """Servers that are one program under several names share a layer."""
    inode = programs[program].stat().st_ino
    together = [each for each in _SERVERS if programs[each].stat().st_ino == inode]
    target = folder / f"{together[0]}.layer.tar"
    if target.exists():
        return Layer.of(target)
    return archive.layer_of({f"usr/local/bin/{each}": programs[each] for each in together}, target)


def image_names(kubernetes: str, programs: Mapping[str, Path]) -> dict[str, str]:
    """Return the full names of all images that a cluster needs, by their short names, from kubeadm and kind's module."""
    asked: list[str | Path] = [
        programs["kubeadm"],
        "config",
        "images",
        "list",
        "--kubernetes-version",
        f"v{kubernetes}",
    ]
    listed = subprocess.run(asked, check=False, capture_output=True, text=True)
    if listed.returncode:
        raise ClusterError(f"kubeadm does not say which images Kubernetes {kubernetes} needs: {listed.stderr.strip()}.")
    files = programs[binaries.KIND_FILES]
    runtime = (files / "images/base/files/etc/containerd/config.toml").read_text()
    sandbox = re.findall(r'^\s*sandbox_image = "(.+)"$', runtime, re.MULTILINE)
    manifests = [
        found
        for source in sorted((files / "pkg/build/nodeimage").glob("const_*.go"))
        for found in re.findall(r'^const \w+Image = "(.+)"$', source.read_text(), re.MULTILINE)
    ]
    named = {}
    for image in (*listed.stdout.split(), *sandbox, *manifests):  # the pause image is the one that the runtime asks for
        named[image.rpartition(":")[0].rpartition("/")[2]] = image
    return named
