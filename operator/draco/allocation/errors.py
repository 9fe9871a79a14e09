"""How an allocation fails, as opposed to not fitting.

Owns the errors: those that end the attempt on every node, and one that only rules out the node at hand. Not fitting is no error.
"""

from typing import ClassVar

from draco.resources.errors import DracoError


class AllocationError(DracoError):
    """The claims cannot be allocated anywhere until something is put right; kube-scheduler gives up on the pod's attempt."""

    fatal: ClassVar[bool] = True


class NodeError(AllocationError):
    """The claims cannot be allocated on this node because of what is published for it; other nodes may still do."""

    fatal: ClassVar[bool] = False


class SearchTooLong(AllocationError):
    """Whether the claims fit was not found out: the number of combinations is beyond the bound of one search.

    kube-scheduler gives up on such claims too, by time.
    """
