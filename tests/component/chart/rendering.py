"""What the real helm makes of the chart, without a cluster."""

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

from draco_local.cluster.programs import binaries

CHART = Path(__file__).parents[3] / "charts" / "draco"
NAMESPACE = "draco-system"
IMAGE = ("--set", "image.repository=registry.example.com/draco")
"""What everybody has to say who installs the chart."""
MONITORING = ("--api-versions", "monitoring.coreos.com/v1/ServiceMonitor,monitoring.coreos.com/v1/PrometheusRule")
"""As on a cluster with the Prometheus operator."""


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the real helm, whatever comes of it."""
    command = [str(binaries.find("helm")["helm"]), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(*arguments: str) -> list[dict[str, Any]]:
    """Documents of the chart for these values."""
    return [document for document in yaml.load_all(_rendered(*arguments), yaml.CSafeLoader) if document]


@functools.cache
def _rendered(*arguments: str) -> str:
    done = helm("template", "draco", CHART, "--namespace", NAMESPACE, "--no-hooks", *IMAGE, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(*arguments: str) -> str:
    """What helm says when it refuses these values."""
    done = helm("template", "draco", CHART, *IMAGE, *arguments)
    assert done.returncode != 0
    return done.stderr


def kinds(documents: list[dict[str, Any]]) -> set[str]:
    """The kinds of some documents."""
    return {document["kind"] for document in documents}


def only(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one document of a kind."""
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def pod_of(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The spec of the pods of the one Deployment or DaemonSet."""
    spec: dict[str, Any] = only(documents, kind)["spec"]["template"]["spec"]
    return spec
