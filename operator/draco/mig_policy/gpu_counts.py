"""Counts the GPUs of one policy over all nodes, and says so: what the statuses of MigPolicies and SharingPolicies have in common.

Owns the conditions Valid and Conflicting, and the sentences for GPUs that a policy does not have, has not changed yet, or cannot
change. Errors come first, with the first GPU that has them; then pending work; then what others have. `GpuCounts` counts node by
node, so that thousands of nodes are counted in small steps. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from heapq import nsmallest
from typing import Any, Final, Generic, Protocol, TypeVar

from draco.mig_policy.matching import MatchVerdict, PolicyMatch
from draco.resources.api.meta import Condition
from draco.resources.texts import counted, listed

CONDITION_VALID: Final = "Valid"
CONDITION_APPLIED: Final = "Applied"
CONDITION_CONFLICTING: Final = "Conflicting"
LISTED_NODES: Final = 256
_LISTED_CONFLICTS: Final = 64
_NAMED: Final = 8
_UNASKED: Final = MatchVerdict(PolicyMatch.UNKNOWN)


class JudgedGpu(Protocol):
    """A GPU as policies decided on it. `condition` is its state, and the reason as the end of a sentence."""

    @property
    def uuid(self) -> str:
        """Its UUID."""

    @property
    def device(self) -> str:
        """Its published name; "" if unknown."""

    @property
    def policy(self) -> str:
        """The policy that has it; "" for none."""

    @property
    def condition(self) -> tuple[Any, str]:
        """Its state, and why."""

    @property
    def verdicts(self) -> Mapping[str, MatchVerdict]:
        """What each policy says of it."""


Gpu = TypeVar("Gpu", bound=JudgedGpu)
State = TypeVar("State", bound=Enum)


class ReasonCount:
    """One reason for the state of GPUs: how many have it, and the first of them by node and device."""

    def __init__(self) -> None:
        self.count = 0
        self._first: tuple[str, str, JudgedGpu] | None = None

    def add(self, node: str, gpu: JudgedGpu) -> None:
        """Count another GPU."""
        self.count += 1
        if self._first is None or (node, gpu.device) < self._first[:2]:
            self._first = (node, gpu.device, gpu)

    @property
    def example(self) -> str:
        """The name of the first one."""
        return named(self._first[0], self._first[2]) if self._first else ""


class GpuCounts(Generic[Gpu, State]):
    """The counts of one policy over the nodes that were added, each once. `failed` and `pending` are the bad states."""

    def __init__(self, policy: str, *, failed: State, pending: State) -> None:
        self._policy = policy
        self._failed = failed
        self._pending = pending
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
        self.mine: dict[str, list[Gpu]] = {}
        """Its GPUs, by node."""
        self.states: Counter[State] = Counter()
        """The states of its GPUs."""
        self.reasons: dict[State, dict[str, ReasonCount]] = defaultdict(lambda: defaultdict(ReasonCount))
        """The reasons of its GPUs' states, by message."""
        self._ranks: list[tuple[bool, bool, str]] = []
        """Its nodes as keys that sort the worst first: whether nothing has failed, whether nothing is pending, the name."""

    def add(self, node: str, gpus: Sequence[Gpu]) -> bool:
        """Count a node; whether it has GPUs of the policy."""
        mine = []
        for gpu in gpus:
            verdict = gpu.verdicts.get(self._policy, _UNASKED)
            self._ask(node, gpu, verdict)
            if gpu.policy == self._policy:
                mine.append(gpu)
            elif verdict.answer is PolicyMatch.SELECTED:
                self.lost[gpu.policy] += 1
        self.nodes += bool(gpus)
        if mine:
            self._have(node, mine)
        return bool(mine)

    def _ask(self, node: str, gpu: Gpu, verdict: MatchVerdict) -> None:
        self.said[verdict.answer] += 1
        if verdict.selector is None:
            return
        if verdict.answer is PolicyMatch.NOT_SELECTED:
            self.unselecting[verdict.selector] += 1
        if verdict.error and self.failing is None:
            self.failing = (named(node, gpu), verdict.error)

    def _have(self, node: str, mine: list[Gpu]) -> None:
        self.mine[node] = mine
        for gpu in mine:
            state, message = gpu.condition
            self.states[state] += 1
            self.reasons[state][message].add(node, gpu)
        states = {gpu.condition[0] for gpu in mine}
        self._ranks.append((self._failed not in states, self._pending not in states, node))

    @property
    def listed_nodes(self) -> list[str]:
        """As many of its nodes as a status has room for, those with the worst state."""
        return sorted(name for *_, name in nsmallest(LISTED_NODES, self._ranks))

    @property
    def conflicts(self) -> list[tuple[str, int]]:
        """The older policies that have GPUs of it, with their number."""
        return sorted(self.lost.items())[:_LISTED_CONFLICTS]

    def message_of(self, node: str) -> str:
        """The reasons on one of its nodes, failures first."""
        gpus = sorted(self.mine[node], key=lambda each: (each.condition[0] is not self._failed, each.device))
        said = [f"{each.device or each.uuid}: {each.condition[1]}" for each in gpus if each.condition[1]]
        return f"{listed(said, _NAMED, separator='; ')}." if said else ""

    def unfinished(self, state: State, being: str) -> str:
        """How many GPUs are in a bad state, and the commonest reason, as a sentence."""
        reasons = self.reasons[state]
        message, first = max(reasons.items(), key=lambda pair: pair[1].count)
        also = f"; {counted(len(reasons) - 1, 'other reason')} in status.nodes" if len(reasons) > 1 else ""
        why = f": {listed([first.example], total=first.count)}: {message}" if message else ""
        return f"{self.states[state]} of {counted(self.states.total(), 'GPU')} {being}{why}{also}."

    def valid(self, problem: str) -> Condition:
        """The condition Valid; `problem` is what is wrong with the policy itself."""
        if problem:
            return Condition(type=CONDITION_VALID, status="False", reason="NotUnderstood", message=problem)
        if self.failing is not None:
            gpu, error = self.failing
            said = f"{error.rstrip('.')} (on {gpu})."
            return Condition(type=CONDITION_VALID, status="False", reason="SelectorFails", message=said)
        return Condition(type=CONDITION_VALID, status="True", reason="Understood", message="")

    def conflicting(self) -> Condition:
        """The condition Conflicting."""
        if not self.lost:
            return Condition(type=CONDITION_CONFLICTING, status="False", reason="NoOther", message="")
        said = f"{self._taken()}."
        return Condition(type=CONDITION_CONFLICTING, status="True", reason="OlderPolicy", message=said)

    def without(self, problem: str, indivisible: str = "") -> Condition:
        """The condition Applied of a policy without GPUs. `indivisible`: what is said of those without MIG."""
        reason, said = self._nothing(problem, indivisible)
        return Condition(type=CONDITION_APPLIED, status="False", reason=reason, message=said)

    def _nothing(self, problem: str, indivisible: str) -> tuple[str, str]:
        if problem:
            return "NotUnderstood", "The policy is invalid, so it applies to no GPU."
        if not self.nodes:
            return "NothingMatches", "Matches nothing: no node has reported a GPU."
        if self.lost:
            return "OlderPolicy", f"Has no GPU: {self._taken()}."
        here = self.said.total() - self.said[PolicyMatch.OTHER_NODE]
        if not here:
            nodes = counted(self.nodes, "node")
            return "NothingMatches", f"Matches nothing: spec.nodeSelector selects none of {nodes} with GPUs."
        failing = self.unselecting.most_common(1)[0][0] if self.unselecting else 0
        reasons = {
            PolicyMatch.NOT_SELECTED: f"not selected by spec.deviceSelectors[{failing}]",
            PolicyMatch.EXCLUDED: "named by spec.exclude",
            PolicyMatch.INDIVISIBLE: f"without MIG{indivisible}",
            PolicyMatch.UNKNOWN: "that cannot be checked now",
        }
        said = [f"{self.said[answer]} {reason}" for answer, reason in reasons.items() if self.said[answer]]
        of = f"of {counted(here, 'GPU')} on the nodes it selects, {listed(said, _NAMED)}"
        return "NothingMatches", f"Matches nothing: {of}."

    def _taken(self) -> str:
        count = self.lost.total()
        belong = f"{counted(count, 'GPU')} that it selects {'belongs' if count == 1 else 'belong'}"
        if len(self.lost) == 1:
            return f"{belong} to the older policy {next(iter(self.lost))}"
        return (
            f"{belong} to older policies: {listed([f'{name} ({n})' for name, n in sorted(self.lost.items())], _NAMED)}"
        )


def message(valid: Condition, applied: Condition, conflicting: Condition, advice: Iterable[str] = ()) -> str:
    """What a policy's conditions say together. What others have is said once."""
    said = [valid.message, applied.message]
    if applied.reason != "OlderPolicy":
        said.append(conflicting.message)
    return " ".join(filter(None, [*said, *advice]))


def named(node: str, gpu: JudgedGpu) -> str:
    """The name of a GPU in messages."""
    return f"{gpu.device or gpu.uuid} of {node}"
