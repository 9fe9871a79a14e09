"""A client for tests that share a cluster: it deletes the cluster-scoped objects it created at the end.

A DeviceClass left behind by one test would select the devices of the next. Namespaces stay: without Kubernetes' controllers, the
deletion of a namespace never ends, and the API server accepts nothing into it meanwhile.
"""

from contextlib import suppress
from typing import Any, TypeVar

from draco.kube.connect.client import REQUEST_TIMEOUT_S, Body, Client, encode_plain
from draco.kube.errors import NotFound
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import NAMESPACES, Kind

T = TypeVar("T")


class TidyClient(Client):
    """Remembers the cluster-scoped objects that it creates."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._made: list[tuple[Kind[Any], ObjectKey]] = []

    async def create(self, kind: Kind[T], obj: Body, *, timeout_s: float = REQUEST_TIMEOUT_S) -> T:
        made = await super().create(kind, obj, timeout_s=timeout_s)
        name = encode_plain(kind, obj).get("metadata", {}).get("name", "")
        if (
            name and kind.kind != NAMESPACES.kind and not kind.namespaced
        ):  # a review has no name: it is answered, not stored
            self._made.append((kind, ObjectKey("", name)))
        return made

    async def tidy(self) -> None:
        """Delete what is left, newest first."""
        for kind, key in reversed(self._made):
            with suppress(NotFound):
                await self.delete(kind, key)
