"""A cluster as one imagines it: what files say, on top of what a live cluster has, with changes to try.

Owns the putting together, and what is said of it. Reads nothing itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from draco.allocation.extended_resources import classes_asked
from draco.allocation.extended_resources import note as extended_note
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.hardware import PoolHardware
from draco.allocation.ownership.claims import is_for_operator
from draco.maintenance.rules import extended_device, plan_extensions
from draco.resources.api.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate
from draco.resources.api.core import Node, Pod, PodDisruptionBudget
from draco.resources.api.draco import MigPolicy
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.slices import ResourceSlice, ResourceSliceSpec
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.errors import DracoError
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import DeviceKey, PoolKey
from draco.resources.texts import are, counted, nearest, sentence
from draco.resources.written.manifests import Object, note_place
from draco.selectors.known_names import twice_text

ANY_NODE: Final = "any-node"
"""The node that stands for all where files name none: what every node can reach is reached from it."""


class WorldError(DracoError):
    """What is asked of the world is not in it; says what is."""


class World(msgspec.Struct, kw_only=True):
    """A cluster that is only imagined. `wanted` has the objects of files that ask for devices, in their order."""

    server: str = ""
    """The live cluster it is made from; "" for files alone."""
    kubernetes_minor: int | None = None
    """21 of 1.21; None if the server does not say."""
    fleet: Fleet
    pods: dict[ObjectKey, Pod] = {}
    """Those of the live cluster."""
    templates: dict[ObjectKey, ResourceClaimTemplate] = {}
    wanted: list[Pod | ResourceClaim | ResourceClaimTemplate] = []
    notes: list[str] = []
    """What it is made of, what could not be read, and what may surprise, a sentence each."""
    limits: list[DeviceLimit] = []
    namespaces: dict[str, dict[str, str]] = {}
    """Labels by name; none where there are no limits."""
    creation_failures: dict[str, str] = {}
    """By the pod's UID: why a claim could not be made for it, as kube-controller-manager says."""
    policies: list[MigPolicy] = []
    budgets: list[PodDisruptionBudget] = []
    """Those of pods that could be evicted for others."""
    reservations: list[DeviceReservation] = []
    """Those whose devices pods use that could be."""
    spread: frozenset[PoolKey] = frozenset()
    """The pools whose nodes are filled evenly where Draco allocates."""

    def note_extended_resources(self, pod: Pod) -> None:
        """Say whose claim it is that a pod has which names none."""
        for resource, device_class in classes_asked(pod, self.fleet.classes).items():
            text = extended_note(resource, device_class, self.kubernetes_minor)
            if text not in self.notes:
                self.notes.append(text)

    def note_first_fit(self, claims: Iterable[ResourceClaim]) -> None:
        """Say that Draco places its own claims otherwise than they are tried."""
        if any(is_for_operator(claim, self.fleet.classes) for claim in claims):
            self.notes.append(
                "Claims that Draco allocates are tried on the first devices that do. Draco takes those that leave most room, "
                "which `draco explain` names."
            )


def of_files(objects: Sequence[tuple[Object, str]]) -> World:
    """A world of files alone. Nodes that only slices name are there too. Raises ManifestError."""
    world = World(fleet=Fleet())
    _put_all(world, objects)
    named = {name for item, _ in objects if isinstance(item, ResourceSlice) for name in _nodes_of(item.spec) or ()}
    for name in sorted(named - world.fleet.nodes.keys()):
        world.fleet.put_node(Node(metadata=ObjectMeta(name=name)))
    if not world.fleet.nodes:
        world.fleet.put_node(Node(metadata=ObjectMeta(name=ANY_NODE)))
        world.notes.append(f"The files name no node: a node without labels, {ANY_NODE}, represents all nodes.")
    _note_twice(world)
    return world


def put_objects(world: World, objects: Sequence[tuple[Object, str]]) -> None:
    """Add what files say to a live cluster, or put it in place of what it has. Raises ManifestError."""
    _put_all(world, objects)
    _note_twice(world)


def _note_twice(world: World) -> None:
    """Say of what a selector may meet one value or another."""
    for path, devices in sorted((+world.fleet.inventory.columns.twice).items()):
        who = f"{counted(devices, 'device')} {are(devices)}"
        world.notes.append(sentence(twice_text(who, path.domain or "", path.id or "")))


def _put_all(world: World, objects: Iterable[tuple[Object, str]]) -> None:
    seen: dict[str, str] = {}
    slices = {entry.name for pool in world.fleet.inventory.pools for entry in pool.entries}
    for item, source in objects:
        note_place(seen, item, source)
        if _put(world, item, slices):
            world.notes.append(f"{type(item).__name__} {item.metadata.key} of {source} replaces the cluster's.")


