"""Maintenance as a whole: an operator that lags and dies between any two writes, users who interfere, clocks that jump.

The model has what a cluster has: objects with versions; an operator and a scheduler that each see a state at most `LAG` old; a
budget; Jobs; pods that are evicted; and hardware that is divided, exchanged, removed and faulty. The plans are the product's; the
model compares what they promise with what is true. The number of steps is reported at the end of the run.
"""

import itertools
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from draco.maintenance.budgets.admission import BudgetLimit, StartCandidate, admit
from draco.maintenance.gate import Waiting
from draco.maintenance.plan import plan_abandoned, plan_maintenance
from draco.maintenance.plan_output import AdmissionWish, MaintenancePlan
from draco.maintenance.progress import Purpose
from draco.maintenance.readiness import age_of
from draco.maintenance.selecting.matching import (
    MaintenanceSelection,
    fixed_selection,
    has_begun,
    isolated_boards,
    scope_of,
    vanished,
)
from draco.maintenance.selecting.rehearsal import scope_devices
from draco.maintenance.snapshot import MaintenanceSnapshot
from draco.maintenance.taint_rules import maintained_device, maintenance_uid
from draco.resources.api.maintenance import (
    CONDITION_READY_FOR_WORK,
    DeviceMaintenance,
    MaintenanceBudgetSpec,
    MaintenanceSelector,
    MaintenanceTaint,
)
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule, DeviceTaintSelector
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import MOMENT, a_claim, a_maintenance, a_rule
from tests.side_by_side import REPORTS
from tests.unit.maintenance.machine_rest import judge_at_rest
from tests.unit.maintenance.machine_world import (
    KINDS,
    POOL,
    SELECTORS,
    World,
    agents_of,
    allowed_out,
    draining,
    fleet_of,
    gpus_of,
    held_in,
    in_use,
    is_current,
    jobs_of,
    kept_out,
    key,
    number,
    out_of_service,
    rivals,
    same,
    selected_in,
)
from tests.unit.maintenance.phase_rows import row_of

LAG: Final = 1.0
"""By how many seconds a watcher may be behind."""
SETTLE: Final = 2.0
PARTS: Final = ("mig-1g10gb-19-0", "mig-1g10gb-19-1")
NAMES: Final = [f"gpu-{gpu}{part}" for gpu in range(2) for part in ("", *(f"-{part}" for part in PARTS))]
FOREIGN: Final = a_rule("someone-elses", driver=NVIDIA_DRIVER, pool="node-1", device="gpu-0")
REQUESTS: Final = ("first", "second")
EXAMPLES: Final = int(os.environ.get("DRACO_EXAMPLES", "1000"))
STEPS: Final = itertools.count()


