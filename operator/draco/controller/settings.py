"""What can be set about the operator, and the defaults.

Owns the settings struct; reading options and the environment is the command's business.
"""

import msgspec

from draco.controller.webhook.server import WebhookSettings
from draco.controller.workers.pool import WorkerSettings
from draco.options import MetricsSettings
from draco.resources.names import OPERATOR_LEASE


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All times in seconds."""

    namespace: str = "draco-system"
    """Where the Lease is kept."""
    identity: str
    """Holder of the Lease; must differ between any two processes that ever ask for it, restarts included."""
    lease_name: str = OPERATOR_LEASE
    lease_duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0

    http_host: str = "0.0.0.0"  # noqa: S104 - probes and scrapes come from other hosts
    http_port: int = 8080
    """Port of /livez and /readyz, and of /metrics where `metrics` is None; 0 for any free port (it is logged)."""
    metrics: MetricsSettings | None = None
    """Where /metrics is served over TLS, for those who may read it; None: with the probes, for anyone."""

    pending_after_s: float = 10.0
    """How long a claim may wait before its causes are said, where no scheduler has refused its pod yet."""
    settle_s: float = 2.0
    """How long devices stay isolated and free before work may start; a scheduler learns of a taint a moment late."""
    idle_grace_s: float = 60.0
    """How long a claim must have been seen idle before repair releases it, where its policy permits that."""
    run_jobs: bool = False
    """Whether Jobs are made for maintenance, in `job_namespace`; that takes rights there which not everybody gives."""
    job_namespace: str = "draco-jobs"
    """Where the CronJobs are that such Jobs are made from, and these Jobs with their claims. Nobody else writes there."""
    allocate: bool = False
    """Whether Draco allocates the GPUs that MigPolicies hand over to it (`spec.allocator`). It takes rights and a register."""
    handover_settle_s: float = 5.0
    """How long API servers and schedulers may take to observe a handover."""
    overdue_s: float = 86_400.0
    """How long a group waits before devices that become free are kept for it, so that smaller ones cannot pass it for ever."""
    leak_after_s: float = 600.0
    """How long a PodGroup may keep devices without having a pod before that is said."""
    workers: int = 4
    """Workers of each reconciler."""
    stalled_after_s: float = 120.0
    """How long one reconciliation, or the renewal of a held lease, may take before /livez fails."""

    worker: WorkerSettings = WorkerSettings()
    """What may go into answers to what users ask."""
    webhook: WebhookSettings | None = None
    """How claims are reviewed when they are written; None: they are not."""
    rediscover_s: float = 300.0
    """How often the cluster's features are discovered again."""
    confirm_s: float = 10.0
    """After how long a change of that is looked at again, before it counts."""
    unserved_after_s: float = 30.0
    """How long a kind may be unserved before /readyz fails."""
    mass_outage_percent: float = 30.0
    """Where more than this share of the agents, and at least three, are silent at a time, no further node is fenced."""
    supply_every_s: float = 1.0
    """The cluster's devices are counted at most this often, and only when someone asks."""
