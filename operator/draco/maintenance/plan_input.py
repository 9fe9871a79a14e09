"""What is known when the plan for a maintenance request is made.

Owns that struct. Nothing is decided here.
"""

from datetime import datetime, timedelta

import msgspec

from draco.maintenance.gate import SelectionProblem, Waiting
from draco.maintenance.progress import DrainState, JobsState
from draco.maintenance.selecting.matching import MaintenanceScope, MaintenanceSelection, fixed_selection
from draco.maintenance.working.verification import AgentVerdict
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceRehearsal
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import DeviceKey, PoolKey


class PlanInput(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a plan is made.

    `scope` is what the request concerns, `selection` what it is about (None: what its selector names), `problem` why that cannot
    be begun with. `rules` are the rules of this request, `others` further requests, `claims` at least those that hold or watch
    one of its devices, `own_claims` those of its Jobs. `tolerant` are claims that wait and may be allocated one in spite of the
    taint. `unheeded` are devices that agents are still to publish with the taint, `vanished` those that were isolated and of
    whose GPU nothing is published now. `settle` is how long devices stay isolated and
    free before work may start: a scheduler learns of a taint a moment late.

    `incomplete` are the pools of its devices of which slices are still to come: nothing is begun with then.

    `rehearsal` is what isolating would do, `admission` what budgets make the request wait for. `drain`, `work` and `verification`
    say how these go; None where there is nothing of the kind. `agents` is what the agents of its nodes say of the devices, None
    where no agent knows them; they are believed once they have said so for `verify_settle`, and what is bad
    once the work has been done for `verify_grace`: an agent reads from time to time, and reports figures later than news.

    Where no rules are served (`rules_served`), what agents publish is all that isolates a device: `beyond` are devices that none
    would taint, `informed` are the nodes whose GpuNode has the request.
    """

    now: datetime
    scope: MaintenanceScope = MaintenanceScope()
    selection: MaintenanceSelection | None = None
    problem: SelectionProblem | None = None
    incomplete: tuple[PoolKey, ...] = ()
    rules: tuple[DeviceTaintRule, ...] = ()
    others: tuple[DeviceMaintenance, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    own_claims: frozenset[ObjectKey] = frozenset()
    tolerant: tuple[ObjectKey, ...] = ()
    rules_served: bool = True
    unheeded: tuple[DeviceKey, ...] = ()
    vanished: tuple[DeviceKey, ...] = ()
    beyond: tuple[DeviceKey, ...] = ()
    informed: tuple[str, ...] = ()
    settle: timedelta = timedelta(seconds=2)
    rehearsal: MaintenanceRehearsal | None = None
    admission: Waiting | None = None
    drain: DrainState | None = None
    work: JobsState | None = None
    verification: JobsState | None = None
    agents: AgentVerdict | None = None
    verify_settle: timedelta = timedelta(seconds=1)
    verify_grace: timedelta = timedelta(seconds=45)

    def selected(self, request: DeviceMaintenance) -> MaintenanceSelection:
        """What the request is about."""
        found = self.selection or fixed_selection(request, self.rules)
        return found or MaintenanceSelection(selector=request.spec.device_selector, devices=frozenset())
