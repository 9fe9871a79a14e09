"""How draining and the Jobs of a request go, as the state machine is told of it.

Owns the structs only: who is evicted is `draining`'s to plan, which Jobs are made is that of `working`.
"""

from datetime import timedelta
from enum import StrEnum

import msgspec

from draco.resources.api.meta import ObjectKey


class RefusedEviction(msgspec.Struct, frozen=True, order=True):
    """A pod that may not be evicted now, and why, in a short sentence."""

    pod: ObjectKey
    reason: str = ""


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How emptying the devices goes.

    `evict` are pods to be asked to leave now, `request` those that the cluster is to be asked to make leave. `entrusted` are the
    ones that it makes leave, which are `leaving` or `refused`. `leaving` are those that were asked or are ending. While
    `no_execute` is true the taint is one that deletes pods. `waits_for` is how long pods may still finish.
    """

    evict: tuple[ObjectKey, ...] = ()
    request: tuple[ObjectKey, ...] = ()
    entrusted: tuple[ObjectKey, ...] = ()
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
    """What a request's Job is for."""

    WORK = "work"
    VERIFICATION = "verification"


class FailedJob(msgspec.Struct, frozen=True, order=True):
    """A Job that failed; `reason` is a sentence that says what to do."""

    name: str
    reason: str = ""


class JobsState(msgspec.Struct, frozen=True, kw_only=True):
    """The Jobs of one purpose: one is wanted for each physical GPU.

    `missing` are names of those to be made, `claimless` of those whose claim is not there, or can never be allocated as it is.
    `trouble` says why none can be made now or does its work, which is no failure: it goes on when that is put right.
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
        """Whether something is to be made."""
        return bool(self.missing or self.claimless)

    @property
    def done(self) -> bool:
        """Whether every one has succeeded."""
        return 0 < self.wanted == len(self.succeeded)
