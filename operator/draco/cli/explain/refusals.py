"""Finds why a pod waits although devices are free: a quota refuses its claim, or a DeviceLimit refuses the allocation."""

from collections import defaultdict
from itertools import repeat

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.allocation.ownership.claims import is_for_operator
from draco.cli.explain.subjects import ExplainSubject
from draco.explanation.model import Explanation, PendingReason
from draco.explanation.note import with_summary
from draco.explanation.refused_creation import creation_refusal
from draco.limits.amounts import Holdings, added, holdings_of
from draco.limits.rules import LimitCheck, refusal_text, rule_of
from draco.placing.groups.group import ClaimGroup, GroupMember, allocated
from draco.placing.groups.place import place
from draco.placing.search.best import BestPlacer
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.names import PoolKey
from draco.whatif.world import World


def with_refusals(world: World, subject: ExplainSubject, explanation: Explanation) -> Explanation:
    """The explanation, naming the quota or the limit that blocks the pod if there is one."""
    if explanation.reason is PendingReason.CLAIM_MISSING and subject.pod is not None:
        message = world.creation_failures.get(subject.pod.metadata.uid, "")
        if why := creation_refusal(message, subject.key.namespace):
            return _saying(explanation, why)
        if message:
            return _saying(explanation, f"{explanation.error}; kube-controller-manager says: {message}")
    elif explanation.fits and (why := _limited(world, subject)):
        return _saying(msgspec.structs.replace(explanation, reason=PendingReason.LIMIT_REACHED, fits=False), why)
    return explanation


def _saying(explanation: Explanation, why: str) -> Explanation:
    return with_summary(msgspec.structs.replace(explanation, error=why))


def _limited(world: World, subject: ExplainSubject) -> str:
    """The limit that forbids what Draco would allocate; "" if none does, or if Draco does not allocate these claims."""
    namespace = subject.key.namespace
    fleet = world.fleet
    waiting = [each for each in subject.claims if each.status.allocation is None]
    mine = [each for each in waiting if is_for_operator(each, fleet.classes)]
    if not world.limits or not mine or namespace not in world.namespaces:
        return ""
    beside = [each for each in subject.claims if each.status.allocation is not None]
    others = [each for each in waiting if each not in mine]
    member = GroupMember(mine, [subject.pod] if subject.pod is not None else [], beside, (), others)
    (placement,) = place(BestPlacer(fleet, share_ids=repeat("")), [ClaimGroup([member])], [])
    if not placement.results:
        return ""
    planned = [allocated(claim, result) for claim, result in zip(mine, placement.results[0], strict=True)]
    holdings = _ClaimsOf(world)
    check = LimitCheck([rule_of(each) for each in world.limits], world.namespaces, holdings.of_namespace)
    refusals = check.refusals(namespace, added(map(holdings.of, planned)))
    return refusal_text(refusals, namespace, claims=len(mine)) if refusals else ""


class _ClaimsOf:
    def __init__(self, world: World) -> None:
        self._fleet = world.fleet
        self._pools: dict[PoolKey, PoolHardware] = {}
        self._claims: dict[str, list[ResourceClaim]] = defaultdict(list)
        for claim in world.fleet.claims.values():
            if claim.status.allocation is not None:
                self._claims[claim.metadata.namespace].append(claim)

    def of(self, claim: ResourceClaim) -> Holdings:
        return holdings_of(claim, self._hardware).holdings

    def of_namespace(self, namespace: str) -> Holdings:
        return added(map(self.of, self._claims.get(namespace, ())))

    def _hardware(self, key: PoolKey) -> PoolHardware:
        if key not in self._pools:
            pool = self._fleet.inventory.pool(key)
            entries = pool.entries if pool is not None else ()
            slices = [ResourceSlice(metadata=ObjectMeta(name=each.name), spec=each.spec) for each in entries]
            self._pools[key] = PoolHardware(slices)
        return self._pools[key]
