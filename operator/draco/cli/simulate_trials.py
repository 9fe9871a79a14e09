"""What is tried in a simulation, and how it goes.

Owns which claims are allocated together, their order, copies of them, and the nodes they may go to. Each verdict is `allocate`'s
and each reason `explain`'s. What is allocated stays allocated for what is tried after it.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fitting import first_fitting
from draco.allocation.fleet import Fleet
from draco.allocation.node_selection import selects
from draco.cli.pod_claims import MissingClaimError, claims_of, made_from
from draco.cli.share_ids import share_ids
from draco.cli.world import World
from draco.explanation.explain import explain
from draco.explanation.model import Explanation
from draco.explanation.placement import PodRules
from draco.resources.claims import (
    AllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from draco.resources.core import Node, Pod, PodSpec, Toleration
from draco.resources.meta import ObjectKey, ObjectMeta
from draco.resources.names import PoolKey

_KUBERNETES_OWN: Final = "node.kubernetes.io/"
"""Prefix of the taints that say that a node is not to be used now."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Claims that are allocated together: a pod's, or one by itself. `missing` says which of them cannot be found."""

    claims: list[ResourceClaim]
    pod: Pod | None = None
    missing: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """How one copy of a trial went: on a node with an allocation for each claim; or not, and why."""

    name: str
    """The pod's, or the claim's that is tried by itself."""
    pod: str = ""
    copy: int
    node: str = ""
    claims: list[tuple[str, AllocationResult | None]] = []
    error: str = ""
    """What ended it; "" where it fits or simply does not."""
    explanation: Explanation | None = None

    @property
    def fits(self) -> bool:
        """Whether there is a node for it."""
        return bool(self.node)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All that was tried. Of each trial's copies those that fit, and the first that does not."""

    attempts: list[Attempt]
    copies: int
    fitting: int
    """Copies of which everything fits."""


def trials_of_files(world: World) -> list[Trial]:
    """What the objects of files ask for, in their order."""
    asked = {item.metadata.key: item for item in world.wanted if isinstance(item, ResourceClaim)}
    pods = [item for item in world.wanted if isinstance(item, Pod)]
    used = {key for pod in pods for key in pod.claims}
    used_templates = {
        ObjectKey(pod.metadata.namespace, entry.resource_claim_template_name)
        for pod in pods
        for entry in pod.spec.resource_claims
        if entry.resource_claim_template_name
    }
    trials = []
    for item in world.wanted:
        match item:
            case Pod():
                trials.append(_trial(world, item, asked))
            case ResourceClaim() if item.metadata.key not in used:
                trials.append(Trial(claims=[item]))
            case ResourceClaimTemplate() if item.metadata.key not in used_templates:
                trials.append(Trial(claims=[made_from(item, item.metadata.name)]))
    return [trial for trial in trials if trial.missing or _waiting(trial.claims)]


def trials_of_cluster(world: World, gone: set[PoolKey]) -> list[Trial]:
    """What waits in the cluster, after what holds devices of pools that are gone: that has to be allocated again."""
    fleet = world.fleet
    displaced = [
        claim for claim in fleet.claims.values() if any(PoolKey(*key[:2]) in gone for key in claim.devices_held)
    ]
    for claim in displaced:
        fleet.put_claim(msgspec.structs.replace(claim, status=ResourceClaimStatus()))
    keys = {claim.metadata.key for claim in displaced}
    pods = sorted(world.pods.values(), key=lambda pod: pod.metadata.key)
    moving = [_without_node(pod) for pod in pods if not keys.isdisjoint(pod.claims)]
    waiting = [pod for pod in pods if pod.waits and pod.spec.resource_claims and keys.isdisjoint(pod.claims)]
    trials = [_trial(world, pod, {}) for pod in (*moving, *waiting)]
    used = {key for pod in (*moving, *waiting) for key in pod.claims}
    alone = [fleet.claims[key] for key in sorted(fleet.claims) if key not in used]
    trials += [Trial(claims=[claim]) for claim in alone if claim.metadata.deletion_timestamp is None]
    return [trial for trial in trials if trial.missing or _waiting(trial.claims)]


def _without_node(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))


def _trial(world: World, pod: Pod, asked: Mapping[ObjectKey, ResourceClaim]) -> Trial:
    try:
        return Trial(claims=claims_of(pod, ChainMap({**asked}, {**world.fleet.claims}), world.templates), pod=pod)
    except MissingClaimError as missing:
        return Trial(claims=[], pod=pod, missing=str(missing))


def _waiting(claims: Sequence[ResourceClaim]) -> list[ResourceClaim]:
    return [claim for claim in claims if claim.status.allocation is None]


