"""A simulated cluster: files on top of a live cluster, with changes to try. Does no I/O."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from draco.allocation.extended_resources import classes_asked
from draco.allocation.extended_resources import note as extended_note
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.hardware import PoolHardware, beside_partitions
from draco.allocation.ownership.claims import is_for_operator
from draco.maintenance.taint_rules import extended_device, plan_extensions
from draco.resources.api.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate
from draco.resources.api.core import Node, Pod, PodDisruptionBudget
from draco.resources.api.draco import MigPolicy
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.slices import ResourceSlice, ResourceSliceSpec
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaintRule
from draco.resources.errors import DracoError
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import DeviceKey, PoolKey
from draco.resources.texts import are, counted, listed, nearest, sentence
from draco.resources.written.manifests import Object, note_place
from draco.selectors.known_names import published_twice, twice_text

ANY_NODE: Final = "any-node"
"""Stands for all nodes if the files name none: it reaches whatever every node can reach."""


class WorldError(DracoError):
    """Something named does not exist in the world; the message says what does."""


class World(msgspec.Struct, kw_only=True):
    """A simulated cluster. `wanted` has the objects of files that ask for devices, in order."""

    server: str = ""
    """The live cluster underneath; "" for files alone."""
    kubernetes_minor: int | None = None
    """21 of 1.21; None if the server does not report it."""
    fleet: Fleet
    pods: dict[ObjectKey, Pod] = {}
    """Pods of the live cluster."""
    templates: dict[ObjectKey, ResourceClaimTemplate] = {}
    wanted: list[Pod | ResourceClaim | ResourceClaimTemplate] = []
    notes: list[str] = []
    """Sentences about its sources, what could not be read, and what may surprise."""
    limits: list[DeviceLimit] = []
    namespaces: dict[str, dict[str, str]] = {}
    """Labels by namespace; empty if there are no limits."""
    creation_failures: dict[str, str] = {}
    """kube-controller-manager's reason why a claim could not be created, by pod UID."""
    policies: list[MigPolicy] = []
    budgets: list[PodDisruptionBudget] = []
    """PodDisruptionBudgets of pods that could be preempted."""
    reservations: list[DeviceReservation] = []
    """Reservations whose devices such pods use."""
    spread: frozenset[PoolKey] = frozenset()
    """The pools whose nodes are filled evenly if Draco allocates."""

    def note_extended_resources(self, pod: Pod) -> None:
        """Note which claim stands for the pod's extended resources."""
        for resource, device_class in classes_asked(pod, self.fleet.classes).items():
            text = extended_note(resource, device_class, self.kubernetes_minor, pod)
            if text not in self.notes:
                self.notes.append(text)

    def note_unselecting_rules(self) -> None:
        """Note taint rules without a selector, of which only the API says that they taint nothing."""
        for rule in self.fleet.inventory.rules:
            if rule.spec.without_selector and rule.spec.taint.effect in BLOCKING_EFFECTS:
                self.notes.append(f"DeviceTaintRule {rule.metadata.name} {rule.spec.without_selector}.")

    def note_first_fit(self, claims: Iterable[ResourceClaim]) -> None:
        """Note that Draco places its own claims differently from this simulation."""
        if any(is_for_operator(claim, self.fleet.classes) for claim in claims):
            self.notes.append(
                "Claims that Draco allocates are tried on the first devices that fit. Draco takes those that leave most room; "
                "`draco explain` names them."
            )


def of_files(objects: Sequence[tuple[Object, str]]) -> World:
    """A world of files alone, including nodes that only slices name. Raises ManifestError."""
    world = World(fleet=Fleet())
    _put_all(world, objects)
    named = {name for item, _ in objects if isinstance(item, ResourceSlice) for name in _nodes_of(item.spec) or ()}
    for name in sorted(named - world.fleet.nodes.keys()):
        world.fleet.put_node(Node(metadata=ObjectMeta(name=name)))
    if not world.fleet.nodes:
        world.fleet.put_node(Node(metadata=ObjectMeta(name=ANY_NODE)))
        world.notes.append(f"The files name no node: a node without labels, {ANY_NODE}, represents all nodes.")
    _note_doubts(world)
    return world


