"""An object about this node that its agent creates: named after the Node, and owned by it.

Owns its creation. If the kind is not installed, that is logged once.
"""

from typing import Generic, TypeVar

import msgspec
import structlog

from draco.kube.connect.client import Client
from draco.kube.errors import AlreadyExists, NotFound
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import NODES, Kind

log = structlog.get_logger()

T = TypeVar("T")


class OwnObject(Generic[T]):
    """The object of a kind about one node."""

    def __init__(self, client: Client, kind: Kind[T], node: str) -> None:
        self._client = client
        self._kind = kind
        self._key = ObjectKey("", node)
        self._absent = False

    async def read_or_create(self) -> T | None:
        """The object. None without a Node, or without the kind."""
        try:
            return await self._client.get(self._kind, self._key)
        except NotFound:
            return await self._create()

    async def _create(self) -> T | None:
        try:
            node = await self._client.get(NODES, self._key)
        except NotFound:
            return None
        metadata = ObjectMeta(name=self._key.name, owner_references=[NODES.owner(node.metadata, controller=None)])
        try:
            # Created, not applied: the right to patch the object would include a spec, which is the operator's.
            made = await self._client.create(self._kind, {"metadata": msgspec.to_builtins(metadata)})
        except AlreadyExists:
            return await self._client.get(self._kind, self._key)
        except NotFound:
            if not self._absent:
                log.warning(
                    "kind.missing", kind=self._kind.kind, remedy="install Draco's CustomResourceDefinitions (crds/)"
                )
            self._absent = True
            return None
        self._absent = False
        return made
