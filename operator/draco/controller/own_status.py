"""Writes the status of Draco's own kinds, each on top of exactly the version seen.

Owns the write; until it arrives on the watch the object is not reconciled again (`SupersededVersions`, also used elsewhere).
`PolicyStatuses` adds the pace of statuses that are counted over the whole fleet. Callers compute the contents.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import structlog

from draco.controller.loop_watch import CooperativeWork
from draco.controller.own_kinds import OwnKind
from draco.controller.view import BY_UID
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.kube.watch.collection import Collection
from draco.kube.watch.store import ApiObject, Change
from draco.resources.api.base import ApiStruct
from draco.resources.names import FIELD_MANAGER_OPERATOR

log = structlog.get_logger(__name__)

_REST = 30.0
"""Rest of each policy, as a multiple of the time to count for all of them.

Asking for the decisions takes half as long again, so both use a twentieth of the time. Deciding itself is not counted: it happens
once per change, for all callers.
"""
_SHORTEST_REST_S = 0.5
_LONGEST_REST_S = 10.0
"""Maximum rest, however large the fleet is, because people wait for statuses."""


class CountedPolicy(ApiObject, Protocol):
    """A policy whose status is counted over the fleet."""

    @property
    def status(self) -> Any:
        """The status, with `observed_generation` and `message`."""
        ...


T = TypeVar("T", bound=ApiObject)
P = TypeVar("P", bound=CountedPolicy)


class SupersededVersions(Generic[T]):
    """The versions that our own writes have replaced, until those arrive on the watch: planning from one would repeat the write.

    Keeps nothing of a deleted object, including one deleted during the write.
    """

    def __init__(self, objects: Collection[T]) -> None:
        self._objects = objects
        self._versions: dict[str, str] = {}
        objects.subscribe(self._forget)

    def __contains__(self, obj: T) -> bool:
        """Whether our own write on top of this version is still in flight; its arrival wakes subscribers."""
        return self._versions.get(obj.metadata.uid) == obj.metadata.resource_version

    def __len__(self) -> int:
        """Number of objects with a write in flight."""
        return len(self._versions)

    def add(self, seen: T, written: T) -> None:
        """Record that `written` replaced `seen`. A write without a change never arrives on the watch."""
        is_there = self._objects.store.still_has(seen)
        if is_there and written.metadata.resource_version != seen.metadata.resource_version:
            self._versions[seen.metadata.uid] = seen.metadata.resource_version

    def _forget(self, change: Change[T]) -> None:
        if change.before is not None and change.after is None:
            self._versions.pop(change.before.metadata.uid, None)


class OwnStatus(Generic[T]):
    """Writes the statuses of one kind."""

    def __init__(self, client: Client, objects: OwnKind[T]) -> None:
        self._client = client
        self._objects = objects
        self.superseded = SupersededVersions(objects)

    async def write(self, obj: T, status: ApiStruct) -> T | None:
        """Write the status of an object at the version seen; None if it is gone. Raises Conflict and other ApiErrors."""
        meta = obj.metadata
        try:
            written = await self._client.apply(
                self._objects.kind,
                meta.key,
                {
                    # Write only on top of the version seen: a replica that lost the lease unknowingly must not win.
                    "metadata": meta.as_seen,
                    "status": status,
                },
                manager=FIELD_MANAGER_OPERATOR,
                subresource="status",
            )
        except NotFound:
            return None
        self.superseded.add(obj, written)
        return written


class PolicyStatuses(Generic[P]):
    """The statuses of all policies of a kind.

    Any change may affect every policy, so the rate of counting is limited; it falls with the time it takes and the number of
    policies.
    """

    def __init__(self, client: Client, policies: OwnKind[P], *, clock: Clock) -> None:
        self._policies = policies
        self._statuses = OwnStatus(client, policies)
        self._clock = clock
        self._due_s: dict[str, float] = {}

    def uids(self) -> set[str]:
        """The UIDs of all policies."""
        return {policy.metadata.uid for policy in self._policies.store.values()}

    async def bring(self, uid: str, count: Callable[[P, CooperativeWork], Awaitable[Any]]) -> float | None:
        """Update a policy's status to the result of `count` (None: leave it). Return seconds to wait if it is too early."""
        policy = next(iter(self._policies.store.by_index(BY_UID, uid)), None)
        if policy is None or policy.metadata.deletion_timestamp is not None:
            self._due_s.pop(uid, None)
            return None
        if policy in self._statuses.superseded:
            return None
        now_s = self._clock.monotonic()
        wait_s = self._due_s.get(uid, now_s) - now_s
        if wait_s > 0 and policy.status.observed_generation == policy.metadata.generation:
            return wait_s
        work = CooperativeWork(self._clock)
        status = await count(policy, work)
        if status is None:
            return None
        rest_s = min(_LONGEST_REST_S, _REST * work.work_s * len(self.uids()))
        self._due_s[uid] = self._clock.monotonic() + max(_SHORTEST_REST_S, rest_s)
        if status != policy.status and await self._policies.is_current(policy):
            named = {"kind": self._policies.kind.kind, "policy": policy.metadata.name}
            if status.message != policy.status.message:
                log.info("policy.stands", message=status.message, **named)
            if await self._statuses.write(policy, status) is None:
                log.info("policy.gone", **named)
        return None
