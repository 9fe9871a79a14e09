"""Measures how fast claims take instances, and decides which GPUs keep idle ones ahead of them.

Owns the history of claims that got partitions under policies with `spec.warmAhead`. After a restart the history is rebuilt from
the claims' own status, and what GpuNodes keep at that time counts as wanted for one window. There is one key. Writes nothing: the
result goes to the decisions, and from there into GpuNodes.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from draco.controller.loop_watch import CooperativeWork
from draco.controller.mig.decisions import AheadReport, MigDecisions
from draco.controller.mig.warm_gpus import LookedAt, WarmGpus
from draco.controller.view import ClusterView
from draco.kube.watch.store import Change
from draco.mig_policy.decide import Ahead
from draco.mig_policy.warm_ahead import WarmDemand, ahead_text, spread
from draco.reservations.claims import reserved_by
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import MigMode, MigPolicy, ProfileCount, WarmAhead
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey, read_partition_name
from draco.resources.windows import lasting

KEY = ""
_PACE_S = 5.0
"""How often the shares of GPUs are computed: each changed share is a write."""
_SAID_FOR_S = 60.0
"""How long a rate stays in the policy's status while nothing else of it changes."""
_LONGEST = timedelta(days=1)


class _Subject(NamedTuple):
    """What is measured: a profile of a policy, by name."""

    policy: str
    profile: str


class _Measured(NamedTuple):
    terms: tuple[str, WarmAhead]
    demand: WarmDemand


class _Figures(NamedTuple):
    wanted: int
    room: int
    limit: int
    per_minute: float
    at_s: float


