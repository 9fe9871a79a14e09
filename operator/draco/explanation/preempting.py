"""Whether pods of a lower priority are evicted for one that waits for devices of Draco's: what happens, in a sentence.

Owns the wording, and which of several reasons against it is said. Finds nothing out itself.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from draco.resources.texts import agreeing, are, counted, listed, them

_NOBODY: Final = "Draco evicts nobody for the pod"


class PreemptionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pod that waits, and of those that have devices which Draco allocated.

    `leaving` are pods that are being deleted, `lower` those of a lower priority that may be evicted, and `guarded` those that
    could be but for the PodDisruptionBudgets `budgets`. `kept` have a lower priority and use what DeviceReservations keep, whose
    own priority is not lower: `reservations` names them with it.
    """

    priority: int
    is_permitted: bool
    """Whether some MigPolicy permits preemption."""
    never: bool = False
    """The pod's own preemptionPolicy."""
    leaving: Sequence[str] = ()
    lower: Sequence[str] = ()
    guarded: Sequence[str] = ()
    budgets: Sequence[str] = ()
    kept: Sequence[str] = ()
    reservations: Sequence[str] = ()


def preemption_text(facts: PreemptionFacts) -> str:
    """What becomes of it. "" where preemption is off and nobody would leave if it were on."""
    if not facts.is_permitted:
        return "" if facts.never else _off(len(facts.lower))
    if facts.leaving:
        return _waiting(facts)
    if facts.never:
        return f"{_NOBODY}: its preemptionPolicy is Never"
    spared = "; ".join(filter(None, (_guarded(facts), _kept(facts))))
    if facts.lower:
        lower = f"Draco may evict pods of a priority below {facts.priority}: {listed(facts.lower)}"
        return f"{lower}, where their MigPolicy permits it{f'; {spared}' if spared else ''}"
    return f"{_NOBODY}: {spared or f'none that could leave has a priority below {facts.priority}'}"


def _off(lower: int) -> str:
    if not lower:
        return ""
    has = agreeing(lower, "has", "have")
    return f"{_NOBODY}: {counted(lower, 'pod')} of lower priority {has} devices, but no MigPolicy permits it"


def _waiting(facts: PreemptionFacts) -> str:
    leaving = len(facts.leaving)
    pods = f"{agreeing(leaving, 'pod', 'pods')} {listed(facts.leaving)}"
    said = f"{pods} {are(leaving)} being deleted: Draco waits for {them(leaving)}"
    suffice = agreeing(leaving, "that does", "these do")
    return said if facts.never else f"{said}, and evicts others only if {suffice} not suffice"


def _guarded(facts: PreemptionFacts) -> str:
    if not facts.guarded:
        return ""
    budgets = len(facts.budgets)
    budget = f"{agreeing(budgets, 'PodDisruptionBudget', 'PodDisruptionBudgets')} {listed(facts.budgets)}"
    return f"{budget} {agreeing(budgets, 'allows', 'allow')} no eviction of {listed(facts.guarded)}"


def _kept(facts: PreemptionFacts) -> str:
    if not facts.kept:
        return ""
    count = len(facts.reservations)
    keepers = f"{agreeing(count, 'DeviceReservation', 'DeviceReservations')} {listed(facts.reservations)}"
    use = agreeing(len(facts.kept), "uses", "use")
    return f"{keepers} {agreeing(count, 'keeps', 'keep')} what {listed(facts.kept)} {use}"
