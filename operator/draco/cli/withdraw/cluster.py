"""The cluster as `draco withdraw` reads and writes it: stops operator and agents, then takes back what they wrote.

Owns the reading, the order and the writes. Each write is conditional on the version or UID that was read, and everything is read
again until `plan` returns an empty plan. So concurrent writes are seen, and a second run does nothing.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from draco.cli.output import CommandError, echo, warn
from draco.cli.withdraw.plan import MANAGED_CLAIMS, Reversal, WithdrawalPlan, Written, plan
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import TRANSIENT, retry
from draco.kube.errors import Conflict, Forbidden, Invalid, NotFound
from draco.overview.installation import DAEMON_SETS, DEPLOYMENTS, Workload
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import DEVICE_CLASSES, EVICTION_REQUESTS, JOBS, LEASES, NODES, PODS, SLICES, Kind
from draco.resources.texts import counted, listed

T = TypeVar("T")
_WORKERS: Final = "app.kubernetes.io/name=draco,app.kubernetes.io/component in (operator,agent)"
_AGAIN_S: Final = 1.0
_SETTLES_S: Final = 0.2
"""Pause after a round without refusals: long enough to see concurrent writes, and to avoid a busy loop."""
_PODS_WITHIN: Final = 0.5
"""Share of the timeout in which the pods of operator and agents must end."""


class Withdrawal:
    """One withdrawal. `namespace` is Draco's, `job_namespace` that of its Jobs ("" for none), `rules` the served taint rules."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        rules: Kind[DeviceTaintRule] | None,
        *,
        job_namespace: str,
        within_s: float,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._job_namespace = job_namespace
        self._rules = rules
        self._clock = SystemClock()
        self._within_s = within_s
        self._until_s = self._clock.monotonic() + within_s

    async def workloads(self) -> list[tuple[Kind[Any], Workload]]:
        """Draco's Deployment and DaemonSet, if they exist."""
        found = [
            (kind, await self._list(kind, namespace=self._namespace, label_selector=_WORKERS))
            for kind in (DEPLOYMENTS, DAEMON_SETS)
        ]
        return [(kind, each) for kind, objects in found for each in objects]

    async def read(self) -> WithdrawalPlan:
        """What is left to take back now. Raises ApiError."""
        return plan(
            Written(
                job_namespace=self._job_namespace,
                slices=await self._list(SLICES),
                rules=await self._list(self._rules) if self._rules else (),
                rule_kind=self._rules,
                nodes=await self._list(NODES),
                claims=await self._list(MANAGED_CLAIMS),
                classes=await self._list(DEVICE_CLASSES),
                pods=await self._list(PODS),
                eviction_requests=await self._list(EVICTION_REQUESTS),
                jobs=await self._list(JOBS, namespace=self._job_namespace) if self._job_namespace else (),
                leases=await self._list(LEASES, namespace=self._namespace),
            )
        )

    async def stop(self) -> None:
        """Delete operator and agents, which would write again. Pods that do not end in time are named, then ignored."""
        for kind, each in await self.workloads():
            with suppress(NotFound):
                await retry(partial(self._delete, kind, each.metadata), clock=self._clock)
            echo(f"{kind.kind.lower()}.apps/{each.metadata.name} deleted")
        until_s = self._clock.monotonic() + self._within_s * _PODS_WITHIN
        while pods := await self._list(PODS, namespace=self._namespace, label_selector=_WORKERS):
            if self._clock.monotonic() >= until_s:
                warn([_not_ended(pods)])
                return
            await self._clock.sleep(_AGAIN_S)

    async def take_back(self) -> None:
        """Carry out plans until one is empty. Raises CommandError when time is up."""
        while left := (await self.read()).reversals:
            refused: dict[str, str] = {}
            for each in left:
                try:
                    why = await self._write(each)
                except TRANSIENT as error:
                    why = str(error)
                if why:
                    refused[str(each)] = why
            if self._clock.monotonic() >= self._until_s:
                raise CommandError(_left(refused or {str(each): "it was written again" for each in left}))
            await self._clock.sleep(_AGAIN_S if refused else _SETTLES_S)

    async def _write(self, reversal: Reversal) -> str:
        """Make one write; return why it was refused, "" if it succeeded or the object is gone. Raises transient errors."""
        kind, meta = reversal.kind, reversal.meta
        try:
            if reversal.manager:
                body = {"metadata": meta.as_seen}  # without a status: even an empty one would keep an owner
                await self._client.apply(kind, meta.key, body, manager=reversal.manager, subresource="status")
            elif reversal.patch is not None:
                patch = {**reversal.patch, "metadata": {**reversal.patch.get("metadata", {}), **meta.as_seen}}
                await self._client.patch(kind, meta.key, patch)
            else:
                await self._delete(kind, meta)
        except NotFound:
            return ""
        except Conflict as error:
            return f"{error}"  # changed meanwhile; the next round reads it again
        except (Forbidden, Invalid) as error:
            return str(error)
        echo(str(reversal))
        return ""

    async def _delete(self, kind: Kind[Any], meta: ObjectMeta) -> None:
        await self._client.delete(kind, meta.key, uid=meta.uid, propagation="Background")

    async def _list(self, kind: Kind[T], **where: str) -> list[T]:
        """All objects of the kind; none if it is not served. Raises ApiError, or CommandError if listing is forbidden."""
        try:
            return await retry(lambda: self._client.list(kind, **where), clock=self._clock)
        except NotFound:
            return []
        except Forbidden as error:
            raise CommandError(
                f"these credentials may not list {kind.plural}, which Draco writes or writes on ({error}): run this as an "
                "administrator of the cluster."
            ) from error


def _not_ended(pods: Sequence[Pod]) -> str:
    names = [f"{each.metadata.name} on node {each.spec.node_name or 'none'}" for each in pods]
    return (
        f"{counted(len(pods), 'pod')} of Draco's have not ended ({listed(names, 3)}): what they write from now on stays. Run "
        "this again when they have."
    )


def _left(refused: dict[str, str]) -> str:
    what, why = next(iter(refused.items()))
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    return (
        f"not everything was removed ({what}{more}): {why}. Run this again. If it is written again each time, an operator or an "
        "agent still runs."
    )
