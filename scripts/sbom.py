"""List what the image is made of, as CycloneDX: the Dockerfile runs this and puts the list into the image.

Owns what is listed: the Python packages, each with the hash of the file that pip installed, Python itself, the Go modules of
NVIDIA's programs, and the Debian packages of the base. cyclonedx-python-lib writes the format. The list of an image is
reproducible to the byte: it contains nothing random and no time of the build.
"""

import argparse
import json
import platform
import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

OURS: Final = "draco-dra"


def main() -> None:
    """Print the list."""
    parser = argparse.ArgumentParser(description="List what the image is made of.")
    parser.add_argument("--packages", type=Path, required=True, help="folder that the Python packages are in")
    parser.add_argument(
        "--report", type=Path, action="append", default=[], help="pip's report of what it installed there"
    )
    parser.add_argument("--modules", type=Path, required=True, help="what `go version -m` says of NVIDIA's programs")
    parser.add_argument("--root", type=Path, required=True, help="the base's root file system")
    parser.add_argument("--made", type=int, required=True, help="when its source was committed, in seconds since 1970")
    asked = parser.parse_args()
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in asked.report]
    modules = asked.modules.read_text(encoding="utf-8")
    sys.stdout.write(sbom(asked.packages, reports, modules, asked.root, datetime.fromtimestamp(asked.made, UTC)))


def sbom(packages: Path, reports: Sequence[Any], modules: str, root: Path, made: datetime) -> str:
    """The list, as JSON."""
    found = [*python_packages(packages, hashes(reports)), *go_modules(modules), *debian_packages(root)]
    [ours] = [each for each in found if each.name == OURS]
    ours.type = ComponentType.APPLICATION
    rest = [python(), *(each for each in found if each is not ours)]
    bom = Bom(components=rest, metadata=BomMetaData(component=ours, timestamp=made))
    bom.register_dependency(ours, rest)
    said = "\n".join(sorted(str(each.purl) for each in rest))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{ours.purl} {made.isoformat()} {said}")
    return f"{JsonV1Dot6(bom).output_as_string(indent=1)}\n"


def hashes(reports: Sequence[Any]) -> dict[str, HashType]:
    """The hash of the file that each package came from, by the package's name."""
    return {
        _normal(one["metadata"]["name"]): HashType(alg=HashAlgorithm.SHA_256, content=content)
        for report in reports
        for one in report["install"]
        if (content := one["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256"))
    }


def python_packages(folder: Path, known: dict[str, HashType]) -> Iterator[Component]:
    """The packages that are in a folder."""
    licenses = LicenseFactory()
    for one in sorted(metadata.distributions(path=[str(folder)]), key=lambda each: _normal(each.name)):
        name = _normal(one.name)
        said = str(one.metadata.json.get("license_expression") or one.metadata.json.get("license") or "")
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=one.version,
            purl=PackageURL("pypi", None, name, one.version),
            bom_ref=f"pypi/{name}",
            hashes=[known[name]] if name in known else [],
            licenses=[licenses.make_from_string(said)] if said and "\n" not in said else [],
        )


def python() -> Component:
    """The interpreter, which no other list contains unless it was installed as a package."""
    version = platform.python_version()
    return Component(
        type=ComponentType.PLATFORM,
        name="cpython",
        version=version,
        purl=PackageURL("generic", None, "python", version),
        bom_ref="cpython",
    )


def go_modules(said: str) -> Iterator[Component]:
    """The modules that a Go program says it was built from."""
    for line in said.splitlines():
        kind, name, version, *_ = [*line.split(), "", "", ""][:3]
        if kind == "dep":
            namespace, _, short = name.rpartition("/")
            yield Component(
                type=ComponentType.LIBRARY,
                name=name,
                version=version,
                purl=PackageURL("golang", namespace, short, version),
                bom_ref=f"golang/{name}",
            )


def debian_packages(root: Path) -> Iterator[Component]:
    """The Debian packages that are installed; none if the base is not made of them."""
    status = root / "var/lib/dpkg/status"
    release = _release(root)
    for paragraph in status.read_text(encoding="utf-8").split("\n\n") if status.exists() else []:
        fields = Parser().parsestr(paragraph, headersonly=True)
        if fields.get("Status") != "install ok installed":
            continue
        name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            purl=PackageURL("deb", "debian", name, version, {"arch": architecture, "distro": release}),
            bom_ref=f"deb/{name}:{architecture}",
        )


def _release(root: Path) -> str:
    release = root / "etc/os-release"
    lines = release.read_text(encoding="utf-8").splitlines() if release.exists() else []
    said = dict(line.split("=", 1) for line in lines if "=" in line)
    return f"{said.get('ID', 'debian')}-{said.get('VERSION_ID', 'unknown')}".replace('"', "")


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    main()
