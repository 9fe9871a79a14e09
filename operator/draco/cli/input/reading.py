"""A live cluster, for commands that read it once: whole collections, and sentences about what of them cannot be read.

Owns the patience with a server that has just started, and what is said without a right or a kind. Kept apart from `live` so that
`draco status` does not load what allocation needs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from draco.cli.options import Command, with_cluster
from draco.cli.output import CommandError, warn
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.connect.retry import retry
from draco.kube.discovery import Features, discover
from draco.kube.errors import ApiError, Forbidden, NotFound, Unreachable
from draco.maintenance.taint_impact import is_for_members
from draco.overview.installation import OPERATORS, leading
from draco.overview.status_schema import MissingView
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import LEASES, POD_DISRUPTION_BUDGETS, PODS, SLICES, Kind

T = TypeVar("T")
NO_OPERATOR: Final = (
    "No operator of Draco leads in this cluster, so nothing happens until one does: `draco check` says what is wrong."
)


def without_dra(client: Client) -> CommandError:
    """The cluster knows nothing of what this is all about."""
    return CommandError(
        f"{client.connection.server} does not serve resource.k8s.io/v1 (Dynamic Resource Allocation), which Draco needs: "
        "use Kubernetes 1.34 or newer, with the API group enabled."
    )


def without_kinds(client: Client, *kinds: Kind[Any]) -> CommandError:
    """The cluster knows none of these kinds of ours."""
    names = " or ".join(kind.kind for kind in kinds)
    return CommandError(
        f"{client.connection.server} does not know {names}: install Draco with charts/draco, or apply crds/."
    )


@asynccontextmanager
async def cluster_with_dra(kubeconfig: Path | None, context: str | None) -> AsyncIterator[tuple[Client, Features]]:
    """The cluster that is meant, and what it serves. Raises CommandError if that is no DRA."""
    async with Client(await connect(kubeconfig, context)) as client:
        features = await discover(client)
        if not features.dra:
            raise without_dra(client)
        yield client, features


def missing_of(features: Features) -> list[MissingView]:
    """What the cluster lacks."""
    return [msgspec.convert(each, MissingView, from_attributes=True) for each in features.missing]


def on_cluster(read: Callable[[Client, Features], Awaitable[T]]) -> Callable[[Command], Command]:
    """What makes a command of an asynchronous function: it gets what was read of the cluster that is meant, and its options."""

    def decorated(command: Command) -> Command:
        async def done(kubeconfig: Path | None, context: str | None, options: Mapping[str, Any]) -> None:
            async with cluster_with_dra(kubeconfig, context) as (client, features):
                await command(await read(client, features), **options)

        @wraps(command)
        def on_that(*, kubeconfig: Path | None, context: str | None, **options: Any) -> None:
            asyncio.run(done(kubeconfig, context, options))

        return with_cluster(on_that)

    return decorated


async def operated(client: Client) -> bool | None:
    """Whether an operator leads; None where that cannot be read, since a warning is not worth more than what was asked for."""
    try:
        return bool(leading(await client.list(LEASES, field_selector=OPERATORS), datetime.now(UTC)))
    except (ApiError, Unreachable):
        return None


class Reader:
    """Reads whole collections, and remembers in sentences what of them could not be read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unread: list[str] = []

    async def all(self, kind: Kind[T]) -> list[T]:
        """Every object of the kind that can be read. Raises CommandError without the right to list them, or KubeError."""
        try:
            return await self._list(kind)
        except Forbidden as error:
            raise CommandError(
                f"these credentials may not list {kind.plural} in the whole cluster, which this command needs: {error}"
            ) from error

    async def slices(self) -> list[ResourceSlice]:
        """The same of ResourceSlices, which a cluster that can have devices serves."""
        try:
            return await self.all(SLICES)
        except NotFound:
            raise without_dra(self._client) from None

    async def all_if_allowed(
        self, kind: Kind[T], consequence: str, params: Mapping[str, str] | None = None, *, namespace: str = ""
    ) -> list[T]:
        """Every object of the kind; none, and a sentence about it, without the right to list them. Raises KubeError."""
        return await self.all_or_none(kind, consequence, params, namespace=namespace) or []

    async def all_or_none(
        self, kind: Kind[T], consequence: str, params: Mapping[str, str] | None = None, *, namespace: str = ""
    ) -> list[T] | None:
        """The same, with None where they may not be listed."""
        try:
            return await self._list(kind, params, namespace)
        except Forbidden:
            where = f"namespace {namespace}" if namespace else "the whole cluster"
            self._note(f"These credentials may not list {kind.plural} in {where}: {consequence}.")
            return None

    async def all_if_served(self, kind: Kind[T], consequence: str) -> list[T] | None:
        """The same, and None where the cluster does not know the kind."""
        try:
            return await self.all_if_allowed(kind, consequence)
        except NotFound:
            return None

    async def _list(self, kind: Kind[T], params: Mapping[str, str] | None = None, namespace: str = "") -> list[T]:
        # A server that has just started, or that has just learnt a kind, asks to come back in a moment.
        page = await retry(
            lambda: self._client.list_page(kind, namespace=namespace, params=params),
            clock=SystemClock(),
            attempts=4,
        )
        for one in page.undecodable:
            self._note(f"{kind.kind} {one.key} is left out, because it cannot be read: {one.error}.")
        return page.items

    def _note(self, sentence: str) -> None:
        if sentence not in self.unread:
            self.unread.append(sentence)


async def published_slices(kubeconfig: Path | None, context: str | None) -> list[ResourceSlice]:
    """The slices of the cluster; of one that cannot be read only its name and why, on standard error."""
    async with Client(await connect(kubeconfig, context)) as client:
        reader = Reader(client)
        slices = await reader.slices()
    warn(reader.unread)
    return slices


_FEW_NAMESPACES = 20
"""Of more than these, pods and budgets are read for the whole cluster at once."""


async def pods_and_budgets(
    reader: Reader, claims: Iterable[ResourceClaim]
) -> tuple[list[Pod] | None, list[PodDisruptionBudget]]:
    """Read the pods that may use these claims, None if they may not be read, and the budgets that may cover them."""
    pods: list[Pod] | None = []
    budgets: list[PodDisruptionBudget] = []
    for namespace in _namespaces(claims):
        found = await reader.all_or_none(PODS, "a taint may delete other pods than shown", namespace=namespace)
        pods = None if pods is None or found is None else pods + found
        budgets += await reader.all_if_allowed(
            POD_DISRUPTION_BUDGETS, "whether a taint breaks one is not shown", namespace=namespace
        )
    return pods, budgets


async def group_members(reader: Reader, claims: Iterable[ResourceClaim]) -> dict[ObjectKey, Pod]:
    """Read the pods that may have one of these claims by way of a PodGroup, which is all that such a claim says."""
    namespaces = _namespaces(filter(is_for_members, claims))
    consequence = "which pods of PodGroups use devices is not known"
    found = [await reader.all_if_allowed(PODS, consequence, namespace=namespace) for namespace in namespaces]
    return {pod.metadata.key: pod for pods in found for pod in pods if pod.claims}


def _namespaces(claims: Iterable[ResourceClaim]) -> list[str]:
    """Those of the claims, or "" for all."""
    names = sorted({claim.metadata.namespace for claim in claims})
    return names if len(names) <= _FEW_NAMESPACES else [""]
