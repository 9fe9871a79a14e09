"""Sums up the state of one policy over all nodes.

Owns the status of MigPolicy: its counts, conditions and message. `PolicyCounts` counts node by node, so that thousands of nodes
are counted in small steps. Errors come first, with the first GPU that has them; then pending work; then what others have.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from heapq import nsmallest

from draco.mig.board import Board
from draco.mig_policy.boards import profile_names
from draco.mig_policy.decide import GpuDecision, NodeDecision
from draco.mig_policy.gpu_state import LayoutState
from draco.mig_policy.matching import MatchVerdict, PolicyMatch, Rules
from draco.resources.api.draco import Allocator, MigMode, MigPolicy, MigPolicyConflict, MigPolicyNode, MigPolicyStatus
from draco.resources.api.meta import Condition, timed
from draco.resources.texts import counted, listed

_UNASKED = MatchVerdict(PolicyMatch.UNKNOWN)


class ReasonCount:
    """One reason for the state of GPUs: how many have it, and the first of them by node and device."""

    def __init__(self) -> None:
        self.count = 0
        self._first: tuple[str, str, GpuDecision] | None = None

    def add(self, node: str, gpu: GpuDecision) -> None:
        """Count another GPU."""
        self.count += 1
        if self._first is None or (node, gpu.device) < self._first[:2]:
            self._first = (node, gpu.device, gpu)

    @property
    def example(self) -> str:
        """The name of the first one."""
        return named(self._first[0], self._first[2]) if self._first else ""


class PolicyCounts:
    """The counts of one policy over the nodes that were added. Each node is added once."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.nodes = 0
        """Nodes with GPUs of any policy."""
        self.said: Counter[PolicyMatch] = Counter()
        """The policy's answers for GPUs."""
        self.unselecting: Counter[int] = Counter()
        """GPUs that a selector excludes, by the selector's index."""
        self.failing: tuple[str, str] | None = None
        """The first GPU for which a selector fails, and the error."""
        self.lost: Counter[str] = Counter()
        """GPUs that it selects and others have, by policy."""
        self.mine: dict[str, list[GpuDecision]] = {}
        """Its GPUs, by node."""
        self.states: Counter[LayoutState] = Counter()
        """The states of its GPUs."""
        self.reasons: dict[LayoutState, dict[str, ReasonCount]] = {
            each: defaultdict(ReasonCount) for each in LayoutState
        }
        """The reasons of its GPUs' states, by message."""
        self.ranks: list[tuple[bool, bool, str]] = []
        """Its nodes as keys that sort the worst first: whether nothing has failed, whether nothing changes, the name."""
        self.boards: dict[int, Board] = {}
        """The boards of its nodes, each once: nodes with the same GPUs share theirs."""

    def add(self, decision: NodeDecision) -> None:
        """Count a node."""
        mine = []
        for gpu in decision.gpus:
            verdict = gpu.verdicts.get(self._policy, _UNASKED)
            self._ask(decision.node, gpu, verdict)
            if gpu.policy == self._policy:
                mine.append(gpu)
            elif verdict.answer is PolicyMatch.SELECTED:
                self.lost[gpu.policy] += 1
        if decision.gpus:
            self.nodes += 1
        if mine:
            self._have(decision, mine)

    def _ask(self, node: str, gpu: GpuDecision, verdict: MatchVerdict) -> None:
        self.said[verdict.answer] += 1
        if verdict.selector is None:
            return
        if verdict.answer is PolicyMatch.NOT_SELECTED:
            self.unselecting[verdict.selector] += 1
        if verdict.error and self.failing is None:
            self.failing = (named(node, gpu), verdict.error)

    def _have(self, decision: NodeDecision, mine: list[GpuDecision]) -> None:
        self.mine[decision.node] = mine
        for gpu in mine:
            state, message = gpu.condition
            self.states[state] += 1
            self.reasons[state][message].add(decision.node, gpu)
        states = {gpu.condition.state for gpu in mine}
        self.ranks.append((LayoutState.FAILED not in states, LayoutState.CHANGING not in states, decision.node))
        for board in decision.boards.values():
            self.boards[id(board)] = board


