"""The last spec that the operator wrote for this node, for times when the GpuNode does not have it.

A deleted GpuNode is recreated empty by the agent. That must not lift maintenance, take back GPUs or drop layouts. So the last
spec is kept on disk with the Node's UID, and holds for each GPU until the operator writes that it decided about that GPU
(`spec.decided`). A recreated Node is a new node, for which the old spec is void. If the file is lost, this Node's published
slices tell what was wanted.

Owns the file and the spec in effect. `keeper` follows the GpuNode and works on GPUs.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from draco.agent.files import Files, advice
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import persistently
from draco.resources.api.draco import GpuNode, GpuNodeSpec, IsolatedGpu, MigMode, WantedGpu, WantedInstance
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device, ResourceSlice, own_slices
from draco.resources.api.taints import TaintIdentity
from draco.resources.kinds import NODES, SLICES
from draco.resources.names import (
    ATTRIBUTE_PARENT_UUID,
    ATTRIBUTE_UUID,
    TAINT_OPERATOR_ALLOCATED,
    gpu_name,
    read_partition_name,
)
from draco.sharing.terms import shared_gpu_of

log = structlog.get_logger()

LAST_SPEC = "wanted.json"
NOTHING = GpuNodeSpec()


class LastSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The last wanted spec of the Node with this UID. `published`: read from slices, which do not tell all."""

    node_uid: str
    spec: GpuNodeSpec
    published: bool = False


class SpecMemory:
    """Remembers the last spec of one node. Call `recall` first; then `last` is in effect.

    `in_thread` runs disk work. A spec that cannot be written is in effect until the agent ends; `unwritten` tells.
    """

    def __init__(
        self,
        client: Client,
        *,
        node: str,
        driver: str,
        path: Path,
        files: Files,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        clock: Clock,
    ) -> None:
        self.last = LastSpec(node_uid="", spec=NOTHING)
        self.unwritten = False
        self._client = client
        self._node = node
        self._driver = driver
        self._path = path
        self._files = files
        self._in_thread = in_thread
        self._clock = clock

    async def recall(self) -> None:
        """Load the record of this Node, else derive it from its published slices. Waits until the API server answers."""
        node_uid = await self._node_uid()
        recorded = await self._in_thread(self._read)
        if recorded is None:
            published = await persistently("wanted.unknown", self._slices, clock=self._clock)
            mine = [one for one in published if node_uid in {owner.uid for owner in one.metadata.owner_references}]
            spec = as_published(own_slices(mine, self._node))
            self.last = LastSpec(node_uid=node_uid, spec=spec, published=spec != NOTHING)
        elif recorded.node_uid == node_uid:
            self.last = recorded
        else:
            self.last = LastSpec(node_uid=node_uid, spec=NOTHING)
        if self.last.spec != NOTHING:
            log.info("wanted.recalled", node=self._node, published=self.last.published)

    async def hear(self, found: GpuNode | None, forgotten: Collection[str] = ()) -> None:
        """Take over the GpuNode's spec; None if there is none. `forgotten` are GPUs that are gone for good."""
        last = self.last
        if found is not None and found.node_uid not in {"", last.node_uid}:
            node_uid = await self._node_uid()
            if node_uid != last.node_uid:
                last = LastSpec(node_uid=node_uid, spec=NOTHING)
            if found.node_uid != node_uid:
                found = None  # left by an earlier Node of this name; the garbage collector deletes it
        said = found.spec if found is not None else NOTHING
        holds = LastSpec(
            node_uid=last.node_uid,
            spec=in_effect(last.spec, said, forgotten),
            published=last.published and not said.decided,
        )
        if holds == self.last and not self.unwritten:
            return
        self.last = holds
        try:
            await self._in_thread(lambda: self._files.write(self._path, msgspec.json.encode(holds)))
        except OSError as error:
            if not self.unwritten:
                log.warning("wanted.not_recorded", node=self._node, error=advice(error))
            self.unwritten = True
        else:
            self.unwritten = False

    def _read(self) -> LastSpec | None:
        """The recorded spec; None if there is none or it is unreadable."""
        try:
            return msgspec.json.decode(self._files.read(self._path), type=LastSpec)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("wanted.unreadable", node=self._node, path=str(self._path), error=str(error))
            return None

    async def _node_uid(self) -> str:
        key = ObjectKey("", self._node)
        return (
            await persistently("wanted.unknown", lambda: self._client.get(NODES, key), clock=self._clock)
        ).metadata.uid

    async def _slices(self) -> list[ResourceSlice]:
        ours = f"spec.nodeName={self._node},spec.driver={self._driver}"
        return await self._client.list(SLICES, field_selector=ours)


