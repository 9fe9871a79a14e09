"""What can go wrong on a node, each as one sentence for a person.

Owns the hierarchy only; a sentence is written where it is raised.
"""

from typing import TYPE_CHECKING

from draco.resources.errors import DracoError

if TYPE_CHECKING:
    from draco.agent.checkpoint import Loaded


class AgentError(DracoError):
    """Base of the agent's errors."""


class SettingsError(AgentError):
    """The agent was told something that cannot work."""


class AnotherPlugin(AgentError):
    """Something else already serves this driver, or this folder, on the node. `ours`: it is an agent of Draco, too."""

    def __init__(self, sentence: str, *, ours: bool = False) -> None:
        super().__init__(sentence)
        self.ours = ours


class PrepareError(AgentError):
    """A claim cannot be prepared, or given up, as things stand."""


class InstanceHeld(PrepareError):
    """A claim cannot be given up yet, because somebody still uses an instance of its."""


class CheckpointDamaged(AgentError):
    """The record of prepared claims cannot be trusted. `before` is what it said before the damage, if that is known."""

    def __init__(self, sentence: str, *, before: "Loaded | None" = None) -> None:
        super().__init__(sentence)
        self.before = before


class ClusterUnsuited(AgentError):
    """The cluster lacks what an agent cannot work without."""