class Maintenance(RuleBasedStateMachine):
    """One node with two GPUs, two requests, and everyone who acts on them."""

    def __init__(self) -> None:
        super().__init__()
        self.true_s = 0.0
        self.skew_s = 0.0
        self.versions = itertools.count(1)
        self.world = World({FOREIGN.metadata.name: FOREIGN}, {}, {}, ())
        self.heard: dict[str, tuple[float, World]] = {}
        self.writes: Iterator[None] = iter(())
        self.superseded: dict[str, str] = {}
        self.planned_s = 0.0
        self.disturbed_s = -1e9
        """When something last happened that nobody can have heard of yet."""
        self.tolerant = False
        self.reserved: dict[str, StartCandidate] = {}
        """What this operator has admitted since it started."""
        self.limited_s = -1e9
        """When the budget last changed or a request was deleted, which the operator may not have heard of."""

    # -- what happens to the cluster

    @initialize(divided=st.booleans(), asked=st.sampled_from(["", "gpu-0"]))
    def begin(self, divided: bool, asked: str) -> None:
        self.divide("gpu-0", divided)
        self.divide("gpu-1", False)
        self.ask("first", asked, "NoSchedule", "plain")
        self.disturbed_s = -1e9
        for who in ("operator", "scheduler"):
            self.hear(who)

    @rule(gpu=st.sampled_from(["gpu-0", "gpu-1"]), divided=st.booleans())
    def divide(self, gpu: str, divided: bool) -> None:
        """Publish the GPU, whole or divided, unless it is held."""
        if any(number(name) == gpu for name in held_in(self.world)):
            return
        elsewhere = {board for name, board in self.world.devices if number(name) != gpu}
        absent = next(board for board in (f"GPU-{gpu}", f"GPU-spare-{gpu}") if board not in elsewhere)
        board = next((board for name, board in self.world.devices if number(name) == gpu), absent)
        self.publish(gpu, [(f"{gpu}-{part}", board) for part in PARTS] if divided else [(gpu, board)])

    @rule(gpu=st.sampled_from(["gpu-0", "gpu-1"]))
    def vanish(self, gpu: str) -> None:
        self.publish(gpu, [])

    @rule(gpu=st.sampled_from(["gpu-0", "gpu-1"]), board=st.sampled_from(["GPU-new", "GPU-gpu-0", "GPU-gpu-1"]))
    def exchange(self, gpu: str, board: str) -> None:
        """Exchange the board, unless it is held; a board is in one place at a time."""
        if any(number(name) == gpu for name in held_in(self.world)) or board in {
            each for _, each in self.world.devices
        }:
            return
        self.publish(gpu, [(name, board) for name, _ in self.world.devices if number(name) == gpu] or [(gpu, board)])

    def publish(self, gpu: str, devices: list[tuple[str, str]]) -> None:
        others = [each for each in self.world.devices if number(each[0]) != gpu]
        self.change(devices=tuple(sorted(others + devices)))
        self.disturbed_s = self.true_s

    @rule(name=st.sampled_from(NAMES), admin=st.booleans())
    def allocate(self, name: str, admin: bool) -> None:
        """The scheduler allocates a device, by the taints that it has seen."""
        seen = self.view("scheduler")
        published = {each for each, _ in self.world.devices}
        tainted = {
            rule.spec.device_selector.device
            for rule in seen.rules.values()
            if rule is not FOREIGN and rule.spec.device_selector and rule.spec.taint.effect in BLOCKING_EFFECTS
        }
        free = not any(same(name, other) for other in held_in(self.world))
        if name in published and (admin or (free and name not in tainted)):
            claim = a_claim(f"on-{name}{'-admin' * admin}", on=[f"node-1/{name}"], admin_access=admin or None)
            self.change(claims=self.world.claims | {claim.metadata.name: claim})
            if not admin:
                self.judge_allocation(name)

    @precondition(lambda self: self.world.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(sorted(self.world.claims)))
        self.change(claims={name: claim for name, claim in self.world.claims.items() if name != gone})

    @rule()
    def a_claim_tolerates(self) -> None:
        """A waiting claim that tolerates the taint comes or goes."""
        self.tolerant = not self.tolerant

    @rule(seconds=st.sampled_from([0.2, 0.6, 1.1, 2.1, 60.0]))
    def wait(self, seconds: float) -> None:
        self.true_s += seconds

    @rule(seconds=st.sampled_from([-300.0, -2.0, 2.0, 300.0]))
    def set_the_clock(self, seconds: float) -> None:
        self.skew_s += seconds
        self.disturbed_s = self.true_s + SETTLE

    @rule(board=st.sampled_from(["GPU-gpu-0", "GPU-gpu-1", "GPU-new"]))
    def fall_sick_or_recover(self, board: str) -> None:
        self.change(sick=self.world.sick ^ {board})

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data(), what=st.sampled_from(["succeeded", "succeeded", "failed", "gone"]))
    def a_job_ends(self, data: st.DataObject, what: str) -> None:
        """A Job ends, or somebody deletes it."""
        name = data.draw(st.sampled_from(sorted(self.world.jobs)))
        left = {each: state for each, state in self.world.jobs.items() if each != name}
        self.change(jobs=left if what == "gone" else left | {name: what})

    # -- what users do

    @rule(
        limit=st.sampled_from([None, 0, 1, 1, 2]),
        percent=st.sampled_from([None, None, 0, 50, 100]),
        paused=st.sampled_from([False, False, False, True]),
    )
    def set_the_budget(self, limit: int | None, percent: int | None, paused: bool) -> None:
        self.change(limit=limit, percent=percent, paused=paused)
        self.limited_s = self.true_s

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data(), how=st.sampled_from(["approve", "cancel", "require"]))
    def decide(self, data: st.DataObject, how: str) -> None:
        """A user approves a request, withdraws the approval, or cancels it."""
        request = self.world.requests[data.draw(st.sampled_from(sorted(self.world.requests)))]
        fields: dict[str, Any] = {"cancelled": True} if how == "cancel" else {"approved": how == "approve"}
        spec = msgspec.structs.replace(request.spec, **fields)
        self.store(msgspec.structs.replace(request, spec=spec), generation=True)

    @rule(
        name=st.sampled_from(REQUESTS),
        device=st.sampled_from(["", "gpu-0", "gpu-1", f"gpu-0-{PARTS[0]}", "gpu-9", *SELECTORS]),
        effect=st.sampled_from(["NoSchedule", "NoSchedule", "NoSchedule", "NoExecute", "None"]),
        kind=st.sampled_from(
            ["plain", "plain", "approval", "work", "verify", "evict", "fail", "cancel", "later", "window"]
        ),
    )
    def ask(self, name: str, device: str, effect: str, kind: str) -> None:
        """Create a request, or change an existing one. Finished requests do not change any more."""
        old = next((each for each in self.world.requests.values() if each.metadata.name == name), None)
        if old is not None and (old.spec.finished or old.spec.cancelled):
            return
        fresh = old or a_maintenance(name)
        metadata, status = fresh.metadata, fresh.status
        if old is None:
            uid, made = next(self.versions), MOMENT + timedelta(seconds=self.true_s)
            metadata = msgspec.structs.replace(
                metadata, uid=f"{name}-{uid}", generation=0, creation_timestamp=made + timedelta(milliseconds=uid)
            )
            status = type(status)()
        spec = msgspec.structs.replace(
            fresh.spec,
            device_selector=SELECTORS.get(device)
            or MaintenanceSelector(driver=NVIDIA_DRIVER, pool="node-1", device=device or None),
            taint=MaintenanceTaint(effect=effect),
            **KINDS[kind],
        )
        self.store(msgspec.structs.replace(fresh, metadata=metadata, spec=spec, status=status), generation=True)

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data(), finish=st.booleans())
    def end(self, data: st.DataObject, finish: bool) -> None:
        request = self.world.requests[data.draw(st.sampled_from(sorted(self.world.requests)))]
        if finish:
            spec = msgspec.structs.replace(request.spec, finished=True)
            self.store(msgspec.structs.replace(request, spec=spec), generation=True)
        else:
            uid = request.metadata.uid
            self.change(requests={each: kept for each, kept in self.world.requests.items() if each != uid})
            self.limited_s = self.true_s

    @precondition(lambda self: self.ours())
    @rule(data=st.data(), how=st.sampled_from(["delete", "effect", "elsewhere", "strip"]))
    def meddle(self, data: st.DataObject, how: str) -> None:
        """Somebody deletes or changes one of the operator's rules."""
        found = data.draw(st.sampled_from(self.ours()))
        name, spec, metadata = found.metadata.name, found.spec, found.metadata
        if how == "delete":
            self.change(rules={each: kept for each, kept in self.world.rules.items() if each != name})
        else:
            if how == "effect":
                taint = msgspec.structs.replace(spec.taint, effect="None")
                spec = msgspec.structs.replace(spec, taint=taint)
            elif how == "elsewhere":
                spec = msgspec.structs.replace(spec, device_selector=DeviceTaintSelector(pool="other"))
            else:
                metadata = msgspec.structs.replace(metadata, owner_references=[], annotations={})
            changed = msgspec.structs.replace(found, spec=spec, metadata=metadata)
            self.change(rules=self.world.rules | {name: changed})
        self.disturbed_s = self.true_s

    # -- watches and workers

    @rule(who=st.sampled_from(["operator", "scheduler"]))
    def hear(self, who: str) -> None:
        """A watch delivers everything that has happened: events in between are lost, or come twice."""
        self.heard[who] = (self.true_s, self.world)

    @rule(name=st.sampled_from(REQUESTS))
    def reconcile(self, name: str) -> None:
        """Reconcile a request completely."""
        self.plan(name)
        for _ in self.writes:
            pass

    @rule(name=st.sampled_from(REQUESTS), seconds=st.sampled_from([0.0, SETTLE + 0.1]))
    def make_progress(self, name: str, seconds: float) -> None:
        """An undisturbed request advances as far as it can: without this, few requests would reach the work."""
        for _ in range(3):
            self.reconcile(name)
            self.true_s += seconds
            self.hear("operator")

    @rule(name=st.sampled_from(REQUESTS))
    def plan(self, name: str) -> None:
        """Begin to reconcile a request, or what a deleted one left; unfinished writes are abandoned."""
        seen, self.planned_s = self.view("operator"), self.true_s
        uids = {each.metadata.uid for each in seen.requests.values()} | {maintenance_uid(each) for each in self.ours()}
        self.writes = self.work(sorted(uid for uid in uids if uid.startswith(name)), seen)

    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        """Execute some of the planned writes, if the plan is recent: API calls have a timeout."""
        if self.true_s - self.planned_s > LAG:
            self.writes = iter(())
        for _ in itertools.islice(self.writes, count):
            pass

    @rule()
    def die(self) -> None:
        """The next operator lists everything, and remembers nothing."""
        self.writes = iter(())
        self.superseded.clear()
        self.reserved.clear()
        self.hear("operator")

    def work(self, uids: list[str], seen: World) -> Iterator[None]:
        """What the operator does about each request; yields after every write."""
        for uid in uids:
            request = seen.requests.get(uid)
            rules = tuple(each for each in seen.rules.values() if maintenance_uid(each) == uid)
            if request is None:
                if uid not in self.world.requests:  # the operator asks the API server before it removes rules
                    yield from self.carry_out(plan_abandoned(uid, rules), None, seen)
            elif self.superseded.get(uid) != request.metadata.resource_version:
                plan = self.planned(request, rules, seen)
                current = self.world.requests.get(uid)
                if (
                    (not plan.empty or plan.work or plan.verify)
                    and current
                    and current.metadata.resource_version == request.metadata.resource_version
                ):
                    yield from self.carry_out(plan, request, seen)

    def planned(self, request: DeviceMaintenance, rules: tuple[DeviceTaintRule, ...], seen: World) -> MaintenancePlan:
        hardware, claims = seen.hardware, tuple(seen.claims.values())
        held = {device for claim in claims for device in claim.devices_held}
        selected, selection = None, fixed_selection(request, rules)
        if selection is None:
            selected = selected_in(seen, request)
            selection = MaintenanceSelection(selector=request.spec.device_selector, devices=selected.devices)
        scope = scope_of(selection, {POOL: hardware}, held, isolated_boards(request, rules))
        tolerant = (ObjectKey("default", "tolerant"),) if self.tolerant else ()
        found = MaintenanceSnapshot(
            now=self.now,
            scope=scope,
            selection=selection,
            problem=selected.problem if selected else None,
            rules=rules,
            others=tuple(each for uid, each in seen.requests.items() if uid != request.metadata.uid),
            claims=claims,
            tolerant=tolerant,
            vanished=tuple(vanished(isolated_boards(request, rules), {POOL: hardware})),
            settle=timedelta(seconds=SETTLE),
            work=jobs_of(request, Purpose.WORK, seen),
            verification=jobs_of(request, Purpose.VERIFICATION, seen),
            agents=agents_of(scope, isolated_boards(request, rules), seen),
        )
        drain = draining(request, scope, claims, self.now)
        plan = plan_maintenance(request, found, drain)
        for begun in [each for each, there in seen.requests.items() if has_begun(there)]:
            self.reserved.pop(begun, None)
        if has_begun(request) or plan.admission is not AdmissionWish.ASK:
            return plan
        admitted = msgspec.structs.replace(found, admission=self.admission(request, found, seen))
        return plan_maintenance(request, admitted, drain)

    def admission(self, request: DeviceMaintenance, found: MaintenanceSnapshot, seen: World) -> Waiting | None:
        """The budgets' answer, from what the operator knows and what it has admitted without having seen the result yet."""
        uid = request.metadata.uid
        pool = fleet_of(seen.devices)
        gpus = frozenset(gpus_of(pool, scope_devices(found.scope)))
        spec = MaintenanceBudgetSpec(max_devices=seen.limit, max_percent=seen.percent, paused=seen.paused)
        places = dict.fromkeys(pool.gpus, "")  # unpublished GPUs count, but not towards a percentage
        budget = BudgetLimit(name="only", spec=spec, places=places, totals={"": len(places)})
        out = out_of_service(seen)
        before = dict(self.reserved)
        asking = before | {uid: StartCandidate(uid=uid, name=request.metadata.name, age=age_of(request), gpus=gpus)}
        decided = admit(
            asking.values(),
            out,
            [budget],
            returning=out - kept_out(seen),
            before={uid for uid in before if before[uid] == asking[uid]},
        )
        self.reserved = {each: asking[each] for each in decided.admitted}
        return decided.waiting.get(uid)

    def carry_out(self, plan: MaintenancePlan, request: DeviceMaintenance | None, seen: World) -> Iterator[None]:
        if plan.status_first:
            if not self.write_status(plan, request):
                return
            yield
        for each in plan.apply:
            if each.metadata.name not in seen.rules and (there := self.world.requests.get(maintenance_uid(each))):
                assert not there.says(CONDITION_READY_FOR_WORK), f"{each.metadata.name} comes after its promise"
            self.apply(each)
            yield
        if plan.stop_jobs and request:
            self.change(
                jobs={each: was for each, was in self.world.jobs.items() if not each.startswith(request.metadata.uid)}
            )
            yield
        for each in plan.delete:
            self.delete(each)
            yield
        if not plan.status_first and self.write_status(plan, request):
            yield
        for purpose, wanted in ((Purpose.WORK, plan.work), (Purpose.VERIFICATION, plan.verify)):
            if wanted and request and plan.status is None and request.metadata.uid in self.world.requests:
                name = f"{request.metadata.uid} {purpose}"
                self.change(jobs={name: "running"} | self.world.jobs)
                yield

    def apply(self, wanted: DeviceTaintRule) -> None:
        old = self.world.rules.get(wanted.metadata.name)
        uid = old.metadata.uid if old else f"rule-{next(self.versions)}"
        metadata = msgspec.structs.replace(wanted.metadata, uid=uid)
        stored = msgspec.structs.replace(wanted, metadata=metadata)
        self.change(rules=self.world.rules | {wanted.metadata.name: stored})

    def delete(self, rule: DeviceTaintRule) -> None:
        """Delete exactly this rule. It must not be one that keeps a device free for work that was announced as possible."""
        there = self.world.rules.get(rule.metadata.name)
        if there is None or there.metadata.uid != rule.metadata.uid:
            return
        request, device = self.world.requests.get(maintenance_uid(there)), maintained_device(there)
        if request and request.is_returning:
            assert self.heard_of_jobs(request) != "running", "a taint is lifted while a Job works"
        if request and device and request.says(CONDITION_READY_FOR_WORK):
            current = request.spec.finished or is_current(request)
            boards = dict(self.world.devices)  # nothing was promised about another board with that name
            kept = {each.key for each in request.status.devices if boards.get(each.device, each.uuid) == each.uuid}
            assert not (current and device in kept), f"{rule.metadata.name} was lifted during the work"
        self.change(rules={each: kept for each, kept in self.world.rules.items() if each != rule.metadata.name})

    def write_status(self, plan: MaintenancePlan, request: DeviceMaintenance | None) -> bool:
        """Whether the request still exists. A write by someone else in between is a conflict, which ends the reconcile."""
        if plan.status is None or request is None:
            return True
        there = self.world.requests.get(request.metadata.uid)
        if there is None or there.metadata.resource_version != request.metadata.resource_version:
            return False
        self.superseded[request.metadata.uid] = request.metadata.resource_version
        written = msgspec.structs.replace(there, status=plan.status)
        assert row_of(plan.status), f"no row of the table: {plan.status}"
        self.store(written)
        if has_begun(written) and not has_begun(request):
            self.judge_begin(written)
        if written.says(CONDITION_READY_FOR_WORK):
            self.judge_ready(written)
        return True

    def heard_of_jobs(self, request: DeviceMaintenance) -> str | None:
        """The state of the Job that does the work."""
        return self.world.jobs.get(f"{request.metadata.uid} {Purpose.WORK}")

    def judge_begin(self, request: DeviceMaintenance) -> None:
        """No more is out of service than the budget allows, judged by what the operator can have heard.

        GPUs that another request already keeps out add nothing: the operator asks the budget for them only once it hears that the
        other request is deleted.
        """
        if self.true_s - self.limited_s <= LAG:
            return
        if self.world.percent is not None and self.true_s - self.disturbed_s <= LAG:
            return  # the percentage is of what was published a moment ago
        assert not self.world.paused
        limit, out = allowed_out(self.world), out_of_service(self.world, living=True)
        fresh = out - out_of_service(self.world, living=True, without=request.metadata.uid)
        assert limit is None or not fresh or len(out) <= limit, f"{len(out)} GPUs are out of service, {limit} may be"

    def judge_ready(self, request: DeviceMaintenance) -> None:
        """If work may start on a device, nobody has it or can get it, unless something changed just before."""
        if self.true_s - self.disturbed_s <= LAG:
            return
        assert request.status.devices
        rules = {maintained_device(each): each for each in self.ours() if maintenance_uid(each) == request.metadata.uid}
        for each in request.status.devices:
            assert rules[each.key].spec.taint.effect in BLOCKING_EFFECTS
        assert not in_use(request, self.world)
        at_work = [each for each in rivals(request, self.world) if each.says(CONDITION_READY_FOR_WORK)]
        assert not at_work, f"{at_work[0].metadata.name} works on it"

    def judge_allocation(self, name: str) -> None:
        """A device that is ready for work is not allocated, unless a rule or the clock was changed just before."""
        if self.true_s - self.disturbed_s <= 2 * LAG:
            return
        for each in self.ours():
            request = self.world.requests.get(maintenance_uid(each))
            if maintained_device(each) == key(name) and each.spec.taint.effect in BLOCKING_EFFECTS and request:
                promised = is_current(request) and request.says(CONDITION_READY_FOR_WORK)
                assert not promised, f"{name} is given away during the work"

    # -- invariants

    @invariant()
    def other_peoples_rules_are_untouched(self) -> None:
        next(STEPS)
        assert self.world.rules[FOREIGN.metadata.name] is FOREIGN

    @invariant()
    def no_request_has_two_rules_for_one_device(self) -> None:
        found = [(maintenance_uid(each), device) for each in self.ours() if (device := maintained_device(each))]
        assert len(found) == len(set(found))

    # -- laws at rest

    def teardown(self) -> None:
        self.come_to_rest()
        for uid in {maintenance_uid(each) for each in self.ours()}:
            assert uid in self.world.requests, "a rule without an owner"
        for request in self.world.requests.values():
            judge_at_rest(
                request,
                self.world,
                [each for each in self.ours() if maintenance_uid(each) == request.metadata.uid],
                now=self.now,
                tolerated=self.tolerant,
                work=self.heard_of_jobs(request),
            )
        self.change(requests={})
        self.come_to_rest()
        assert list(self.world.rules) == [FOREIGN.metadata.name], "requests are gone, and not all is given back"

    def come_to_rest(self) -> None:
        self.true_s += 2 * abs(self.skew_s) + 1000  # longer than any clock was set back
        for _ in range(12):
            before = self.world
            for name in REQUESTS:
                self.hear("operator")
                self.reconcile(name)
            self.true_s += SETTLE + LAG
            if self.world is before:
                return
        pytest.fail("the operator does not come to rest")

    # -- bookkeeping of the model

    @property
    def now(self) -> datetime:
        return MOMENT + timedelta(seconds=self.true_s + self.skew_s)

    def view(self, who: str) -> World:
        """What somebody sees, at most `LAG` behind."""
        when, seen = self.heard[who]
        if self.true_s - when > LAG:
            self.hear(who)
            return self.world
        return seen

    def change(self, **fields: Any) -> None:
        self.world = msgspec.structs.replace(self.world, **fields)

    def store(self, request: DeviceMaintenance, *, generation: bool = False) -> None:
        metadata = msgspec.structs.replace(
            request.metadata,
            resource_version=str(next(self.versions)),
            generation=request.metadata.generation + generation,
        )
        stored = msgspec.structs.replace(request, metadata=metadata)
        self.change(requests=self.world.requests | {stored.metadata.uid: stored})

    def ours(self) -> list[DeviceTaintRule]:
        return [each for each in self.world.rules.values() if maintenance_uid(each)]


@pytest.mark.exhaustive
def test_a_maintenance_keeps_its_promises_whatever_happens() -> None:
    before = next(STEPS)
    run_state_machine_as_test(Maintenance, settings=settings(max_examples=EXAMPLES, stateful_step_count=50))
    REPORTS.append(f"state machine of maintenance: {next(STEPS) - before - 1} steps in {EXAMPLES} lives of a node")