def in_effect(last: GpuNodeSpec, said: GpuNodeSpec, forgotten: Collection[str] = ()) -> GpuNodeSpec:
    """The spec in effect: for each GPU `said`, and `last` until it is decided or `forgotten`."""
    decided = {*said.decided, *forgotten}
    named = {each.uuid for each in said.gpus}
    promised = {each.device for each in said.promised}
    shared = {each.uuid for each in said.shared}
    judged = {(each.uuid, each.fault, each.instance) for each in said.health}

    def kept(uuid: str) -> bool:
        return uuid not in decided if uuid else not said.decided

    return GpuNodeSpec(
        gpus=said.gpus + [each for each in last.gpus if kept(each.uuid) and each.uuid not in named],
        promised=said.promised + [each for each in last.promised if kept(each.uuid) and each.device not in promised],
        shared=said.shared + [each for each in last.shared if kept(each.uuid) and each.uuid not in shared],
        changing=said.changing + [each for each in last.changing if kept(each) and each not in said.changing],
        cleared=said.cleared,
        isolated=said.isolated + [each for each in last.isolated if kept(each.uuid) and each not in said.isolated],
        health=said.health
        + [each for each in last.health if kept(each.uuid) and (each.uuid, each.fault, each.instance) not in judged],
        repaired=said.repaired,
        operator_allocated=said.operator_allocated
        + [each for each in last.operator_allocated if kept(each) and each not in said.operator_allocated],
        decided=said.decided,
    )


def as_published(slices: Iterable[ResourceSlice]) -> GpuNodeSpec:
    """The spec implied by a node's published slices, as far as they tell."""
    by_gpu: dict[str, dict[str, Device]] = {}
    for device in (device for one in slices for device in one.spec.devices):
        if uuid := _text(device, ATTRIBUTE_PARENT_UUID) or _text(device, ATTRIBUTE_UUID):
            by_gpu.setdefault(uuid, {})[device.name] = device
    return GpuNodeSpec(
        gpus=[wanted for uuid, devices in by_gpu.items() if (wanted := _wanted(uuid, devices)) is not None],
        shared=[
            found for uuid, devices in by_gpu.items() if (found := shared_gpu_of(uuid, devices.values())) is not None
        ],
        isolated=[each for uuid, devices in by_gpu.items() for each in _isolated(uuid, devices)],
        operator_allocated=[
            uuid
            for uuid, devices in by_gpu.items()
            if any(taint.key == TAINT_OPERATOR_ALLOCATED for one in devices.values() for taint in one.taints)
        ],
    )


def _wanted(uuid: str, devices: Mapping[str, Device]) -> WantedGpu | None:
    """Partitions published beside their whole GPU are made on demand; without the whole GPU they are a layout."""
    parts = [
        WantedInstance(profile=profile, start=part.start)
        for name, device in devices.items()
        if (part := read_partition_name(name)) and (profile := _text(device, "profile"))
    ]
    if not parts:
        return None
    if len(parts) < len(devices):
        profiles = sorted({each.profile for each in parts})
        return WantedGpu(uuid=uuid, policy="", mode=MigMode.DYNAMIC, profiles=profiles)
    return WantedGpu(uuid=uuid, policy="", mode=MigMode.STATIC, layout=parts)


def _isolated(uuid: str, devices: Mapping[str, Device]) -> list[IsolatedGpu]:
    """One entry per maintenance taint: of the whole GPU if every device of it has the taint, else of each partition with it.

    The whole GPU has the taints of all its partitions.
    """
    having: dict[TaintIdentity, list[str]] = {}
    for name, device in devices.items():
        for taint in device.taints:
            if taint.is_of_maintenance:
                having.setdefault(taint.identity, []).append(name)
    return [
        IsolatedGpu(request="", uuid=uuid, device=name, key=key, value=value, effect=effect)
        for (key, value, effect), names in having.items()
        for name in _concerned(names, len(devices))
    ]


def _concerned(names: Sequence[str], count: int) -> Sequence[str]:
    parts = [each for each in names if read_partition_name(each)]
    return parts if parts and len(names) < count else [gpu_name(names[0])]


def _text(device: Device, attribute: str) -> str:
    found = device.attributes.get(attribute)
    return found.string or "" if found is not None else ""
