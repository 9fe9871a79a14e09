"""The observer as a whole: a thread that watches, judges, and keeps the story of what happened.

Owns how long a suspicion may last, the second look that confirms it, and the report of a violation. The laws are in `laws`,
`lease`, `rest`, `hardware` and `programs`.
"""

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.adversary.cluster.observer import hardware
from tests.adversary.cluster.observer.allocators import DRACO, Traded, allocator, kept_for_nobody
from tests.adversary.cluster.observer.api import Access, Api
from tests.adversary.cluster.observer.budgets import BudgetLaw
from tests.adversary.cluster.observer.dracos import DracosLaws
from tests.adversary.cluster.observer.fairness import Fairness, Pace, Starvation
from tests.adversary.cluster.observer.fences import FenceLaw
from tests.adversary.cluster.observer.files import FilesLaw
from tests.adversary.cluster.observer.idle import beside_free
from tests.adversary.cluster.observer.job_sets import misjudged
from tests.adversary.cluster.observer.laws import LAWS, Latecomers
from tests.adversary.cluster.observer.lease import LOSES_LEASE_AFTER_S, SEEN_WITHIN_S, LeaseLaw
from tests.adversary.cluster.observer.ledger import Accidents, disagreements, still_tainted
from tests.adversary.cluster.observer.limited import miscounted
from tests.adversary.cluster.observer.made import made_in_vain
from tests.adversary.cluster.observer.programs import Programs
from tests.adversary.cluster.observer.reports import misreported
from tests.adversary.cluster.observer.rest import unexplained
from tests.adversary.cluster.observer.service import (
    fenced_without_cause,
    not_restored,
    phase_of,
    stuck,
    verified_by_job,
)
from tests.adversary.cluster.observer.shares import over_committed, waits_for_nobody
from tests.adversary.cluster.observer.still import Still
from tests.adversary.cluster.observer.story import clock, told
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.tainted import GivenWhileTainted, withdrawn_for_ever
from tests.adversary.cluster.observer.taking import Bystanders
from tests.adversary.cluster.observer.upgrades import UpgradeLaw
from tests.adversary.cluster.observer.watching import KINDS, Watching, fresh
from tests.adversary.cluster.observer.world import Object, World, name, phase, results, stamp

LOOK_EVERY_S = 0.25
FILES_EVERY_S = 0.5
TWIN_EVERY_S = 0.5
"""Several times as often as an operator renews its lease, so that stalls of the machine are measured accurately."""
STORY = 400
"""How many lines of the story are kept."""
TOLD = 60
"""How many lines of the story a violation includes."""
MOST_TOLD = 5
"""How many violations of one law are reported in full; all are counted."""
SLOW_ANSWER_S = 1.0
"""While the API server takes longer than this for a small write, no time counts."""
FILES_LAST_S = {"prepared twice": 1.0, "wrong files": 1.0, "wrong board": 15.0, "lost but obtainable": 15.0}
"""The agent notices what the driver does not report at its next reading, at most ten seconds later."""

WAITED_S = 60.0
"""How long an agent may log that its driver's calls waited: it notices after thirty seconds."""
RELISTS_S = 90.0
"""client-go's reflector doubles its backoff up to 30 s, plus as much jitter, before it lists."""


class Node(NamedTuple):
    """A simulated node's files."""

    cdi: Path
    state: Path


class Violation(NamedTuple):
    """A law that was broken, and what happened before."""

    at: str
    law: str
    text: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.at} {self.law}: {self.text}", *(f"    {line}" for line in self.story)])


class Seen(NamedTuple):
    """A current suspicion, and how many of its seconds counted."""

    counted_s: float
    said: Suspicion
    told: bool = False


