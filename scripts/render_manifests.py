"""Render derived files: the chart's copy of the CRDs and its list of boards, and manifests/install for plain kubectl.

Run it after a change to crds/, charts/draco or the table of known boards; a test compares its output with what is committed.
"""

import re
import shutil
import subprocess
from pathlib import Path

import yaml

from draco import __version__
from draco.mig.known_boards import BOARDS
from draco_local.cluster.programs import binaries
from scripts import image

REPOSITORY = Path(__file__).parents[1]
CHART = REPOSITORY / "charts" / "draco"
NAMESPACE = "draco-system"
VALUES = f"metrics.secure.certificates=Existing,image.repository={image.NAME}"
"""A private key committed here would be no secret. The image is the one that `make image` builds, on no registry."""
HEAD_OF_BOARDS = """\
# Written by scripts/render_manifests.py from operator/draco/mig/known_boards.toml; change that table, not this file.
"""
HEAD = f"""\
# Rendered from charts/draco by scripts/render_manifests.py; change the chart, not this file.
# Install with: kubectl apply --server-side -f manifests/install/draco.yaml
# The image is the one that `make image` writes to build/draco.tar: load it into your nodes first. If it is in your registry, put
# its name, best with its digest, in place of {image.NAME}:{__version__}, which no registry has.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
"""


def copy_crds() -> None:
    """The chart can only read files inside its own folder."""
    target = CHART / "files" / "crds"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(REPOSITORY / "crds", target)


def boards() -> str:
    """The chart's list of boards: families such as h100, each with what its product names contain and its MIG profiles."""
    families: dict[str, dict[str, object]] = {}
    profiles: dict[str, list[str]] = {}
    for name, board in BOARDS.items():
        plain = re.sub(r"-\d+GB$", "", name)
        family = plain.lower()
        known = profiles.setdefault(family, [])
        known += [each.name for each in board.profiles if each.name not in known]
        families[family] = {"product": f"NVIDIA {plain.replace('-', ' ')}", "profiles": known}
    return HEAD_OF_BOARDS + yaml.safe_dump(families, sort_keys=True)


def render() -> str:
    """The whole installation, with default values except for those that each installation must set."""
    helm = binaries.find("helm")["helm"]
    rendered = subprocess.run(
        [helm, "template", "draco", CHART, "--namespace", NAMESPACE, "--no-hooks", "--set", VALUES],
        check=True,
        capture_output=True,
        text=True,
    )
    return HEAD + rendered.stdout


def main() -> None:
    """Write all derived files."""
    copy_crds()
    (CHART / "files" / "boards.yaml").write_text(boards())
    target = REPOSITORY / "manifests" / "install" / "draco.yaml"
    target.parent.mkdir(exist_ok=True)
    target.write_text(render())


if __name__ == "__main__":
    main()
