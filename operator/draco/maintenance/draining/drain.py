"""How pods leave devices that are taken out of service: whom to evict now, what to wait for, and when NoExecute follows.

Pods have `drain.wait` to finish. Then each pod that holds one of the devices is evicted through the Eviction API, so that
PodDisruptionBudgets are respected; a refused eviction is retried with backoff. Where the cluster serves EvictionRequests, one is
created first, so that the pod's own eviction responders act; if nobody takes it on, or it is given up, the pod is evicted as
elsewhere. NoExecute comes last, and only if the request asks for it. Owns these decisions and their messages. It touches only
pods that a claim on the devices is reserved for, and never decides that a pod is gone: a claim holds a device until Kubernetes
releases it.

Sources: the Eviction API and the device taint eviction controller of Kubernetes 1.36, KEP-5055.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

import msgspec

from draco.maintenance.draining.disruption import ENDS_BY_ITSELF, covering, what_blocks, why_refused
from draco.maintenance.draining.eviction_requests import RequestedEviction, RequestStanding, asks_by_request
from draco.maintenance.progress import DrainPlan, RefusedEviction
from draco.maintenance.taint_impact import reserved_pods, tolerated_for
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.api.maintenance import DeviceMaintenance, DrainPolicy
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule
from draco.resources.names import ANNOTATION_MIRROR, DeviceKey
from draco.resources.texts import agreeing, are, counted, listed, others, sentence
from draco.resources.windows import lasting

ASKED_AT_ONCE = 16
"""The most pods that are evicted per round: a claim may have thousands."""
_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (5, 10, 20, 40, 60))
"""Backoff between evictions of one pod; the last value repeats."""
_ACCEPTED = timedelta(seconds=30)
"""After this time a pod whose eviction was accepted, and that is not terminating, is evicted again."""
TAKEN_ON_WITHIN = timedelta(seconds=10)
"""How long the cluster has to take on an EvictionRequest. A controller for them does so in a moment."""
_ENTRUSTED_EVERY = timedelta(seconds=10)
"""How often to check what blocks a pod that the cluster makes leave."""
_SETTLED = timedelta(seconds=10)
"""How long a written rule's status is distrusted: it may report that eviction is over before eviction has begun."""
_OVERDUE = timedelta(seconds=30)
"""How long after its grace period a pod that is still there counts as kept by something."""

_SENTENCES = 2
"""Most sentences of a message: it is one line of a table."""

_NOBODY: Mapping[str, "AskedPod"] = MappingProxyType({})


class AskedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that was asked to leave: when last, how often, and why that was refused ("": it was accepted)."""

    at: datetime
    tries: int = 1
    refusal: str = ""
    by_budget: bool = False


class DrainInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of `plan_drain`.

    `claims` hold one of `devices`, `pods` use these claims (others do no harm), `rules` are the request's, `budgets` those of the
    pods' namespaces. `asked` and `requested` are by pod UID; `requested` is None where the cluster serves no EvictionRequests.
    `paused` names the budget that stops all evictions. `forbidden` says why the operator was not permitted to evict in its last
    attempt; it still tries again. `spares_extended`: NoExecute ignores pods that have their GPUs as extended resources.
    `rules_served`: the API server serves DeviceTaintRules, which NoExecute needs.
    """

    now: datetime
    devices: frozenset[DeviceKey] = frozenset()
    claims: Sequence[ResourceClaim] = ()
    pods: Sequence[Pod] = ()
    rules: Sequence[DeviceTaintRule] = ()
    budgets: Sequence[PodDisruptionBudget] = ()
    asked: Mapping[str, AskedPod] = _NOBODY
    requested: Mapping[str, RequestedEviction] | None = None
    paused: str = ""
    forbidden: str = ""
    spares_extended: bool = True
    rules_served: bool = True


