"""Whose clusters the tests run on: our own, or with DRACO_TEST_PROVIDER=kind those of kind; and of which Kubernetes.

Owns the choice, and what follows from it for a test: kind's nodes run Draco as its users do, from an image, installed by helm.
"""

import os
from pathlib import Path
from typing import Final

from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES, parse

PROVIDER: Final = os.environ.get("DRACO_TEST_PROVIDER", "local")
assert PROVIDER in {"local", "kind"}, "DRACO_TEST_PROVIDER is local or kind"
ON_KIND: Final = PROVIDER == "kind"

KUBERNETES: Final = os.environ.get("DRACO_TEST_KUBERNETES", DEFAULT_KUBERNETES)
MINOR: Final = parse(KUBERNETES)[1]
TAINT_RULES: Final = "resource.k8s.io/v1beta2"
"""What manifests name in which a rule taints devices: the version that the reference Kubernetes serves."""

ARCHIVE: Final = Path(__file__).parents[2] / "build" / "simulated.tar"
"""The image with simulated GPUs; `make image-test` and `scripts/test` with kind build it."""


def suited(manifests: str) -> str:
    """Manifests as their user would write them for this Kubernetes: taint rules were served as an alpha version first."""
    return manifests if MINOR >= 36 else manifests.replace(TAINT_RULES, "resource.k8s.io/v1alpha3")


def options() -> list[str]:
    """Of `draco cluster up`, for every cluster that a test makes."""
    version = [] if KUBERNETES == DEFAULT_KUBERNETES else ["--kubernetes", KUBERNETES]
    return ["--provider", PROVIDER, *version]


def installed() -> list[str]:
    """The same for a cluster whose nodes run Draco from the image."""
    return [*options(), "--from-image", str(ARCHIVE)]
