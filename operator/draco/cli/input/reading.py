"""A live cluster, for commands that read it once: whole collections, and sentences about what of them cannot be read.

Owns the patience with a server that has just started, and what is said without a right or a kind. Kept apart from `live` so that
`draco status` does not load what allocation needs.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import retry
from draco.kube.errors import Forbidden, NotFound
from draco.maintenance.selecting.impact import is_for_members
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError
from draco.resources.kinds import POD_DISRUPTION_BUDGETS, PODS, Kind

T = TypeVar("T")


class ClusterReadError(DracoError):
    """The cluster cannot be read; says what is missing and how to get it."""


def without_dra(client: Client) -> ClusterReadError:
    """The cluster knows nothing of what this is all about."""
    return ClusterReadError(
        f"{client.connection.server} does not serve resource.k8s.io/v1 (Dynamic Resource Allocation), which Draco needs: "
        "use Kubernetes 1.34 or newer, with the API group enabled."
    )


class Reader:
    """Reads whole collections, and remembers in sentences what of them could not be read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unread: list[str] = []

    async def all(self, kind: Kind[T]) -> list[T]:
        """Every object of the kind that can be read. Raises ClusterError without the right to list them, or KubeError."""
        try:
            return await self._list(kind)
        except Forbidden as error:
            raise ClusterReadError(
                f"these credentials may not list {kind.plural} in the whole cluster, which this command needs: {error}"
            ) from error

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
            self.unread.append(f"These credentials may not list {kind.plural} in {where}: {consequence}.")
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
        self.unread += [
            f"{kind.kind} {one.key} is left out, because it cannot be read: {one.error}." for one in page.undecodable
        ]
        return page.items


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
