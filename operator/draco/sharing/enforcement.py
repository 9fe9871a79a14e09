"""What a node can hold the shares of its GPUs to. Pure.

Owns that question for the operator, which decides what is shared, and for the agent, which publishes it.
"""

from draco.resources.api.sharing import Enforcement


def enforceable() -> frozenset[Enforcement]:
    """The kinds of enforcement that agents carry out."""
    return frozenset({Enforcement.NONE})
