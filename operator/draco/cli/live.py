"""A live cluster, read once into what allocation depends on.

Owns the reading and what is said of what could not be read. Decides nothing, writes nothing and keeps nothing.
"""

import asyncio
from pathlib import Path
from typing import TypeVar

import msgspec

from draco.allocation.fleet import Fleet
from draco.cli.listing import listed
from draco.kube.client import Client
from draco.kube.errors import Forbidden, NotFound
from draco.kube.kubeconfig import connect
from draco.kube.version import kubernetes_minor
from draco.resources.claims import ResourceClaimTemplate
from draco.resources.core import Pod
from draco.resources.errors import DracoError
from draco.resources.kinds import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_CLASSES,
    NODES,
    PODS,
    SLICES,
    TAINT_RULES,
    Kind,
)
from draco.resources.meta import ObjectKey
from draco.resources.taints import DeviceTaintRule

T = TypeVar("T")


class ClusterError(DracoError):
    """The cluster cannot be read; says what is missing and how to get it."""


class LiveCluster(msgspec.Struct, kw_only=True):
    """A cluster as it was at one time."""

    server: str
    kubernetes_minor: int | None
    """21 of 1.21; None if the server does not say."""
    fleet: Fleet
    pods: dict[ObjectKey, Pod]
    templates: dict[ObjectKey, ResourceClaimTemplate]
    unread: list[str]
    """What could not be read and what that means, a sentence each."""


async def read_fleet(kubeconfig: Path | None = None, context: str | None = None) -> LiveCluster:
    """Read a cluster as kubectl would find it. Raises KubeError, KubeconfigError or ClusterError."""
    async with Client(await connect(kubeconfig, context)) as client:
        return await read_cluster(client)


async def read_cluster(client: Client) -> LiveCluster:
    """Read the cluster behind a client. Raises KubeError or ClusterError."""
    reader = Reader(client)
    try:
        slices = await reader.all(SLICES)
    except NotFound:
        raise ClusterError(
            f"{client.connection.server} does not serve resource.k8s.io/v1 (Dynamic Resource Allocation), which Draco needs: "
            "use Kubernetes 1.34 or newer, with the API group enabled."
        ) from None
    async with asyncio.TaskGroup() as tasks:
        nodes = tasks.create_task(reader.all(NODES))
        classes = tasks.create_task(reader.all(DEVICE_CLASSES))
        claims = tasks.create_task(reader.all(CLAIMS))
        pods = tasks.create_task(reader.all_if_allowed(PODS, "which pods use or wait for a claim is not known"))
        templates = tasks.create_task(
            reader.all_if_allowed(CLAIM_TEMPLATES, "claims that are still to be made from templates are not known")
        )
        rules = tasks.create_task(reader.rules())
        minor = tasks.create_task(kubernetes_minor(client))
    fleet = Fleet.of(
        slices=slices, rules=rules.result(), nodes=nodes.result(), classes=classes.result(), claims=claims.result()
    )
    return LiveCluster(
        server=str(client.connection.server),
        kubernetes_minor=minor.result(),
        fleet=fleet,
        pods={pod.metadata.key: pod for pod in pods.result()},
        templates={template.metadata.key: template for template in templates.result()},
        unread=sorted(reader.unread),
    )


class Reader:
    """Reads whole collections, and remembers in sentences what of them could not be read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unread: list[str] = []

    async def all(self, kind: Kind[T]) -> list[T]:
        """Every object of the kind that can be read. Raises ClusterError without the right to list them."""
        try:
            return await self._list(kind)
        except Forbidden as error:
            raise ClusterError(
                f"these credentials may not list {kind.plural} in the whole cluster, without which nothing can be said: {error}"
            ) from error

    async def all_if_allowed(self, kind: Kind[T], consequence: str) -> list[T]:
        """Every object of the kind; none, and a sentence about it, without the right to list them."""
        try:
            return await self._list(kind)
        except Forbidden:
            self.unread.append(f"These credentials may not list {kind.plural} in the whole cluster: {consequence}.")
            return []

    async def rules(self) -> list[DeviceTaintRule]:
        """The taint rules, in the newest version that is served; none where the cluster knows no such kind."""
        for kind in TAINT_RULES:
            try:
                return await self.all_if_allowed(kind, "taints of rules are not taken into account")
            except NotFound:
                continue
        return []

    async def _list(self, kind: Kind[T]) -> list[T]:
        return await listed(self._client, kind, self.unread)
