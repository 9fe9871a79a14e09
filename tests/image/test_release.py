"""A release as users get it: an image in a registry, and a chart there that names exactly this image."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from draco import __version__
from draco_local.cluster.programs import binaries
from tests.doubles.registry import Registry, a_registry

ROOT = Path(__file__).parents[2]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with a_registry() as made:
        yield made


def test_the_published_chart_installs_the_published_image(registry: Registry, tmp_path: Path) -> None:
    environment = os.environ | {"NO_PROXY": "*", "HELM_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "scripts.release", "publish", f"{registry.address}/draco-dra", "--plain-http"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    published = dict(line.split("=", 1) for line in (ROOT / "build" / "published").read_text().splitlines())
    assert registry.manifests.keys() >= {f"draco-dra/draco:{__version__}", f"draco-dra/charts/draco:{__version__}"}
    assert registry.manifests.keys() >= {f"draco-dra/draco@{published['image_digest']}"}

    helm = str(binaries.find("helm")["helm"])
    chart = f"oci://{published['chart']}"
    pulled = [helm, "template", "draco", chart, "--version", __version__, "--plain-http", "--namespace", "draco-system"]
    shown = subprocess.run(pulled, env=environment, capture_output=True, text=True, check=True).stdout
    pods = [
        each["spec"]["template"]["spec"]
        for each in yaml.safe_load_all(shown)
        if each and each["kind"] in {"Deployment", "DaemonSet"}
    ]
    wanted = f"{published['image']}@{published['image_digest']}"
    assert {container["image"] for pod in pods for container in pod["containers"]} == {wanted}
