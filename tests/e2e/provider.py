"""The provider of the tests' clusters, how Draco is installed on them, and their Kubernetes version.

DRACO_TEST_PROVIDER=kind: use kind instead of Draco's own clusters. DRACO_TEST_FROM_IMAGE=yes: install Draco with helm from an
image, on nodes that run containers, as users do; always on kind. Otherwise nodes are simulated, and up in seconds.
"""

import os
from pathlib import Path
from typing import Final

from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES, parse

PROVIDER: Final = os.environ.get("DRACO_TEST_PROVIDER", "local")
assert PROVIDER in {"local", "kind"}, "DRACO_TEST_PROVIDER is local or kind"
ON_KIND: Final = PROVIDER == "kind"

FROM_IMAGE: Final = ON_KIND or os.environ.get("DRACO_TEST_FROM_IMAGE", "no") == "yes"

KUBERNETES: Final = os.environ.get("DRACO_TEST_KUBERNETES", DEFAULT_KUBERNETES)
MINOR: Final = parse(KUBERNETES)[1]
TAINT_RULES: Final = "resource.k8s.io/v1beta2"
"""The version in manifests, which the reference Kubernetes serves; older ones serve an alpha."""

ARCHIVE: Final = Path(__file__).parents[2] / "build" / "simulated.tar"
"""The image with simulated GPUs; `make image-test` and `scripts/test` with kind build it."""

CLUSTER: Final = f"e2e-{os.getpid()}"
"""The cluster that all scenarios share."""

GPUS: Final = 8
"""GPUs per node."""

UP_S: Final = 900.0
"""How long a cluster may take to start: kind's first one builds its node image, in one minute or, under load, several."""

_WRITTEN: Final = ("gpu-node-0", "gpu-node-1")
if ON_KIND:
    NODES: Final = (f"draco-{CLUSTER}-worker", f"draco-{CLUSTER}-worker2")
elif FROM_IMAGE:
    NODES = ("real-1", "real-2")
else:
    NODES = _WRITTEN


def suited(manifests: str) -> str:
    """Manifests adapted to this cluster: its node names and served versions."""
    for written, name in zip(_WRITTEN, NODES, strict=True):
        manifests = manifests.replace(written, name)
    served = {34: "resource.k8s.io/v1alpha3", 35: "resource.k8s.io/v1alpha3", 36: TAINT_RULES}
    return manifests.replace(TAINT_RULES, served.get(MINOR, "resource.k8s.io/v1"))


def options() -> list[str]:
    """Options of `draco cluster up` for every cluster that a test creates."""
    version = [] if KUBERNETES == DEFAULT_KUBERNETES else ["--kubernetes", KUBERNETES]
    return ["--provider", PROVIDER, *version]


def installed() -> list[str]:
    """The options for a cluster whose nodes run Draco from the image."""
    return [*options(), "--from-image", str(ARCHIVE)]


def scenarios() -> list[str]:
    """The options for the cluster of all scenarios: two nodes with H100s."""
    nodes = ["--nodes", "0", "--real-nodes", "2", *installed()] if FROM_IMAGE else ["--nodes", "2", *options()]
    return [*nodes, "--gpus", str(GPUS), "--board", "H100-80GB"]
