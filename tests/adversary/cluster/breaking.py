"""The faults of one board, by the names that actions use.

Owns this table. The simulator raises StateError if a fault is impossible now.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from draco_local.simulator.accidents import by_hand, faults, hotplug
from tests.adversary.cluster.manifests import Document

BREAK: Mapping[str, Callable[[Path, int, Document], object]] = {
    "XID": lambda path, gpu, said: faults.xid(path, gpu, said["code"]),
    "ECC": lambda path, gpu, said: faults.ecc_errors(
        path, gpu, corrected=said["corrected"], uncorrected=said["uncorrected"]
    ),
    "rows remapped": lambda path, gpu, said: faults.remap(
        path, gpu, uncorrectable=said["uncorrectable"], failed=said["failed"]
    ),
    "temperature": lambda path, gpu, said: faults.temperature(path, gpu, said["degrees"]),
    "NVLink": lambda path, gpu, said: faults.nvlink(path, gpu, said["link"], down=said["down"]),
    "recovery action": lambda path, gpu, said: faults.recovery_action(
        path, gpu, faults.RECOVERY_ACTIONS[said["action"]]
    ),
    "lost": lambda path, gpu, _: faults.lose(path, gpu),
    "unreadable": lambda path, gpu, _: faults.make_unreadable(path, gpu),
    "reset": lambda path, gpu, _: faults.reset(path, gpu),
    "board taken out": lambda path, gpu, _: hotplug.remove(path, gpu),
    "board replaced": lambda path, gpu, _: hotplug.replace(path, gpu),
    "driver reloaded": lambda path, _, __: faults.reload_driver(path),
    "slow": lambda path, _, said: faults.latency(path, said["seconds"], said["function"] or "*"),
    "instance made by hand": lambda path, gpu, said: by_hand.create_instance(path, gpu, said["profile"]),
}
