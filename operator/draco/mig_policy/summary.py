"""Sums up the state of one MigPolicy over all nodes: its counts, conditions and message.

Owns what only layouts have: profiles that no board knows, GPUs without room, and those that kube-scheduler keeps. `gpu_counts`
has the rest. Pure.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from draco.mig.board import Board
from draco.mig_policy.boards import profile_names
from draco.mig_policy.decide import GpuDecision, NodeDecision
from draco.mig_policy.gpu_counts import CONDITION_APPLIED, CONDITION_VALID, GpuCounts, message
from draco.mig_policy.gpu_state import LayoutState
from draco.mig_policy.matching import PolicyMatch, Rules
from draco.resources.api.draco import Allocator, MigMode, MigPolicy, MigPolicyConflict, MigPolicyNode, MigPolicyStatus
from draco.resources.api.meta import Condition, timed
from draco.resources.texts import counted, listed

_NAMED = 8


class PolicyCounts:
    """The counts of one policy over the nodes that were added. Each node is added once."""

    def __init__(self, policy: str) -> None:
        self.gpus = GpuCounts[GpuDecision, LayoutState](policy, failed=LayoutState.FAILED, pending=LayoutState.CHANGING)
        self.boards: dict[int, Board] = {}
        """The boards of its nodes, each once: nodes with the same GPUs share theirs."""

    def add(self, decision: NodeDecision) -> None:
        """Count a node."""
        if self.gpus.add(decision.node, decision.gpus):
            for board in decision.boards.values():
                self.boards[id(board)] = board


def summary(rules: Rules, decisions: Iterable[NodeDecision], now: datetime) -> MigPolicyStatus:
    """The policy's status from every node's decision."""
    counts = PolicyCounts(rules.name)
    for decision in decisions:
        counts.add(decision)
    return status_of(rules, counts, now)


def status_of(rules: Rules, counts: PolicyCounts, now: datetime, advice: str = "") -> MigPolicyStatus:
    """The policy's status from counts; `advice` is appended to its message."""
    policy, gpus = rules.policy, counts.gpus
    valid = _valid(rules, counts)
    conflicting = gpus.conflicting()
    applied = _applied(rules, gpus)
    before, generation = policy.status.conditions, policy.metadata.generation
    return MigPolicyStatus(
        observed_generation=policy.metadata.generation,
        gpus=gpus.states.total(),
        applied=gpus.states[LayoutState.APPLIED],
        changing=gpus.states[LayoutState.CHANGING],
        failed=gpus.states[LayoutState.FAILED],
        message=message(valid, applied, conflicting, [advice]),
        conflicts=[MigPolicyConflict(policy=name, gpus=count) for name, count in gpus.conflicts],
        nodes=[_node(name, gpus) for name in gpus.listed_nodes],
        conditions=[timed(each, before, now, generation=generation) for each in (valid, applied, conflicting)],
    )


def _valid(rules: Rules, counts: PolicyCounts) -> Condition:
    valid = counts.gpus.valid(rules.problem)
    if valid.status == "True" and (unknown := _unknown_profiles(rules.policy, counts)):
        return Condition(type=CONDITION_VALID, status="False", reason="UnknownProfile", message=unknown)
    return valid


def _unknown_profiles(policy: MigPolicy, counts: PolicyCounts) -> str:
    if policy.spec.mode is not MigMode.DYNAMIC:
        return ""
    has = profile_names({str(key): board for key, board in counts.boards.items()})
    asked = [*policy.spec.profiles, *(each.profile for each in policy.spec.warm)]
    asked += [each.profile for each in policy.spec.warm_ahead.limits] if policy.spec.warm_ahead else []
    unknown = [name for name in dict.fromkeys(asked) if name not in has]
    if not has or not unknown:
        return ""
    return f"No board of its GPUs has profile {listed(unknown, _NAMED)}; they have {listed(has, 24)}."


def _applied(rules: Rules, gpus: GpuCounts[GpuDecision, LayoutState]) -> Condition:
    if not gpus.mine:
        return gpus.without(rules.problem, _left_to_scheduler(rules))
    for state, reason, being in (
        (LayoutState.FAILED, "Failed", "cannot be set up as the policy asks"),
        (LayoutState.CHANGING, "Changing", "not done yet"),
    ):
        if gpus.states[state]:
            said = gpus.unfinished(state, being)
            return Condition(type=CONDITION_APPLIED, status="False", reason=reason, message=said)
    crowded = sum(each.count for said, each in gpus.reasons[LayoutState.APPLIED].items() if said)
    room = f", {crowded} of them as far as there is room" if crowded else ""
    total = counted(gpus.states.total(), "GPU")
    said = f"{total} set up as the policy asks{room}.{_left(rules, gpus)}"
    return Condition(type=CONDITION_APPLIED, status="True", reason="AsWanted", message=said)


def _left(rules: Rules, gpus: GpuCounts[GpuDecision, LayoutState]) -> str:
    """A sentence about GPUs that might be thought to be handed over."""
    left, why = gpus.said[PolicyMatch.INDIVISIBLE], _left_to_scheduler(rules)
    return f" {counted(left, 'GPU')} left to kube-scheduler: without MIG{why}." if left and why else ""


def _left_to_scheduler(rules: Rules) -> str:
    spec = rules.policy.spec
    divides = spec.allocator is Allocator.OPERATOR and spec.mode is not MigMode.DISABLED
    return ", which a policy of mode Disabled hands over to Draco" if divides else ""


def _node(name: str, gpus: GpuCounts[GpuDecision, LayoutState]) -> MigPolicyNode:
    states = Counter(each.condition.state for each in gpus.mine[name])
    return MigPolicyNode(
        name=name,
        gpus=states.total(),
        applied=states[LayoutState.APPLIED],
        changing=states[LayoutState.CHANGING],
        failed=states[LayoutState.FAILED],
        message=gpus.message_of(name),
    )
