"""How far draining and Jobs are, as input of the state machine. Structs only: `draining` plans evictions, `working` Jobs."""

from datetime import timedelta
from enum import StrEnum

import msgspec

from draco.resources.api.meta import ObjectKey


class RefusedEviction(msgspec.Struct, frozen=True, order=True):
    """A pod that cannot be evicted now, with the reason as a short sentence."""

    pod: ObjectKey
    reason: str = ""


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a drain.

    `evict` are pods to evict now, `request` those to create EvictionRequests for. `leaving` were asked to leave or are
    terminating. `no_execute`: the taint has, or gets, the effect NoExecute. `waits_for` is how long pods may still finish.
    """

    evict: tuple[ObjectKey, ...] = ()
    request: tuple[ObjectKey, ...] = ()
    leaving: tuple[ObjectKey, ...] = ()
    refused: tuple[RefusedEviction, ...] = ()
    no_execute: bool = False
    message: str = ""
    waits_for: timedelta | None = None
    look_again: timedelta | None = None

    @property
    def begun(self) -> bool:
        """Whether pods are being made to leave."""
        return bool(self.evict or self.request or self.leaving or self.refused or self.no_execute)


class Purpose(StrEnum):
    """What a Job is for."""

    WORK = "work"
    VERIFICATION = "verification"


class FailedJob(msgspec.Struct, frozen=True, order=True):
    """A failed Job; `reason` is a sentence that says what to do."""

    name: str
    reason: str = ""


class JobsState(msgspec.Struct, frozen=True, kw_only=True):
    """The Jobs of one purpose: one per physical GPU.

    `missing` are names of Jobs to create, `claimless` those whose claim is missing or can never be allocated. `trouble` says why
    Jobs cannot be created or do not run now; it is no failure, and work continues once the cause is removed.
    """

    wanted: int = 0
    missing: tuple[str, ...] = ()
    claimless: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    succeeded: tuple[str, ...] = ()
    failed: tuple[FailedJob, ...] = ()
    trouble: str = ""
    look_again: timedelta | None = None

    @property
    def incomplete(self) -> bool:
        """Whether Jobs or claims have to be created."""
        return bool(self.missing or self.claimless)

    @property
    def done(self) -> bool:
        """Whether all have succeeded."""
        return 0 < self.wanted == len(self.succeeded)
