"""Takes Draco's scheduling gate off pods that have what Draco allocates, so that kube-scheduler looks at them for the first time.

Owns when the gate goes and what is said where Draco may not take it off. It never comes back: Kubernetes permits no gate to be
added to a pod that exists. What loses its devices afterwards waits as a pod that never had a gate. Gates of others are theirs.
"""

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from draco.allocation.ownership.claims import is_for_operator
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import Forbidden, Invalid, NotFound
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import PODS
from draco.resources.names import SCHEDULING_GATE

log = structlog.get_logger(__name__)

GATES_AT_ONCE: Final = 32
"""The pods of a group get their devices at once, and are to start so."""
_AGAIN_S = 10.0
"""How soon to try again what was refused: either the pod changed meanwhile, which its watch tells, or a role is to be mended."""


class SchedulingGates:
    """One pod at a time. Those of a group follow each other, as it gets all of its devices or none."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view
        self._off: set[str] = set()
        """UIDs of pods whose gate is off though the watch has not told of it yet."""
        self.trouble = ""
        """What keeps Draco from taking gates off, and what to do; "" if nothing does, as far as is known."""

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Have `wake` called with every pod with the gate that a change may concern."""

        def concerned(pods: Iterable[Pod]) -> None:
            for pod in filter(_has_gate, pods):
                wake(pod.metadata.key)

        def claim_changed(change: Change[ResourceClaim]) -> None:
            if change.differs(lambda claim: claim.status.allocation is None):
                concerned(self._view.pods_of(change.key))

        def pod_changed(change: Change[Pod]) -> None:
            if change.before is not None and (change.after is None or not _has_gate(change.after)):
                self._off.discard(change.before.metadata.uid)
            if change.after is not None:
                concerned([change.after])

        self._view.claims.subscribe(claim_changed)
        self._view.pods.subscribe(pod_changed)

    def all_keys(self) -> set[ObjectKey]:
        """All pods with the gate."""
        return {pod.metadata.key for pod in self._view.pods.store.values() if _has_gate(pod)}

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Take the gate off if it is time. Returns in how many seconds to look again. Raises ApiError."""
        pod = self._view.pods.store.get(key)
        if pod is None or not _has_gate(pod) or pod.metadata.uid in self._off or not self._has_all(pod):
            return None
        gate = f"/spec/schedulingGates/{[each.name for each in pod.spec.scheduling_gates].index(SCHEDULING_GATE)}"
        try:
            await self._client.patch(
                PODS,
                key,
                [
                    {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
                    {"op": "test", "path": f"{gate}/name", "value": SCHEDULING_GATE},
                    {"op": "remove", "path": gate},
                ],
            )
        except NotFound:
            return None
        except Invalid as error:
            log.info("gate.changed", pod=str(key), error=str(error))
            return _AGAIN_S
        except Forbidden as error:
            log.warning("gate.refused", pod=str(key), error=str(error))
            self.trouble = (
                f"The API server does not let Draco take the scheduling gate {SCHEDULING_GATE} off pods, so they wait: let the "
                f"operator's ClusterRole patch pods, as the chart's does ({error})."
            )
            return _AGAIN_S
        self.trouble = ""
        self._off.add(pod.metadata.uid)
        log.info("gate.removed", pod=str(key))
        return None

    def _has_all(self, pod: Pod) -> bool:
        """Whether it has all that Draco is to allocate for it. One that wants nothing of Draco's waits for nothing."""
        if len(pod.claims) < len(pod.spec.resource_claims):
            return False
        classes = self._view.classes_by_name
        claims = [self._view.claims.store.get(key) for key in pod.claims]
        return all(
            each is not None and (each.status.allocation is not None or not is_for_operator(each, classes))
            for each in claims
        )


def _has_gate(pod: Pod) -> bool:
    return pod.waits and any(gate.name == SCHEDULING_GATE for gate in pod.spec.scheduling_gates)
