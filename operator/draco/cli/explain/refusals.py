"""Finds why a pod waits although devices are free: a quota refuses its claim, or a DeviceLimit refuses the allocation."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import repeat

import msgspec

from draco.allocation.ownership.claims import is_for_operator
from draco.cli.explain.subjects import ExplainSubject
from draco.explanation.model import Explanation, PendingReason
from draco.explanation.note import with_summary
from draco.explanation.refused_creation import creation_refusal
from draco.limits.amounts import Holdings, added, holdings_of
from draco.limits.rules import LimitCheck, refusal_text, rule_of
from draco.overview.hardware_use import HardwareByPool
from draco.placing.groups.group import ClaimGroup, GroupMember, allocated
from draco.placing.groups.place import place
from draco.placing.search.best import BestPlacer
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import ResourceSlice
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
    entries = (entry for pool in fleet.inventory.pools for entry in pool.entries)
    hardware = HardwareByPool(ResourceSlice(metadata=ObjectMeta(name=each.name), spec=each.spec) for each in entries)
    by_namespace: dict[str, list[ResourceClaim]] = defaultdict(list)
    for claim in fleet.claims.values():
        by_namespace[claim.metadata.namespace].append(claim)

    def held(claims: Iterable[ResourceClaim]) -> Holdings:
        return added(holdings_of(each, hardware.of).holdings for each in claims)

    rules = [rule_of(each) for each in world.limits]
    check = LimitCheck(rules, world.namespaces, lambda name: held(by_namespace[name]))
    refusals = check.refusals(namespace, held(planned))
    return refusal_text(refusals, namespace, claims=len(mine)) if refusals else ""
