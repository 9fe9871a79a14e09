"""Removes Draco's scheduling gate from pods whose claims are allocated, so that kube-scheduler considers them for the first time.

Owns when the gate is removed, and the Event when Draco may not remove it; `webhook.pod_gates` adds it to new pods. It is never
added again: Kubernetes allows no new gate on an existing pod. A pod that loses its devices later waits like a pod that never had
a gate. Other controllers' gates are not touched.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import structlog

from draco.allocation.ownership.claims import is_for_operator, is_operators
from draco.allocation.ownership.gangs import GangKey, GangSource, GangTerms, UnknownTerms, pod_group_of
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.retry import FORBIDDEN_LONGEST_S, FORBIDDEN_S, Pauses
from draco.kube.errors import Forbidden, Invalid, NotFound
from draco.kube.watch.store import Change
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import PODS
from draco.resources.names import SCHEDULING_GATE

log = structlog.get_logger(__name__)

GATES_AT_ONCE: Final = 32
"""Pods or PodGroups that are ungated in parallel, so that the pods of a group start together."""
REQUESTS_AT_ONCE: Final = 64
"""Requests of all groups in parallel. More would delay the operator's other requests, including Lease renewals."""
_AGAIN_S = 10.0
"""Retry interval for a pod that changed meanwhile, should the watch not deliver the change."""


