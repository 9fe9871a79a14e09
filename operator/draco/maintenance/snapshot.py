"""What was read before a maintenance request is planned.

Owns that struct. Everything in it was read in one go, without a write in between, and nothing in it is decided.
"""

from datetime import datetime, timedelta

import msgspec

from draco.maintenance.budgets.admission import StartCandidate
from draco.maintenance.draining.drain import DrainInput
from draco.maintenance.gate import SelectionProblem, Waiting
from draco.maintenance.progress import JobsState
from draco.maintenance.selecting.matching import MaintenanceScope, MaintenanceSelection, fixed_selection
from draco.maintenance.working.verification import AgentVerdict
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceRehearsal
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import DeviceKey, PoolKey


class MaintenanceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request and its devices.

    `scope` is what the request concerns, `selection` what it is about (None: what its selector names), `problem` why that cannot
    be begun with. `rules` are the rules of this request, `others` further requests, `claims` at least those that hold or watch
    one of its devices, `own_claims` those of its Jobs. `tolerant` are claims that wait and may be allocated one in spite of the
    taint. `unheeded` are devices that agents are still to publish with the taint, `vanished` those that were isolated and of
    whose GPU nothing is published now. `settle` is how long devices stay isolated and free before work may start: a scheduler
    learns of a taint a moment late. `incomplete` are the pools of its devices of which slices are still to come: nothing is begun
    with then.

    `rehearsal` is what isolating would do. `candidate` is what the budgets are asked about, None where the request has begun or
    is not to begin, and `admission` their last answer: what it waits for, None if it may begin. `drain` is what draining is
    planned from, None where nobody is asked to leave; `knows_paused` says whether it is known which GPUs paused budgets are
    about. `work` and `verification` say how the Jobs go, None where there are none.

    `agents` is what the agents of its nodes say of the devices, None where no agent knows them. They are believed once they have
    said so for `verify_settle`, and what is bad once the work has been done for `verify_grace`: an agent reads from time to time,
    and reports figures later than news. Where no rules are served (`rules_served`), what agents publish is all that isolates a
    device: `beyond` are devices that none would taint, `informed` are the nodes whose GpuNode has the request.
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
    candidate: StartCandidate | None = None
    admission: Waiting | None = None
    drain: DrainInput | None = None
    knows_paused: bool = True
    work: JobsState | None = None
    verification: JobsState | None = None
    agents: AgentVerdict | None = None
    verify_settle: timedelta = timedelta(seconds=1)
    verify_grace: timedelta = timedelta(seconds=45)

    def selected(self, request: DeviceMaintenance) -> MaintenanceSelection:
        """What the request is about."""
        found = self.selection or fixed_selection(request, self.rules)
        return found or MaintenanceSelection(selector=request.spec.device_selector, devices=frozenset())
