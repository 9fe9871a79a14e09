"""What can go wrong with a cluster, each in one sentence that says what to do.

Owns the hierarchy; the sentences stand where they are raised.
"""

from draco.resources.errors import DracoError


class ClusterError(DracoError):
    """A cluster could not be started, found or removed; the message is one sentence for a person."""


class BinariesMissing(ClusterError):
    """A program is neither in a named folder nor in the cache, and cannot be built here."""


class WrongVersion(ClusterError):
    """A program found in a folder that the user named is of another Kubernetes version than the one asked for."""


class PortInUse(ClusterError):
    """A port that was asked for is taken, or no free one was found."""


class ProcessFailed(ClusterError):
    """A background process stopped, or did not become ready in time."""


class UnknownCluster(ClusterError):
    """No cluster of that name is recorded on this machine."""


class StateDamaged(ClusterError):
    """What was recorded of a cluster cannot be read."""


class MissingRequirement(ClusterError):
    """This machine or that cluster lacks something that was asked for."""
