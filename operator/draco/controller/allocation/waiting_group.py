"""A group of claims that waits for Draco, as it was when it was read: what passes from one step of allocation to the next."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from draco.placing.groups.group import ClaimGroup
from draco.resources.api.claims import ResourceClaim


class WaitingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that can be asked about. `loose` are claims that others of it have and no pod uses yet."""

    uid: str
    group: ClaimGroup
    order: tuple[int, str, str]
    """By priority, age and name."""
    priority: int | None = None
    """That of its pods: of a group, `group_priority`; of a reservation, its PriorityClass'. None for a claim alone."""
    may_preempt: bool = False
    """Whether others may be evicted for it: every member has pods, and none of these forbids it."""
    since: datetime | None = None
    """When the last was there of what it needs: pods that nobody else's gate held, claims, its PodGroup."""
    loose: Sequence[ResourceClaim] = ()
    unready: str = ""
    """Why it is not to be asked about yet: one sentence."""

    @property
    def called(self) -> str:
        """How people know it: by its name, or else its first pod or claim."""
        member = self.group.members[0]
        return self.group.name or str((member.pods[0] if member.pods else member.claims[0]).metadata.key)

    @property
    def namespace(self) -> str:
        """Of all its claims."""
        return self.group.members[0].claims[0].metadata.namespace