def named(node: str, gpu: GpuDecision) -> str:
    """The name of a GPU in messages."""
    return f"{gpu.device or gpu.uuid} of {node}"


CONDITION_VALID = "Valid"
CONDITION_APPLIED = "Applied"
CONDITION_CONFLICTING = "Conflicting"

LISTED_NODES = 256
_LISTED_CONFLICTS = 64
_NAMED = 8


def summary(rules: Rules, decisions: Iterable[NodeDecision], now: datetime) -> MigPolicyStatus:
    """The policy's status from every node's decision."""
    counts = PolicyCounts(rules.name)
    for decision in decisions:
        counts.add(decision)
    return status_of(rules, counts, now)


def status_of(rules: Rules, counts: PolicyCounts, now: datetime, advice: str = "") -> MigPolicyStatus:
    """The policy's status from counts; `advice` is appended to its message."""
    policy = rules.policy
    valid = _valid(rules, counts)
    conflicting = _conflicting(counts.lost)
    applied = _applied(rules, counts)
    before, generation = policy.status.conditions, policy.metadata.generation
    return MigPolicyStatus(
        observed_generation=policy.metadata.generation,
        gpus=counts.states.total(),
        applied=counts.states[LayoutState.APPLIED],
        changing=counts.states[LayoutState.CHANGING],
        failed=counts.states[LayoutState.FAILED],
        message=_message(valid, applied, conflicting, advice),
        conflicts=[MigPolicyConflict(policy=name, gpus=count) for name, count in sorted(counts.lost.items())][
            :_LISTED_CONFLICTS
        ],
        nodes=_nodes(counts),
        conditions=[timed(each, before, now, generation=generation) for each in (valid, applied, conflicting)],
    )


def _valid(rules: Rules, counts: PolicyCounts) -> Condition:
    if rules.problem:
        return _condition(CONDITION_VALID, "False", "NotUnderstood", rules.problem)
    if counts.failing is not None:
        gpu, error = counts.failing
        return _condition(CONDITION_VALID, "False", "SelectorFails", f"{error.rstrip('.')} (on {gpu}).")
    if unknown := _unknown_profiles(rules.policy, counts):
        return _condition(CONDITION_VALID, "False", "UnknownProfile", unknown)
    return _condition(CONDITION_VALID, "True", "Understood", "")


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


def _conflicting(lost: Counter[str]) -> Condition:
    if not lost:
        return _condition(CONDITION_CONFLICTING, "False", "NoOther", "")
    return _condition(CONDITION_CONFLICTING, "True", "OlderPolicy", f"{_taken(lost.total())} to {_older(lost)}.")


def _taken(count: int) -> str:
    return f"{counted(count, 'GPU')} that it selects {'belongs' if count == 1 else 'belong'}"


def _older(lost: Counter[str]) -> str:
    if len(lost) == 1:
        return f"the older policy {next(iter(lost))}"
    return f"older policies: {listed([f'{name} ({count})' for name, count in sorted(lost.items())], _NAMED)}"


def _applied(rules: Rules, counts: PolicyCounts) -> Condition:
    if not counts.mine:
        reason, message = _nothing(rules, counts)
        return _condition(CONDITION_APPLIED, "False", reason, message)
    for state, reason, being in (
        (LayoutState.FAILED, "Failed", "cannot be set up as the policy asks"),
        (LayoutState.CHANGING, "Changing", "not done yet"),
    ):
        if counts.states[state]:
            return _condition(CONDITION_APPLIED, "False", reason, _sentence(state, counts, being))
    crowded = sum(each.count for message, each in counts.reasons[LayoutState.APPLIED].items() if message)
    room = f", {crowded} of them as far as there is room" if crowded else ""
    return _condition(
        CONDITION_APPLIED,
        "True",
        "AsWanted",
        f"{counted(counts.states.total(), 'GPU')} set up as the policy asks{room}.{_left(rules, counts)}",
    )


