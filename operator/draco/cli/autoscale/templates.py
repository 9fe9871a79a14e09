"""Slice templates: what a node that does not exist yet would publish, in the forms that autoscalers read.

Owns which attributes belong to a kind of device and which to one device, and both output forms: Karpenter's (one template per
slice) and Cluster API's annotations (only a driver and a number). The agent's own code says what a board would publish. Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from draco.agent.hardware.gpus import DriverInfo, Gpu, GpuMigView, LinkEnds
from draco.agent.publish.offering import Offering
from draco.agent.publish.slices import split
from draco.mig.known_boards import BOARDS, MODELS
from draco.mig_policy.decide import wanted_of
from draco.resources.api.draco import Allocator, GpuMig, MigMode, MigPolicy, WantedGpu
from draco.resources.api.slices import CounterSet, Device, DeviceAttribute, ResourceSlice, publications
from draco.resources.errors import DracoError
from draco.resources.names import (
    ATTRIBUTE_CLIQUE_ID,
    ATTRIBUTE_CLUSTER_UUID,
    NVIDIA_DRIVER,
    GpuUuid,
    read_partition_name,
)

POOL: Final = "node"
"""Placeholder: a node's pool has the node's name, which is not known yet."""
_OWN: Final = frozenset({ATTRIBUTE_CLUSTER_UUID, ATTRIBUTE_CLIQUE_ID})
"""Attributes of a node's location, which a new node does not share."""
_UUIDS: Final = frozenset({"uuid", "parentUUID"})
"""Attributes of which only equality matters: they show which devices share a GPU."""
DRA_DRIVER: Final = "capacity.cluster-autoscaler.kubernetes.io/dra-driver"
GPU_COUNT: Final = "capacity.cluster-autoscaler.kubernetes.io/gpu-count"


class NoTemplate(DracoError):
    """No template can be made; the message gives the reason and the remedy."""


class SliceTemplate(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One future ResourceSlice: devices, or the counters that devices of other slices draw from."""

    driver: str
    pool: str
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


def of_node(node: str, slices: Iterable[ResourceSlice]) -> list[SliceTemplate]:
    """Templates of what a live node publishes, for all its drivers. Raises NoTemplate."""
    here = publications(one for one in slices if one.spec.node_name == node)
    if not here:
        raise NoTemplate(f"Node {node} publishes no devices; name a node whose drivers run, or use --board.")
    templates = []
    for key, [newest] in sorted(here.items()):  # slices of one node alone are used together
        if not newest.complete:
            raise NoTemplate(
                f"Pool {key} of node {node} is incomplete; try again when its driver has published all slices."
            )
        name = POOL if key.pool == node else key.pool
        templates += [
            SliceTemplate(key.driver, name, like(one.spec.devices), one.spec.shared_counters) for one in newest.slices
        ]
    return templates


def of_board(board: str, count: int, policy: MigPolicy | None = None) -> list[SliceTemplate]:
    """Templates of a node with `count` GPUs of a known board, divided as the policy says. Raises NoTemplate.

    Omits what only a real machine reports: driver versions, PCI addresses and NUMA nodes.
    """
    model = MODELS.get(board)
    if model is None:
        raise NoTemplate(
            f"Draco knows no board {board}; it knows {', '.join(MODELS)}. Write the template from a live node."
        )
    table = BOARDS.get(board)
    gpus, migs, wanted = [], {}, {}
    for number in range(count):
        uuid = GpuUuid(f"gpu-{number}")
        major, _, minor = model.compute_capability.partition(".")
        gpu = Gpu(
            uuid=uuid,
            index=number,
            minor=number,
            product_name=model.product_name,
            brand="Nvidia",
            architecture=model.architecture,
            compute_major=int(major),
            compute_minor=int(minor),
            memory_bytes=model.memory_mib << 20,
            pci_bus_id="",
            mig_capable=table is not None,
            links=LinkEnds(switched=model.nvswitch),
        )
        gpus.append(gpu)
        asked = _wanted(policy, uuid, board)
        if asked is not None:
            wanted[uuid] = asked
        # If MIG mode changes only with a reset, assume that the reset has happened.
        enabled = asked is not None and asked.mode is not MigMode.DISABLED and gpu.mig_needs_reset
        migs[uuid] = GpuMigView(gpu=uuid, capable=table is not None, enabled=enabled, board=table)
    dracos = migs.keys() if policy is not None and policy.spec.allocator is Allocator.OPERATOR else ()
    offer = Offering().offer(
        gpus, DriverInfo("", "", ""), migs=migs, wanted=wanted, operator_allocated=dracos, now_s=0.0
    )
    return [
        SliceTemplate(NVIDIA_DRIVER, POOL, like(content.devices), content.shared_counters)
        for content in split(offer.devices, offer.counters)
    ]


def _wanted(policy: MigPolicy | None, uuid: GpuUuid, board: str) -> WantedGpu | None:
    if policy is None:
        return None
    if board not in BOARDS and policy.spec.mode is not MigMode.DISABLED:
        raise NoTemplate(f"Board {board} cannot be divided; leave --policy out.")
    found = wanted_of(policy, uuid, GpuMig(capable=board in BOARDS), BOARDS.get(board))
    if not isinstance(found, WantedGpu):
        raise NoTemplate(f"MigPolicy {policy.metadata.name} cannot be applied to board {board}: {found.message}.")
    return found


def like(devices: Sequence[Device]) -> list[Device]:
    """The devices without what identifies one of them, as any node of the kind would publish them.

    UUIDs become GPU names, so that a claim for two partitions of one GPU still matches. Taints are removed: a new node is
    healthy.
    """
    return [
        msgspec.structs.replace(
            one,
            attributes={
                name: DeviceAttribute(string=_gpu(one.name)) if _id(name) in _UUIDS else value
                for name, value in one.attributes.items()
                if _id(name) not in _OWN
            },
            taints=[],
        )
        for one in devices
    ]


def annotations(templates: Sequence[SliceTemplate]) -> dict[str, str]:
    """The annotations with which Cluster Autoscaler scales a MachineDeployment from zero. Raises NoTemplate."""
    drivers = {each.driver for each in templates if each.devices}
    devices = [device for each in templates for device in each.devices]
    whole = [one for one in devices if read_partition_name(one.name) is None]
    if len(drivers) != 1 or not whole:
        what = "devices of one driver" if len(drivers) != 1 else "whole devices"
        raise NoTemplate(
            f"The annotations of Cluster API are for {what} only; keep one node of this group, or use Karpenter."
        )
    return {DRA_DRIVER: drivers.pop(), GPU_COUNT: str(len(whole))}


def _gpu(device: str) -> str:
    part = read_partition_name(device)
    return device if part is None else part.parent


def _id(name: str) -> str:
    return name.rpartition("/")[2]