class SchedulingGates:
    """Ungates one pod at a time, or all pods of a PodGroup together once as many as start together have their devices.

    kube-scheduler considers a PodGroup when one of its pods has no gate. If others still have theirs, it fails for the pods seen
    so far, reports that on each pod in turn, and only then tries again.
    """

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        terms: Callable[[GangKey], GangTerms | UnknownTerms | None],
        *,
        autoscaled: bool,
    ) -> None:
        self._client = client
        self._view = view
        self._terms = terms
        self._autoscaled = autoscaled
        self._requests = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._off: set[str] = set()
        """UIDs of ungated pods whose update the watch has not delivered yet."""
        self._forbidden: Pauses[str] = Pauses(
            view.clock.monotonic, first_s=FORBIDDEN_S, longest_s=FORBIDDEN_LONGEST_S
        )  # by UID

    @property
    def trouble(self) -> str:
        """What keeps Draco from removing gates, and the fix; "" without a known problem."""
        last = max(self._forbidden.by_key.values(), key=lambda each: each.until_s, default=None)
        if last is None:
            return ""
        return (
            f"The API server does not let Draco take the scheduling gate {SCHEDULING_GATE} off pods, so they wait: let the "
            f"operator's ClusterRole patch pods, as the chart's does ({last.why})."
        )

    def subscribe(self, wake: Callable[[ObjectKey | GangKey], None]) -> None:
        """Call `wake` with every gated pod, or its PodGroup, that a change may affect."""

        def concerned(pods: Iterable[Pod]) -> Iterator[ObjectKey | GangKey]:
            for pod in pods:
                key = _key_of(pod)
                if _has_gate(pod) or isinstance(key, GangKey):
                    yield key

        def pod_changed(change: Change[Pod]) -> None:
            if change.before is not None and (change.after is None or not _has_gate(change.after)):
                self._off.discard(change.before.metadata.uid)
                self._forbidden.forget(change.before.metadata.uid)
            if change.after is not None and (_has_gate(change.after) or change.differs(_gates)):
                for key in concerned([change.after]):
                    wake(key)

        self._view.claims.subscribe_keys(
            wake,
            lambda claim: concerned(self._view.pods_of(claim.metadata.key)),
            reads=lambda claim: (claim.status.allocation is None, claim.metadata.deletion_timestamp is None),
        )
        self._view.pods.subscribe(pod_changed)
        self._view.classes.subscribe_keys(wake, lambda _: self.all_keys(), reads=is_operators)
        self._view.pod_groups.subscribe(lambda change: wake(GangKey(GangSource.POD_GROUP, *change.key)))

    def all_keys(self) -> set[ObjectKey | GangKey]:
        """All gated pods, or their PodGroups."""
        return {_key_of(pod) for pod in self._view.pods.store.values() if _has_gate(pod)}

    async def reconcile(self, key: ObjectKey | GangKey) -> float | None:
        """Ungate the pod or PodGroup if due. Return seconds until the next look. Raises ApiError after all pods were tried."""
        ready = self._ready_of(key) if isinstance(key, GangKey) else self._ready(key)
        gated = [pod for pod in ready if _has_gate(pod) and pod.metadata.uid not in self._off]
        answers = await asyncio.gather(*map(self._take_off, gated), return_exceptions=True)
        failure = next((each for each in answers if isinstance(each, BaseException)), None)
        if failure is not None:
            raise failure
        return min((each for each in answers if isinstance(each, float)), default=None)

    async def _take_off(self, pod: Pod) -> float | None:
        """Return seconds until a retry, None if done. Raises ApiError."""
        if (left_s := self._forbidden.left_s(pod.metadata.uid)) > 0:
            return left_s
        key, others = pod.metadata.key, [each for each in pod.spec.scheduling_gates if each.name != SCHEDULING_GATE]
        # The gate cannot come back, since Kubernetes refuses to add one. A JSON patch with a test costs the API server a third
        # more.
        change = {"metadata": {"uid": pod.metadata.uid}, "spec": {"schedulingGates": others or None}}
        try:
            async with self._requests:
                await self._client.patch(PODS, key, change)
        except NotFound:
            return None
        except Invalid as error:
            log.info("gate.changed", pod=str(key), error=str(error))
            return _AGAIN_S
        except Forbidden as error:
            if not self._still_gated(pod):
                return None  # deleted meanwhile: the refusal would never be forgotten
            again_s = self._forbidden.begin(pod.metadata.uid, str(error))
            log.warning("gate.refused", pod=str(key), error=str(error), again_in_s=again_s)
            return again_s
        self._forbidden.forget(pod.metadata.uid)
        if self._still_gated(pod):
            self._off.add(pod.metadata.uid)  # until the watch delivers the update
        log.info("gate.removed", pod=str(key))
        return None

    def _still_gated(self, pod: Pod) -> bool:
        """Whether this pod (by UID) still has the gate, as far as the watch has delivered."""
        known = self._view.pods.store.get(pod.metadata.key)
        return known is not None and known.metadata.uid == pod.metadata.uid and _has_gate(known)

    def _ready(self, key: ObjectKey) -> Sequence[Pod]:
        """The pod, if it is ready. A pod held by other gates does not count: its devices are to be given back."""
        pod = self._view.pods.store.get(key)
        return [pod] if pod is not None and not pod.is_gated_by_others and self._has_all(pod) else []

    def _ready_of(self, group: GangKey) -> Sequence[Pod]:
        """The ready pods of a PodGroup; none while fewer are ready than start together."""
        pods, terms = [pod for pod in self._view.pods_of_gang(group) if not pod.is_over], self._terms(group)
        dispensable = len(pods) - (terms.size if isinstance(terms, GangTerms) else 0)
        ready: list[Pod] = []
        for pod in pods:
            if dispensable < 0:
                return []
            if not pod.is_gated_by_others and self._has_all(pod):
                ready.append(pod)
            else:
                dispensable -= 1
        return ready if dispensable >= 0 else []

    def _has_all(self, pod: Pod) -> bool:
        """Whether the pod has all devices that Draco must allocate for it; a pod without such claims waits for nothing.

        Kubernetes starts no pod with a claim that is being deleted. With a cluster autoscaler no pod waits here: it adds nodes
        only for pods without a gate.
        """
        if self._autoscaled:
            return True
        keys = self._view.claims_of(pod)
        if len(keys) < len(pod.spec.resource_claims):
            return False
        classes = self._view.classes_by_name
        claims = map(self._view.claims.store.get, keys)
        return all(
            each is not None
            and each.metadata.deletion_timestamp is None
            and (each.status.allocation is not None or not is_for_operator(each, classes))
            for each in claims
        )


def _key_of(pod: Pod) -> ObjectKey | GangKey:
    """The pod, or its PodGroup. kube-scheduler considers pods of other groups one by one."""
    return pod_group_of(pod) or pod.metadata.key


def _gates(pod: Pod) -> list[str]:
    return [gate.name for gate in pod.spec.scheduling_gates]


def _has_gate(pod: Pod) -> bool:
    return pod.waits and SCHEDULING_GATE in _gates(pod)
