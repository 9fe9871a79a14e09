"""What the claims of each namespace hold, for DeviceLimits.

Owns the cache. A claim's holdings are computed once from what is published, and kept while it holds them: a device that
disappears from its slices still counts as before. For claims first met after that, see `limits.amounts`. Computed on demand.
"""

from collections.abc import Collection

import msgspec

from draco.controller.view import ALLOCATED_IN, ClusterView
from draco.kube.watch.store import Change
from draco.limits.amounts import ClaimHoldings, Holdings, added, holdings_of
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.meta import ObjectKey


class _Known(msgspec.Struct, frozen=True):
    uid: str
    results: list[DeviceRequestAllocationResult]
    of: ClaimHoldings


class HeldDevices:
    """Holdings by claim and by namespace."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._claims: dict[ObjectKey, _Known] = {}
        self._namespaces: dict[str, Holdings] = {}
        view.claims.subscribe(self._follow, reads=lambda claim: claim.results)

    def of_claim(self, claim: ResourceClaim) -> ClaimHoldings:
        """What an allocated claim holds; for a claim to be allocated, pass it with its allocation."""
        key, results = claim.metadata.key, list(claim.results)
        known = self._claims.get(key)
        if known is None or known.uid != claim.metadata.uid or known.results != results or known.of.unknown:
            of = holdings_of(claim, self._view.hardware)
            known = self._claims[key] = _Known(claim.metadata.uid, results, of)
        return known.of

    def of_namespace(self, namespace: str, without: Collection[ObjectKey] = ()) -> Holdings:
        """What the namespace's claims hold, except those the caller computes."""
        claims = self._view.claims.store.by_index(ALLOCATED_IN, namespace)
        if any(each.metadata.key in without for each in claims):
            return added(self.of_claim(each).holdings for each in claims if each.metadata.key not in without)
        if namespace not in self._namespaces:
            each_holds = self.claims_in(namespace)
            holdings = added(each.holdings for each in each_holds)
            if not claims or any(each.unknown for each in each_holds):
                return holdings  # nothing to cache, or not known yet and looked up each time
            self._namespaces[namespace] = holdings
        return self._namespaces[namespace]

    def claims_in(self, namespace: str) -> list[ClaimHoldings]:
        """What each of its claims holds."""
        return [self.of_claim(each) for each in self._view.claims.store.by_index(ALLOCATED_IN, namespace)]

    def _follow(self, change: Change[ResourceClaim]) -> None:
        self._namespaces.pop(change.key.namespace, None)
        if change.after is None or not change.after.results:
            self._claims.pop(change.key, None)
