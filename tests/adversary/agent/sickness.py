"""Which GPUs take no new work, as somebody knows it who has NVIDIA's XID catalogue and watches the hardware.

Owns what is demanded of the agent: which boards must be fenced off, and which must not. Shares no code with the product.

An XID is told once, to whoever listens. So it counts when the agent listened when it came and had its turn afterwards; from then
on it counts over the agent's death, too, if there was room on the disk to remember it. It ends as NVIDIA's catalogue says: by a
reset of the GPU, which loading the driver implies, or by a reboot only; or with the board.
"""

from collections.abc import Mapping
from typing import Any

FAMILIES = ("xid", "ecc", "row-remap", "thermal", "nvlink", "fabric", "recovery", "lost", "driver", "unreadable")
FAULTS = frozenset(f"draco.dev/{family}" for family in FAMILIES)
FATAL: Mapping[int, str] = {48: "reset", 64: "reset", 79: "reboot", 95: "reset", 119: "reset"}
"""What ends it. The other XIDs that the machine sends are the fault of an application."""
APPLICATION = 31
"""One of those. It is remembered all the same: a policy may keep claims away for it."""
ENDS: Mapping[int, str] = {**FATAL, APPLICATION: "reset"}
LOST = 15

Xids = dict[str, frozenset[int]]


class Sickness:
    """The faults of one node's boards, by UUID."""

    def __init__(self) -> None:
        self.listening = False
        """Whether an XID that comes now is heard."""
        self.told: Xids = {}
        """Came, and the agent did not have its turn yet."""
        self.known: Xids = {}
        """The agent must know of it."""
        self.kept: Xids = {}
        """The next agent must know of it, too."""
        self.suspect: set[str] = set()
        """Boards of which something fatal was said in this boot, whether or not anybody heard it."""
        self.seen: set[str] = set()
        """Boards that NVML said were ill when the agent last looked."""
        self.late: set[str] = set()
        """Boards that had not joined their NVLink fabric when the agent last looked."""
        self.placeless: set[str] = set()
        """Boards of which NVML never tells the minor number."""
        self.judged: set[str] = set()
        """Boards that a policy has kept from claims for what is nobody else's reason."""
        self.lacks: set[tuple[str, str, int]] = set()
        """What boards do not have: UUID, function of NVML, and what it answers for ever."""

    def xid(self, gpu: str, code: int) -> None:
        """NVML tells of an XID."""
        if code not in ENDS:
            return
        if code in FATAL:
            self.suspect.add(gpu)
        if self.listening:
            self.told[gpu] = self.told.get(gpu, frozenset()) | {code}

    def disturbed(self) -> None:
        """Something happened by which the agent may lose its session: whatever it did not get to yet may be lost with it."""
        self.listening = False
        self.told = {}

    def had_turn(self, hardware: Mapping[str, Any], *, long: bool, room: bool) -> None:
        """The agent had its turn with a driver that answers. `long`: it has looked at everything. `room`: on the disk."""
        for gpu, codes in self.told.items():
            self.known[gpu] = self.known.get(gpu, frozenset()) | codes
        self.told = {}
        if long:
            self.listening = True
            self.seen = {gpu["uuid"] for gpu in hardware["gpus"] if ill(gpu)}
            self.late = {gpu["uuid"] for gpu in hardware["gpus"] if joining(gpu)}
        if room:
            self.kept = dict(self.known)

    def died(self) -> None:
        """The agent did."""
        self.disturbed()
        self.known = dict(self.kept)

    def rebooted(self) -> None:
        """That ends all."""
        self.disturbed()
        self.known, self.kept, self.suspect, self.seen, self.late = {}, {}, set(), set(), set()

    def reset(self, gpu: str | None = None) -> None:
        """That ends what a reset heals: of one GPU, or of all, when the driver was loaded anew."""
        for faults in (self.told, self.known, self.kept):
            for uuid in [gpu] if gpu else list(faults):
                left = frozenset(code for code in faults.pop(uuid, frozenset()) if ENDS[code] == "reboot")
                if left:
                    faults[uuid] = left

    def repaired(self, gpu: str) -> None:
        """Somebody had the board in his hands."""
        for faults in (self.told, self.known, self.kept):
            faults.pop(gpu, None)

    def why(self, gpu: str, hardware: Mapping[str, Any]) -> str:
        """Why a board takes no new work, as far as the agent must know; "" if it may."""
        if fatal := self.known.get(gpu, frozenset()) & FATAL.keys():
            return " and ".join(f"XID {code}" for code in sorted(fatal))
        there = next((each for each in hardware["gpus"] if each["uuid"] == gpu), None)
        return "what NVML says of it" if gpu in self.seen and there is not None and ill(there) else ""

    def has_heard(self, gpu: str) -> bool:
        """Whether the agent must know of a fault for which a policy may keep claims away."""
        return APPLICATION in self.known.get(gpu, frozenset())

    def waits(self, gpu: str, hardware: Mapping[str, Any]) -> bool:
        """Whether a board has not joined its fabric, as far as the agent must know: nobody gets all of it."""
        there = next((each for each in hardware["gpus"] if each["uuid"] == gpu), None)
        return gpu in self.late and there is not None and joining(there)

    def well(self, gpu: str, hardware: Mapping[str, Any]) -> bool:
        """Whether nobody ever had anything to say against a board that is there."""
        there = next((each for each in hardware["gpus"] if each["uuid"] == gpu), None)
        if there is None or there["error"] or ill(there) or gpu in self.suspect | self.placeless | self.judged:
            return False
        if any(link["down"] for link in there["links"].values()):
            return False
        return not there["remapped"]["failed"]  # which somebody may have read before there were instances


def ill(gpu: Mapping[str, Any]) -> bool:
    """Whether NVML says so by itself, as often as it is asked."""
    failed = gpu["remapped"]["failed"] and not gpu["instances"]  # NVML tells it of no GPU that has instances
    apart = gpu["joined"] and gpu["fabric_status"] and not gpu["mig_current"]  # which does not need the fabric
    return gpu["error"] == LOST or bool(gpu["recovery_action"]) or failed or bool(apart)


def joining(gpu: Mapping[str, Any]) -> bool:
    """Whether it is being registered with its fabric, which it needs as a whole only."""
    return not gpu["joined"] and not gpu["mig_current"] and not gpu["error"]


def refused(device: Mapping[str, Any]) -> bool:
    """Whether a published device says that nothing new is placed on it, for whatever reason."""
    return any(taint["effect"] == "NoSchedule" for taint in device.get("taints", ()))


def fenced(device: Mapping[str, Any]) -> bool:
    """Whether a published device says that nothing new is placed on it for a fault."""
    return any(taint["key"] in FAULTS and taint["effect"] == "NoSchedule" for taint in device.get("taints", ()))
