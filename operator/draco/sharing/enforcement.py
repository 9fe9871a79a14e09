"""What a node can hold the shares of a GPU to. Pure.

Owns that question for the operator, which decides what is shared, and for the agent, which publishes it.
"""

from typing import Final

from draco.resources.api.draco import MemoryLimitBy
from draco.resources.api.sharing import Enforcement

KNOWN: Final = frozenset({Enforcement.NONE, Enforcement.DRIVER_LIMIT})
"""The kinds that agents carry out where their GPUs can."""


def enforceable(memory_limit: MemoryLimitBy | None) -> frozenset[Enforcement]:
    """The kinds of enforcement that a GPU can have. `memory_limit`: who holds limits on its memory, None if unknown."""
    return KNOWN if memory_limit is MemoryLimitBy.DRIVER else frozenset({Enforcement.NONE})
