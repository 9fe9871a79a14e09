"""The operator's settings and their defaults.

Owns the struct; the command reads options and the environment.
"""

import msgspec

from draco.controller.webhook.server import WebhookSettings
from draco.controller.workers.pool import WorkerSettings
from draco.options import MetricsSettings
from draco.resources.names import OPERATOR_LEASE


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All times in seconds."""

    namespace: str = "draco-system"
    """The namespace of the Lease."""
    identity: str
    """Holder of the Lease; must be unique among all processes that ever ask for it, including restarts."""
    lease_name: str = OPERATOR_LEASE
    lease_duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0

    http_host: str = "0.0.0.0"  # noqa: S104 - probes and scrapes come from other hosts
    http_port: int = 8080
    """Port of /livez and /readyz, and of /metrics if `metrics` is None; 0 for any free port (it is logged)."""
    metrics: MetricsSettings | None = None
    """Where /metrics is served over TLS to authorized readers; None: with the probes, to anyone."""

    pending_after_s: float = 10.0
    """How long a claim may wait before its causes are reported, if no scheduler has refused its pod yet."""
    settle_s: float = 2.0
    """How long devices must be isolated and free before work may start; schedulers observe a taint with a delay."""
    idle_grace_s: float = 60.0
    """How long a claim must have been idle before repair releases it, where its policy permits that."""
    run_jobs: bool = False
    """Whether to create Jobs for maintenance in `job_namespace`; not everybody grants the rights for that."""
    job_namespace: str = "draco-jobs"
    """The namespace of the CronJob templates, and of the Jobs and claims made from them. Nobody else writes there."""
    allocate: bool = False
    """Whether Draco allocates the GPUs that MigPolicies hand over to it (`spec.allocator`). Needs rights and the register."""
    handover_settle_s: float = 5.0
    """How long API servers and schedulers may take to observe a handover."""
    overdue_s: float = 86_400.0
    """How long a group waits before freed devices are kept for it, so that smaller groups cannot pass it forever."""
    leak_after_s: float = 600.0
    """How long a PodGroup without pods may keep devices before that is reported."""
    workers: int = 4
    """Workers of each reconciler."""
    stalled_after_s: float = 120.0
    """How long one reconcile, or the renewal of a held lease, may take before /livez fails."""

    worker: WorkerSettings = WorkerSettings()
    webhook: WebhookSettings | None = None
    """The admission webhook; None: no webhook."""
    rediscover_s: float = 300.0
    """How often the cluster's features are discovered."""
    confirm_s: float = 10.0
    """After how long a change of features is checked again before it counts."""
    unserved_after_s: float = 30.0
    """How long a kind may be unserved before /readyz fails."""
    mass_outage_percent: float = 30.0
    """If more than this share of the agents, and at least three, are silent together, no further node is fenced."""
    supply_every_s: float = 1.0
    """Minimum interval for counting the cluster's devices; counted on demand only."""
