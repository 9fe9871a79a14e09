"""Manifests that come with Draco: its CustomResourceDefinitions, examples, chart and installation.

Owns where they are: beside the package in an installed Draco, in the repository when Draco runs from a checkout.
"""

from pathlib import Path

import draco_local

_PACKAGE = Path(draco_local.__file__).parent
_REPOSITORY = _PACKAGE.parents[1]


def crds() -> Path:
    """Return the folder of CustomResourceDefinitions."""
    return _folder("crds")


def examples() -> Path:
    """Return the folder that holds one folder per example."""
    return _folder("manifests") / "examples"


def chart() -> Path:
    """Return the folder of the Helm chart."""
    return _folder("charts") / "draco"


def install() -> Path:
    """Return the one file that installs Draco without helm."""
    return _folder("manifests") / "install" / "draco.yaml"


def _folder(name: str) -> Path:
    # The checkout first: its files are the source of truth, and an editable install may carry an older copy.
    checkout = _REPOSITORY / name
    return checkout if (_REPOSITORY / "pyproject.toml").exists() and checkout.exists() else _PACKAGE / "assets" / name
