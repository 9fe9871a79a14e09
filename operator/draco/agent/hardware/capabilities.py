"""The device nodes that open one instance of a GPU: /dev/nvidia-caps/nvidia-cap<N>.

Owns where N comes from, and that the node exists before a container refers to it. A container needs the GPU's own node, one for
the GPU instance and one for the compute instance; without those of other instances it sees only its own. The driver lists the
numbers below /proc/driver and does not create the nodes.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from draco.agent.errors import PrepareError
from draco.agent.hardware.device_nodes import DeviceNodeMissing, DeviceNodes

TABLE = "driver/nvidia-caps/mig-minors"
"""Lines such as `gpu0/gi1/ci0/access 13`; GPUs by their minor numbers."""
ONE = "driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}/{ci}access"
"""The same as one file per existing instance, with a line such as `DeviceFileMinor: 13`."""
MODE = 0o444


class CapabilityUnknown(PrepareError):
    """The driver does not report which node opens an instance, or the node cannot be created."""


def path(number: int) -> str:
    """The node with that device number, as containers see it."""
    return f"/dev/nvidia-caps/nvidia-cap{number}"


class Capabilities:
    """Looks below `proc`, the node's /proc; makes missing nodes below `device_root`.

    `device_root` is "/" except in tests and simulated nodes. `nodes` are those of the GPUs.
    """

    def __init__(self, proc: Path = Path("/proc"), device_root: Path = Path("/")) -> None:
        self._proc = proc
        self.nodes = DeviceNodes(proc, device_root)

    def paths(self, minor: int, gi: int, ci: int | None) -> tuple[str, ...]:
        """The nodes of a GPU instance and its compute instance, as containers see them. Raises CapabilityUnknown."""
        return tuple(map(path, self.reported_once()(minor, gi, ci)))

    def reported_once(self) -> Callable[[int, int, int | None], tuple[int, ...]]:
        """A function for the device numbers of the same, which reads the driver's table once, at its first call."""

        @cache
        def table() -> Mapping[str, str]:
            return dict(re.findall(r"^(\S+access) ([0-9]{1,9})$", _text(self._proc / TABLE), re.MULTILINE))

        def numbers(minor: int, gi: int, ci: int | None) -> tuple[int, ...]:
            whole = self._number(table(), minor, gi, "")
            return (whole,) if ci is None else (whole, self._number(table(), minor, gi, f"ci{ci}/"))

        return numbers

    def ensure(self, node: str) -> None:
        """Create a missing node; see `DeviceNodes.ensure`. Raises CapabilityUnknown."""
        number, remedy = int(node.rpartition("nvidia-cap")[2]), f"nvidia-modprobe -f /proc/{TABLE}"
        try:
            self.nodes.ensure(node, names=("nvidia-caps",), minor=number, mode=MODE, remedy=remedy)
        except DeviceNodeMissing as error:
            raise CapabilityUnknown(str(error)) from error

    def _number(self, table: Mapping[str, str], minor: int, gi: int, ci: str) -> int:
        listed = table.get(f"gpu{minor}/gi{gi}/{ci}access")
        if listed is not None:
            return int(listed)
        one = self._proc / ONE.format(minor=minor, gi=gi, ci=ci)
        found = re.search(r"^DeviceFileMinor: *([0-9]{1,9})$", _text(one), re.MULTILINE)
        if found is None:
            raise CapabilityUnknown(
                f"The driver does not say which device node opens instance {gi} of GPU {minor}: neither {self._proc / TABLE} nor "
                f"{one} names it; check that the agent sees the node's /proc (--proc-root)."
            )
        return int(found[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
