"""Draco installed as users install it: with helm, from the chart, and with an image that the nodes have.

Owns the values that differ from the chart's own, and helm's command line. Must not build images: `scripts/image.py` does.
"""

import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from draco_local.cluster import data
from draco_local.cluster.attach import SYSTEM_NAMESPACE
from draco_local.cluster.errors import ClusterError
from draco_local.cluster.realnode.config import DRIVER_ROOT
from draco_local.simulator.gpus import state

RELEASE: Final = "draco"
GPU_PRESENT: Final = {"nvidia.com/gpu.present": "true"}
"""The label by which the chart finds GPU nodes: NVIDIA's GPU feature discovery puts it on them."""


class _Image(msgspec.Struct):
    tags: list[str] = msgspec.field(name="RepoTags", default_factory=list)


def image_of(archive: Path) -> str:
    """Return the name of the image in an archive of `docker save`. Raises ClusterError for any other file."""
    try:
        with tarfile.open(archive) as tar:
            manifest = tar.extractfile("manifest.json")
            images = msgspec.json.decode(manifest.read(), type=list[_Image]) if manifest else []
    except (OSError, KeyError, tarfile.TarError, msgspec.DecodeError) as error:
        raise ClusterError(
            f"{archive} is not an archive of an image: make one with `docker save` ({error})."
        ) from error
    names = [tag for image in images for tag in image.tags]
    if not names:
        raise ClusterError(f"The image in {archive} has no name: save it by its name, not by its id.")
    return names[0]


def install(
    helm: Path, kubeconfig: Path, image: str, *, operator: bool, allocate: bool = False, within_s: float
) -> None:
    """Install the chart and return when its pods are ready. Raises ClusterError with helm's error."""
    command = [
        helm,
        "--kubeconfig",
        kubeconfig,
        "--namespace",
        SYSTEM_NAMESPACE,
        "upgrade",
        "--install",
        RELEASE,
        data.chart(),
    ]
    options = ["--create-namespace", "--wait", "--timeout", f"{within_s:.0f}s", "--values", "-"]
    _run([*map(str, command), *options], values(image) | {"operator": {"enabled": operator, "allocate": allocate}})


def rendered(helm: Path, kubeconfig: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chart's documents for these values and for what the cluster serves; nothing is installed.

    Raises ClusterError with helm's error.
    """
    command = [helm, "--kubeconfig", kubeconfig, "--namespace", SYSTEM_NAMESPACE, "template", RELEASE, data.chart()]
    documents = _run([*map(str, command), "--dry-run=server", "--no-hooks", "--values", "-"], values)
    return [each for each in yaml.safe_load_all(documents) if each]


def _run(command: list[str], values: object) -> str:
    done = subprocess.run(command, input=json.dumps(values), check=False, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"helm could not install Draco: {done.stderr.strip()}")
    return done.stdout


def values(image: str) -> dict[str, Any]:
    """Return the values for nodes of this machine, whose GPUs are simulated below NVML in the image."""
    repository, _, tag = image.rpartition(":")
    folder = str(state.ON_A_NODE.parent)
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "agent": {
            "driverRoot": DRIVER_ROOT,
            "extraVolumes": [{"name": "gpus", "hostPath": {"path": folder}}],
            "extraVolumeMounts": [{"name": "gpus", "mountPath": folder}],
        },
    }
