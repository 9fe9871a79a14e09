"""A live cluster for commands that read it once: whole collections, and notes about what cannot be read.

Owns retries against a server that has just started, and the messages about missing rights and kinds. Separate from `live` so that
`draco status` does not import what allocation needs.
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
from draco.resources.api.slices import ResourceSlice, publications
from draco.resources.kinds import LEASES, POD_DISRUPTION_BUDGETS, PODS, SLICES, Kind

T = TypeVar("T")
NO_OPERATOR: Final = (
    "No operator of Draco leads in this cluster, so nothing happens until one does: `draco check` says what is wrong."
)

_READ_AGAIN, _READ_AGAIN_AFTER_S = 4, 0.5
"""How often, and after how long, slices are read again while some of a pool are missing."""


def without_dra(client: Client) -> CommandError:
    """The error if the cluster does not serve DRA."""
    return CommandError(
        f"{client.connection.server} does not serve resource.k8s.io/v1 (Dynamic Resource Allocation), which Draco needs: "
        "use Kubernetes 1.34 or newer, with the API group enabled."
    )


def without_kinds(client: Client, *kinds: Kind[Any]) -> CommandError:
    """The error if the cluster serves none of these kinds of Draco."""
    names = " or ".join(kind.kind for kind in kinds)
    return CommandError(
        f"{client.connection.server} does not know {names}: install Draco with charts/draco, or apply crds/."
    )


@asynccontextmanager
async def cluster_with_dra(kubeconfig: Path | None, context: str | None) -> AsyncIterator[tuple[Client, Features]]:
    """The selected cluster and its features. Raises CommandError if it does not serve DRA."""
    async with Client(await connect(kubeconfig, context)) as client:
        features = await discover(client)
        if not features.dra:
            raise without_dra(client)
        yield client, features


def missing_of(features: Features) -> list[MissingView]:
    """The features that the cluster lacks."""
    return [msgspec.convert(each, MissingView, from_attributes=True) for each in features.missing]


def on_cluster(read: Callable[[Client, Features], Awaitable[T]]) -> Callable[[Command], Command]:
    """Turn an async function into a command: it gets what `read` returns for the selected cluster, and its options."""

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
    """Whether an operator leads; None if unreadable, because a warning must not fail the command."""
    try:
        return bool(leading(await client.list(LEASES, field_selector=OPERATORS), datetime.now(UTC)))
    except (ApiError, Unreachable):
        return None


class Reader:
    """Reads whole collections, and collects notes about what could not be read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unread: list[str] = []

    async def all(self, kind: Kind[T]) -> list[T]:
        """Every readable object of the kind. Raises CommandError if listing is forbidden, or KubeError."""
        try:
            return await self._list(kind)
        except Forbidden as error:
            raise CommandError(
                f"these credentials may not list {kind.plural} in the whole cluster, which this command needs: {error}"
            ) from error

    async def slices(self) -> list[ResourceSlice]:
        """All ResourceSlices. Raises CommandError if the cluster does not serve DRA.

        If slices of a pool are missing, they are read again for a moment: mostly its driver is writing them.
        """
        try:
            slices = await self.all(SLICES)
            for _ in range(_READ_AGAIN):
                if all(each.complete for found in publications(slices).values() for each in found):
                    break
                await asyncio.sleep(_READ_AGAIN_AFTER_S)  # its driver writes the other slices meanwhile
                slices = await self.all(SLICES)
        except NotFound:
            raise without_dra(self._client) from None
        return slices

    async def all_if_allowed(
        self, kind: Kind[T], consequence: str, params: Mapping[str, str] | None = None, *, namespace: str = ""
    ) -> list[T]:
        """Every object of the kind; if listing is forbidden, none and a note. Raises KubeError."""
        return await self.all_or_none(kind, consequence, params, namespace=namespace) or []

    async def all_or_none(
        self, kind: Kind[T], consequence: str, params: Mapping[str, str] | None = None, *, namespace: str = ""
    ) -> list[T] | None:
        """The same, but None if listing is forbidden."""
        try:
            return await self._list(kind, params, namespace)
        except Forbidden:
            where = f"namespace {namespace}" if namespace else "the whole cluster"
            self._note(f"These credentials may not list {kind.plural} in {where}: {consequence}.")
            return None

    async def all_if_served(self, kind: Kind[T], consequence: str) -> list[T] | None:
        """As `all_if_allowed`, but None if the cluster does not serve the kind."""
        try:
            return await self.all_if_allowed(kind, consequence)
        except NotFound:
            return None

    async def _list(self, kind: Kind[T], params: Mapping[str, str] | None = None, namespace: str = "") -> list[T]:
        # A server that has just started, or just learnt a kind, asks to retry.
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
    """The cluster's slices. A slice that cannot be decoded is only named on standard error, with the reason."""
    async with Client(await connect(kubeconfig, context)) as client:
        reader = Reader(client)
        slices = await reader.slices()
    warn(reader.unread)
    return slices


_FEW_NAMESPACES = 20
"""Above this number, pods and budgets are read for the whole cluster in one request."""


async def pods_and_budgets(
    reader: Reader, claims: Iterable[ResourceClaim]
) -> tuple[list[Pod] | None, list[PodDisruptionBudget]]:
    """The pods that may use these claims, None if they may not be read, and the PodDisruptionBudgets that may cover them."""
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
    """The pods that may use one of these claims through a PodGroup; such a claim names only the group."""
    namespaces = _namespaces(filter(is_for_members, claims))
    consequence = "which pods of PodGroups use devices is not known"
    found = [await reader.all_if_allowed(PODS, consequence, namespace=namespace) for namespace in namespaces]
    return {pod.metadata.key: pod for pods in found for pod in pods if pod.claims}


def _namespaces(claims: Iterable[ResourceClaim]) -> list[str]:
    """The namespaces of the claims, or [""] for all."""
    names = sorted({claim.metadata.namespace for claim in claims})
    return names if len(names) <= _FEW_NAMESPACES else [""]
