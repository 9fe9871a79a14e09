"""The chart as the real helm renders it, without a cluster."""

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

from draco_local.cluster.programs import binaries

CHART = Path(__file__).parents[3] / "charts" / "draco"
NAMESPACE = "draco-system"
IMAGE = ("--set", "image.repository=registry.example.com/draco")
"""Options that every installation needs."""
MONITORING = ("--api-versions", "monitoring.coreos.com/v1/ServiceMonitor,monitoring.coreos.com/v1/PrometheusRule")
"""As on a cluster with the Prometheus operator."""


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the real helm; a failure does not raise."""
    command = [str(binaries.find("helm")["helm"]), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(*arguments: str) -> list[dict[str, Any]]:
    """The chart's documents for these values."""
    return [document for document in yaml.load_all(_rendered(*arguments), yaml.CSafeLoader) if document]


@functools.cache
def _rendered(*arguments: str) -> str:
    done = helm("template", "draco", CHART, "--namespace", NAMESPACE, "--no-hooks", *IMAGE, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(*arguments: str) -> str:
    """Helm's message when it refuses these values."""
    done = helm("template", "draco", CHART, *IMAGE, *arguments)
    assert done.returncode != 0
    return done.stderr


def kinds(documents: list[dict[str, Any]]) -> set[str]:
    """The kinds of these documents."""
    return {document["kind"] for document in documents}


def only(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one document of a kind."""
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def pod_of(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The pod spec of the only Deployment or DaemonSet."""
    spec: dict[str, Any] = only(documents, kind)["spec"]["template"]["spec"]
    return spec
