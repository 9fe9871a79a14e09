"""Decides whether a policy selects a GPU, and why not.

Owns the tests in their order: node, exclusion, whether the GPU can do what the policy asks, selectors. A GPU without MIG is
selected only by a policy that hands whole GPUs over to Draco: other policies cannot do anything with it. A test that cannot be
evaluated changes nothing: neither a broken selector nor an agent that is down moves a GPU between policies. Also owns the
compiled policy (`Rules`), the order of policies, and what they permit: resets, evictions, spreading.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import TypeVar

import msgspec

from draco.cel import EvaluationError, Selector, device_view, ready_selector
from draco.resources.api.claims import DeviceSelector
from draco.resources.api.draco import (
    Allocator,
    GpuStatus,
    MigMode,
    MigPolicy,
    MigPolicySpec,
    MigReset,
    PlacementStrategy,
    PreemptionPermit,
    ResetPermit,
)
from draco.resources.api.meta import ObjectStruct
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from draco.resources.names import ATTRIBUTE_PARENT_UUID, ATTRIBUTE_UUID
from draco.resources.windows import Openness, openness, unknown_zones

P = TypeVar("P", bound=ObjectStruct)

_LAST = datetime.max.replace(tzinfo=UTC)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """A policy and its compiled selectors. `problem` says why it is invalid: then it takes no further GPU."""

    policy: MigPolicy
    selectors: tuple[Selector, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.metadata.name


def rules_of(policy: MigPolicy) -> Rules:
    """The compiled policy."""
    selectors = compiled(policy.spec.device_selectors)
    if isinstance(selectors, str):
        return Rules(policy=policy, problem=selectors)
    if zones := unknown_zones(policy.spec.reset.windows):
        named = f"{zones[0]} is not a time zone; use a name such as UTC or Europe/Berlin"
        return Rules(policy=policy, selectors=selectors, problem=f"spec.reset.windows: {named}.")
    return Rules(policy=policy, selectors=selectors)


def compiled(selectors: Iterable[DeviceSelector]) -> tuple[Selector, ...] | str:
    """A policy's spec.deviceSelectors, or what is wrong with one of them, as a sentence."""
    found = []
    for index, selector in enumerate(selectors):
        ready = ready_selector(selector.cel.expression if selector.cel else "")
        if isinstance(ready, str):
            return f"spec.deviceSelectors[{index}] is invalid: {ready}."
        found.append(ready)
    return tuple(found)


def permit(reset: MigReset, now: datetime) -> Openness:
    """Whether a GPU may be reset at `now`. A window in an unknown time zone never opens."""
    if reset.permit is not ResetPermit.IN_WINDOWS:
        return Openness(reset.permit is ResetPermit.ALWAYS)
    return openness(reset.windows, now)


def preempting_policies(policies: Iterable[MigPolicy]) -> frozenset[str]:
    """The policies that let Draco evict pods for others of higher priority. None does where kube-scheduler allocates."""
    return frozenset(
        each.metadata.name
        for each in policies
        if each.spec.allocator is Allocator.OPERATOR and each.spec.preemption is PreemptionPermit.LOWER_PRIORITY
    )


def spreading_policies(policies: Iterable[MigPolicy]) -> list[MigPolicy]:
    """The policies that spread claims."""
    return [each for each in policies if each.spec.placement is PlacementStrategy.SPREAD]


def oldest_first(policies: Iterable[P]) -> list[P]:
    """Policies in the order in which they choose GPUs: by creation, then by name, without those being deleted."""
    return sorted(
        (policy for policy in policies if policy.metadata.deletion_timestamp is None),
        key=lambda policy: (policy.metadata.creation_timestamp or _LAST, policy.metadata.name),
    )


_OF_PARTITIONS = frozenset({"type", "uuid", "parentUUID", "profile"})
"""Attributes that differ between a partition and its GPU."""


class PolicyMatch(Enum):
    """A policy's answer for a GPU."""

    SELECTED = "selected"
    OTHER_NODE = "other node"
    EXCLUDED = "excluded"
    INDIVISIBLE = "indivisible"
    NOT_SELECTED = "not selected"
    UNKNOWN = "unknown"