def run(fleet: Fleet, trials: Sequence[Trial], copies: int) -> Run:
    """Try each of them so often, copy by copy. What does not fit once is not tried again: there is never more room later."""
    ids = share_ids()
    attempts: list[Attempt] = []
    fitting = 0
    left = list(trials)
    for number in range(1, copies + 1):
        copy = _Copy(fleet, number, ids)
        tried = [copy.attempt(trial) for trial in left]
        attempts += tried
        left = [trial for trial, attempt in zip(left, tried, strict=True) if attempt.fits]
        if not left:
            break
        fitting += len(left) == len(trials)
    return Run(attempts=attempts, copies=copies, fitting=fitting)


class _Copy:
    """One copy of all trials. Its claims go by names of their own where such a claim is there already."""

    def __init__(self, fleet: Fleet, number: int, ids: Iterator[str]) -> None:
        self._fleet = fleet
        self._number = number
        self._ids = ids
        self._keys: dict[ObjectKey, ObjectKey] = {}

    def attempt(self, trial: Trial) -> Attempt:
        pod = str(trial.pod.metadata.key) if trial.pod is not None else ""
        names = [str(claim.metadata.key) for claim in trial.claims]
        claims = [self._taken(claim) for claim in trial.claims]
        allocated = {claim.metadata.key: claim.status.allocation for claim in claims}
        waiting = _waiting(claims)
        node, error, told = "", trial.missing, None
        if not error:
            node, error = self._allocate(trial.pod, claims, waiting, allocated)
            told = None if node else explain(self._fleet, claims, pod=trial.pod or anyone(self._fleet))
        return Attempt(
            name=pod or names[0],
            pod=pod,
            copy=self._number,
            node=node,
            claims=[(name, allocated[claim.metadata.key]) for name, claim in zip(names, claims, strict=True)],
            error=error,
            explanation=told,
        )

    def _allocate(
        self,
        pod: Pod | None,
        claims: Sequence[ResourceClaim],
        waiting: Sequence[ResourceClaim],
        allocated: dict[ObjectKey, AllocationResult | None],
    ) -> tuple[str, str]:
        """The node that was found, "" if none, and what ended the search. What was allocated is noted down."""
        try:
            found = first_fitting(self._fleet, waiting, _nodes(self._fleet, pod, claims), share_ids=self._ids)
        except AllocationError as failed:
            return "", str(failed)
        if found is None:
            return "", ""
        node, results = found
        for claim, result in zip(waiting, results, strict=True):
            allocated[claim.metadata.key] = result
            status = msgspec.structs.replace(claim.status, allocation=result)
            self._fleet.put_claim(msgspec.structs.replace(claim, status=status))
        return node.metadata.name, ""

    def _taken(self, claim: ResourceClaim) -> ResourceClaim:
        """The claim as this copy knows it: allocated, if an earlier trial of the copy shares it."""
        key = claim.metadata.key
        if claim.status.allocation is not None:
            return claim
        if key not in self._keys:
            self._keys[key] = self._free_key(key)
        own = self._keys[key]
        known = self._fleet.claims.get(own)
        if known is not None and known.status.allocation is not None:
            return known
        return msgspec.structs.replace(claim, metadata=ObjectMeta(name=own.name, namespace=own.namespace))

    def _free_key(self, key: ObjectKey) -> ObjectKey:
        own, number = key, self._number
        while (known := self._fleet.claims.get(own)) is not None and known.status.allocation is not None:
            own = ObjectKey(key.namespace, f"{key.name}-copy-{number}")
            number += 1
        return own


def _nodes(fleet: Fleet, pod: Pod | None, claims: Sequence[ResourceClaim]) -> Iterator[Node]:
    """The nodes, by name, to which a pod with these claims may go."""
    rules = PodRules(pod or anyone(fleet))
    bound = [
        claim.status.allocation.node_selector
        for claim in claims
        if claim.status.allocation is not None and claim.status.allocation.node_selector is not None
    ]
    for name in fleet.node_names:
        node = fleet.nodes[name]
        if not rules.obstacles(node) and all(selects(selector, node) for selector in bound):
            yield node


def anyone(fleet: Fleet) -> Pod:
    """A pod for claims of which no pod is known: it may go wherever some pod may, so not to nodes out of use."""
    keys = {taint.key for node in fleet.nodes.values() for taint in node.spec.taints}
    return Pod(
        spec=PodSpec(
            tolerations=[
                Toleration(key=key, operator="Exists") for key in sorted(keys) if not key.startswith(_KUBERNETES_OWN)
            ]
        )
    )
