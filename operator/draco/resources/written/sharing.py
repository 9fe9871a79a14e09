"""Interning: equal parts of objects are kept once, which is safe because objects are immutable.

Thousands of devices have the same attributes except for their UUID, and thousands of nodes the same labels. Without sharing they
take several times the memory.
"""

from collections.abc import Hashable
from typing import Any, Final, TypeVar

import msgspec

from draco.resources.api.core import Node
from draco.resources.api.slices import Counter, Device, DeviceAttribute, ResourceSlice

T = TypeVar("T")

_MOST: Final = 20_000
"""Per kind of part. Unique parts, such as UUIDs, fill the cache, which is then cleared."""


class Shared:
    """A cache of parts. Not thread-safe."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, Any] = {}
        self._counters: dict[Hashable, dict[str, Counter]] = {}

    def of(self, obj: T) -> T:
        """Return the object, or an equal one with shared parts."""
        match obj:
            case ResourceSlice():
                return self._slice(obj)  # type: ignore[return-value]
            case Node():
                return self._node(obj)  # type: ignore[return-value]
        return obj

    def _slice(self, published: ResourceSlice) -> ResourceSlice:
        spec = published.spec
        if not spec.devices:
            return published
        devices = [self._device(device) for device in spec.devices]
        return msgspec.structs.replace(published, spec=msgspec.structs.replace(spec, devices=devices))

    def _device(self, device: Device) -> Device:
        attributes = {self._part(name): self._attribute(value) for name, value in device.attributes.items()}
        capacity = {
            self._part(name): value if value.request_policy is not None else self._part(value)
            for name, value in device.capacity.items()
        }
        consumed = device.consumes_counters
        if consumed:
            consumed = [
                msgspec.structs.replace(
                    each, counter_set=self._part(each.counter_set), counters=self._of_counters(each.counters)
                )
                for each in consumed
            ]
        return msgspec.structs.replace(
            device,
            name=self._part(device.name),
            attributes=attributes,
            capacity=capacity,
            consumes_counters=consumed,
        )

    def _attribute(self, attribute: DeviceAttribute) -> DeviceAttribute:
        if attribute.ints or attribute.bools or attribute.strings or attribute.versions:
            return attribute  # lists are rare
        return self._part(attribute)

    def _of_counters(self, counters: dict[str, Counter]) -> dict[str, Counter]:
        key = tuple([(name, counter.value) for name, counter in counters.items()])
        known = self._counters.get(key)
        if known is None:
            if len(self._counters) >= _MOST:
                self._counters.clear()
            known = self._counters[key] = {self._part(name): self._part(value) for name, value in counters.items()}
        return known

    def _node(self, node: Node) -> Node:
        labels = {self._part(name): self._part(value) for name, value in node.metadata.labels.items()}
        return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))

    def _part(self, part: T) -> T:
        known: T | None = self._parts.get(part)
        if known is None:
            if len(self._parts) >= _MOST:
                self._parts.clear()
            known = self._parts[part] = part
        return known
