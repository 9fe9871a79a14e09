"""The files of a node image: Debian packages, what kind's own Dockerfile adds to them, and Draco's programs.

Owns which packages, and what is changed for machines like this one. Kind's files come from its module, with the modes that its
Dockerfile gives them. Must not know about images: it writes tar files.
"""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from draco_local.cluster.errors import ClusterError

DEBIAN: Final = "bookworm"
"""Its systemd still runs on machines with cgroup version 1; that of the next release does not."""

_PACKAGES: Final = (
    *(
        "systemd",
        "conntrack",
        "iptables",
        "nftables",
        "iproute2",
        "ethtool",
        "util-linux",
        "mount",
        "kmod",
        "libseccomp2",
    ),
    *("pigz", "e2fsprogs", "bash", "ca-certificates", "curl", "jq", "procps", "runc", "containernetworking-plugins"),
)
_TOOLS: Final = ("iptables", "nftables", "iproute2", "conntrack", "kmod")
_FIREWALL_TOOLS: Final = ("iptables", "ip6tables")
_NETWORK_PLUGINS: Final = ("host-local", "loopback", "ptp", "portmap")
_NODE_PROGRAMS: Final = ("containerd", "containerd-shim-runc-v2", "ctr", "crictl")
_NOT_STARTED: Final = (
    "lib/systemd/system/multi-user.target.wants/*",
    "etc/systemd/system/*.wants/*",
    "lib/systemd/system/local-fs.target.wants/*",
    "lib/systemd/system/sockets.target.wants/*udev*",
    "lib/systemd/system/sockets.target.wants/*initctl*",
    "lib/systemd/system/basic.target.wants/*",
    "lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
)
_STARTED: Final = ("kubelet.service", "containerd.service", "undo-mount-hacks.service")
_UNWANTED: Final = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)
_NEVER_READ: Final = tuple(f"--dpkgopt=path-exclude=/{folder}/*" for folder in _UNWANTED if folder.startswith("usr/"))
_HOOK: Final = {"path": "/kind/bin/mount-product-files.sh"}


def write_node(target: Path, *, files: Path, programs: Mapping[str, Path], folder: Path) -> None:
    """Write the root of a node before Kubernetes is in it; `files` are kind's, `folder` is for this alone."""
    root = folder / "node"
    _debian(root, _PACKAGES, variant="minbase")
    _add_kinds_files(files, root)
    for name in _NODE_PROGRAMS:
        _copy(programs[name], root / "usr/local/bin" / name, mode=0o755)
    for name in _NETWORK_PLUGINS:
        _copy(root / "usr/lib/cni" / name, root / "opt/cni/bin" / name, mode=0o755)
    for pattern in _NOT_STARTED:
        for path in root.glob(pattern):
            path.unlink()
    with (root / "etc/systemd/journald.conf").open("a") as file:
        file.write("ReadKMsg=no\n")
    (root / "sbin/init").unlink(missing_ok=True)
    (root / "sbin/init").symlink_to("/lib/systemd/systemd")
    _within(root, "systemctl", "enable", *_STARTED)
    _within(root, "systemctl", "mask", "systemd-binfmt.service")  # it would change the machine's own kernel
    (root / "etc/kubernetes/manifests").mkdir(parents=True)
    spec = json.loads(_within(root, "ctr", "oci", "spec"))
    spec.setdefault("hooks", {}).setdefault("createContainer", []).append(_HOOK)
    spec["process"].pop("rlimits", None)
    (root / "etc/containerd/cri-base.json").write_text(json.dumps(spec))
    _allow_this_machine(root)
    _write(root, target)


def write_tools(target: Path, *, folder: Path) -> None:
    """Write the commands that kube-proxy and the pod network run: those of the firewall and the network."""
    root = folder / "tools"
    _debian(root, _TOOLS, variant="extract")
    for name in (f"{tool}{suffix}" for tool in _FIREWALL_TOOLS for suffix in ("", "-save", "-restore")):
        (root / "usr/sbin" / name).symlink_to("xtables-nft-multi")
    for path in (
        *root.glob("usr/lib/*/perl*"),
        *root.glob("usr/lib/*/gconv"),
        root / "usr/share",
        root / "var/lib/dpkg",
    ):
        shutil.rmtree(path, ignore_errors=True)
    _write(root, target)


def _add_kinds_files(files: Path, root: Path) -> None:
    for source in sorted(path for path in files.rglob("*") if path.is_file()):
        inside = source.relative_to(files)
        runs = inside.match("usr/local/bin/*") or inside.match("kind/bin/*")
        _copy(source, root / inside, mode=0o755 if runs else 0o644)


def _allow_this_machine(root: Path) -> None:
    """Let kubelet and pods start where cgroups are of version 1, or root may not lower an out-of-memory score."""
    settings = root / "etc/default/kubelet"
    settings.write_text(f"{settings.read_text().rstrip()} --fail-cgroupv1=false\n")
    runtime = root / "etc/containerd/config.toml"
    text = runtime.read_text()
    changed = text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
    if changed == text:
        raise ClusterError("Kind's configuration of containerd is not as expected: it has no restrict_oom_score_adj.")
    runtime.write_text(changed)


def _debian(root: Path, packages: Sequence[str], *, variant: str) -> None:
    options = ["--quiet", f"--variant={variant}", f"--include={','.join(packages)}", "--dpkgopt=force-unsafe-io"]
    _run("mmdebstrap", *options, *_NEVER_READ, DEBIAN, str(root))


def _within(root: Path, *command: str) -> str:
    return _run("chroot", str(root), *command)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        error = next((line for line in lines if line.startswith("E:")), lines[-1] if lines else "it wrote nothing")
        raise ClusterError(f"`{command[0]}` could not make the files of a node: {error.strip()}.")
    return done.stdout


def _copy(source: Path, target: Path, *, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _write(root: Path, target: Path) -> None:
    """Write the tree with its device nodes, owners and links, and remove it."""
    for folder in _UNWANTED:
        shutil.rmtree(root / folder, ignore_errors=True)
    with tarfile.open(target, "w") as tar:
        tar.add(root, ".")
    shutil.rmtree(root)
