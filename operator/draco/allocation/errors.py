"""Errors of allocation: those that end the attempt on every node, and one for a single node. Not fitting is no error."""

from typing import ClassVar

from draco.resources.errors import DracoError


class AllocationError(DracoError):
    """The claims cannot be allocated on any node until something is corrected; kube-scheduler gives up on the pod."""

    fatal: ClassVar[bool] = True


class NodeError(AllocationError):
    """The claims cannot be allocated on this node because of what is published for it; other nodes may fit."""

    fatal: ClassVar[bool] = False


class SearchTooLong(AllocationError):
    """The search reached its limit of combinations without an answer. kube-scheduler times out on such claims too."""
