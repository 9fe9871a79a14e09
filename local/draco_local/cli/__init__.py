"""The commands that this package adds to `draco`: they make, show and break a local cluster."""

from types import MappingProxyType
from typing import Final

COMMANDS: Final = MappingProxyType(
    {
        "cluster": ("draco_local.cli.cluster", "Run a local Kubernetes cluster with simulated GPUs."),
        "demo": ("draco_local.cli.demo", "Show on a local cluster what Draco does, in about a minute."),
    }
)
"""Each command by name: its module and its line in `draco --help`, as in `draco.cli`."""