class MatchVerdict(msgspec.Struct, frozen=True, gc=False):
    """An answer; `selector` is the index of the one that does not match, `error` why there is no answer."""

    answer: PolicyMatch
    selector: int | None = None
    error: str = ""


_SELECTED = MatchVerdict(PolicyMatch.SELECTED)
_OTHER_NODE = MatchVerdict(PolicyMatch.OTHER_NODE)
_EXCLUDED = MatchVerdict(PolicyMatch.EXCLUDED)
_INDIVISIBLE = MatchVerdict(PolicyMatch.INDIVISIBLE)
_UNREPORTED = MatchVerdict(PolicyMatch.UNKNOWN, error="The agent does not report the GPU's partitions now.")


def verdict(
    rules: Rules, labels: Mapping[str, str], gpu: GpuStatus, device: Device | None, *, driver: str, has_it: bool
) -> MatchVerdict:
    """The policy's answer for a GPU of a node with these labels. `has_it`: the policy has the GPU already.

    `device` is the whole GPU as published, if known. Without reported partitions the GPU is unreadable now, or an older agent
    reports a GPU without MIG: unreadable if the policy has it.
    """
    spec = rules.policy.spec
    if spec.node_selector is not None and not spec.node_selector.selects(labels):
        return _OTHER_NODE
    if gpu.uuid in spec.exclude:
        return _EXCLUDED
    if rules.problem:
        return MatchVerdict(PolicyMatch.UNKNOWN, error=rules.problem)
    if gpu.mig is None:
        return _UNREPORTED if has_it else _INDIVISIBLE
    if not gpu.mig.capable and not hands_over_whole(spec):
        return _INDIVISIBLE
    return by_selectors(rules.selectors, device, driver)


def hands_over_whole(spec: MigPolicySpec) -> bool:
    """Whether the policy hands whole GPUs over to Draco. Then they need no MIG."""
    return spec.allocator is Allocator.OPERATOR and spec.mode is MigMode.DISABLED


def by_selectors(selectors: Sequence[Selector], device: Device | None, driver: str) -> MatchVerdict:
    """Whether the selectors of a policy match a whole GPU, as published; None if it is not."""
    if not selectors:
        return _SELECTED
    if device is None:
        return MatchVerdict(
            PolicyMatch.UNKNOWN, error="The GPU is not published, so spec.deviceSelectors cannot be evaluated for it."
        )
    for index, selector in enumerate(selectors):
        try:
            if not selector.matches(device_view(driver, device)):
                return MatchVerdict(PolicyMatch.NOT_SELECTED, selector=index)
        except EvaluationError as error:
            said = " ".join(str(error).split()).rstrip(".")
            return MatchVerdict(
                PolicyMatch.UNKNOWN, selector=index, error=f"spec.deviceSelectors[{index}] fails: {said}."
            )
    return _SELECTED


def whole_gpus(devices: Iterable[Device], gpus: Iterable[GpuStatus], *, driver: str) -> dict[str, Device]:
    """Each GPU by UUID as published, or, if only partitions are published, as it would be, derived from one of them."""
    whole: dict[str, Device] = {}
    partition: dict[str, Device] = {}
    for device in devices:
        if parent := device.text(ATTRIBUTE_PARENT_UUID, driver):
            partition.setdefault(parent, device)
        elif uuid := device.text(ATTRIBUTE_UUID, driver):
            whole.setdefault(uuid, device)
    for gpu in gpus:
        if gpu.uuid not in whole and gpu.uuid in partition:
            whole[gpu.uuid] = _joined(partition[gpu.uuid], gpu, driver)
    return whole


def _joined(partition: Device, gpu: GpuStatus, driver: str) -> Device:
    attributes = {
        name: value
        for name, value in partition.attributes.items()
        if name.removeprefix(f"{driver}/") not in _OF_PARTITIONS
    }
    attributes["type"] = DeviceAttribute(string="gpu")
    attributes["uuid"] = DeviceAttribute(string=gpu.uuid)
    capacity = {"memory": DeviceCapacity(value=gpu.memory)} if gpu.memory else {}
    return Device(name=gpu.device, attributes=attributes, capacity=capacity)
