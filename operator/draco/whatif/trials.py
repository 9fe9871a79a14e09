"""What is tried in a simulation, and the results.

Owns which claims are allocated together, their order, copies of them, the nodes they may use, and share IDs, which are counted
instead of random so that simulations are reproducible. Verdicts are `allocate`'s, reasons `explain`'s. An allocation stays in
effect for later trials.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.ownership.claims import as_allocated, as_searched, is_for_operator
from draco.allocation.pod_claims import MissingClaimError, claims_of, made_from, uses_devices, using
from draco.allocation.search.allocate import first_fitting
from draco.explanation.explain import explain
from draco.explanation.findings.allocated import reaching
from draco.explanation.findings.details import TRIED_BEFORE
from draco.explanation.findings.held_allocations import refused_configuration
from draco.explanation.findings.node_rules import nodes_for, unbound
from draco.explanation.model import Explanation, UseObstacle
from draco.resources.api.claims import (
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from draco.resources.api.core import Node, Pod, PodSpec, Toleration
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.names import PoolKey
from draco.whatif.world import World


def share_ids() -> Iterator[str]:
    """Consecutive identifiers, the same in every run."""
    return (f"00000000-0000-4000-8000-{number:012x}" for number in count(1))


_KUBERNETES_OWN: Final = "node.kubernetes.io/"
"""Prefix of the taints on nodes that are currently unusable."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Claims that are allocated together: a pod's, or one alone. `missing` names claims that do not exist."""

    claims: list[ResourceClaim]
    pod: Pod | None = None
    missing: str = ""


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one copy of a trial: a node and an allocation per claim, or the reason."""

    name: str
    """Of the pod, or of the claim if it is tried alone."""
    pod: str = ""
    copy: int
    node: str = ""
    claims: list[tuple[str, AllocationResult | None]] = []
    error: str = ""
    """What ended the trial; "" if it fits or simply does not."""
    explanation: Explanation | None = None
    obstacles: list[UseObstacle] = []
    """What still prevents its use if it fits."""

    @property
    def fits(self) -> bool:
        """Whether it fits on a node."""
        return bool(self.node)


class TrialRun(msgspec.Struct, frozen=True, kw_only=True):
    """All results. Of each trial's copies: those that fit, and the first that does not."""

    attempts: list[TrialResult]
    copies: int
    fitting: int
    """The number of copies of which everything fits."""


def trials_of_files(world: World) -> list[Trial]:
    """What the objects of files ask for, in order. Claims used only by completed pods are left out."""
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
            case Pod() if not item.is_over:
                trials.append(_trial(world, item, asked))
            case ResourceClaim() if item.metadata.key not in used:
                trials.append(Trial(claims=[item]))
            case ResourceClaimTemplate() if item.metadata.key not in used_templates:
                trials.append(Trial(claims=[made_from(item, item.metadata.name)]))
    return [trial for trial in trials if trial.missing or _waiting(trial.claims)]


def trials_of_cluster(world: World, gone: set[PoolKey]) -> list[Trial]:
    """Claims on pools that are gone, then what waits in the cluster. Leaves out claims that only completed pods use."""
    fleet = world.fleet
    displaced = [claim for claim in fleet.claims.values() if any(key.pool_key in gone for key in claim.devices_held)]
    for claim in displaced:
        fleet.put_claim(msgspec.structs.replace(claim, status=ResourceClaimStatus()))
    keys = {claim.metadata.key for claim in displaced}
    pods = sorted(world.pods.values(), key=lambda pod: pod.metadata.key)
    moving = [unbound(pod) for pod in pods if not pod.is_over and not keys.isdisjoint(pod.claims)]
    waiting = [pod for pod in pods if pod.waits and uses_devices(pod, fleet.classes) and keys.isdisjoint(pod.claims)]
    trials = [_trial(world, pod, {}) for pod in (*moving, *waiting)]
    used = {key for pod in (*moving, *waiting) for key in pod.claims}
    left = {key for pod in pods if pod.is_over for key in pod.claims}
    left -= {key for pod in pods if not pod.is_over for key in pod.claims}
    alone = [fleet.claims[key] for key in sorted(fleet.claims) if key not in used and key not in left]
    trials += [Trial(claims=[claim]) for claim in alone if claim.metadata.deletion_timestamp is None]
    return [trial for trial in trials if trial.missing or _waiting(trial.claims)]


def _trial(world: World, pod: Pod, asked: Mapping[ObjectKey, ResourceClaim]) -> Trial:
    claims = ChainMap({**asked}, {**world.fleet.claims})
    world.note_extended_resources(pod)
    try:
        return Trial(claims=claims_of(pod, claims, world.templates, world.fleet.classes), pod=pod)
    except MissingClaimError as missing:
        return Trial(claims=[], pod=pod, missing=str(missing))


def _waiting(claims: Sequence[ResourceClaim]) -> list[ResourceClaim]:
    return [claim for claim in claims if claim.status.allocation is None]


