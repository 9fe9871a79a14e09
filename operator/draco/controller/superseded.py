"""Which versions of objects our own writes have replaced, until those writes come back on the watch.

Whoever planned from such a version would do again what has just been done. Keeps nothing of an object that is gone, also of one
that goes while it is written.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from draco.kube.watch.store import ApiObject, Change, Store

T = TypeVar("T", bound=ApiObject)


class FollowedObjects(Protocol[T]):
    """Objects of one kind, as a watch tells of them."""

    @property
    def store(self) -> Store[T]:
        """As they are now."""
        ...

    def subscribe(self, listener: Callable[[Change[T]], None]) -> object:
        """Have every change told."""
        ...


class SupersededVersions(Generic[T]):
    """Of the objects of one kind, by their UIDs."""

    def __init__(self, objects: FollowedObjects[T]) -> None:
        self._objects = objects
        self._versions: dict[str, str] = {}
        objects.subscribe(self._forget)

    def __contains__(self, obj: T) -> bool:
        """Whether our own write on top of this version is still on its way to us; its arrival wakes those who follow the kind."""
        return self._versions.get(obj.metadata.uid) == obj.metadata.resource_version

    def __len__(self) -> int:
        """Of how many objects a write is on its way."""
        return len(self._versions)

    def add(self, seen: T, written: T) -> None:
        """`written` has replaced `seen`. A write that changed nothing never comes back."""
        known = self._objects.store.get(seen.metadata.key)
        is_there = known is not None and known.metadata.uid == seen.metadata.uid
        if is_there and written.metadata.resource_version != seen.metadata.resource_version:
            self._versions[seen.metadata.uid] = seen.metadata.resource_version

    def _forget(self, change: Change[T]) -> None:
        if change.before is not None and change.after is None:
            self._versions.pop(change.before.metadata.uid, None)
