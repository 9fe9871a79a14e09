"""Writes the status of each DeviceLimit, and counts for metrics.

Owns when a limit is counted, and the metrics. Keys are UIDs. `own_status` writes; `limits.status` decides the contents.
"""

from collections.abc import Callable, Mapping

from draco.controller.limits.enforcement import LimitGuard
from draco.controller.limits.holdings_cache import HeldDevices
from draco.controller.limits.unused_claims import UnusedClaimReconciler
from draco.controller.loop_watch import CooperativeWork
from draco.controller.metrics import OperatorMetrics
from draco.controller.own_status import PolicyStatuses
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.limits.amounts import Holdings
from draco.limits.rules import rule_of
from draco.limits.status import LimitUse, limit_status, use_of
from draco.resources.api.limits import DeviceLimit, DeviceLimitStatus


class DeviceLimitReconciler:
    """Reconciles one limit at a time. `guard` is None where Draco allocates nothing."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        held: HeldDevices,
        guard: LimitGuard | None,
        unused: UnusedClaimReconciler,
    ) -> None:
        self._view = view
        self._held = held
        self._guard = guard
        self._unused = unused
        self._statuses = PolicyStatuses(client, view.limits, clock=view.clock)
        self._ratios: dict[str, float] = {}  # by limit

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with the UID of every limit that a change may affect."""

        def wake_all(_: object = None) -> None:
            for uid in self.all_keys():
                wake(uid)

        self._view.limits.subscribe(wake_all)
        self._view.claims.subscribe(wake_all, reads=lambda claim: claim.results)
        self._view.classes.subscribe(wake_all)
        self._view.namespaces.subscribe(wake_all, reads=lambda item: item.metadata.labels)
        self._unused.when_changed.add(wake_all)
        if self._guard is not None:
            self._guard.listeners.add(wake_all)

    def all_keys(self) -> set[str]:
        """Every limit."""
        return self._statuses.uids()

    def ratios(self) -> Mapping[str, float]:
        """The highest usage ratio of each limit."""
        known = {limit.metadata.name for limit in self._view.limits.store.values()}
        self._ratios = {name: ratio for name, ratio in self._ratios.items() if name in known}
        return self._ratios

    def waiting(self) -> Mapping[str, int]:
        """Number of waiting claims, by the limit that stops them."""
        by_limit = self._guard.waiting() if self._guard is not None else {}
        return {limit.metadata.name: by_limit.get(limit.metadata.name, 0) for limit in self._view.limits.store.values()}

    async def reconcile(self, uid: str) -> float | None:
        """Update the limit's status."""
        return await self._statuses.bring(uid, self._status)

    async def _status(self, limit: DeviceLimit, work: CooperativeWork) -> DeviceLimitStatus:
        use = await self._use(limit, work)
        name = limit.metadata.name
        fullest = use.fullest
        self._ratios[name] = use.ratio(use.scopes[fullest]) if fullest is not None else 0.0
        return limit_status(
            limit,
            use,
            classes=self._view.classes_by_name,
            waiting=self.waiting().get(name, 0),
            allocates=self._guard is not None,
            warned=self._unused.warned(name),
            trouble=self._unused.trouble,
            now=self._view.clock.now(),
        )

    async def _use(self, limit: DeviceLimit, work: CooperativeWork) -> LimitUse:
        rule = rule_of(limit)
        namespaces = {each.metadata.name: each.metadata.labels for each in self._view.namespaces.store.values()}
        held: dict[str, Holdings] = {}
        unknown: list[str] = []
        unsized: list[str] = []
        for name, labels in namespaces.items():
            if rule.selector.selects(labels):
                held[name] = self._held.of_namespace(name)
                for each in self._held.claims_in(name):
                    unknown += each.unknown
                    unsized += each.unsized
                await work.pause()
        return use_of(rule, namespaces, held, sorted(unknown), sorted(unsized))


def register_limits(metrics: OperatorMetrics, limits: DeviceLimitReconciler) -> None:
    """Export the usage of limits."""
    metrics.on_scrape(
        "draco_device_limit_used_ratio",
        "How much of a DeviceLimit is used, where most is; 1 is all of it. On the leader only.",
        ["limit"],
        limits.ratios,
    )
    metrics.on_scrape(
        "draco_device_limit_waiting_claims",
        "Claims that wait because of a DeviceLimit. On the leader only.",
        ["limit"],
        limits.waiting,
    )
