"""The settings of one agent and their defaults. Reads none: the caller passes them."""

from pathlib import Path

import msgspec

from draco.agent.claims.leftover_claims import CONFIRM_S
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.plugin.dra_service import DEADLINE_S
from draco.agent.plugin.health_service import TIMEOUT_S
from draco.options import MetricsSettings
from draco.resources.names import NVIDIA_DRIVER


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one agent. Times in seconds. `process` describes those that have an option.

    `kubelet_dir` must have the same path for kubelet and for the agent. `state_dir` must survive reboots; `cdi_dir` need not.
    Holders of an instance can be named only if `proc_root` shows the node's processes. The GPUs are read every `probe_s` while a
    fault ends only after some readings without it. `event_wait_s` is the timeout of one wait for NVML events, and so the longest
    delay of stopping; 0 reads the GPUs at intervals only. `nvml_limit_s` is how late a reading may be before NVML counts as
    hanging. Who uses the GPUs is read every `usage_s`; 0 in `unused_after_s` reports no unused devices. `prepare_deadline_s` must
    be below kubelet's 45; after `health_timeout_s` without news kubelet calls a device Unknown. Cluster features are checked
    every `rediscover_s`; a change counts when it is still there after each of the `confirm_s`. `stand_by_s` limits how long an
    agent stands by. `lease_holder` "" is the node's name. A prepared claim that is gone from the API server is unprepared if it
    is still gone `confirm_gone_s` later and no process of it runs.
    """

    node_name: str
    driver: str = NVIDIA_DRIVER
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path | None = None
    device_root: Path = Path("/")
    driver_root: Path | None = None
    driver_root_view: Path | None = None
    limit_library: str = ""
    sysfs_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    own_cgroup: Path | None = None
    listen: tuple[str, int] | None = None
    metrics: MetricsSettings | None = None
    rescan_s: float = 10.0
    probe_s: float = 2.0
    usage_s: float = 15.0
    unused_after_s: float = 7200.0
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
        """Where the driver is installed."""
        root = self.driver_root
        return None if root is None else DriverRoot(root, self.driver_root_view or root, self.proc_root)

    @property
    def state_folder(self) -> Path:
        """Where the agent keeps its own files."""
        return self.state_dir or self.kubelet_dir / "plugins" / self.driver

    @property
    def mps_folder(self) -> Path:
        """Where agent and keeper of MPS daemons meet."""
        return self.state_folder / "mps"
