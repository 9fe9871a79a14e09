"""What a node can hold the shares of a GPU to. Pure.

Owns that question for the operator, which decides what is shared, and for the agent, which publishes it, and the level of
`draco.dev/memoryLimit` with which a shared device is published.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from draco.allocation.configurations import NEEDS_OF_MPS
from draco.resources.api.draco import GpuSharing, MemoryLimitBy
from draco.resources.api.sharing import Enforcement

HELD_BY: Final[Mapping[Enforcement, MemoryLimitBy]] = MappingProxyType(
    {
        Enforcement.NONE: MemoryLimitBy.NONE,
        Enforcement.DRIVER_LIMIT: MemoryLimitBy.DRIVER,
        Enforcement.MPS: MemoryLimitBy.MPS,
        Enforcement.LIBRARY: MemoryLimitBy.LIBRARY,
    }
)
"""Who holds a share to its memory, by the enforcement of its policy."""


def possible(sharing: GpuSharing | None) -> dict[Enforcement, bool | None]:
    """Whether a GPU can have each kind of enforcement; None if unknown."""
    can = sharing or GpuSharing()
    limited = None if can.memory_limit is None else can.memory_limit is MemoryLimitBy.DRIVER
    return {
        Enforcement.NONE: True,
        Enforcement.DRIVER_LIMIT: limited,
        Enforcement.MPS: can.mps,
        Enforcement.LIBRARY: can.library,
    }


def unable(sharing: GpuSharing | None, wanted: Enforcement) -> str:
    """Why a GPU cannot have an enforcement, as the end of a sentence."""
    can = [each.value for each, able in possible(sharing).items() if able]
    why = f"its node cannot enforce spec.enforcement {wanted}, only {', '.join(sorted(can))}"
    if wanted is Enforcement.DRIVER_LIMIT:
        return f"{why}; that takes NVIDIA's driver 615 or newer, and cgroup v2"
    if wanted is Enforcement.MPS:
        return f"{why}; {NEEDS_OF_MPS}"
    if wanted is Enforcement.LIBRARY and sharing is not None and sharing.library_problem:
        return f"{why}: {sharing.library_problem}"
    if wanted is Enforcement.LIBRARY:
        return f"{why}; that takes the library on the node, at the path in chart value agent.limitLibrary"
    return why
