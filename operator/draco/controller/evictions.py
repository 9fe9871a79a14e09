"""Evicts pods by the Eviction API.

Owns the request, the interpretation of its answer, and whether Draco has the right at all. Every eviction names the UID of the
pod seen, so that a newer pod of the same name is not affected. Callers decide whom to evict and when to retry.
"""

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec
import structlog

from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import FORBIDDEN_S, TRANSIENT, Pauses
from draco.kube.errors import (
    ApiError,
    Conflict,
    DisruptionRefused,
    Forbidden,
    NamespaceTerminating,
    NotFound,
    TooManyRequests,
    Unreachable,
)
from draco.resources.api.core import Pod
from draco.resources.kinds import PODS
from draco.resources.names import ANNOTATION_LEADER_ONLY
from draco.resources.texts import reason_of

log = structlog.get_logger(__name__)

NOT_PERMITTED: Final = (
    "Draco may not evict pods: set the chart's value operator.evictPods to true, or delete them yourself."
)
_FORBIDDEN_LONGEST_S: Final = 60.0
"""Maximum backoff for all evictions after the API server denied the right."""
_AT_ONCE: Final = 4


class Eviction(StrEnum):
    """The outcome of an eviction."""

    ACCEPTED = "accepted"
    CHANGED = "changed"
    """The pod is gone, replaced by another of its name, or changed meanwhile."""
    REFUSED = "refused"
    FORBIDDEN = "forbidden"
    """The right is missing, for all pods."""


class EvictionAnswer(msgspec.Struct, frozen=True):
    """The outcome, and for a refusal the reason and whether a PodDisruptionBudget caused it."""

    outcome: Eviction
    error: str = ""
    why: str = ""
    by_budget: bool = False


class PodEvictions:
    """The Eviction API, shared by all callers so that a missing right is detected once."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client = client
        self._forbidden: Pauses[None] = Pauses(clock.monotonic, first_s=FORBIDDEN_S, longest_s=_FORBIDDEN_LONGEST_S)

    @property
    def forbidden(self) -> bool:
        """Whether the right was missing at the last request."""
        return None in self._forbidden.by_key

    @property
    def left_s(self) -> float:
        """Seconds of backoff left after a missing right; 0 if evictions may be tried."""
        return self._forbidden.left_s(None)

    async def evict(
        self, pod: Pod, *, grace_s: int | None = None, dry_run: bool = False, leader_only: bool = False
    ) -> EvictionAnswer:
        """Evict this pod, or only try (`dry_run`). With `leader_only` a former leader's request is refused. Raises nothing."""
        if self.left_s > 0:
            return EvictionAnswer(Eviction.FORBIDDEN, why=NOT_PERMITTED)
        body = eviction_of(pod, grace_s=grace_s, leader_only=leader_only)
        try:
            await self._client.create_subresource(PODS, pod.metadata.key, "eviction", body, dry_run=dry_run)
        except (NotFound, Conflict) as error:
            self._forbidden.forget(None)
            return EvictionAnswer(Eviction.CHANGED, str(error))
        except ApiError as error:
            if isinstance(error, Forbidden) and _lacks_the_right(error):
                self._forbidden.begin(None, str(error))
                log.warning("eviction.forbidden", pod=str(pod.metadata.key), error=str(error), remedy=NOT_PERMITTED)
                return EvictionAnswer(Eviction.FORBIDDEN, str(error), NOT_PERMITTED)
            # A pod covered by two budgets is refused with 500.
            by_budget = isinstance(error, DisruptionRefused) or "PodDisruptionBudget" in error.message
            if by_budget or not isinstance(error, TRANSIENT):
                self._forbidden.forget(None)  # a request without the right does not get this far
            return EvictionAnswer(Eviction.REFUSED, str(error), _words(error), by_budget)
        self._forbidden.forget(None)
        return EvictionAnswer(Eviction.ACCEPTED)

    async def evict_in_turn(self, pods: Sequence[Pod]) -> tuple[list[Pod], list[tuple[Pod, EvictionAnswer]]]:
        """Evict pods in turn, as leader, until one is refused. Return those that leave, and the refused one with its answer."""
        going: list[Pod] = []
        for pod in pods:
            answer = await self.evict(pod, leader_only=True)
            if staying := refused([pod], [answer]):
                return going, staying
            if answer.outcome is Eviction.ACCEPTED:
                going.append(pod)
        return going, []

    async def would_evict(self, pods: Sequence[Pod]) -> list[EvictionAnswer]:
        """The outcome that evicting each of them as leader would have now."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(pod: Pod) -> EvictionAnswer:
            async with limit:
                return await self.evict(pod, dry_run=True, leader_only=True)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(each), name=f"evict {each.metadata.key}") for each in pods]
        return [task.result() for task in tasks]


def refused(pods: Sequence[Pod], answers: Sequence[EvictionAnswer]) -> list[tuple[Pod, EvictionAnswer]]:
    """The pods that would not, or did not, have to leave, with their answers."""
    return [
        (pod, each)
        for pod, each in zip(pods, answers, strict=True)
        if each.outcome in {Eviction.REFUSED, Eviction.FORBIDDEN}
    ]


def eviction_of(pod: Pod, *, grace_s: int | None = None, leader_only: bool = False) -> dict[str, object]:
    """The body of an eviction of exactly this pod."""
    meta: dict[str, object] = {"name": pod.metadata.name, "namespace": pod.metadata.namespace}
    if leader_only:
        meta["annotations"] = {ANNOTATION_LEADER_ONLY: "true"}
    options: dict[str, object] = {"preconditions": {"uid": pod.metadata.uid}}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": meta,
        "deleteOptions": options,
    }


def _lacks_the_right(error: Forbidden) -> bool:
    """Whether a role lacks the right, rather than an admission webhook protecting this pod."""
    return "pods/eviction" in error.message and "cannot create" in error.message


def _words(error: ApiError) -> str:
    match error:
        case NamespaceTerminating():
            return "its namespace is being deleted, which ends it too"
        case Unreachable():
            return "the API server gave no answer; it is tried again"
        case TooManyRequests() if not isinstance(error, DisruptionRefused):
            return "the API server has too much to do; it is tried again"
        case _:
            return reason_of(error.message)