def plan_drain(request: DeviceMaintenance, snapshot: DrainInput) -> DrainPlan | None:
    """How the devices become free. None if nobody is evicted: by policy, or while nothing is isolated."""
    drain = request.spec.drain
    if drain.policy is DrainPolicy.WAIT or request.status.isolated_at is None:
        return None
    wait_s = _isolated_at(request, snapshot.now) + lasting(drain.wait) - snapshot.now
    if request.status.draining_at is None and wait_s > timedelta(0):
        return DrainPlan(waits_for=wait_s, look_again=wait_s)
    holders, without = _holders(snapshot)
    finding = _Finding(request, snapshot)
    for pod, claims in sorted(holders, key=lambda each: (finding.tries(each[0]), each[0].metadata.key)):
        finding.sort(pod, claims)
    no_execute, comes_in = _no_execute(request, snapshot, anyone=bool(holders))
    is_due = not snapshot.paused and _is_no_execute_due(request, snapshot.now)
    if is_due and not snapshot.rules_served and request.spec.taint.effect != "NoExecute":
        staying = (pod for pod, _ in holders if not pod.is_over and pod.metadata.deletion_timestamp is None)
        finding.undeleted = {pod.metadata.key for pod in staying} - finding.stays.keys()
    overlooked = {
        pod.metadata.key
        for pod, claims in holders
        if snapshot.spares_extended
        and not pod.is_over
        and pod.extended_resource_claim in {claim.metadata.key for claim in claims}
    }
    state = DrainPlan(
        evict=tuple(finding.evict),
        request=tuple(finding.request),
        leaving=tuple(sorted(finding.leaving)),
        refused=tuple(sorted(finding.refused)),
        no_execute=no_execute,
        look_again=min((each for each in (*finding.looks, comes_in) if each is not None), default=None),
    )
    return msgspec.structs.replace(
        state, message=_message(snapshot, state, finding, overlooked if no_execute else set(), without)
    )


