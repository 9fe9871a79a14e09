"""Sums up the state of one SharingPolicy over all nodes: its counts, conditions and message.

`SharingCounts` counts node by node, so that thousands of nodes are counted in small steps. Pure.
"""

from collections import Counter, defaultdict
from datetime import datetime
from heapq import nsmallest

from draco.mig_policy.matching import MatchVerdict, PolicyMatch
from draco.resources.api.meta import Condition, timed
from draco.resources.api.sharing import (
    SharingMode,
    SharingPolicyConflict,
    SharingPolicyNode,
    SharingPolicySpec,
    SharingPolicyStatus,
)
from draco.resources.texts import counted, listed, sentence
from draco.sharing.decide import GpuForm, NodeForms, SharingRules, SharingState

LISTED_NODES = 256
_LISTED_CONFLICTS = 64
_NAMED = 8
_UNASKED = MatchVerdict(PolicyMatch.UNKNOWN)


class SharingCounts:
    """The counts of one policy over the nodes that were added."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.nodes = 0
        """Nodes with GPUs that were judged."""
        self.states: Counter[SharingState] = Counter()
        self.said: Counter[PolicyMatch] = Counter()
        self.failing = ""
        """The first error of a selector, as a sentence."""
        self.lost: Counter[str] = Counter()
        """GPUs that it selects and others have, by policy."""
        self.reasons: dict[SharingState, dict[str, list[str]]] = {each: defaultdict(list) for each in SharingState}
        """GPUs by the reason of their state."""
        self.mine: dict[str, list[GpuForm]] = {}
        """Its GPUs, by node."""

    def add(self, node: NodeForms) -> None:
        """Count a node."""
        self.nodes += bool(node.gpus)
        for gpu in node.gpus:
            verdict = gpu.verdicts.get(self._policy, _UNASKED)
            self.said[verdict.answer] += 1
            name = f"{gpu.device or gpu.uuid} of {node.node}"
            if verdict.error and not self.failing:
                self.failing = f"{verdict.error.rstrip('.')} (on {name})."
            if gpu.policy == self._policy:
                self.mine.setdefault(node.node, []).append(gpu)
                self.states[gpu.state] += 1
                self.reasons[gpu.state][gpu.message].append(name)
            elif verdict.answer is PolicyMatch.SELECTED:
                self.lost[gpu.policy] += 1


def status_of(rules: SharingRules, counts: SharingCounts, now: datetime) -> SharingPolicyStatus:
    """The policy's status from counts."""
    policy = rules.policy
    valid = _valid(rules, counts)
    applied = _applied(rules, counts)
    conflicting = _conflicting(counts)
    said = [valid.message, applied.message, conflicting.message if counts.mine else ""]
    return SharingPolicyStatus(
        observed_generation=policy.metadata.generation,
        gpus=counts.states.total(),
        shared=counts.states[SharingState.SHARED],
        waiting=counts.states[SharingState.WAITING],
        failed=counts.states[SharingState.FAILED],
        message=" ".join(filter(None, said)),
        conflicts=[SharingPolicyConflict(policy=name, gpus=count) for name, count in sorted(counts.lost.items())][
            :_LISTED_CONFLICTS
        ],
        nodes=_nodes(counts),
        conditions=[
            timed(each, policy.status.conditions, now, generation=policy.metadata.generation)
            for each in (valid, applied, conflicting)
        ],
    )


def default_in_words(spec: SharingPolicySpec) -> str:
    """What a claim gets that asks for no capacity, as a sentence."""
    if spec.mode is SharingMode.COUNT:
        return f"A claim that asks for no capacity gets 1 of {spec.count or 1} shares, and no memory of its own."
    if spec.mode is SharingMode.UNLIMITED:
        return "A claim that asks for no capacity gets a share, and no memory of its own."
    return f"A claim that asks for no capacity gets {spec.default or 'the whole memory'}."


def _valid(rules: SharingRules, counts: SharingCounts) -> Condition:
    if rules.problem:
        return Condition(type="Valid", status="False", reason="NotUnderstood", message=rules.problem)
    if counts.failing:
        return Condition(type="Valid", status="False", reason="SelectorFails", message=counts.failing)
    return Condition(type="Valid", status="True", reason="Understood", message="")


def _applied(rules: SharingRules, counts: SharingCounts) -> Condition:
    total = counted(counts.states.total(), "GPU")
    for state, reason, what in (
        (SharingState.FAILED, "Failed", "cannot be shared as the policy asks"),
        (SharingState.WAITING, "Waiting", "not published as the policy asks yet"),
    ):
        if counts.states[state]:
            reasons = counts.reasons[state]
            message, gpus = max(reasons.items(), key=lambda pair: len(pair[1]))
            also = f"; {counted(len(reasons) - 1, 'other reason')} in status.nodes" if len(reasons) > 1 else ""
            example = listed([min(gpus)], total=len(gpus))
            text = f"{counts.states[state]} of {total} {what}: {example}: {message}{also}."
            return Condition(type="Applied", status="False", reason=reason, message=text)
    if counts.states.total():
        said = f"{total} shared. {default_in_words(rules.policy.spec)}"
        return Condition(type="Applied", status="True", reason="AsWanted", message=said)
    return Condition(type="Applied", status="False", reason="NothingMatches", message=_nothing(rules, counts))


def _nothing(rules: SharingRules, counts: SharingCounts) -> str:
    if rules.problem:
        return "The policy is invalid, so it applies to no GPU."
    if not counts.nodes:
        return "Matches nothing: no node has reported a GPU."
    if counts.lost:
        return f"Has no GPU: {_taken(counts)}."
    here = counts.said.total() - counts.said[PolicyMatch.OTHER_NODE]
    if not here:
        return f"Matches nothing: spec.nodeSelector selects none of {counted(counts.nodes, 'node')} with GPUs."
    return f"Matches nothing: spec.deviceSelectors match none of {counted(here, 'GPU')} on the nodes it selects."


def _conflicting(counts: SharingCounts) -> Condition:
    if not counts.lost:
        return Condition(type="Conflicting", status="False", reason="NoOther", message="")
    return Condition(type="Conflicting", status="True", reason="OlderPolicy", message=sentence(_taken(counts)))


def _taken(counts: SharingCounts) -> str:
    count = counts.lost.total()
    others = listed([f"{name} ({each})" for name, each in sorted(counts.lost.items())], _NAMED)
    return (
        f"{counted(count, 'GPU')} that it selects {'belongs' if count == 1 else 'belong'} to older policies: {others}"
    )


def _nodes(counts: SharingCounts) -> list[SharingPolicyNode]:
    worst = nsmallest(LISTED_NODES, ((_rank(gpus), name) for name, gpus in counts.mine.items()))
    return [_node(name, counts.mine[name]) for name in sorted(name for _, name in worst)]


def _rank(gpus: list[GpuForm]) -> int:
    states = {each.state for each in gpus}
    return 0 if SharingState.FAILED in states else 1 if SharingState.WAITING in states else 2


def _node(name: str, gpus: list[GpuForm]) -> SharingPolicyNode:
    states = Counter(each.state for each in gpus)
    said = [f"{each.device or each.uuid}: {each.message}" for each in gpus if each.message]
    return SharingPolicyNode(
        name=name,
        gpus=len(gpus),
        shared=states[SharingState.SHARED],
        waiting=states[SharingState.WAITING],
        failed=states[SharingState.FAILED],
        message=f"{listed(said, _NAMED, separator='; ')}." if said else "",
    )
