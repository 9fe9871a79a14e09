"""What a taint on some devices does: which claims hold them, which pods use these claims, whose disruption budget it breaks.

Owns the arithmetic and its messages, for the Event on a DeviceTaintRule and for `draco taint`. The caller chooses the devices.
NoExecute deletes pods without asking a PodDisruptionBudget, so the messages say beforehand what a budget would allow. Source: the
device taint eviction controller of Kubernetes 1.36, KEP-5055.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import BLOCKING_EFFECTS, DeviceTaint, DeviceTaintRule, DeviceTaintSelector
from draco.resources.kinds import Kind
from draco.resources.names import DeviceKey
from draco.resources.texts import agreeing, counted, listed, them


class EvictedPod(msgspec.Struct, frozen=True, order=True):
    """A pod that NoExecute deletes, `after_s` seconds after the taint was added if the claims' tolerations grant them."""

    key: ObjectKey
    after_s: int = 0


class BudgetImpact(msgspec.Struct, frozen=True, order=True):
    """How many of a budget's pods would be deleted, and how many disruptions it allows now."""

    key: ObjectKey
    evicted: int
    allowed: int

    @property
    def is_broken(self) -> bool:
        """Whether more pods are deleted than it allows."""
        return self.evicted > self.allowed

    def __str__(self) -> str:
        return f"{self.key} (allows {self.allowed} of {self.evicted})"


class TaintAmounts(NamedTuple):
    """How many devices, claims and pods a taint affects."""

    devices: int = 0
    claims: int = 0
    pods: int = 0

    def plus(self, other: "TaintAmounts", sign: int = 1) -> "TaintAmounts":
        """The sum, or with -1 the difference."""
        return TaintAmounts(*(mine + sign * theirs for mine, theirs in zip(self, other, strict=True)))


class TaintImpact(msgspec.Struct, frozen=True, kw_only=True):
    """What a taint affects: published `devices`, `claims` that hold any of them, the `pods` that these are reserved for.

    `evicted` are the pods that NoExecute deletes or would delete, `budgets` those that cover any of them. `overlooked` are pods
    with extended resources that NoExecute should delete but, before Kubernetes 1.37, does not: that controller ignores claims for
    extended resources. `totals` are set if only the counts are known.
    """

    devices: tuple[DeviceKey, ...] = ()
    claims: tuple[ObjectKey, ...] = ()
    pods: tuple[ObjectKey, ...] = ()
    evicted: tuple[EvictedPod, ...] = ()
    overlooked: tuple[ObjectKey, ...] = ()
    budgets: tuple[BudgetImpact, ...] = ()
    totals: TaintAmounts | None = None

    @property
    def amounts(self) -> TaintAmounts:
        """How many devices, claims and pods these are."""
        return self.totals or TaintAmounts(len(self.devices), len(self.claims), len(self.pods))

    @property
    def broken(self) -> list[BudgetImpact]:
        """The budgets that allow fewer disruptions than would happen."""
        return [each for each in self.budgets if each.is_broken]


def spares_extended_resources(served: Kind[DeviceTaintRule] | None) -> bool:
    """Whether NoExecute ignores pods with GPUs as extended resources: before Kubernetes 1.37, which also serves rules in v1."""
    return served is None or served.version != "v1"


def impact_of(
    taint: DeviceTaint,
    hits: Callable[[DeviceKey], bool],
    *,
    devices: Iterable[DeviceKey],
    claims: Iterable[ResourceClaim],
    pods: Iterable[Pod] | None = None,
    spares_extended: bool = True,
) -> TaintImpact:
    """What `taint` does on the devices that `hits` selects. Claims with administrative access count, as in taint eviction.

    `devices` are the published ones; `pods` must include all that use one of the claims. None: pods may not be read, so the
    reservations of the claims count. `spares_extended` is the result of `spares_extended_resources`.
    """
    known = None if pods is None else {pod.metadata.key: pod for pod in pods}
    as_evicting = msgspec.structs.replace(taint, effect="NoExecute")
    hit: list[ObjectKey] = []
    used: set[ObjectKey] = set()
    after_s: dict[ObjectKey, int] = {}
    overlooked: set[ObjectKey] = set()
    for claim in claims:
        results = [each for each in claim.results if hits(each.key)]
        if not results:
            continue
        hit.append(claim.metadata.key)
        delays = [delay for each in results if (delay := tolerated_for(each, as_evicting)) is not None]
        for pod in _users(claim, known):
            used.add(pod)
            if delays and spares_extended and known and known[pod].extended_resource_claim == claim.metadata.key:
                overlooked.add(pod)
            elif delays:
                after_s[pod] = min([after_s.get(pod, delays[0]), *delays])
    evicted = tuple(sorted(EvictedPod(key, seconds) for key, seconds in after_s.items()))
    return TaintImpact(
        devices=tuple(sorted(device for device in devices if hits(device))),
        claims=tuple(sorted(hit)),
        pods=tuple(sorted(used)),
        evicted=evicted,
        overlooked=tuple(sorted(overlooked - after_s.keys())),
    )


def with_budgets(impact: TaintImpact, budgets: Iterable[PodDisruptionBudget], pods: Iterable[Pod]) -> TaintImpact:
    """The impact with the budgets that cover its evicted pods. A pod missing in `pods` has no budget."""
    going = {each.key for each in impact.evicted}
    return msgspec.structs.replace(
        impact, budgets=tuple(sorted(budget_impacts(budgets, [pod for pod in pods if pod.metadata.key in going])))
    )


