"""Where the projects publish their released programs, and how they write checksums down.

Owns the addresses. Fetching is in `download`; what is not published for this machine is not listed here, and built instead.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_DIGEST = re.compile(r"([0-9a-fA-F]{64})(?:[ \t]+\*?(?P<name>\S+))?[ \t]*")


class Release(NamedTuple):
    """One published file of a module. `programs` are those of interest, by name: where in the archive; "" for the file itself."""

    module: str
    site: str
    path: str
    checksums: str
    programs: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]


def releases(module: str, programs: Sequence[str], *, machine: str) -> list[Release]:
    """The published files that hold `programs` of `module` ("etcd-3.6.8") for a machine as `uname -m` names it."""
    architecture = _ARCHITECTURES.get(machine.lower())
    if architecture is None:
        return []
    name, _, version = module.rpartition("-")
    match name:
        case "kubernetes":
            folder = f"/release/v{version}/bin/linux/{architecture}"
            return [
                Release(module, "dl.k8s.io", f"{folder}/{program}", f"{folder}/{program}.sha256", {program: ""})
                for program in programs
            ]
        case "etcd":
            folder = f"/etcd-io/etcd/releases/download/v{version}"
            archive = f"etcd-v{version}-linux-{architecture}"
            inside = {program: f"{archive}/{program}" for program in programs}
            return [Release(module, "github.com", f"{folder}/{archive}.tar.gz", f"{folder}/SHA256SUMS", inside)]
        case "containerd":
            # The static one: the other needs a C library as new as that of the machine it was built on.
            file = f"/containerd/containerd/releases/download/v{version}/containerd-static-{version}-linux-{architecture}.tar.gz"
            return [
                Release(
                    module, "github.com", file, f"{file}.sha256sum", {program: f"bin/{program}" for program in programs}
                )
            ]
        case "helm":
            file = f"/helm-v{version}-linux-{architecture}.tar.gz"
            inside = {program: f"linux-{architecture}/{program}" for program in programs}
            return [Release(module, "get.helm.sh", file, f"{file}.sha256sum", inside)]
        case _:
            return []


def url(release: Release, path: str, *, mirror: str = "") -> str:
    """Where `path` of a release's site is: there, or below a mirror's folder of that site, as `wget -x` makes it."""
    return f"{mirror.rstrip('/')}/{release.site}{path}" if mirror else f"https://{release.site}{path}"


def digest(text: str, name: str) -> str | None:
    """The SHA-256 of the file `name` that a checksum file says: alone, or on a line with the name; None if it says none."""
    for line in text.splitlines():
        if (match := _DIGEST.fullmatch(line)) and (match["name"] or name).rpartition("/")[2] == name:
            return match[1].lower()
    return None
