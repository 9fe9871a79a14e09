"""The commands that make, break and show a local cluster, as `draco` has them where this package is installed."""

from types import MappingProxyType
from typing import Final

COMMANDS: Final = MappingProxyType(
    {
        "cluster": ("draco_local.cli.cluster", "Run a local Kubernetes with GPU nodes, real but for the GPUs."),
        "demo": ("draco_local.cli.demo", "Show on a local cluster what Draco does, in about a minute."),
    }
)
"""By name: the module of a command, and what `draco --help` says of it; as in `draco.cli`."""