class Observer:
    """Start it, tell it what you do, stop it, read `violations`. Everything but `start` and `stop` may be called at any time."""

    def __init__(self, access: Access, nodes: Mapping[str, Node], *, tenants: Collection[str] = ()) -> None:
        self.world = World()
        self.budgets = BudgetLaw(self.world)
        self.accidents = Accidents(self.world)
        self.expects_nothing_tainted = False
        """Whether all requests were deleted, every board healed, and every node rebooted."""
        self.fairness = Fairness()
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.longest: Counter[str] = Counter()
        self.programs = Programs(self._could_do_nothing, self._driver_waited)
        self.pace = Pace(TWIN_EVERY_S)
        self.starvation = Starvation()
        self.lease = LeaseLaw(self.fairness, self.pace, self._starved_s)
        self.fences = FenceLaw()
        self.upgrades = UpgradeLaw()
        self.files = FilesLaw()
        self.ready = threading.Event()
        self._access = access
        self._nodes = dict(nodes)
        self._story: deque[str] = deque(maxlen=STORY)
        self._suspicions: dict[tuple[str, str], Seen] = {}
        self._told: set[tuple[str, str]] = set()
        self._late = Latecomers()
        self._tainted = GivenWhileTainted(self.world)
        self._still = Still()
        self._dracos = DracosLaws(self.world)
        self.bystanders = Bystanders(self.world, tenants, self._dracos.evictions.why_not)
        self._admins: set[str] = set()  # kept, because a spec may outlive its claim for a moment
        self._answer_s = 0.0
        self._waited: dict[str, float] = {}
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._watching: list[Watching] = []
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start, and return when everything has been listed once."""
        self._thread.start()
        while not self.ready.wait(0.1):
            self._check()

    def stop(self) -> None:
        """Stop. A second call does nothing."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(30.0)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError("the observer failed") from self._failure

    def note(self, text: str) -> None:
        """Add a line to the story: what the adversary does."""
        self._story.append(f"{clock()} > {text}")

    def down(self, part: str) -> None:
        """A part is taken down deliberately: "api", "collector", "rules", "agent of <node>"."""
        if part == "api":
            self.disturbed()
        self.fairness.down(part, time.monotonic())

    def upgrade_began(self, node: str) -> None:
        """A node's serving agent is about to be told to end; the next one stands by."""
        state = hardware.read_state(self._nodes[node].state)
        with self._lock:
            self.counts["upgrades of agents"] += 1
            if hardware.minded(state) and not any(gpu.get("error") for gpu in state["gpus"]):
                self.upgrades.began(node, self.world, time.monotonic())

    def upgrade_ended(self, node: str) -> None:
        """The old agent has ended."""
        self.upgrades.ended(node, time.monotonic())

    def driver_changed(self, node: str) -> None:
        """A node's driver files, its toolkit or its loaded driver change."""
        self.disturbed(node)
        self.files.changed(node, time.monotonic())
        self.accidents.reloaded(node, time.monotonic())

    def disturbed(self, node: str = "") -> None:
        """Something happens to a node, or to all, so that an upgrade may be noticed."""
        self.upgrades.disturbed(time.monotonic(), node)
        with self._lock:
            self.accidents.disturbed(node)

    def faulted(self, node: str, uuid: str, code: int) -> None:
        """A board reports an XID."""
        with self._lock:
            now = time.monotonic()
            if self._is_up(f"agent of {node}", now):
                self.accidents.happened(node, uuid, code, now)

    def up(self, part: str, *, grace_s: float) -> None:
        """A part was started again and has `grace_s` to recover."""
        self.fairness.up(part, time.monotonic(), grace_s=grace_s)

    def killed(self, program: str) -> None:
        """A program is about to be killed."""
        with self._lock:
            for wrong in self.programs.killed(program):
                self._violated(wrong)

    def not_settled(self, now: float) -> str:
        """The parts that are down or still recovering; empty if there are none."""
        parts = ("api", "collector", "scheduler", "operator", "replicas", *(f"agent of {node}" for node in self._nodes))
        slow = ["answers come slowly"] if self._answer_s >= SLOW_ANSWER_S else []
        return ", ".join([*(part for part in parts if not self._is_up(part, now)), *slow])

    def unexplained(self) -> list[Suspicion]:
        """At rest: leftovers, and missing or wrong explanations."""
        with self._lock:
            states = {node: hardware.read_state(files.state) for node, files in self._nodes.items()}
            left = [*not_restored(self.world), *stuck(self.world), *fenced_without_cause(self.world)]
            left += [*disagreements(self.world), *kept_for_nobody(self.world), *miscounted(self.world)]
            left += misjudged(self.world)
            left += [*made_in_vain(self.world), *beside_free(self.world), *withdrawn_for_ever(self.world)]
            left += waits_for_nobody(self.world)
            left += still_tainted(self.world) if self.expects_nothing_tainted else ()
            left += self._still.restless(time.monotonic())
            return [*unexplained(self.world, states), *misreported(self.world), *left]

    def traded(self) -> list[Traded]:
        """GPUs that were handed over or back and are usable now."""
        with self._lock:
            return self._dracos.traded()

    def waits_for_a_node(self, wrong: Suspicion) -> bool:
        """Whether the unexplained pod still has no node."""
        with self._lock:
            pod = self.world.pods.get(wrong.key)
            return pod is not None and not pod["spec"].get("nodeName")

    def violated(self, wrong: Suspicion) -> None:
        """Report a violation that the caller found, for example at rest."""
        with self._lock:
            self._violated(wrong)

    def story(self, lines: int = TOLD) -> list[str]:
        """The last lines of the story."""
        return list(self._story)[-lines:]

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failure = error
            raise

    async def _main(self) -> None:
        async with Api(self._access) as api:
            self._watching = [Watching(api, kind, self.world, self._changed, self._lock) for kind in KINDS]
            tasks = [asyncio.create_task(each.run(), name=f"watch of {each.kind}") for each in self._watching]
            tasks += [asyncio.create_task(self._files()), asyncio.create_task(self._twin(api))]
            tasks.append(asyncio.create_task(self._look(api)))
            tasks.append(asyncio.create_task(self._all_listed()))
            try:
                while not self._stop.is_set():
                    await asyncio.sleep(LOOK_EVERY_S)
                    for task in tasks:
                        if task.done():
                            task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _all_listed(self) -> None:
        for each in self._watching:
            await each.listed.wait()
        self.ready.set()

    async def _look(self, api: Api) -> None:
        """Judge everything repeatedly. Confirm suspicions that lasted too long with a fresh look."""
        while True:
            started = time.monotonic()
            with self._lock:
                counts_s = self.fairness.step(started)
                counts_s = max(0.0, counts_s - self._starved_s(self.lease.holder, started))
                at = datetime.now(UTC)
                weighed = (
                    *self._late.weighed(started),
                    *self._tainted.weighed(started),
                    *self._dracos.weighed(started, grace_s=self._grace_s(started), undisturbed=self._undisturbed),
                    *self.bystanders.weighed(started),
                    *self.fences.weighed(started, grace_s=self._grace_s(started)),
                )
                for wrong in (*self.programs.look(), *self.lease.look(self.world, started, at), *weighed):
                    self._violated(wrong)
                for wrong in self.accidents.look(counts_s, partial(self._hears, now=started)):
                    self._violated(wrong)
                self.counts["XIDs heard of"] = self.accidents.heard
                self.counts |= self._dracos.counts
                for key, text in self.budgets.weighed(started):
                    self._violated(Suspicion("budget exceeded", key, text))
                due = self._weigh(counts_s, started) if self.ready.is_set() else []
            if due:
                await self._confirm(api, due)
            await asyncio.sleep(LOOK_EVERY_S)

    def _weigh(self, counts_s: float, now: float) -> list[Suspicion]:
        """Update the suspicions, and return those that have lasted too long."""
        due = []
        for law, (look, lasts_s, needs) in LAWS.items():
            up = self._answer_s < SLOW_ANSWER_S and all(self._is_up(part, now) for part in needs)
            found = {wrong.key: wrong for wrong in look(self.world)}
            for law_, key in [each for each in self._suspicions if each[0] == law and each[1] not in found]:
                del self._suspicions[law_, key]
            for key, wrong in found.items():
                before = self._suspicions.get((law, key))
                lasted = (before.counted_s if before else 0.0) + (counts_s if up and before else 0.0)
                self._suspicions[law, key] = Seen(lasted, wrong)
                self.longest[law] = max(self.longest[law], round(lasted, 1))  # type: ignore[assignment]
                if up and lasted >= lasts_s and (law, key) not in self._told:
                    due.append(wrong)
        return due

    def _hears(self, node: str, now: float) -> bool:
        """Whether a node's agent can report in time what it hears."""
        minded = hardware.minded(hardware.read_state(self._nodes[node].state))
        return (
            minded
            and self._answer_s < SLOW_ANSWER_S
            and all(self._is_up(each, now) for each in ("api", f"agent of {node}"))
        )

    def _is_up(self, part: str, now: float) -> bool:
        if part == "operator":
            return self.lease.led(self.world, now)
        if part == "rules" and not all(each.served for each in self._watching if each.kind == "rule"):
            return False
        return self.fairness.is_up(part, now)

    async def _confirm(self, api: Api, due: Iterable[Suspicion]) -> None:
        """Report the suspicions that a fresh read of the API server confirms."""
        before = await fresh(api, ("request",), self.world)
        found = await fresh(
            api, ("claim", "slice", "rule", "node", "request", "pod", "pod group", "job", "reservation"), self.world
        )
        if before is None or found is None:
            return
        for wrong in due:
            again = {each.key: each for each in LAWS[wrong.law].look(found)}
            found_before = dict(found.__dict__) | {"requests": before.requests}
            also = {each.key for each in LAWS[wrong.law].look(World(**found_before))}
            if wrong.key in again and wrong.key in also:
                with self._lock:
                    self._violated(again[wrong.key])

    def _violated(self, wrong: Suspicion) -> None:
        if (wrong.law, wrong.key) in self._told:
            return
        self._told.add((wrong.law, wrong.key))
        self.counts[f"violation: {wrong.law}"] += 1
        if self.counts[f"violation: {wrong.law}"] > MOST_TOLD:
            return
        self.violations.append(Violation(clock(), wrong.law, wrong.text, tuple(self.story())))
        self._story.append(f"{clock()} ! {wrong.law}: {wrong.text}")

    async def _files(self) -> None:
        """Check the nodes' files. A suspicion must last over several readings, because files are not read atomically."""
        since: dict[tuple[str, str], float] = {}
        last = time.monotonic()
        while True:
            await asyncio.sleep(FILES_EVERY_S)
            now = time.monotonic()
            passed, last = min(now - last, 2 * FILES_EVERY_S), now
            states = {node: hardware.read_state(files.state) for node, files in self._nodes.items()}
            self._waited |= {node: now for node, found in states.items() if not hardware.minded(found)}
            specs = [each for node, files in self._nodes.items() for each in hardware.read_specs(node, files.cdi)]
            with self._lock:
                self.counts["specs seen at once, at most"] = max(self.counts["specs seen at once, at most"], len(specs))
                found = {(each.law, each.key): each for each in hardware.given_twice(specs, self._admins)}
                known = {
                    node
                    for node, state in states.items()
                    if hardware.minded(state) and all(self._is_up(part, now) for part in ("api", f"agent of {node}"))
                }
                files = self.files.look(specs, states, known, now)
                found |= {(one.law, one.key): one for one in files}
                for each in hardware.wrong_board(specs, states), hardware.lost_but_obtainable(self.world, states):
                    found |= {(one.law, one.key): one for one in each if one.key.split()[0] in known}
                for wrong in self.upgrades.look(self.world, specs, self._nodes, now):
                    self._violated(wrong)
                since = {key: since.get(key, -passed) + passed for key in found}
                for key, lasted in since.items():
                    if lasted >= FILES_LAST_S[key[0]]:
                        self._violated(found[key])

    def groups_to_compare(self) -> set[str]:
        """The groups that have waited long enough for the law of order to judge which starts."""
        now = time.monotonic()
        return self._dracos.order.long_enough(now, grace_s=self._grace_s(now), undisturbed=self._undisturbed)

    async def _twin(self, api: Api) -> None:
        """Renew a lease as the operator does, to measure how much this machine delays it."""
        path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        body: Object = {"metadata": {"name": "observer-twin"}, "spec": {"holderIdentity": "observer"}}
        await api.call("POST", path, body)
        last = asked = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, asked + TWIN_EVERY_S - time.monotonic()))
            asked = time.monotonic()
            stamped = {"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
            answer = await api.call("PATCH", f"{path}/observer-twin", stamped)
            self._answer_s = time.monotonic() - asked
            if answer.ok:
                self.pace.renewed(asked, asked - last)
                last = asked

    def _grace_s(self, now: float) -> float:
        """By how much recent actions may be late because of the machine."""
        late_s = self.pace.excess_s(now - 30.0, now) + self.fairness.was_down("api", now - 30.0, now)
        return late_s + self._starved_s(self.lease.holder, now - 30.0)

    def _schedulers_grace_s(self, now: float) -> float:
        """The same for kube-scheduler, whose watches may pause for up to a minute after an outage of the API server."""
        was_down = self.fairness.was_down("api", now - RELISTS_S, now) > 0
        return self._grace_s(now) + (RELISTS_S if was_down else 0.0)

    def _starved_s(self, holder: str, since: float) -> float:
        """How long an operator has waited for a processor since then."""
        return self._programs_starved_s(holder.rpartition("_")[0], since)

    def _programs_starved_s(self, program: str, since: float) -> float:
        pid = self.programs.pid(program)
        if pid is None:
            return 0.0
        self.starvation.sample(pid, time.monotonic())
        return self.starvation.waited_s(pid, since)

    def _undisturbed(self, since: float) -> bool:
        """Whether the same operator has led since then, with the API server up."""
        now = time.monotonic()
        steady = self.lease.led(self.world, now) and self.lease.steady_since < since - 1.0
        return steady and not self.fairness.was_down("api", since - 1.0, now)

    def _could_do_nothing(self, program: str) -> bool:
        """Whether the API server was down lately, or the lease may have been lost for lack of a processor."""
        now = time.monotonic()
        if self.fairness.was_down("api", now - 30.0, now) > 0:
            return True
        since = now - LOSES_LEASE_AFTER_S - SEEN_WITHIN_S
        return self.lease.may_be_lost(since, now, self._programs_starved_s(program, since))

    def _driver_waited(self, program: str) -> bool:
        node = program.removeprefix("agent-").removesuffix("-next")
        return time.monotonic() - self._waited.get(node, -math.inf) < WAITED_S

    def _count_phase(self, before: Object, after: Object) -> None:
        """Count the phases of requests that a Job verifies."""
        if after and verified_by_job(after) and phase_of(after) != phase_of(before):
            self.counts[f"requests that a Job verifies: {phase_of(after) or 'new'}"] += 1

    def _changed(self, kind: str, before: Object | None, after: Object | None) -> None:
        with self._lock:
            now = time.monotonic()
            self.counts[f"{kind}s: changes"] += 1
            one = after or before
            assert one is not None
            self._dracos.changed(kind, before, after, now)
            if kind == "request":
                self._count_phase(before or {}, after or {})
                self._late.requested(one, now, gone=after is None)
                self.bystanders.request_changed(one, now)
            if kind == "rule":
                self._tainted.rule_changed(before, after, now)
                self.bystanders.rule_changed(one, now)
                self.budgets.rule_changed(before, after, now)
                self.fences.rule_changed(before, after, now)
                self.counts["fences of lost agents"] = self.fences.fences
                self.counts["GPUs out of service, at most"] = self.budgets.out.most
            if kind == "slice":
                self._tainted.slice_changed(before, after, now)
                self._still.slice_changed(after, now)
                self.bystanders.slice_changed(one, now)
                self.budgets.slices_changed(now, datetime.now(UTC))
            self.counts["GPUs that agents were told are repaired"] += _repaired(kind, after) > _repaired(kind, before)
            if kind == "budget":
                self.budgets.budget_changed(before, after, datetime.now(UTC))
            if kind == "claim":
                self.bystanders.claim_changed(before, now)
            if kind == "pod":
                self.bystanders.pod_changed(before, after, now)
                self.counts["pods that nobody asked to go"] = self.bystanders.taken
            if kind == "lease" and after is not None:
                self.fences.renewed(after)
                for wrong in self.lease.renewed(before, after, now):
                    self._violated(wrong)
            if (
                kind == "claim"
                and after is not None
                and stamp(after)
                and (before is None or stamp(before) != stamp(after))
            ):
                self._allocated(after, now)
            if (
                kind == "pod"
                and after is not None
                and phase(after) == "Running"
                and (not before or phase(before) != "Running")
            ):
                self.counts["pods that ran"] += 1
            if line := told(kind, before, after):
                self._story.append(f"{clock()}   {line}")

    def _allocated(self, claim: Object, now: float) -> None:
        """A claim has got devices."""
        self.counts["claims allocated"] += 1
        self.counts["shares allocated"] += any(each.get("shareID") for each in results(claim))
        for wrong in over_committed(self.world):
            self._violated(wrong)  # at this revision, however short it lasts
        self._still.allocated(name(claim), now)
        if any(each.get("adminAccess") for each in results(claim)):
            self._admins.add(claim["metadata"]["uid"])
        grace_s = self._grace_s(now) if allocator(claim) == DRACO else self._schedulers_grace_s(now)
        self._late.allocated(self.world, claim, now, grace_s=grace_s)
        self._tainted.allocated(claim, now, grace_s=grace_s)


def _repaired(kind: str, one: Object | None) -> int:
    """How many GPUs a GpuNode lists as repaired."""
    return len(((one or {}).get("spec") or {}).get("repaired") or []) if kind == "gpunode" else 0
