"""How far the parts of maintenance are that take their time: pods that leave, and Jobs that work on devices or try them.

Owns the structs by which these parts and the state machine speak to each other. Decides nothing.
"""

from datetime import timedelta

import msgspec

from draco.resources.api.meta import ObjectKey


class RefusedEviction(msgspec.Struct, frozen=True, order=True):
    """A pod that may not be evicted now, and why: `budgets` are the PodDisruptionBudgets ("namespace/name"), may be empty."""

    pod: ObjectKey
    budgets: tuple[str, ...] = ()
    reason: str = ""


class DrainState(msgspec.Struct, frozen=True, kw_only=True):
    """How emptying the devices goes.

    `evict` are pods to be asked to leave now, `leaving` those that were asked or are terminating, `stays` those that nothing
    makes leave, `unheld` claims that hold devices without any pod. While `no_execute` is true the rules have the effect NoExecute.
    `waits_for` is how long pods may still end by themselves.
    """

    evict: tuple[ObjectKey, ...] = ()
    leaving: tuple[ObjectKey, ...] = ()
    refused: tuple[RefusedEviction, ...] = ()
    stays: tuple[ObjectKey, ...] = ()
    unheld: tuple[str, ...] = ()
    no_execute: bool = False
    message: str = ""
    waits_for: timedelta | None = None
    look_again: timedelta | None = None

    @property
    def begun(self) -> bool:
        """Whether anybody was, or is to be, asked to leave."""
        return bool(self.evict or self.leaving or self.refused or self.no_execute)


class FailedJob(msgspec.Struct, frozen=True, order=True):
    """A Job that failed, and a sentence that says what failed and what to do."""

    name: str
    reason: str


class JobsState(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one purpose of one request: one for each of `wanted` GPUs. `missing` are to be made now.

    `trouble` is a sentence about what is not a failure: put right, the work goes on.
    """

    wanted: int = 0
    missing: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    succeeded: tuple[str, ...] = ()
    failed: tuple[FailedJob, ...] = ()
    trouble: str = ""
    look_again: timedelta | None = None

    @property
    def done(self) -> bool:
        """Whether all have succeeded."""
        return self.wanted > 0 and len(self.succeeded) == self.wanted