def run(fleet: Fleet, trials: Sequence[Trial], copies: int) -> TrialRun:
    """Try all trials `copies` times. One that fails is not tried again, because there is never more room later."""
    attempts: list[TrialResult] = []
    fitting = 0
    placing = _Placing(fleet)
    left = list(trials)
    for number in range(1, copies + 1):
        copy = _Copy(fleet, number)
        attempted = [_attempt(trial, copy, placing) for trial in left]
        attempts += attempted
        left = [trial for trial, attempt in zip(left, attempted, strict=True) if attempt.fits]
        if not left:
            break
        fitting += len(left) == len(trials)
    return TrialRun(attempts=attempts, copies=copies, fitting=fitting)


def _attempt(trial: Trial, copy: "_Copy", placing: "_Placing") -> TrialResult:
    pod = str(trial.pod.metadata.key) if trial.pod is not None else ""
    names = [str(claim.metadata.key) for claim in trial.claims]
    if trial.missing:
        return TrialResult(name=pod, pod=pod, copy=copy.number, error=trial.missing)
    claims = [copy.taken(claim) for claim in trial.claims]
    user = None if trial.pod is None else using(trial.pod, claims)
    node, allocations, error = placing.place(user, claims)
    given = [
        msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))
        for claim, allocation in zip(claims, allocations, strict=True)
    ]
    return TrialResult(
        name=pod or names[0],
        pod=pod,
        copy=copy.number,
        node=node,
        claims=list(zip(names, allocations, strict=True)),
        error=error,
        explanation=None if node else placing.why_not(user, claims),
        obstacles=placing.obstacles(given),
    )


class _Placing:
    """Finds a node for claims and records their allocations."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ids = share_ids()
        self._anyone = anyone(fleet)
        self._errors: dict[bytes, str] = {}

    def why_not(self, pod: Pod | None, claims: Sequence[ResourceClaim]) -> Explanation:
        """Why they fit on no node."""
        return explain(self._fleet, claims, pod=pod or self._anyone)

    def obstacles(self, claims: Sequence[ResourceClaim]) -> list[UseObstacle]:
        """The configurations with which allocated claims would never be prepared."""
        return [each for claim in claims if (each := refused_configuration(self._fleet, claim)) is not None]

    def place(self, pod: Pod | None, claims: Sequence[ResourceClaim]) -> tuple[str, list[AllocationResult | None], str]:
        """Allocate the unallocated claims: the node, each claim's allocation, and the error that ended it ("" if none)."""
        waiting = _waiting(claims)
        before = [claim.status.allocation for claim in claims]
        dracos = {claim.metadata.key for claim in waiting if is_for_operator(claim, self._fleet.classes)}
        classes = self._fleet.classes
        searched = [as_searched(claim, classes) if claim.metadata.key in dracos else claim for claim in waiting]
        found, error = None, self._gives_up(pod, waiting)
        if not error:
            try:
                found = first_fitting(self._fleet, searched, self._nodes(pod, claims), share_ids=self._ids)
            except AllocationError as failed:
                error = str(failed)
        if found is None:
            return "", before, error
        node, results = found
        given = {
            claim.metadata.key: as_allocated(result) if claim.metadata.key in dracos else result
            for claim, result in zip(waiting, results, strict=True)
        }
        for claim in waiting:
            user = TRIED_BEFORE
            if pod is not None:
                user = ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid="")
            status = msgspec.structs.replace(claim.status, allocation=given[claim.metadata.key], reserved_for=[user])
            self._fleet.put_claim(msgspec.structs.replace(claim, status=status))
        allocations = [given.get(claim.metadata.key, held) for claim, held in zip(claims, before, strict=True)]
        return node.metadata.name, allocations, ""

    def _gives_up(self, pod: Pod | None, claims: Sequence[ResourceClaim]) -> str:
        """The error that makes kube-scheduler give up although the claims may fit on some node. Cached for equivalent claims."""
        like = msgspec.json.encode([claim.spec for claim in claims]) + _rules(pod)
        if like not in self._errors:
            self._errors[like] = self.why_not(pod, claims).error if claims else ""
        return self._errors[like]

    def _nodes(self, pod: Pod | None, claims: Sequence[ResourceClaim]) -> list[Node]:
        """The nodes, by name, that a pod with these claims may use."""
        open_nodes = reaching(claims, nodes_for(self._fleet, pod or self._anyone).open)
        return [open_nodes[name] for name in self._fleet.node_names if name in open_nodes]


def _rules(pod: Pod | None) -> bytes:
    """The pod's requirements on nodes, whatever its claims are called."""
    return b"" if pod is None else msgspec.json.encode(msgspec.structs.replace(pod.spec, resource_claims=[]))


class _Copy:
    """One copy of all trials. Its claims are renamed if their names are taken."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.number = number
        self._fleet = fleet
        self._keys: dict[ObjectKey, ObjectKey] = {}

    def taken(self, claim: ResourceClaim) -> ResourceClaim:
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
        own, number = key, self.number
        while (known := self._fleet.claims.get(own)) is not None and known.status.allocation is not None:
            own = ObjectKey(key.namespace, f"{key.name}-copy-{number}")
            number += 1
        return own


def anyone(fleet: Fleet) -> Pod:
    """A pod for claims without a known pod: it tolerates all taints except those of unusable nodes."""
    keys = {taint.key for node in fleet.nodes.values() for taint in node.spec.taints}
    return Pod(
        spec=PodSpec(
            tolerations=[
                Toleration(key=key, operator="Exists") for key in sorted(keys) if not key.startswith(_KUBERNETES_OWN)
            ]
        )
    )