def _put(world: World, item: Object, slices: set[str]) -> bool:
    """Add an object; whether it takes the place of one that is known."""
    fleet, name = world.fleet, item.metadata.name
    known = False
    match item:
        case Node():
            known = name in fleet.nodes
            fleet.put_node(item)
        case ResourceSlice():
            known = name in slices
            fleet.put_slice(item)
        case DeviceClass():
            known = name in fleet.classes
            fleet.put_class(item)
        case DeviceTaintRule():
            fleet.put_rule(item)
        case ResourceClaimTemplate():
            known = item.metadata.key in world.templates
            world.templates[item.metadata.key] = item
            world.wanted.append(item)
        case ResourceClaim() if item.status.allocation is not None:
            known = item.metadata.key in fleet.claims
            fleet.put_claim(item)
        case ResourceClaim() | Pod():
            world.wanted.append(item)
    return known


def keep_only(world: World, names: Sequence[str]) -> None:
    """Leave only these nodes, and of the devices only those that are not bound to others. Raises WorldError."""
    for name in names:
        _ensure(world, name)
    for name in [name for name in world.fleet.nodes if name not in set(names)]:
        world.fleet.remove_node(name)
    kept = set(names)
    _remove_pools(world, lambda nodes: nodes.isdisjoint(kept))


def without(world: World, names: Sequence[str]) -> set[PoolKey]:
    """Take nodes out, with the devices that only they had; the pools that are gone. Raises WorldError."""
    for name in names:
        if name not in world.fleet.nodes:
            raise WorldError(_no_node(world, name))
    for name in names:
        world.fleet.remove_node(name)
    gone = set(names)
    return _remove_pools(world, lambda nodes: nodes <= gone)


def _ensure(world: World, name: str) -> None:
    """Files that name no node mean any; those that name some, and clusters, know their nodes."""
    if name in world.fleet.nodes:
        return
    if world.server or world.fleet.nodes.keys() - {ANY_NODE}:
        raise WorldError(_no_node(world, name))
    world.fleet.put_node(Node(metadata=ObjectMeta(name=name)))


def _no_node(world: World, name: str) -> str:
    where = "the cluster" if world.server else "the files"
    return f'there is no node "{name}" in {where}{nearest(name, world.fleet.node_names)}'


def put_taints(world: World, rules: Sequence[DeviceTaintRule]) -> None:
    """Taint devices. A taint that hits none is said, as it was hardly meant so."""
    for rule in rules:
        world.fleet.put_rule(rule)
        hit = sum(
            rule.spec.device_selector is not None and rule.spec.device_selector.matches(key)
            for key in device_keys(world.fleet)
        )
        more = _extend(world, rule)
        taint = rule.spec.taint
        text = str(taint.identity)
        sentence = f"The taint {text} is put on {counted(hit, 'device')}"
        extended = f", and on {more} more that {are(more)} the same hardware" if more else ""
        world.notes.append(f"{sentence}{extended}.")


def _extend(world: World, rule: DeviceTaintRule) -> int:
    """Taint what is the same hardware as well, as Draco's operator would. Returns how many devices that are."""
    named = extended_device(rule)
    pool = world.fleet.inventory.pool(named.pool_key) if named else None
    if named is None or pool is None:
        return 0
    slices = [ResourceSlice(metadata=ObjectMeta(name=entry.name), spec=entry.spec) for entry in pool.entries]
    plan = plan_extensions(rule, (), PoolHardware(slices), kind=TAINT_RULES[0])
    for extension in plan.apply:
        world.fleet.put_rule(extension)
    return len(plan.apply)


def device_keys(fleet: Fleet) -> Iterator[DeviceKey]:
    """Every device that is published, of whatever generation of its pool."""
    for pool in fleet.inventory.pools:
        for entry in pool.entries:
            for device in entry.spec.devices:
                yield DeviceKey(*pool.key, device.name)


def _remove_pools(world: World, goes: Callable[[set[str]], bool]) -> set[PoolKey]:
    """Remove the pools that are bound to nodes by name, and to such nodes only. A pool goes as a whole or stays."""
    gone = set()
    for pool in list(world.fleet.inventory.pools):
        nodes: set[str] = set()
        for entry in pool.entries:
            named = _nodes_of(entry.spec)
            if named is None:
                break
            nodes |= named
        else:
            if goes(nodes):
                gone.add(pool.key)
                for name in [entry.name for entry in pool.entries]:
                    world.fleet.remove_slice(name)
    return gone


def _nodes_of(spec: ResourceSliceSpec) -> set[str] | None:
    """The nodes that a slice or its devices name; None if it is for others too."""
    if spec.node_name:
        return {spec.node_name}
    if spec.all_nodes or spec.node_selector is not None:
        return None
    names = {device.node_name for device in spec.devices}
    return {name for name in names if name} if all(names) else None
