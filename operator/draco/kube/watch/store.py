"""The objects of one collection, by key and by index.

Owns the objects in memory and the changes between two states. An informer writes a store, reconcilers only read it.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

import structlog

from draco.resources.api.meta import ObjectKey, ObjectMeta

log = structlog.get_logger()


class ApiObject(Protocol):
    """Any struct of a kind."""

    @property
    def metadata(self) -> ObjectMeta:
        """Names, UID and version."""
        ...


T = TypeVar("T", bound=ApiObject)
D = TypeVar("D", bound=ApiObject)


class Change(NamedTuple, Generic[T]):
    """One object before and after: `before` is None for a new one, `after` is None for a deleted one.

    Both are the same object (by UID): a deleted and recreated name gives two changes, the delete first, even if both happened
    unseen.
    """

    key: ObjectKey
    before: T | None
    after: T | None

    @property
    def versions(self) -> list[T]:
        """The existing ones of the two, older first."""
        return [each for each in (self.before, self.after) if each is not None]

    def differs(self, read: Callable[[T], object]) -> bool:
        """Whether the value of `read` changed; always true for a new or deleted object."""
        values = [read(each) for each in self.versions]
        return len(values) < 2 or values[0] != values[1]


class _Index(Generic[T]):
    def __init__(self, name: str, values_of: Callable[[T], Iterable[Hashable]]) -> None:
        self.name = name
        self._values_of = values_of
        self._keys: dict[Hashable, dict[ObjectKey, None]] = {}
        self._values: dict[ObjectKey, tuple[Hashable, ...]] = {}

    def put(self, key: ObjectKey, obj: T) -> None:
        self.remove(key)
        try:
            values = tuple(self._values_of(obj))
        except Exception:
            # One odd object must not keep the store from following all others.
            log.exception("store.index_failed", index=self.name, key=str(key))
            return
        if not values:
            return
        self._values[key] = values
        for value in values:
            self._keys.setdefault(value, {})[key] = None

    def remove(self, key: ObjectKey) -> None:
        for value in self._values.pop(key, ()):
            keys = self._keys.get(value, {})
            keys.pop(key, None)
            if not keys:
                self._keys.pop(value, None)

    def keys(self, value: Hashable) -> Iterable[ObjectKey]:
        return self._keys.get(value, ())


class Store(Generic[T]):
    """Objects of one kind. Returned lists are copies, safe across an await; objects are immutable."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, T] = {}
        self._indexes: dict[str, _Index[T]] = {}

    def get(self, key: ObjectKey) -> T | None:
        """The object of that name."""
        return self._objects.get(key)

    def still_has(self, obj: T) -> bool:
        """Whether this object (by UID) is there, in any version."""
        known = self._objects.get(obj.metadata.key)
        return known is not None and known.metadata.uid == obj.metadata.uid

    def values(self) -> list[T]:
        """All objects."""
        return list(self._objects.values())

    def items(self) -> list[tuple[ObjectKey, T]]:
        """All keys and objects."""
        return list(self._objects.items())

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(list(self._objects))

    def add_index(self, name: str, values_of: Callable[[T], Iterable[Hashable]]) -> None:
        """Index objects by each value that `values_of` returns. Raises ValueError for a name in use."""
        if name in self._indexes:
            raise ValueError(f"there is an index {name!r} already")
        index = _Index(name, values_of)
        for key, obj in self._objects.items():
            index.put(key, obj)
        self._indexes[name] = index

    def by_index(self, name: str, value: Hashable) -> list[T]:
        """The objects that have `value` in the index. Raises KeyError for an unknown index."""
        return [self._objects[key] for key in self._indexes[name].keys(value)]

    def put(self, obj: T) -> list[Change[T]]:
        """Add or replace an object. Return the changes: one, or two if it replaces another of its name."""
        return self._put(obj.metadata.key, obj)

    def _put(self, key: ObjectKey, obj: T) -> list[Change[T]]:
        before = self._objects.get(key)
        self._objects[key] = obj
        for index in self._indexes.values():
            index.put(key, obj)
        return _changes(key, before, obj)

    def remove(self, key: ObjectKey) -> list[Change[T]]:
        """Remove an object. Return the change, or none if it was not there."""
        before = self._objects.pop(key, None)
        for index in self._indexes.values():
            index.remove(key)
        return _changes(key, before, None)

    def swap(self, objects: dict[ObjectKey, T]) -> list[Change[T]]:
        """Become exactly `objects`. Return the changes, deletes first: a name may have been freed for another object."""
        gone: list[Change[T]] = []
        for key in [key for key in self._objects if key not in objects]:
            gone += self.remove(key)
        changed: list[Change[T]] = []
        for key, obj in objects.items():
            before = self._objects.get(key)
            if before is not None and _same(before, obj):
                continue
            changed += self._put(key, obj)
        return gone + changed


def _same(one: ApiObject, other: ApiObject) -> bool:
    return one.metadata.uid == other.metadata.uid and one.metadata.resource_version == other.metadata.resource_version


def _changes(key: ObjectKey, before: D | None, after: D | None) -> list[Change[D]]:
    if before is not None and after is not None and before.metadata.uid != after.metadata.uid:
        return [Change(key, before, None), Change(key, None, after)]
    if before is None and after is None:
        return []
    return [Change(key, before, after)]
