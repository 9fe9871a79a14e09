"""Which GPUs must take no new work, by NVIDIA's XID catalogue and the state of the hardware.

Owns which boards the agent must fence off and which it must not. Shares no code with the product.

NVML reports an XID once, to current listeners. So it counts if the agent listened when it came and had its turn afterwards, and
it survives the agent's death if the disk had room to record it. It ends as NVIDIA's catalogue says: with a reset of the GPU
(which loading the driver implies), with a reboot, or with the board.
"""

from collections.abc import Mapping
from typing import Any

FAMILIES = ("xid", "ecc", "row-remap", "thermal", "nvlink", "fabric", "recovery", "lost", "driver", "unreadable")
FAULTS = frozenset(f"draco.dev/{family}" for family in FAMILIES)
FATAL: Mapping[int, str] = {48: "reset", 64: "reset", 79: "reboot", 95: "reset", 119: "reset"}
"""Fatal XIDs and what ends each. The machine's other XIDs are caused by applications."""
APPLICATION = 31
"""An application's XID. The agent remembers it, because a policy may keep claims away for it."""
ENDS: Mapping[int, str] = {**FATAL, APPLICATION: "reset"}
LOST = 15
FIRST_WITH_RECOVERY = 565
"""The first release of the driver that tells of a recovery action."""
NEW = 1000
"""A release that tells of everything."""

Xids = dict[str, frozenset[int]]


class Sickness:
    """The faults of a node's boards, by UUID."""

    def __init__(self) -> None:
        self.listening = False
        """Whether the agent would hear an XID now."""
        self.told: Xids = {}
        """XIDs that came before the agent had its turn."""
        self.known: Xids = {}
        """XIDs that the agent must know."""
        self.kept: Xids = {}
        """XIDs that the next agent must know, too."""
        self.suspect: set[str] = set()
        """Boards with a fatal XID in this boot, heard or not."""
        self.seen: set[str] = set()
        """Boards that NVML reported as faulty when the agent last looked."""
        self.late: set[str] = set()
        """Boards that had not joined their NVLink fabric when the agent last looked."""
        self.placeless: set[str] = set()
        """Boards whose minor number NVML never tells."""
        self.judged: set[str] = set()
        """Boards that a policy has kept claims away from for an application's XID."""
        self.lacks: set[tuple[str, str, int]] = set()
        """Unsupported NVML calls: UUID, function, and the error it always returns."""

    def xid(self, gpu: str, code: int) -> None:
        """NVML reports an XID."""
        if code not in ENDS:
            return
        if code in FATAL:
            self.suspect.add(gpu)
        if self.listening:
            self.told[gpu] = self.told.get(gpu, frozenset()) | {code}

    def disturbed(self) -> None:
        """The agent may have lost its NVML event session, and with it every XID it has not processed yet."""
        self.listening = False
        self.told = {}

    def had_turn(self, hardware: Mapping[str, Any], *, long: bool, room: bool) -> None:
        """The agent had its turn with a driver that answers. `long`: it read everything. `room`: the disk has room."""
        for gpu, codes in self.told.items():
            self.known[gpu] = self.known.get(gpu, frozenset()) | codes
        self.told = {}
        if long:
            self.listening = True
            release = _release(hardware)
            self.seen = {
                gpu["uuid"]
                for gpu in hardware["gpus"]
                if ill(gpu, release=release, knows_fabric=self._knows_fabric(gpu["uuid"]))
            }
            self.late = {gpu["uuid"] for gpu in hardware["gpus"] if joining(gpu) and self._knows_fabric(gpu["uuid"])}
        if room:
            self.kept = dict(self.known)

    def died(self) -> None:
        """The agent died."""
        self.disturbed()
        self.known = dict(self.kept)

    def rebooted(self) -> None:
        """A reboot ends every fault."""
        self.disturbed()
        self.known, self.kept, self.suspect, self.seen, self.late = {}, {}, set(), set(), set()

    def reset(self, gpu: str | None = None) -> None:
        """End the faults that a reset ends: of one GPU, or of all if the driver was reloaded."""
        for faults in (self.told, self.known, self.kept):
            for uuid in [gpu] if gpu else list(faults):
                left = frozenset(code for code in faults.pop(uuid, frozenset()) if ENDS[code] == "reboot")
                if left:
                    faults[uuid] = left

    def repaired(self, gpu: str) -> None:
        """The board was reseated or replaced."""
        for faults in (self.told, self.known, self.kept):
            faults.pop(gpu, None)

    def why(self, gpu: str, hardware: Mapping[str, Any]) -> str:
        """Why a board must take no new work, as far as the agent must know; "" if it may."""
        if fatal := self.known.get(gpu, frozenset()) & FATAL.keys():
            return " and ".join(f"XID {code}" for code in sorted(fatal))
        there = next((each for each in hardware["gpus"] if each["uuid"] == gpu), None)
        now_ill = there is not None and ill(there, release=_release(hardware))
        return "what NVML says of it" if gpu in self.seen and now_ill else ""

    def _knows_fabric(self, gpu: str) -> bool:
        """Whether NVML tells of a board's place in its fabric."""
        return not any(uuid == gpu and "GpuFabricInfo" in function for uuid, function, _ in self.lacks)

    def has_heard(self, gpu: str) -> bool:
        """Whether the agent must know of an XID for which a policy may keep claims away."""
        return APPLICATION in self.known.get(gpu, frozenset())

    def waits(self, gpu: str, hardware: Mapping[str, Any]) -> bool:
        """Whether the agent must know that a board has not joined its fabric. It is then not offered as a whole."""
        there = next((each for each in hardware["gpus"] if each["uuid"] == gpu), None)
        return gpu in self.late and there is not None and joining(there)

    def well(self, gpu: str, hardware: Mapping[str, Any]) -> bool:
        """Whether an existing board has had nothing that could count as a fault."""
        there = next((each for each in hardware["gpus"] if each["uuid"] == gpu), None)
        if there is None or there["error"] or ill(there) or gpu in self.suspect | self.placeless | self.judged:
            return False
        if any(link["down"] for link in there["links"].values()):
            return False
        return not there["remapped"]["failed"]  # it may have been read before the GPU had instances


def ill(gpu: Mapping[str, Any], *, release: int = NEW, knows_fabric: bool = True) -> bool:
    """Whether NVML of this release reports a fault at every reading."""
    failed = gpu["remapped"]["failed"] and not gpu["instances"]  # NVML does not report it for a GPU with instances
    apart = gpu["joined"] and gpu["fabric_status"] and not gpu["mig_current"]  # MIG mode does not need the fabric
    recovers = gpu["recovery_action"] and release >= FIRST_WITH_RECOVERY
    return gpu["error"] == LOST or bool(recovers or failed or (apart and knows_fabric))


def _release(hardware: Mapping[str, Any]) -> int:
    return int(hardware["driver"]["version"].partition(".")[0])


def joining(gpu: Mapping[str, Any]) -> bool:
    """Whether a GPU outside MIG mode has not joined its fabric yet."""
    return not gpu["joined"] and not gpu["mig_current"] and not gpu["error"]


def refused(device: Mapping[str, Any]) -> bool:
    """Whether a published device has a NoSchedule taint for any reason."""
    return any(taint["effect"] == "NoSchedule" for taint in device.get("taints", ()))


def fenced(device: Mapping[str, Any]) -> bool:
    """Whether a published device has a NoSchedule taint for a fault."""
    return any(taint["key"] in FAULTS and taint["effect"] == "NoSchedule" for taint in device.get("taints", ()))
