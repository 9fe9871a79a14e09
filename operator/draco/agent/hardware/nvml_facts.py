"""What NVML reports of one GPU: its place, published facts, and health.

Owns which facts a GPU needs. Without its UUID, minor number and PCI address it cannot be given to a container, and the caller
gets the error. All other facts are read separately: one that the board or the driver lacks is left out, and nothing is wrong with
the GPU; one that cannot be read now keeps its last value. Both are noted. `docs/reference/nvml.md` lists every call, and the
meaning of refusals.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pynvml

from draco.agent.hardware.faults import FABRIC_FAILED, UNREADABLE, only_sign, with_sign
from draco.agent.hardware.gpus import Gpu, GpuLocation, UnreadFact, as_told_before
from draco.agent.hardware.nvml_errors import ADDRESSING_MODES, ARCHITECTURES, BRANDS, CallError, NotSupported
from draco.agent.hardware.nvml_health import HealthReader
from draco.agent.hardware.nvml_links import FabricReading, LinkReader
from draco.agent.hardware.nvml_memory import LimitReader
from draco.health.ledger import GpuReading, Sign
from draco.resources.api.health import FaultFamily
from draco.resources.names import GpuUuid

T = TypeVar("T")
Call = Callable[..., Any]


class GpuReader:
    """Reads one session's GPUs. `call` raises the errors of `nvml_errors`; `own_cgroup`: see `nvml_memory`."""

    def __init__(self, call: Call, *, own_cgroup: Path | None) -> None:
        self._call = call
        self._limits = LimitReader(call, own_cgroup)
        self._health = HealthReader(call)
        self._links = LinkReader(call)

    def forget(self) -> None:
        """Start a new session: the driver may be another one."""
        self._health.forget()
        self._links.forget()

    def location(self, handle: Any) -> GpuLocation:
        """A GPU's current place. Raises CallError if NVML does not report it."""
        try:
            minor = int(self._call("nvmlDeviceGetMinorNumber", handle))
        except NotSupported as error:
            raise NotSupported(f"{_NO_MINOR} {error}", error.code) from error
        pci = self._call("nvmlDeviceGetPciInfo", handle)
        return GpuLocation(minor, f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")

    def read(self, uuid: GpuUuid, index: int, handle: Any, *, before: Gpu | None) -> Gpu:
        """A GPU with its signs. `before`: its last reading in this session. Raises CallError if its place is unreadable."""
        where = self.location(handle)
        facts = _Facts()
        major, minor = facts.told("cudaComputeCapability", lambda: self._call(_CAPABILITY, handle)) or (None, None)
        mode = facts.if_any("mig", lambda: self._call("nvmlDeviceGetMigMode", handle))
        divided = mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        if mode is None and facts.unknown("mig") and before is not None:
            divided = before.mig_enabled
        fabric = facts.if_any("fabric", lambda: self._links.fabric(uuid, handle, divided=divided)) or FabricReading()
        reading = self._reading(uuid, handle, facts, fabric, divided=divided)
        up = reading.links.up if reading is not None and reading.links is not None else None
        limits = facts.if_any("memoryLimit", lambda: self._limits.holds(handle)) if not divided else None
        if divided and before is not None:
            limits = before.memory_limits  # as a whole it has them again
        brand = facts.told("brand", lambda: self._call("nvmlDeviceGetBrand", handle))
        architecture = facts.told("architecture", lambda: self._call("nvmlDeviceGetArchitecture", handle))
        gpu = Gpu(
            uuid=uuid,
            index=index,
            minor=where.minor,
            product_name=facts.told("productName", lambda: str(self._call("nvmlDeviceGetName", handle))) or "",
            brand="" if brand is None else BRANDS.get(brand, "Unknown"),
            architecture="" if architecture is None else ARCHITECTURES.get(architecture, "Unknown"),
            compute_major=None if major is None else int(major),
            compute_minor=None if minor is None else int(minor),
            memory_bytes=facts.told("memory", lambda: int(self._call("nvmlDeviceGetMemoryInfo", handle).total)),
            pci_bus_id=where.pci_bus_id,
            numa_node=facts.if_any("numaNode", lambda: self._numa_node(handle)),
            mig_capable=mode is not None,
            mig_enabled=divided,
            addressing_mode=ADDRESSING_MODES.get(
                facts.if_any("addressingMode", lambda: self._call("nvmlDeviceGetAddressingMode", handle))
            ),
            fabric=fabric.place,
            joining=fabric.pending and not divided,
            memory_limits=limits,
            links=facts.if_any("links", lambda: self._links.ends(uuid, handle, up, fabric)),
            seen=reading,
            unread=tuple(facts.unread),
        )
        return facts.judged(as_told_before(gpu, before))

    def _reading(
        self, uuid: GpuUuid, handle: Any, facts: "_Facts", fabric: FabricReading, *, divided: bool
    ) -> GpuReading | None:
        """The GPU's health; None if an answer says that the whole GPU fails."""
        try:
            reading = self._health.read(uuid, handle, divided=divided, refused=facts.not_looked_for)
        except CallError as error:
            facts.blame(error)
            return None
        if facts.unknown("fabric"):
            return msgspec.structs.replace(reading, unasked=reading.unasked | {FaultFamily.FABRIC})
        if fabric.failed and not divided:  # partitions do not use it
            failed = Sign(FABRIC_FAILED, fabric.failed)
            return msgspec.structs.replace(reading, signs=(*reading.signs, failed))
        return reading

    def _numa_node(self, handle: Any) -> int | None:
        """The nearest NUMA node; nvmlDeviceGetNumaNodeId is for GPUs that are NUMA nodes themselves."""
        words = self._call("nvmlDeviceGetMemoryAffinity", handle, 16, pynvml.NVML_AFFINITY_SCOPE_NODE)
        for number, word in enumerate(map(int, words)):
            if word:
                return number * 64 + ((word & -word).bit_length() - 1)
        return None


class _Facts:
    """Reads facts one by one; collects unread ones, and what they say of the GPU."""

    def __init__(self) -> None:
        self.unread: list[UnreadFact] = []
        self._signs: list[Sign] = []

    def told(self, name: str, ask: Callable[[], T]) -> T | None:
        """A fact that every board should have; None if not reported."""
        try:
            return ask()
        except NotSupported as error:
            self.unread.append(UnreadFact(name, f"published without {name}: {error}", lacking=True))
        except CallError as error:
            self._unknown(name, error)
        return None

    def if_any(self, name: str, ask: Callable[[], T]) -> T | None:
        """A fact that many boards lack; None if missing or not reported."""
        try:
            return ask()
        except NotSupported:
            return None
        except CallError as error:
            self._unknown(name, error)
        return None

    def unknown(self, name: str) -> bool:
        """Whether it could not be read, although the board has it."""
        return any(one.name == name and not one.lacking for one in self.unread)

    def not_looked_for(self, family: FaultFamily, error: CallError) -> None:
        """Note a family of faults of which nothing is known now."""
        self.unread.append(UnreadFact(family.value, f"faults of family {family} cannot be detected: {error}"))

    def blame(self, error: CallError) -> None:
        self._signs.append(Sign(error.fault or UNREADABLE, str(error)))

    def judged(self, gpu: Gpu) -> Gpu:
        """The GPU with the signs of its refusals. A failure of the whole GPU hides all others."""
        graver_first = sorted(self._signs, key=lambda sign: sign.name == UNREADABLE)
        if not graver_first:
            return gpu
        worst = graver_first[0]
        return only_sign(gpu, worst) if worst.name != UNREADABLE or gpu.seen is None else with_sign(gpu, worst)

    def _unknown(self, name: str, error: CallError) -> None:
        self.unread.append(UnreadFact(name, f"{name} cannot be read: {error}"))
        if error.fault or (error.blames_gpu and name not in _HARMLESS):
            self.blame(error)


_HARMLESS = frozenset({"links", "memoryLimit"})
"""Facts that may be unknown for a working GPU."""
_CAPABILITY = "nvmlDeviceGetCudaComputeCapability"
_NO_MINOR = (
    "The GPU has no minor number, so there is no device node /dev/nvidia<minor> that a container could be given (on WSL2 no GPU "
    "has one, and Draco does not support WSL2)."
)