class _Finding:
    """What to do about each holder. Filled pod by pod."""

    def __init__(self, request: DeviceMaintenance, snapshot: DrainInput) -> None:
        self._request, self._snapshot = request, snapshot
        taint = request.spec.taint
        self._taint = DeviceTaint(key=taint.key, value=taint.value, effect="NoExecute")
        self.evict: list[ObjectKey] = []
        self.request: list[ObjectKey] = []
        self.entrusted: dict[ObjectKey, list[str]] = {}
        """Pods that the cluster makes leave, with their own eviction responders, which act first."""
        self.leaving: set[ObjectKey] = set()
        self.refused: list[RefusedEviction] = []
        self.stays: dict[ObjectKey, str] = {}
        self.kept: dict[ObjectKey, str] = {}
        """Pods that are long past their grace period, with what keeps them."""
        self.undeleted: set[ObjectKey] = set()
        """Pods that are left when NoExecute is due but the cluster has no rules."""
        self.late: set[ObjectKey] = set()
        """Claims with a pod that was created after the first eviction."""
        self.looks: list[timedelta] = []

    def tries(self, pod: Pod) -> int:
        asked = self._snapshot.asked.get(pod.metadata.uid)
        return asked.tries if asked else 0

    def sort(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        key, now = pod.metadata.key, self._snapshot.now
        began, made = self._request.status.draining_at, pod.metadata.creation_timestamp
        if began is not None and made is not None and made > began:
            self.late |= {claim.metadata.key for claim in claims}
        if pod.metadata.deletion_timestamp is not None:
            self._terminating(pod)
        elif pod.is_over:
            self.leaving.add(key)
        elif ANNOTATION_MIRROR in pod.metadata.annotations:
            self.stays[key] = "is a static pod: remove its manifest from the node"
        elif (left := self._tolerated(claims)) is None:
            self.stays[key] = f"tolerates {self._request.spec.taint.key}:NoExecute"
        elif left > timedelta(0):
            self.leaving.add(key)
            self.looks.append(left)
        elif not self._is_with_the_cluster(pod):
            self._ask(pod, self._snapshot.asked.get(pod.metadata.uid), now)

    def _terminating(self, pod: Pod) -> None:
        key, deleted = pod.metadata.key, pod.metadata.deletion_timestamp
        self.leaving.add(key)
        # deletionTimestamp already includes the grace period.
        overdue_in = deleted + _OVERDUE - self._snapshot.now if deleted else timedelta(0)
        if overdue_in > timedelta(0):
            self.looks.append(overdue_in)
        elif pod.metadata.finalizers:
            self.kept[key] = f"finalizer {listed(pod.metadata.finalizers)}"
        else:
            self.kept[key] = f"kubelet on {pod.spec.node_name or 'its node'}, which has not confirmed its end"

    def _tolerated(self, claims: Sequence[ResourceClaim]) -> timedelta | None:
        """How long its claims still tolerate the taint; None means for ever."""
        results = [each for claim in claims for each in claim.results if each.key in self._snapshot.devices]
        granted = [seconds for each in results if (seconds := tolerated_for(each, self._taint)) is not None]
        if not granted:
            return None
        since, wait = _isolated_at(self._request, self._snapshot.now), lasting(self._request.spec.drain.wait)
        return since + wait + timedelta(seconds=min(granted)) - self._snapshot.now

    def _ask(self, pod: Pod, asked: AskedPod | None, now: datetime) -> None:
        key = pod.metadata.key
        if asked is not None:
            pause = _PAUSES[min(asked.tries, len(_PAUSES)) - 1]
            if not asked.refusal:
                pause = _ACCEPTED
            elif asked.by_budget and (found := covering(pod, self._snapshot.budgets)) and not what_blocks(pod, found):
                pause = _PAUSES[0]
            rest = asked.at + pause - now
            if asked.refusal:
                self.refused.append(self._refusal(pod, asked))
            else:
                self.leaving.add(key)
            # If the clock was set back, the pod must not wait for hours.
            if timedelta(0) < rest <= pause:
                self.looks.append(rest)
                return
        if self._snapshot.paused:
            return
        by_request = asked is None and self._may_request and pod.metadata.uid not in (self._snapshot.requested or ())
        if len(self.evict) + len(self.request) < ASKED_AT_ONCE:
            (self.request if by_request else self.evict).append(key)
        elif not self._snapshot.forbidden:
            self.looks.append(timedelta(seconds=1))

    @property
    def _may_request(self) -> bool:
        return self._snapshot.requested is not None and asks_by_request(self._request)

    def _is_with_the_cluster(self, pod: Pod) -> bool:
        """Whether the pod is left to the cluster, which was asked to make it leave."""
        uid, key = pod.metadata.uid, pod.metadata.key
        found = (
            (self._snapshot.requested or {}).get(uid) if self._may_request and uid not in self._snapshot.asked else None
        )
        if found is None or found.standing is RequestStanding.GIVEN_UP:
            return False
        if found.standing is RequestStanding.UNANSWERED:
            rest = found.at + TAKEN_ON_WITHIN - self._snapshot.now
            # If the clock was set back, the pod must not wait for hours.
            if not timedelta(0) < rest <= TAKEN_ON_WITHIN:
                return False
            self.leaving.add(key)
            self.looks.append(rest)
            return True
        self.entrusted[key] = [each.name for each in pod.spec.eviction_responders]
        self.looks.append(_ENTRUSTED_EVERY)
        reason = what_blocks(pod, self._snapshot.budgets)
        if reason and not self.entrusted[key]:
            self.refused.append(RefusedEviction(key, reason))
        else:
            self.leaving.add(key)
        return True

    def _refusal(self, pod: Pod, asked: AskedPod) -> RefusedEviction:
        reason = why_refused(pod, self._snapshot.budgets) if asked.by_budget else ""
        return RefusedEviction(pod.metadata.key, reason or asked.refusal)


def _isolated_at(request: DeviceMaintenance, now: datetime) -> datetime:
    """Since when it is isolated, at most now: the clock that wrote the time may be ahead of ours."""
    return min(request.status.isolated_at or now, now)


def _holders(snapshot: DrainInput) -> tuple[list[tuple[Pod, list[ResourceClaim]]], list[ResourceClaim]]:
    """The pods that hold a device, each with the claims by which it does, and claims that hold a device without a pod."""
    known = {pod.metadata.key: pod for pod in snapshot.pods}
    holders: dict[ObjectKey, list[ResourceClaim]] = {}
    unheld = []
    for claim in sorted(snapshot.claims, key=lambda claim: claim.metadata.key):
        users = reserved_pods(claim, known)
        for key in users:
            holders.setdefault(key, []).append(claim)
        if not users:
            unheld.append(claim)
    return [(known[key], claims) for key, claims in holders.items()], unheld


def _is_no_execute_due(request: DeviceMaintenance, now: datetime) -> bool:
    drain, began = request.spec.drain, request.status.draining_at
    if drain.policy is not DrainPolicy.NO_EXECUTE or began is None:
        return False
    return began + lasting(drain.no_execute_after) <= now


def _no_execute(request: DeviceMaintenance, snapshot: DrainInput, *, anyone: bool) -> tuple[bool, timedelta | None]:
    """Whether the rules have, or get, the effect NoExecute, and when to check again. A rule that has it keeps it."""
    drain, began = request.spec.drain, request.status.draining_at
    if drain.policy is not DrainPolicy.NO_EXECUTE or began is None:
        return False, None
    if any(rule.spec.taint.effect == "NoExecute" for rule in snapshot.rules):
        return True, _untrusted_for(snapshot)
    comes_in = began + lasting(drain.no_execute_after) - snapshot.now
    if comes_in > timedelta(0):
        return False, comes_in
    return anyone and not snapshot.paused and snapshot.rules_served, None


def _untrusted_for(snapshot: DrainInput) -> timedelta | None:
    written = [each.spec.taint.time_added for each in snapshot.rules if each.spec.taint.time_added is not None]
    rest = max(written) + _SETTLED - snapshot.now if written else timedelta(0)
    return rest if rest > timedelta(0) else None


def is_eviction_over(rules: Sequence[DeviceTaintRule], now: datetime) -> bool:
    """Whether taint eviction is over for all these rules, according to a status that can be trusted."""
    ordered = [each for each in rules if each.spec.taint.effect == "NoExecute"]
    return bool(ordered) and all(
        each.spec.taint.time_added is not None
        and now - each.spec.taint.time_added >= _SETTLED
        and any(said.type == "EvictionInProgress" and said.status == "False" for said in each.status.conditions)
        for each in ordered
    )


def _message(
    snapshot: DrainInput,
    state: DrainPlan,
    finding: _Finding,
    overlooked: Collection[ObjectKey],
    without: Sequence[ResourceClaim],
) -> str:
    """The cause that a person has to act on comes first."""
    said = []
    if snapshot.forbidden and state.evict:
        said.append(snapshot.forbidden)
    elif snapshot.paused:
        said.append(f"No pod is evicted while MaintenanceBudget {snapshot.paused} is paused.")
    if finding.undeleted:
        first = min(finding.undeleted)
        said.append(
            f"NoExecute deletes no pod, because this cluster serves no DeviceTaintRule: `kubectl delete pod -n {first.namespace} "
            f"{first.name}`{others(len(finding.undeleted) - 1, 'pod')}."
        )
    if overlooked:
        first = min(overlooked)
        said.append(
            f"Before Kubernetes 1.37, NoExecute overlooks {counted(len(overlooked), 'pod')} with GPUs as extended resources: "
            f"`kubectl delete pod -n {first.namespace} {first.name}`."
        )
    if state.refused:
        said.append(_refusals(state.refused))
    if finding.kept:
        key = min(finding.kept)
        more = others(len(finding.kept) - 1, "pod")
        said.append(f"Pod {key}{more} is being deleted and kept by {finding.kept[key]}.")
    if finding.stays:
        key = min(finding.stays)
        more = others(len(finding.stays) - 1, "pod")
        said.append(f"Pod {key}{more} is not evicted, because it {finding.stays[key]}.")
    if finding.late:
        claims = agreeing(len(finding.late), "claim", "claims")
        said.append(
            f"New pods started using {claims} {listed(sorted(finding.late))} during the drain; scale down their controller."
        )
    if state.no_execute and is_eviction_over(snapshot.rules, snapshot.now) and not (overlooked or finding.stays):
        said.append("Taint eviction has finished; the remaining pods tolerate the taint.")
    responding = {key: names for key, names in finding.entrusted.items() if names}
    if responding and len(said) < _SENTENCES:
        said.append(_left_to_responders(responding))
    asked = () if snapshot.forbidden else state.evict
    waited = {*state.leaving, *asked, *state.request} - responding.keys()
    if waited and len(said) < _SENTENCES:
        said.append(f"{counted(len(waited), 'pod')} {are(len(waited))} leaving: {listed(sorted(waited))}.")
    if without and len(said) < _SENTENCES:
        said.append(_without_pods(without))
    return " ".join(said[:_SENTENCES])


def _refusals(refused: Sequence[RefusedEviction]) -> str:
    """The first refusal with its reason; reasons that waiting does not remove come first."""
    first = min(refused, key=lambda each: (each.reason.endswith(ENDS_BY_ITSELF), each.pod))
    rest = len(refused) - 1
    more = f" {counted(rest, 'more pod')} {are(rest)} refused." if rest else ""
    return f"Pod {first.pod} cannot be evicted yet: {sentence(first.reason)}{more}"


def _left_to_responders(responding: Mapping[ObjectKey, Sequence[str]]) -> str:
    """Pods with their own eviction responders: the cluster asks one after the other, and finally evicts the pod."""
    key = min(responding)
    more = others(len(responding) - 1, "pod")
    what = agreeing(len(responding[key]), "eviction responder", "eviction responders")
    return f"Waiting for {what} {listed(responding[key])} of pod {key}{more}."


def _without_pods(claims: Sequence[ResourceClaim]) -> str:
    """Claims without a pod to evict; those that only a person can free come first."""
    claim = min(claims, key=lambda each: bool(each.status.reserved_for))
    key, more = claim.metadata.key, others(len(claims) - 1, "claim")
    if not claim.status.reserved_for:
        command = f"`kubectl delete resourceclaim -n {key.namespace} {key.name}`"
        return f"Claim {key}{more} holds a device and no pod uses it: {command}."
    consumer = claim.status.reserved_for[0]
    if consumer.resource == "pods":
        return f"The claim {key}{more} is reserved for a pod that is gone; kube-controller-manager will release it."
    return (
        f"The claim {key}{more} is reserved for {consumer.name} of {consumer.resource}, which has no pod: delete that."
    )