class WarmAheadReconciler:
    """Measures all policies under one key."""

    def __init__(self, view: ClusterView, decisions: MigDecisions) -> None:
        self._view = view
        self._decisions = decisions
        self._gpus = WarmGpus(view)
        self._measured: dict[_Subject, _Measured] = {}
        self._told: dict[_Subject, _Figures] = {}
        view.claims.subscribe(self._claim_changed)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` when a policy changes; otherwise the reconciler runs on a timer."""
        self._view.mig_policies.subscribe(
            lambda _: wake(KEY), reads=lambda policy: (policy.spec, policy.metadata.deletion_timestamp)
        )

    def all_keys(self) -> set[str]:
        """The one key."""
        return {KEY}

    async def reconcile(self, _: str) -> float | None:
        """Compute what each GPU is to keep."""
        policies = [each.policy for each in self._decisions.rules if each.policy.spec.mode is MigMode.DYNAMIC]
        terms = {each.metadata.name: each.spec.warm_ahead for each in policies if each.spec.warm_ahead is not None}
        limits = {name: {one.profile: one.count for one in each.limits} for name, each in terms.items()}
        self._gpus.begin()
        work = CooperativeWork(self._view.clock)
        for decision in await self._decisions.all() if terms else ():
            self._gpus.add(decision, limits)
            await work.pause()
        found = self._gpus.found
        self._measure([each for each in policies if each.metadata.name in terms], found)
        now_s = self._view.clock.monotonic()
        ahead: dict[str, dict[str, list[ProfileCount]]] = {}
        figures: dict[_Subject, _Figures] = {}
        for policy, most in limits.items():
            untold = found.untold[policy]
            wanted = {each: self._measured[_Subject(policy, each)].demand.wanted(now_s) for each in most}
            shares = spread(
                found.gpus[policy],
                {each: max(0, count - untold[each]) for each, count in wanted.items()},
                {each: max(0, count - untold[each]) for each, count in most.items()},
            )
            for uuid, share in shares.by_gpu.items():
                kept = [ProfileCount(profile=profile, count=count) for profile, count in sorted(share.items())]
                ahead.setdefault(found.nodes[uuid], {})[uuid] = kept
            for each, limit in most.items():
                rate = self._measured[_Subject(policy, each)].demand.per_minute(now_s)
                room = shares.with_room[each] + min(untold[each], wanted[each])
                figures[_Subject(policy, each)] = _Figures(wanted[each], room, limit, rate, now_s)
        self._decisions.keep_ahead(dict[str, Ahead](ahead), self._report(figures))
        return _PACE_S if terms else None

    def _measure(self, policies: Iterable[MigPolicy], found: LookedAt) -> None:
        measured: dict[_Subject, _Measured] = {}
        begun = set()
        now_s = self._view.clock.monotonic()
        for policy in policies:
            ahead, name = policy.spec.warm_ahead, policy.metadata.name
            for each in ahead.limits if ahead else ():
                subject, known = _Subject(name, each.profile), self._measured.get(_Subject(name, each.profile))
                if ahead is not None and (known is None or known.terms != (policy.metadata.uid, ahead)):
                    demand = WarmDemand(
                        window_s=lasting(ahead.window).total_seconds(),
                        lead_s=ahead.lead_time_seconds,
                        limit=each.count,
                        now_s=now_s,
                        standing=found.stands(name, each.profile),
                    )
                    known = _Measured((policy.metadata.uid, ahead), demand)
                    begun.add(subject)
                if known is not None:
                    measured[subject] = known
        self._measured = measured
        if begun:
            self._recall(begun)

    def _recall(self, subjects: set[_Subject]) -> None:
        now, now_s = self._view.clock.now(), self._view.clock.monotonic()
        for claim in self._view.claims.store.values():
            allocation = claim.status.allocation
            at = (allocation.allocation_timestamp if allocation else None) or claim.metadata.creation_timestamp
            age = max(timedelta(0), now - at) if at else _LONGEST
            for subject in self._subjects(claim, claim.devices_held) if age < _LONGEST else ():
                if subject in subjects:
                    self._measured[subject].demand.take(now_s - age.total_seconds())

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        if change.after is None or not self._measured:
            return
        before = frozenset(change.before.devices_held) if change.before else frozenset()
        taken = [each for each in change.after.devices_held if each not in before]
        for subject in self._subjects(change.after, taken):
            self._measured[subject].demand.take(self._view.clock.monotonic())

    def _subjects(self, claim: ResourceClaim, devices: Iterable[DeviceKey]) -> Iterable[_Subject]:
        """The measured subjects that a claim takes. A reservation's claims take nothing: the pods' claims that follow do."""
        for device in () if reserved_by(claim) else devices:
            part = read_partition_name(device.device)
            decision = self._decisions.of(device.pool) if part else None
            gpu_node = self._view.gpu_nodes.store.get(ObjectKey("", device.pool))
            if part is None or decision is None or gpu_node is None or gpu_node.status.driver != device.driver:
                continue
            for gpu in decision.gpus:
                board = decision.boards.get(gpu.board)
                profile = board.by_id(part.profile_id) if board and gpu.device == part.parent else None
                if profile is not None and (subject := _Subject(gpu.policy, profile.name)) in self._measured:
                    yield subject

    def _report(self, found: Mapping[_Subject, _Figures]) -> AheadReport:
        """The report. A change of the rates alone does not trigger a write of each status."""
        told = {}
        for subject, each in found.items():
            before = self._told.get(subject)
            is_new = before is None or before[:3] != each[:3] or each.at_s - before.at_s >= _SAID_FOR_S
            told[subject] = each if is_new or before is None else before
        self._told = told
        said: dict[str, list[str]] = {}
        for subject, each in sorted(told.items()):
            text = ahead_text(subject.profile, each.wanted, each.room, each.limit, each.per_minute)
            said.setdefault(subject.policy, []).append(text)
        return AheadReport(
            said={policy: " ".join(texts) for policy, texts in said.items()},
            rates={(policy, profile): each.per_minute for (policy, profile), each in found.items()},
            counts={(policy, profile): each.wanted for (policy, profile), each in found.items()},
        )
