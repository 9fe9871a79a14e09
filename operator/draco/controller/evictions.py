"""Asks the Eviction API to make pods leave, and reads the PodDisruptionBudgets that it goes by.

Owns the request, the reading of its answer, and whether Draco has the right at all. Every eviction names the UID of the pod that
was seen, so that one of the same name that came since is not touched. Whom to evict, and when to ask again, is the caller's.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
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
from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.kinds import POD_DISRUPTION_BUDGETS, PODS
from draco.resources.names import ANNOTATION_LEADER_ONLY
from draco.resources.texts import reason_of

log = structlog.get_logger(__name__)

NOT_PERMITTED: Final = (
    "Draco may not evict pods: set the chart's value operator.evictPods to true, or delete them yourself."
)
_FORBIDDEN_LONGEST_S: Final = 60.0
"""How long nobody is asked after the API server refused the right, at most."""
_AT_ONCE: Final = 4
_KEPT_FOR: Final = 60
"""So many times as long as budgets are good for they are remembered: what nobody asked for since then is over."""


class Eviction(StrEnum):
    """What came of asking."""

    ACCEPTED = "accepted"
    CHANGED = "changed"
    """The pod is gone, another has its name, or it changed while it was looked at."""
    REFUSED = "refused"
    FORBIDDEN = "forbidden"
    """The right is missing, for all pods."""


class EvictionAnswer(msgspec.Struct, frozen=True):
    """What came of asking, and of a refusal the reason, and whether a PodDisruptionBudget is it."""

    outcome: Eviction
    error: str = ""
    why: str = ""
    by_budget: bool = False


class PodEvictions:
    """The Eviction API. Shared by all who evict, so that a missing right is met once."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client = client
        self._forbidden: Pauses[None] = Pauses(clock, first_s=FORBIDDEN_S, longest_s=_FORBIDDEN_LONGEST_S)

    @property
    def forbidden(self) -> bool:
        """Whether the right was missing when the API server was asked last."""
        return None in self._forbidden.by_key

    @property
    def left_s(self) -> float:
        """For how many more seconds nobody is asked, as the right was missing; 0 where anybody may be asked now."""
        return self._forbidden.left_s(None)

    async def evict(
        self, pod: Pod, *, grace_s: int | None = None, dry_run: bool = False, leader_only: bool = False
    ) -> EvictionAnswer:
        """Ask for this very pod to leave, or only whether it would be made to. Raises nothing.

        With `leader_only` an operator that does not lead any more is refused, as another may have chosen other pods.
        """
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
            # A pod that two budgets cover is refused with 500.
            by_budget = isinstance(error, DisruptionRefused) or "PodDisruptionBudget" in error.message
            if by_budget or not isinstance(error, TRANSIENT):
                self._forbidden.forget(None)  # who lacks the right does not get that far
            return EvictionAnswer(Eviction.REFUSED, str(error), _words(error), by_budget)
        self._forbidden.forget(None)
        return EvictionAnswer(Eviction.ACCEPTED)

    async def evict_in_turn(self, pods: Sequence[Pod]) -> tuple[list[Pod], list[tuple[Pod, EvictionAnswer]]]:
        """Ask for one after the other to leave, until one is refused. Returns those that leave, and that one with its answer.

        Only who leads may: these are chosen among others.
        """
        going: list[Pod] = []
        for pod in pods:
            answer = await self.evict(pod, leader_only=True)
            if staying := refused([pod], [answer]):
                return going, staying
            if answer.outcome is Eviction.ACCEPTED:
                going.append(pod)
        return going, []

    async def would_evict(self, pods: Sequence[Pod]) -> list[EvictionAnswer]:
        """What would come of asking each of them so now."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(pod: Pod) -> EvictionAnswer:
            async with limit:
                return await self.evict(pod, dry_run=True, leader_only=True)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(each), name=f"evict {each.metadata.key}") for each in pods]
        return [task.result() for task in tasks]


class DisruptionBudgets:
    """Budgets by namespace. They are not watched: those of a namespace are read again after `every_s` at the earliest."""

    def __init__(self, client: Client, *, clock: Clock, every_s: float = 10.0) -> None:
        self._client = client
        self._clock = clock
        self._every_s = every_s
        self._read: dict[str, tuple[float, list[PodDisruptionBudget]]] = {}

    def of(self, namespaces: Iterable[str]) -> list[PodDisruptionBudget]:
        """What was read of these namespaces last."""
        return [each for name in namespaces for each in self._read.get(name, (0.0, []))[1]]

    async def read(self, namespaces: Iterable[str]) -> bool:
        """Read those that were not read lately. Returns whether any was."""
        found = False
        for namespace in self._due(namespaces):
            try:
                await self._read_again(namespace)
            except (ApiError, msgspec.ValidationError) as error:
                # The API server goes by them whatever is known here.
                log.info("eviction.budgets_not_read", namespace=namespace, error=str(error))
                continue
            found = True
        return found

    async def current(self, namespaces: Iterable[str]) -> list[PodDisruptionBudget]:
        """Those of these namespaces, of which none was read long ago; none where they may not be read. Raises ApiError.

        For who tells of them: one that is not known must not pass for one that is not there.
        """
        names = sorted(namespaces)
        with suppress(Forbidden):  # the rights of an older chart
            for namespace in self._due(names):
                await self._read_again(namespace)
        return self.of(names)

    def _due(self, namespaces: Iterable[str]) -> list[str]:
        now_s = self._clock.monotonic()
        return [
            each
            for each in sorted(namespaces)
            if each not in self._read or now_s - self._read[each][0] >= self._every_s
        ]

    async def _read_again(self, namespace: str) -> None:
        budgets = await self._client.list(POD_DISRUPTION_BUDGETS, namespace=namespace)
        now_s = self._clock.monotonic()
        kept_s = _KEPT_FOR * self._every_s
        self._read = {name: each for name, each in self._read.items() if now_s - each[0] < kept_s}
        self._read[namespace] = (now_s, budgets)


def refused(pods: Sequence[Pod], answers: Sequence[EvictionAnswer]) -> list[tuple[Pod, EvictionAnswer]]:
    """Those of them that would not, or did not, have to leave, and their answers."""
    return [
        (pod, each)
        for pod, each in zip(pods, answers, strict=True)
        if each.outcome in {Eviction.REFUSED, Eviction.FORBIDDEN}
    ]


def eviction_of(pod: Pod, *, grace_s: int | None = None, leader_only: bool = False) -> dict[str, object]:
    """What is posted to evict this very pod."""
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
    """Whether it is a role that lacks the right, and not an admission webhook that guards this pod."""
    return "pods/eviction" in error.message and "cannot create" in error.message


def _words(error: ApiError) -> str:
    """Why, for people."""
    match error:
        case NamespaceTerminating():
            return "its namespace is being deleted, which ends it too"
        case Unreachable():
            return "the API server gave no answer; it is tried again"
        case TooManyRequests() if not isinstance(error, DisruptionRefused):
            return "the API server has too much to do; it is tried again"
        case _:
            return reason_of(error.message)
