"""The agent's errors, each one sentence for a person. Owns the hierarchy; sentences are written where they are raised."""

from draco.resources.errors import DracoError
from draco.resources.names import ClaimUid


class AgentError(DracoError):
    """Base of the agent's errors."""


class SettingsError(AgentError):
    """A setting of the agent cannot work."""


class AnotherPlugin(AgentError):
    """Something else already serves this driver, or uses this folder, on the node. `ours`: it is a Draco agent too."""

    def __init__(self, sentence: str, *, ours: bool = False) -> None:
        super().__init__(sentence)
        self.ours = ours


class PrepareError(AgentError):
    """A claim cannot be prepared or unprepared now."""


class InstanceHeld(PrepareError):
    """A claim cannot be unprepared yet: a process still uses one of its instances."""


class StillPrepared(PrepareError):
    """A claim cannot be prepared while the claim `holder` has its device."""

    def __init__(self, sentence: str, *, holder: ClaimUid) -> None:
        super().__init__(sentence)
        self.holder = holder


class ClusterUnsuited(AgentError):
    """The cluster lacks a feature that the agent needs."""


class DeviceMissing(PrepareError):
    """A device of a claim is gone, or cannot be observed."""


class ClaimUnread(PrepareError):
    """The API server could not be asked for the claim."""
