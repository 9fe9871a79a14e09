"""The fleet as the informers see it: all that allocation depends on, kept current change by change.

Owns the feeding of one `Fleet`, and which changes can alter what anyone is allocated. A change costs what it touches, however
large the cluster. Structs are handed on as the stores hold them, never copied. An object that cannot be taken in is left out, as
a scheduler that cannot read it would, and is said in the log once.
"""

from collections.abc import Callable
from typing import TypeVar

import structlog

from draco.allocation.fleet import Fleet
from draco.kube.informer import Informer
from draco.kube.store import ApiObject, Change
from draco.resources.claims import ResourceClaim
from draco.resources.classes import DeviceClass
from draco.resources.core import Node
from draco.resources.errors import DracoError
from draco.resources.meta import ObjectKey
from draco.resources.slices import ResourceSlice
from draco.resources.taints import DeviceTaintRule

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=ApiObject)


class FollowedFleet:
    """A fleet that follows informers. `version` grows with every change that can alter what a claim is allocated, or why not."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.version = 0
        self._wakes: list[Callable[[], None]] = []
        self._left_out: dict[tuple[str, ObjectKey], str] = {}

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Have `wake` called after each change that can alter what a claim is allocated. It must be quick."""
        self._wakes.append(wake)

    def follow(
        self,
        *,
        slices: Informer[ResourceSlice],
        rules: Informer[DeviceTaintRule] | None,
        nodes: Informer[Node],
        classes: Informer[DeviceClass],
        claims: Informer[ResourceClaim],
    ) -> None:
        """Take in what these informers know and everything that they come to know."""
        fleet = self.fleet
        self._feed(slices, fleet.put_slice, lambda key: fleet.remove_slice(key.name), lambda item: item.spec)
        if rules:
            self._feed(rules, fleet.put_rule, lambda key: fleet.remove_rule(key.name), lambda rule: rule.spec)
        self._feed(nodes, fleet.put_node, lambda key: fleet.remove_node(key.name), _of_node)
        self._feed(classes, fleet.put_class, lambda key: fleet.remove_class(key.name), lambda item: item.spec)
        self._feed(claims, fleet.put_claim, fleet.remove_claim, _of_claim)

    def _feed(
        self,
        informer: Informer[T],
        put: Callable[[T], None],
        remove: Callable[[ObjectKey], None],
        matters: Callable[[T], object],
    ) -> None:
        kind = informer.kind.kind

        def take(change: Change[T]) -> None:
            if change.after is None:
                remove(change.key)
                self._left_out.pop((kind, change.key), None)
            else:
                self._put(kind, change.key, change.after, put, remove)
            before, after = (matters(each) if each is not None else None for each in (change.before, change.after))
            if before != after:
                self.version += 1
                for wake in self._wakes:
                    wake()

        informer.subscribe(take)

    def _put(
        self, kind: str, key: ObjectKey, obj: T, put: Callable[[T], None], remove: Callable[[ObjectKey], None]
    ) -> None:
        try:
            put(obj)
        except DracoError as error:
            remove(key)
            if self._left_out.get((kind, key)) != str(error):
                self._left_out[kind, key] = str(error)
                log.warning("fleet.left_out", kind=kind, key=str(key), error=str(error))
        else:
            self._left_out.pop((kind, key), None)


def _of_node(node: Node) -> tuple[object, ...]:
    # A kubelet writes its node's status every few minutes though nothing has happened: times and messages do not count.
    return (node.metadata.labels, node.spec, [(each.type, each.status) for each in node.status.conditions])


def _of_claim(claim: ResourceClaim) -> tuple[object, ...] | None:
    # To all other claims: what it holds, and whether anyone uses that. What a new claim asks for concerns nobody else yet.
    status = claim.status
    return (status.allocation, status.reserved_for) if status.allocation is not None else None
