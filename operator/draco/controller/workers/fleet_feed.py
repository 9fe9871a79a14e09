"""Collects the changes of the cluster that matter to allocation, until they are sent to the fleet process.

Owns which changes can affect any allocation, and the hand-over: the key of a changed object is kept once, until the object's
current state is sent. So the backlog never exceeds the number of objects, and a restarted process is sent everything.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
import structlog

from draco.allocation.ownership.claims import is_operators
from draco.controller.workers.messages import Changes, PutObject, Remove, SkippedObject
from draco.kube.listeners import Listeners
from draco.kube.watch.collection import Collection
from draco.kube.watch.store import ApiObject, Change
from draco.resources.api.claims import DeviceClass, DeviceClassSpec, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=ApiObject)

_BYTES_AT_ONCE: Final = 1 << 20


class FollowedFleet:
    """The objects that informers know. `version` grows with every change that can affect a claim's allocation or explanation."""

    def __init__(self) -> None:
        self.version = 0
        self.devices = 0
        """Number of published devices."""
        self.listeners = Listeners[[]]()
        """Called after each change that can affect a claim's allocation."""
        self.when_unsaid = Listeners[[]]()
        """Called whenever there is something to send."""
        self._informers: dict[str, Collection[Any]] = {}
        self._matters: dict[str, Callable[[Any], object]] = {}
        self._unsaid: OrderedDict[tuple[str, ObjectKey], int] = (
            OrderedDict()
        )  # with the version before the first change
        self._left_out: dict[tuple[str, ObjectKey], str] = {}

    def follow(
        self,
        *,
        slices: Collection[ResourceSlice],
        rules: Collection[DeviceTaintRule],
        nodes: Collection[Node],
        classes: Collection[DeviceClass],
        claims: Collection[ResourceClaim],
    ) -> None:
        """Take in the current and future objects of these collections."""
        self._follow(slices, lambda item: item.spec)
        slices.subscribe(self._count_devices)
        self._follow(rules, lambda rule: rule.spec)
        self._follow(nodes, _of_node)
        self._follow(classes, lambda item: (item.spec, is_operators(item)))
        self._follow(claims, _of_claim)

    def _count_devices(self, change: Change[ResourceSlice]) -> None:
        before, after = (len(each.spec.devices) if each else 0 for each in (change.before, change.after))
        self.devices += after - before

    def class_spec(self, name: str) -> DeviceClassSpec | None:
        """The spec of the class of that name, or None."""
        classes = self._informers.get("DeviceClass")
        found = classes.store.get(ObjectKey("", name)) if classes else None
        return found.spec if found else None

    @property
    def is_dirty(self) -> bool:
        """Whether something has not been sent."""
        return bool(self._unsaid)

    @property
    def said_version(self) -> int:
        """Everything up to this version has been sent."""
        return next(iter(self._unsaid.values())) if self._unsaid else self.version

    def resync(self) -> None:
        """Send everything again, because the process that had it is gone."""
        self._unsaid.clear()
        for kind, informer in self._informers.items():
            for key, each in informer.store.items():
                if self._matters[kind](each) is not None:
                    self._unsaid[kind, key] = -1
        self._left_out.clear()

    def next_changes(self, most: int) -> Changes:
        """The oldest `most` changes that were not sent; they count as sent from now on."""
        changes: list[PutObject | Remove] = []
        size = 0
        while self._unsaid and len(changes) < most and size < _BYTES_AT_ONCE:
            (kind, key), _ = self._unsaid.popitem(last=False)
            found = self._informers[kind].store.get(key)
            if found is None or self._matters[kind](found) is None:
                changes.append(Remove(kind, key))
            else:
                body = msgspec.msgpack.encode(_slim(found))
                size += len(body)
                changes.append(PutObject(kind, body))
        return Changes(changes, self.said_version)

    def left_out(self, what: SkippedObject) -> None:
        """Report once per cause that an existing object could not be taken in."""
        informer = self._informers.get(what.kind)
        if informer is not None and what.key not in informer.store:
            return
        if self._left_out.get((what.kind, what.key)) != what.error:
            self._left_out[what.kind, what.key] = what.error
            log.warning("fleet.left_out", kind=what.kind, key=str(what.key), error=what.error)

    def _follow(self, informer: Collection[T], matters: Callable[[T], object]) -> None:
        kind = informer.kind.kind
        self._informers[kind] = informer
        self._matters[kind] = matters

        def take(change: Change[T]) -> None:
            if change.after is None:
                self._left_out.pop((kind, change.key), None)
            before, after = (matters(each) if each is not None else None for each in (change.before, change.after))
            if before is after is None:
                return  # a claim without an allocation before and after
            self._unsaid.setdefault((kind, change.key), self.version)
            if before != after:
                self.version += 1
                self.listeners.tell()
            self.when_unsaid.tell()

        informer.subscribe(take)


def _slim(obj: Any) -> Any:
    meta = obj.metadata
    named = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
        labels=meta.labels if isinstance(obj, Node | DeviceClass) else {},
    )
    return msgspec.structs.replace(obj, metadata=named)


def _of_node(node: Node) -> tuple[object, ...]:
    # A kubelet writes its node's status every few minutes without a change: times and messages do not count.
    return (node.metadata.labels, node.spec, [(each.type, each.status) for each in node.status.conditions])


def _of_claim(claim: ResourceClaim) -> tuple[object, ...] | None:
    # For other claims only its devices and users matter. What a new claim asks for affects nobody yet.
    status = claim.status
    return (status.allocation, status.reserved_for) if status.allocation is not None else None