def _sentence(state: LayoutState, counts: PolicyCounts, being: str) -> str:
    reasons = counts.reasons[state]
    message, first = max(reasons.items(), key=lambda pair: pair[1].count)
    also = f"; {counted(len(reasons) - 1, 'other reason')} in status.nodes" if len(reasons) > 1 else ""
    sentences = f": {listed([first.example], total=first.count)}: {message}" if message else ""
    return f"{counts.states[state]} of {counted(counts.states.total(), 'GPU')} {being}{sentences}{also}."


def _nothing(rules: Rules, counts: PolicyCounts) -> tuple[str, str]:
    if rules.problem:
        return "NotUnderstood", "The policy is invalid, so it applies to no GPU."
    if not counts.nodes:
        return "NothingMatches", "Matches nothing: no node has reported a GPU."
    if counts.lost:
        return "OlderPolicy", f"Has no GPU: {_taken(counts.lost.total())} to {_older(counts.lost)}."
    here = counts.said.total() - counts.said[PolicyMatch.OTHER_NODE]
    if not here:
        nodes = counted(counts.nodes, "node")
        return "NothingMatches", f"Matches nothing: spec.nodeSelector selects none of {nodes} with GPUs."
    failing = counts.unselecting.most_common(1)[0][0] if counts.unselecting else 0
    reasons = {
        PolicyMatch.NOT_SELECTED: f"not selected by spec.deviceSelectors[{failing}]",
        PolicyMatch.EXCLUDED: "named by spec.exclude",
        PolicyMatch.INDIVISIBLE: f"without MIG{_left_to_scheduler(rules)}",
        PolicyMatch.UNKNOWN: "that cannot be checked now",
    }
    sentences = [f"{counts.said[answer]} {reason}" for answer, reason in reasons.items() if counts.said[answer]]
    return (
        "NothingMatches",
        f"Matches nothing: of {counted(here, 'GPU')} on the nodes it selects, {listed(sentences, _NAMED)}.",
    )


def _left(rules: Rules, counts: PolicyCounts) -> str:
    """A sentence about GPUs that might be thought to be handed over."""
    left, why = counts.said[PolicyMatch.INDIVISIBLE], _left_to_scheduler(rules)
    return f" {counted(left, 'GPU')} left to kube-scheduler: without MIG{why}." if left and why else ""


def _left_to_scheduler(rules: Rules) -> str:
    spec = rules.policy.spec
    divides = spec.allocator is Allocator.OPERATOR and spec.mode is not MigMode.DISABLED
    return ", which a policy of mode Disabled hands over to Draco" if divides else ""


def _message(valid: Condition, applied: Condition, conflicting: Condition, advice: str) -> str:
    said = [valid.message, applied.message]
    if applied.reason != "OlderPolicy":
        said.append(conflicting.message)
    said.append(advice)
    return " ".join(each for each in said if each)


def _nodes(counts: PolicyCounts) -> list[MigPolicyNode]:
    # Few of thousands of nodes are listed, so only these get messages.
    worst = [name for *_, name in nsmallest(LISTED_NODES, counts.ranks)]
    return [_node(name, counts.mine[name]) for name in sorted(worst)]


def _node(name: str, gpus: Sequence[GpuDecision]) -> MigPolicyNode:
    counts = Counter(each.condition.state for each in gpus)
    sentences = [
        f"{each.device or each.uuid}: {each.condition.message}"
        for each in sorted(gpus, key=lambda each: (each.condition.state is not LayoutState.FAILED, each.device))
        if each.condition.message
    ]
    return MigPolicyNode(
        name=name,
        gpus=len(gpus),
        applied=counts[LayoutState.APPLIED],
        changing=counts[LayoutState.CHANGING],
        failed=counts[LayoutState.FAILED],
        message=f"{listed(sentences, _NAMED, separator='; ')}." if sentences else "",
    )


def _condition(type_: str, status: str, reason: str, message: str) -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message)
