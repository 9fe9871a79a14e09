"""The input of a maintenance request's plan: read together, without a write in between. Nothing in it is decided."""

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

    `scope` is what the request concerns, `selection` its selection (None: by the selector's names), `problem` why it cannot
    begin. `rules` are the request's, `others` are other requests, `claims` include all that hold or watch one of its devices,
    `own_claims` are those of its Jobs. `tolerant` are pending claims that tolerate the taint, so they may be allocated one of the
    devices. `unheeded` are devices that agents have yet to publish with the taint, `vanished` isolated devices of whose GPU
    nothing is published now. `settle` is how long devices must be isolated and free before work starts: schedulers observe a
    taint with a delay. `incomplete` are its pools with missing slices: nothing begins then.

    `rehearsal` is what isolating would do. `candidate` is what the budgets are asked about, None if the request has begun or is
    not to begin; `admission` is their last answer: why it waits, None if it may begin. `drain` is the input for draining, None if
    nobody is evicted; `knows_paused`: the GPUs of paused budgets are known. `work` and `verification` are the Jobs, None without
    any.

    `agents` is what the agents say of the devices, None if no agent knows them. A good verdict counts after `verify_settle`, a
    bad one `verify_grace` after the work was done: agents read periodically, and report figures later than news. Where rules are
    not served (`rules_served`), only published taints isolate: `beyond` are devices that no agent would taint, `informed` the
    nodes whose GpuNode has an entry for the request.
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
        """The request's selection."""
        found = self.selection or fixed_selection(request, self.rules)
        return found or MaintenanceSelection(selector=request.spec.device_selector, devices=frozenset())