def put_objects(world: World, objects: Sequence[tuple[Object, str]]) -> None:
    """Add the objects of files to a live cluster, replacing those of the same name. Raises ManifestError."""
    _put_all(world, objects)
    _note_doubts(world)


def _note_doubts(world: World) -> None:
    """Note attributes with two values, of which a selector may read either, and hardware that is published twice."""
    inventory = world.fleet.inventory
    for path, devices in sorted((+inventory.columns.twice).items()):
        named = [
            inventory.key(row)
            for row, device in enumerate(inventory.columns.devices)
            if device is not None and path.id in published_twice(inventory.columns.drivers[row], device)
        ]
        who = f"{listed(sorted(named))} {are(devices)}"
        world.notes.append(sentence(twice_text(who, path.domain or "", path.id or "")))
    divided = {
        f"{pool.key}/{name}"
        for pool in inventory.pools
        for name, _ in beside_partitions(device for entry in pool.entries for device in entry.spec.devices)
    }
    if divided:
        world.notes.append(
            f"{counted(len(divided), 'GPU')} ({listed(sorted(divided))}) and their partitions consume no common counters: "
            "Kubernetes allocates both together."
        )


def _put_all(world: World, objects: Iterable[tuple[Object, str]]) -> None:
    seen: dict[str, str] = {}
    slices = {entry.name for pool in world.fleet.inventory.pools for entry in pool.entries}
    for item, source in objects:
        note_place(seen, item, source)
        if _put(world, item, slices):
            world.notes.append(f"{type(item).__name__} {item.metadata.key} of {source} replaces the cluster's.")


def _put(world: World, item: Object, slices: set[str]) -> bool:
    """Add an object; return whether it replaces a known one."""
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
    """Keep only these nodes, and the devices not bound to others. Raises WorldError."""
    for name in names:
        _ensure(world, name)
    for name in [name for name in world.fleet.nodes if name not in set(names)]:
        world.fleet.remove_node(name)
    kept = set(names)
    _remove_pools(world, lambda nodes: nodes.isdisjoint(kept))


def without(world: World, names: Sequence[str]) -> set[PoolKey]:
    """Remove nodes with the devices that only they reach; return the removed pools. Raises WorldError."""
    for name in names:
        if name not in world.fleet.nodes:
            raise WorldError(_no_node(world, name))
    for name in names:
        world.fleet.remove_node(name)
    gone = set(names)
    return _remove_pools(world, lambda nodes: nodes <= gone)


def _ensure(world: World, name: str) -> None:
    """Add a node if the files name none, because these mean any node. Otherwise raises WorldError for an unknown one."""
    if name in world.fleet.nodes:
        return
    if world.server or world.fleet.nodes.keys() - {ANY_NODE}:
        raise WorldError(_no_node(world, name))
    world.fleet.put_node(Node(metadata=ObjectMeta(name=name)))


def _no_node(world: World, name: str) -> str:
    where = "the cluster" if world.server else "the files"
    return f'there is no node "{name}" in {where}{nearest(name, world.fleet.node_names)}'


def put_taints(world: World, rules: Sequence[DeviceTaintRule]) -> None:
    """Taint devices; note a taint that hits none, as it is probably a mistake."""
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
    """Taint the same hardware too, as Draco's operator would. Returns the number of those devices."""
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
    """Every published device, in any generation of its pool."""
    for pool in fleet.inventory.pools:
        for entry in pool.entries:
            for device in entry.spec.devices:
                yield DeviceKey(*pool.key, device.name)


def _remove_pools(world: World, goes: Callable[[set[str]], bool]) -> set[PoolKey]:
    """Remove the pools bound by name to such nodes only; pools are removed whole or not at all."""
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
    """The nodes that a slice or its devices name; None if other nodes may reach it."""
    if spec.node_name:
        return {spec.node_name}
    if spec.all_nodes or spec.node_selector is not None:
        return None
    names = {device.node_name for device in spec.devices}
    return {name for name in names if name} if all(names) else None
