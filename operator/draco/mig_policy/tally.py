"""What a policy's status is made of, counted node by node.

Owns the counting, so that a fleet of thousands of nodes can be counted bit by bit; words are `summary`'s.
"""

from collections import Counter

from draco.mig.board import Board
from draco.mig_policy.decide import GpuDecision, NodeDecision
from draco.mig_policy.gpu_state import LayoutState
from draco.mig_policy.matching import Answer, Verdict

_UNASKED = Verdict(Answer.UNKNOWN)


class Reason:
    """Why some GPUs stand as they do: of how many it is said, and the first of them by node and device."""

    def __init__(self) -> None:
        self.count = 0
        self._first: tuple[str, str, GpuDecision] | None = None

    def add(self, node: str, gpu: GpuDecision) -> None:
        """It is said of this GPU too."""
        self.count += 1
        if self._first is None or (node, gpu.device) < self._first[:2]:
            self._first = (node, gpu.device, gpu)

    @property
    def example(self) -> str:
        """The first one, by name."""
        return named(self._first[0], self._first[2]) if self._first else ""


class Tally:
    """The counts of one policy over the nodes that were added. Each node is added once."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.nodes = 0
        """Nodes with GPUs, whoever has these."""
        self.said: Counter[Answer] = Counter()
        """What the policy says to GPUs."""
        self.unselecting: Counter[int] = Counter()
        """By which of its selectors GPUs are not selected."""
        self.failing: tuple[str, str] | None = None
        """The first GPU for which a selector fails, and how."""
        self.lost: Counter[str] = Counter()
        """GPUs that it selects and others have, by policy."""
        self.mine: dict[str, list[GpuDecision]] = {}
        """Its GPUs, by node."""
        self.states: Counter[LayoutState] = Counter()
        """How its GPUs stand."""
        self.reasons: dict[LayoutState, dict[str, Reason]] = {each: {} for each in LayoutState}
        """Why its GPUs stand so, by message."""
        self.ranks: list[tuple[bool, bool, str]] = []
        """Its nodes in a form that sorts the worst first: whether nothing has failed, whether nothing changes, and the name."""
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
            elif verdict.answer is Answer.SELECTED:
                self.lost[gpu.policy] += 1
        if decision.gpus:
            self.nodes += 1
        if mine:
            self._have(decision, mine)

    def _ask(self, node: str, gpu: GpuDecision, verdict: Verdict) -> None:
        self.said[verdict.answer] += 1
        if verdict.selector is None:
            return
        if verdict.answer is Answer.NOT_SELECTED:
            self.unselecting[verdict.selector] += 1
        if verdict.error and self.failing is None:
            self.failing = (named(node, gpu), verdict.error)

    def _have(self, decision: NodeDecision, mine: list[GpuDecision]) -> None:
        self.mine[decision.node] = mine
        for gpu in mine:
            state, message = gpu.condition
            self.states[state] += 1
            reasons = self.reasons[state]
            if message not in reasons:
                reasons[message] = Reason()
            reasons[message].add(decision.node, gpu)
        states = {gpu.condition.state for gpu in mine}
        self.ranks.append((LayoutState.FAILED not in states, LayoutState.CHANGING not in states, decision.node))
        for board in decision.boards.values():
            self.boards[id(board)] = board


def named(node: str, gpu: GpuDecision) -> str:
    """A GPU as people are told of it."""
    return f"{gpu.device or gpu.uuid} of {node}"
