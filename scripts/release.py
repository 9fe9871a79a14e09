"""Release what is committed: `python -m scripts.release check TAG | package | publish REGISTRY`.

Owns what belongs to one release and its names: the image as REGISTRY/draco:VERSION, and a chart of that version in
REGISTRY/charts that names this image by its digest. The workflow decides who may publish, and attests it.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from draco import __version__
from draco_local.cluster.programs import binaries
from scripts import image
from scripts.system_packages import quietly

ROOT: Final = Path(__file__).parent.parent
CHART: Final = ROOT / "charts" / "draco"
BUILD: Final = ROOT / "build"
IMAGES: Final = "artifacthub.io/images"
PUBLISHED: Final = BUILD / "published"
"""What was published, as lines of `name=value`: image, image_digest, chart, chart_digest."""


def main() -> None:
    """Do one step of a release."""
    parser = argparse.ArgumentParser(description="Release what is committed.")
    steps = parser.add_subparsers(dest="step", required=True)
    check_ = steps.add_parser("check", help="check that everything has the version of the tag")
    check_.add_argument("tag", help="such as v1.2.3")
    steps.add_parser("package", help="check the chart and write it to build/")
    publish_ = steps.add_parser("publish", help="push the image that `make image` built, and a chart that names it")
    publish_.add_argument("registry", help="such as ghcr.io/OWNER")
    publish_.add_argument("--plain-http", action="store_true", help="the registry does not use TLS")
    asked = parser.parse_args()
    match asked.step:
        case "check":
            if faults := wrong_versions(asked.tag, ROOT):
                sys.exit("\n".join(faults))
        case "package":
            print(package("", ""))
        case "publish":
            print(publish(asked.registry, ["--plain-http"] if asked.plain_http else []))


def wrong_versions(tag: str, root: Path) -> list[str]:
    """What does not have the tag's version, one sentence each."""
    wanted = tag.removeprefix("v")
    chart = yaml.safe_load((root / "charts/draco/Chart.yaml").read_text(encoding="utf-8"))
    code = (root / "operator/draco/__init__.py").read_text(encoding="utf-8")
    said = {
        "operator/draco/__init__.py": re.findall(r'^__version__ = "(.*)"$', code, re.MULTILINE)[0],
        "version in charts/draco/Chart.yaml": str(chart["version"]),
        "appVersion in charts/draco/Chart.yaml": str(chart["appVersion"]),
    }
    faults = [f"{where} says {version}, the tag {wanted}." for where, version in said.items() if version != wanted]
    if f"\n## {wanted}" not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        faults.append(f"CHANGELOG.md has no section {wanted}: rename the heading Unreleased.")
    return faults


def package(repository: str, digest: str) -> Path:
    """Check the chart and pack it, with the image of that repository and digest if they are given."""
    helm = str(binaries.find("helm")["helm"])
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "draco"
        shutil.copytree(CHART, chart)
        if repository:
            round_trip = YAML()
            round_trip.width = 1 << 16
            round_trip.preserve_quotes = True
            round_trip.indent(mapping=2, sequence=4, offset=2)
            values = round_trip.load(chart / "values.yaml")
            values["image"].update(repository=repository, digest=digest)
            round_trip.dump(values, chart / "values.yaml")
            about = round_trip.load(chart / "Chart.yaml")
            about["annotations"][IMAGES] = LiteralScalarString(f"- name: draco\n  image: {repository}@{digest}\n")
            round_trip.dump(about, chart / "Chart.yaml")
        quietly([helm, "lint", "--strict", str(chart)])
        quietly([helm, "package", str(chart), "--destination", str(BUILD)])
    return BUILD / f"draco-{__version__}.tgz"


def publish(registry: str, http: list[str]) -> str:
    """Push the image and the chart; returns what was published, and writes it to PUBLISHED."""
    repository = f"{registry}/draco"
    with image.engine_here() as engine:
        digest = engine.push(f"{image.NAME}:{__version__}", f"{repository}:{__version__}")
    helm = str(binaries.find("helm")["helm"])
    pushed = subprocess.run(
        [helm, "push", str(package(repository, digest)), f"oci://{registry}/charts", *http],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"^Digest: (sha256:[0-9a-f]{64})$", f"{pushed.stdout}{pushed.stderr}", re.MULTILINE)
    if pushed.returncode != 0 or not found:
        sys.exit(f"{pushed.stdout}{pushed.stderr}The chart was not pushed: the lines above say why.")
    made = {"image": repository, "image_digest": digest, "chart": f"{registry}/charts/draco", "chart_digest": found[1]}
    told = "".join(f"{name}={value}\n" for name, value in made.items())
    PUBLISHED.write_text(told, encoding="utf-8")
    return told


if __name__ == "__main__":
    main()
