"""What can go wrong on a node, each as one sentence for a person.

Owns the hierarchy only; a sentence is written where it is raised.
"""

from draco.resources.errors import DracoError


class AgentError(DracoError):
    """Base of the agent's errors."""


class SettingsError(AgentError):
    """The agent was told something that cannot work."""


class AnotherPlugin(AgentError):
    """Something else already serves this driver, or this folder, on the node."""


class PrepareError(AgentError):
    """A claim cannot be prepared, or given up, as things stand."""


class InstanceHeld(PrepareError):
    """A claim cannot be given up yet, because somebody still uses an instance of its."""


class CheckpointDamaged(AgentError):
    """The record of prepared claims cannot be trusted."""


class ClusterUnsuited(AgentError):
    """The cluster lacks what an agent cannot work without."""
