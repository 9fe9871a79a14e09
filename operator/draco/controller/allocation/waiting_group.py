"""A group of claims that waits for Draco, as read: the value passed between the steps of an allocation."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from draco.placing.groups.group import ClaimGroup
from draco.resources.api.claims import ResourceClaim


class WaitingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting group. `loose` are claims of its other members that no pod uses yet."""

    uid: str
    group: ClaimGroup
    order: tuple[int, str, str]
    """Priority, age and name."""
    priority: int | None = None
    """Of its pods: for a group `group_priority`, for a reservation that of its PriorityClass. None for a claim alone."""
    may_preempt: bool = False
    """Whether others may be evicted for it: every member has pods, and none of them forbids it."""
    since: datetime | None = None
    """When it became complete: pods without another controller's gate, claims, its PodGroup."""
    loose: Sequence[ResourceClaim] = ()
    unready: str = ""
    """Why it cannot be asked about yet, one sentence; "" if it can."""

    @property
    def called(self) -> str:
        """Its display name: its own, or that of its first pod or claim."""
        member = self.group.members[0]
        return self.group.name or str((member.pods[0] if member.pods else member.claims[0]).metadata.key)

    @property
    def namespace(self) -> str:
        """The namespace of all its claims."""
        return self.group.members[0].claims[0].metadata.namespace
