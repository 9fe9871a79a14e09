"""Render what is derived from crds/ and the chart: the chart's copy of the CRDs, and manifests/install for plain kubectl.

Run it after a change to crds/ or charts/draco; a test compares its output with what is committed.
"""

import shutil
import subprocess
from pathlib import Path

from draco_local.cluster.programs import binaries

REPOSITORY = Path(__file__).parents[1]
CHART = REPOSITORY / "charts" / "draco"
NAMESPACE = "draco-system"
VALUES = "metrics.secure.certificates=Existing"
"""A key that everybody can read here is none."""
HEAD = f"""\
# Rendered from charts/draco by scripts/render_manifests.py; change the chart, not this file.
# Install with: kubectl apply --server-side -f manifests/install/draco.yaml
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


def render() -> str:
    """The whole installation, with default values but for what must be each installation's own."""
    helm = binaries.find("helm")["helm"]
    rendered = subprocess.run(
        [helm, "template", "draco", CHART, "--namespace", NAMESPACE, "--skip-tests", "--set", VALUES],
        check=True,
        capture_output=True,
        text=True,
    )
    return HEAD + rendered.stdout


def main() -> None:
    """Write both."""
    copy_crds()
    target = REPOSITORY / "manifests" / "install" / "draco.yaml"
    target.parent.mkdir(exist_ok=True)
    target.write_text(render())


if __name__ == "__main__":
    main()
