"""How one agent works.

Owns the settings and their defaults. Reads none from anywhere: the caller that runs an agent passes them.
"""

from pathlib import Path

import msgspec

from draco.agent.claims.leftovers import CONFIRM_S
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.plugin.dra_service import DEADLINE_S
from draco.agent.plugin.health_service import TIMEOUT_S
from draco.options import MetricsSettings
from draco.resources.names import NVIDIA_DRIVER


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one agent works. Times in seconds. Of what has an option, `process` says what it is.

    `kubelet_dir` must have the same path for kubelet and for the agent. `state_dir` must survive reboots; `cdi_dir` need not.
    In `proc_root` nobody can say who holds an instance if the node's processes are not in it. The GPUs are read every
    `probe_s` while a fault needs some readings without it to be over. `event_wait_s` is how long NVML is asked for events at a
    time, and so how long stopping may take; 0 reads the GPUs at intervals only. `nvml_limit_s` is how late a reading may be
    before NVML counts as hanging. `prepare_deadline_s` must be below kubelet's 45; `health_timeout_s` is after how long
    without news kubelet calls a device Unknown. Every `rediscover_s` the agent finds out again what the cluster can do; a
    change is looked at again after each of some `confirm_s` before it counts. An agent stands by for `stand_by_s` at most.
    `lease_holder` "" is the node's name. A prepared claim that is gone from the API server is given up when it is still gone
    `confirm_gone_s` later, and no process of it runs.
    """

    node_name: str
    driver: str = NVIDIA_DRIVER
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path | None = None
    device_root: Path = Path("/")
    driver_root: Path | None = None
    driver_root_view: Path | None = None
    sysfs_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    listen: tuple[str, int] | None = None
    metrics: MetricsSettings | None = None
    rescan_s: float = 10.0
    probe_s: float = 2.0
    nvml_retry_s: float = 5.0
    event_wait_s: float = 1.0
    nvml_limit_s: float = 30.0
    socket_check_s: float = 1.0
    prepare_deadline_s: float = DEADLINE_S
    health_timeout_s: int = TIMEOUT_S
    rediscover_s: float = 300.0
    confirm_s: float = 10.0
    takes_over: bool = False
    stand_by_s: float = 600.0
    namespace: str = ""
    lease_holder: str = ""
    lease_duration_s: int = 20
    confirm_gone_s: float = CONFIRM_S

    @property
    def installed(self) -> DriverRoot | None:
        """Where the driver is searched."""
        root = self.driver_root
        return None if root is None else DriverRoot(root, self.driver_root_view or root, self.proc_root)

    @property
    def state_folder(self) -> Path:
        """Where the agent keeps its own files."""
        return self.state_dir or self.kubelet_dir / "plugins" / self.driver