def sentences(rule: DeviceTaintRule, impact: TaintImpact) -> list[str]:
    """The effect of the rule in sentences, the most important first."""
    selector, effect, amounts = rule.spec.device_selector, rule.spec.taint.effect, impact.amounts
    if said_of_none := rule.spec.without_selector:
        return [f"It {said_of_none}: name driver, pool and device."]
    if not amounts.devices and not amounts.claims:
        return [
            "No published device matches it: compare driver, pool and device with `kubectl get resourceslices -o yaml`.",
            "A device that is published later is tainted from then on.",
        ]
    devices, said = counted(amounts.devices, "device"), []
    if selector == DeviceTaintSelector():
        said.append("Its selector is empty, so it taints every device of the cluster: name driver, pool and device.")
    if effect == "NoExecute":
        said.append(f"It keeps new claims off {devices} and deletes {_deleted(impact)}.")
    elif effect in BLOCKING_EFFECTS:
        said.append(f"It keeps new claims off {devices}. {_kept(impact)}")
    else:
        said.append(f"It only announces (effect {effect}) a taint on {devices}. {_kept(impact)}")
        said.append(f"NoExecute would delete {_deleted(impact)}.")
    if effect != "NoSchedule" and impact.broken:
        breaks, number = "breaks" if effect == "NoExecute" else "would break", len(impact.broken)
        budgets = agreeing(number, "PodDisruptionBudget", "PodDisruptionBudgets")
        said.append(f"That {breaks} {budgets} {listed(impact.broken)}: NoExecute does not ask {them(number)}.")
    if effect != "NoSchedule" and impact.overlooked:
        number, pods = len(impact.overlooked), listed(impact.overlooked)
        have = agreeing(number, "has its GPU as an extended resource", "have their GPUs as extended resources")
        said.append(
            f"Before Kubernetes 1.37, NoExecute overlooks {counted(number, 'pod')} that {have}: delete {pods} yourself."
        )
    return said


def _kept(impact: TaintImpact) -> str:
    _, claims, pods = impact.amounts
    if not claims:
        return "No claim has any of them."
    names = f": {listed(impact.claims)}" if impact.claims else ""
    users = f" for {counted(pods, 'pod')}" if pods else ""
    return f"{counted(claims, 'claim')} {agreeing(claims, 'keeps its', 'keep their')} devices{users}{names}."


def _deleted(impact: TaintImpact) -> str:
    if impact.totals and impact.totals.pods:
        return f"those of {counted(impact.totals.pods, 'pod')} that do not tolerate it"
    names = listed(f"{each.key} after {each.after_s} s" if each.after_s else each.key for each in impact.evicted)
    return f"{counted(len(impact.evicted), 'pod')}: {names}" if impact.evicted else "no pod"


def tolerated_for(result: DeviceRequestAllocationResult, taint: DeviceTaint) -> int | None:
    """After how many seconds a NoExecute taint evicts the user of a device; None if it is tolerated for ever.

    A toleration without an effect lets a claim be allocated the device but not keep it: keeping needs the effect NoExecute.
    """
    granted = [
        each.toleration_seconds for each in result.tolerations if each.effect == taint.effect and each.tolerates(taint)
    ]
    if None in granted:
        return None
    return min((max(0, seconds) for seconds in granted if seconds is not None), default=0)


def reserved_pods(claim: ResourceClaim, known: Mapping[ObjectKey, Pod]) -> set[ObjectKey]:
    """The pods among `known` that the claim is reserved for, by name or through their group, whether running or ended."""
    # A claim stays reserved for a deleted pod until Kubernetes removes the reservation.
    users = {key for key, uid in _reserved_by_name(claim).items() if key in known and known[key].metadata.uid == uid}
    return users | set(_members(claim, known))


def named_and_members(claim: ResourceClaim, known: Mapping[ObjectKey, Pod]) -> set[ObjectKey]:
    """The pods that the claim is reserved for by name, and the running members of groups that it is reserved for."""
    return {*_reserved_by_name(claim), *(key for key in _members(claim, known) if not known[key].is_over)}


def is_for_members(claim: ResourceClaim) -> bool:
    """Whether it is reserved for something with several pods, such as a PodGroup, so it does not name them."""
    return any(not each.is_pod for each in claim.status.reserved_for)


def _members(claim: ResourceClaim, known: Mapping[ObjectKey, Pod]) -> Iterable[ObjectKey]:
    if not is_for_members(claim):
        return []
    return (key for key, pod in known.items() if pod.spec.node_name and claim.metadata.key in pod.claims)


def _users(claim: ResourceClaim, known: Mapping[ObjectKey, Pod] | None) -> set[ObjectKey]:
    if known is None:
        return set(_reserved_by_name(claim))
    return {key for key in reserved_pods(claim, known) if not known[key].is_over}


def _reserved_by_name(claim: ResourceClaim) -> dict[ObjectKey, str]:
    reserved = (each for each in claim.status.reserved_for if each.is_pod)
    return {ObjectKey(claim.metadata.namespace, each.name): each.uid for each in reserved}


def budget_impacts(budgets: Iterable[PodDisruptionBudget], evicted: Iterable[Pod]) -> Iterable[BudgetImpact]:
    """The budgets that cover any of these pods, with the number of pods."""
    pods = list(evicted)
    for budget in budgets:
        selector, namespace = budget.spec.selector, budget.metadata.namespace
        if selector is None:
            continue
        covered = sum(pod.metadata.namespace == namespace and selector.selects(pod.metadata.labels) for pod in pods)
        if covered:
            yield BudgetImpact(budget.metadata.key, covered, budget.status.disruptions_allowed)
