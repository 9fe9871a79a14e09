"""Sums up the state of one SharingPolicy over all nodes: its counts, conditions and message.

Owns what a claim gets that asks for nothing, in words. `mig_policy.gpu_counts` has what the statuses of policies have in common.
Pure.
"""

from collections import Counter
from datetime import datetime
from typing import TypeAlias

from draco.mig_policy.gpu_counts import CONDITION_APPLIED, GpuCounts, message
from draco.resources.api.meta import Condition, timed
from draco.resources.api.sharing import (
    SharingMode,
    SharingPolicyConflict,
    SharingPolicyNode,
    SharingPolicySpec,
    SharingPolicyStatus,
)
from draco.resources.texts import counted
from draco.sharing.decide import GpuForm, SharingRules, SharingState

SharingCounts: TypeAlias = GpuCounts[GpuForm, SharingState]


def counts_of(rules: SharingRules) -> SharingCounts:
    """No counts yet."""
    return SharingCounts(rules.name, failed=SharingState.FAILED, pending=SharingState.WAITING)


def status_of(rules: SharingRules, counts: SharingCounts, now: datetime) -> SharingPolicyStatus:
    """The policy's status from counts."""
    policy = rules.policy
    valid = counts.valid(rules.problem)
    applied = _applied(rules, counts)
    conflicting = counts.conflicting()
    before, generation = policy.status.conditions, policy.metadata.generation
    return SharingPolicyStatus(
        observed_generation=policy.metadata.generation,
        gpus=counts.states.total(),
        shared=counts.states[SharingState.SHARED],
        waiting=counts.states[SharingState.WAITING],
        failed=counts.states[SharingState.FAILED],
        message=message(valid, applied, conflicting),
        conflicts=[SharingPolicyConflict(policy=name, gpus=count) for name, count in counts.conflicts],
        nodes=[_node(name, counts) for name in counts.listed_nodes],
        conditions=[timed(each, before, now, generation=generation) for each in (valid, applied, conflicting)],
    )


def default_in_words(spec: SharingPolicySpec) -> str:
    """What a claim gets that asks for no capacity, as a sentence."""
    if spec.mode is SharingMode.COUNT:
        return f"A claim that asks for no capacity gets 1 of {spec.count or 1} shares, and no memory of its own."
    if spec.mode is SharingMode.UNLIMITED:
        return "A claim that asks for no capacity gets a share, and no memory of its own."
    return f"A claim that asks for no capacity gets {spec.default or 'the whole memory'}."


def _applied(rules: SharingRules, counts: SharingCounts) -> Condition:
    if not counts.mine:
        return counts.without(rules.problem)
    for state, reason, being in (
        (SharingState.FAILED, "Failed", "cannot be shared as the policy asks"),
        (SharingState.WAITING, "Waiting", "not published as the policy asks yet"),
    ):
        if counts.states[state]:
            said = counts.unfinished(state, being)
            return Condition(type=CONDITION_APPLIED, status="False", reason=reason, message=said)
    said = f"{counted(counts.states.total(), 'GPU')} shared. {default_in_words(rules.policy.spec)}"
    return Condition(type=CONDITION_APPLIED, status="True", reason="AsWanted", message=said)


def _node(name: str, counts: SharingCounts) -> SharingPolicyNode:
    states = Counter(each.state for each in counts.mine[name])
    return SharingPolicyNode(
        name=name,
        gpus=states.total(),
        shared=states[SharingState.SHARED],
        waiting=states[SharingState.WAITING],
        failed=states[SharingState.FAILED],
        message=counts.message_of(name),
    )
