"""What can go wrong on a node, each as one sentence for a person.

Owns the hierarchy only; a sentence is written where it is raised.
"""

from draco.resources.errors import DracoError
from draco.resources.names import ClaimUid


class AgentError(DracoError):
    """Base of the agent's errors."""


class SettingsError(AgentError):
    """The agent has a setting that cannot work."""


class AnotherPlugin(AgentError):
    """Something else already serves this driver, or this folder, on the node. `ours`: it is an agent of Draco, too."""

    def __init__(self, sentence: str, *, ours: bool = False) -> None:
        super().__init__(sentence)
        self.ours = ours


class PrepareError(AgentError):
    """A claim cannot be prepared, or given up, as things stand."""


class InstanceHeld(PrepareError):
    """A claim cannot be given up yet, because somebody still uses an instance of its."""


class StillPrepared(PrepareError):
    """A claim cannot be prepared while another one, `holder`, has its device."""

    def __init__(self, sentence: str, *, holder: ClaimUid) -> None:
        super().__init__(sentence)
        self.holder = holder


class ClusterUnsuited(AgentError):
    """The cluster lacks what an agent cannot work without."""


class DeviceMissing(PrepareError):
    """A device of a claim is gone, or cannot be observed."""


class ClaimUnread(PrepareError):
    """The API server could not be asked for the claim."""
