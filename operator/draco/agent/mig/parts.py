"""Puts together the parts of the agent that divide GPUs.

Owns their wiring, and which Events tell people of them. What they do is their own business: `inventory` looks at instances,
`instance_manager` changes them, `claim_instances` those of claims, `layout` those of policies, `keeper` says when.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.gpus import Gpu, GpuMigView, HeldInstance, PlacementKey
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_instances import NvmlInstances
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.mig.holders import Holders, HolderSearch, own_pid
from draco.agent.mig.instance_manager import NOBODY_LISTED, InstanceManager
from draco.agent.mig.inventory import UNFINISHED, MigInventory
from draco.agent.mig.keeper import MigKeeper, OnGpu
from draco.agent.mig.last_spec import SpecMemory
from draco.agent.mig.layout import LayoutApplier
from draco.agent.mig.ownership import remains
from draco.agent.mig.users import DeviceUsers
from draco.agent.record.checkpoint import Checkpoint
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.mig.keeping import KeptInstances, keeping
from draco.resources.names import GpuUuid

Tell = Callable[[str, str, str, GpuUuid], None]
"""An Event on the node about one of its GPUs: reason, action, note, GPU."""


class NodeDivisions:
    """How one node's GPUs are divided. `shown` is called, in any thread, when `divisions` changes."""

    def __init__(
        self,
        client: Client,
        nvml: Nvml,
        record: Checkpoint,
        memory: SpecMemory,
        *,
        node: str,
        boot_id: str,
        proc: Path,
        device_root: Path,
        on_gpu: OnGpu,
        shown: Callable[[], None],
        changed: Callable[[GpuUuid], Awaitable[None]],
        report: Callable[[], None],
        isolation: Callable[[], None],
        clock: Clock,
    ) -> None:
        edge = NvmlInstances(nvml)
        holders = Holders(proc, own=own_pid(proc))
        holder = HolderSearch(holders, Capabilities(proc, device_root))
        self.inventory = MigInventory(record, edge, boot_id=boot_id, monotonic=clock.monotonic, shown=shown)
        manager = InstanceManager(record, edge, self.inventory, holder=holder)
        self.instances = ClaimInstances(
            record,
            self.inventory,
            manager,
            keeping=self._keeping,
            monotonic=clock.monotonic,
            users=DeviceUsers(record, holders, monotonic=clock.monotonic),
        )
        self.keeper = MigKeeper(
            client,
            node=node,
            memory=memory,
            layouts=LayoutApplier(record, self.inventory, manager, self.instances),
            divisions=lambda: self.divisions,
            on_gpu=on_gpu,
            changed=changed,
            report=report,
            isolation=isolation,
            clock=clock,
        )
        self._record = record
        self._notified: Mapping[GpuUuid, GpuMigView] = {}
        self._offered: Mapping[GpuUuid, GpuMigView] = {}
        self._blamed: dict[PlacementKey, str] = {}

    @property
    def divisions(self) -> Mapping[GpuUuid, GpuMigView]:
        """How each GPU is divided now, by UUID."""
        return self.inventory.divisions

    def offered(self, gpus: Iterable[Gpu]) -> Mapping[GpuUuid, GpuMigView]:
        """How each of these GPUs is divided, as far as it is known."""
        self._offered = known_of(gpus, self.divisions, self._offered, self._remains)
        return self._offered

    def _remains(self, gpu: Gpu) -> GpuMigView | None:
        """How a GPU is divided, as far as the record tells; None where it does not know its board."""
        known = self._record.known.get(gpu.uuid)
        board = gpu.board or (known.last.board if known and known.last else None)
        made = remains(msgspec.structs.replace(gpu, board=board), self._record.claims.values())
        return made if board is not None or gpu.absent else None

    def tell(self, tell: Tell) -> None:
        """Tell of what people have to do something about, once."""
        before, self._notified = self._notified, self.divisions
        for uuid, division in self._notified.items():
            known = before.get(uuid) or GpuMigView(gpu=uuid)
            for one in _newly_foreign(known, division):
                note = f"GPU {uuid}: {self._what(one)} was made by somebody else; it is left alone."
                tell("ForeignInstance", "Observe", note, uuid)
            for one in division.held if division.dirty else ():
                if one.instance.key in self.inventory.refused and self._blamed.get(one.instance.key) != one.holder:
                    by = one.holder or NOBODY_LISTED
                    note = f"GPU {uuid}: {self._what(one)} cannot be destroyed, it is in use by {by}."
                    tell("InstanceInUse", "Destroy", note, uuid)
                    self._blamed[one.instance.key] = one.holder
            if self._unsettled(division) and not self._unsettled(known):
                note = f"GPU {uuid}: {division.message} Nothing new is placed on it until then."
                tell("PartitionsUnsettled", "Settle", note, uuid)
        self._blamed = {key: who for key, who in self._blamed.items() if key in self.inventory.refused}

    def _what(self, one: HeldInstance) -> str:
        instance = one.instance
        bare = "" if instance.ci is not None else ", without a compute instance,"
        return f"GPU instance {instance.gi} ({self.inventory.named(instance.key)}){bare}"

    def _unsettled(self, division: GpuMigView) -> bool:
        """Whether people have to know. They need not of steps that are on their way, nor twice of what is in use."""
        refused = any(one.instance.key in self.inventory.refused for one in division.held)
        return division.dirty and division.message != UNFINISHED and not refused

    def _keeping(self, uuid: GpuUuid) -> KeptInstances:
        division = self.divisions.get(uuid)
        return keeping((self.keeper.wanted or {}).get(uuid), division.board if division else None)


def known_of(
    gpus: Iterable[Gpu],
    divisions: Mapping[GpuUuid, GpuMigView],
    before: Mapping[GpuUuid, GpuMigView],
    remains: Callable[[Gpu], GpuMigView | None],
) -> dict[GpuUuid, GpuMigView]:
    """How GPUs are divided; `before` is what came of this the last time, `remains` what claims on record have of a GPU.

    What claims have of a GPU stays published, and so do its counters, when it is absent, could not be looked at yet, or has just
    left: the look that missed it comes before the view in which it is absent. Else it would be everybody's as a whole meanwhile.
    """
    found = {}
    for gpu in gpus:
        division = divisions.get(gpu.uuid)
        if division is None and not gpu.absent:
            division = before.get(gpu.uuid)
        if (division is None or division.board is None) and (left := remains(gpu)):
            division = left if division is None else _filled(division, left)
        if division is not None:
            found[gpu.uuid] = division
    return found


def _filled(division: GpuMigView, left: GpuMigView) -> GpuMigView:
    """The state of a GPU that could not be read, with what is known of it from before."""
    enabled = division.enabled or left.enabled
    return msgspec.structs.replace(division, capable=True, enabled=enabled, board=left.board, held=left.held)


def _newly_foreign(known: GpuMigView, division: GpuMigView) -> list[HeldInstance]:
    """What others have made, or made whole, since the last time. What they take apart again is nothing new."""
    whole = {one.instance.key: one.instance.ci is not None for one in known.foreign}
    return [
        one
        for one in division.foreign
        if (seen := whole.get(one.instance.key)) is None or (not seen and one.instance.ci is not None)
    ]
