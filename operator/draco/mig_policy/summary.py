"""Where a policy stands, over all nodes.

Owns the status of MigPolicy: its counts, its conditions and the one sentence that a person reads in the table. What is wrong
comes first, with the first GPU it is wrong on; then what is not done yet; then what others have.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from draco.mig_policy.boards import profile_names
from draco.mig_policy.decide import GpuDecision, NodeDecision
from draco.mig_policy.matching import Answer, Verdict
from draco.mig_policy.rules import Rules
from draco.mig_policy.standing import Standing
from draco.resources.draco import MigMode, MigPolicy, MigPolicyConflict, MigPolicyNode, MigPolicyStatus
from draco.resources.meta import Condition

CONDITION_VALID = "Valid"
CONDITION_APPLIED = "Applied"
CONDITION_CONFLICTING = "Conflicting"

LISTED_NODES = 256
_LISTED_CONFLICTS = 64
_NAMED = 8
_UNASKED = Verdict(Answer.UNKNOWN)


class Outlook(NamedTuple):
    """What a policy's status is made of, beside the policy: every node's decision, and advice that it should pass on."""

    decisions: Sequence[NodeDecision]
    now: datetime
    advice: str = ""


class _Gpu(NamedTuple):
    node: str
    gpu: GpuDecision
    said: Verdict

    def __str__(self) -> str:
        return f"{self.gpu.device or self.gpu.uuid} of {self.node}"


def summary(rules: Rules, outlook: Outlook) -> MigPolicyStatus:
    """The policy's status, with the times of its conditions."""
    policy = rules.policy
    everything = [
        _Gpu(each.node, gpu, gpu.verdicts.get(rules.name, _UNASKED)) for each in outlook.decisions for gpu in each.gpus
    ]
    mine = [each for each in everything if each.gpu.policy == rules.name]
    lost = Counter(
        each.gpu.policy
        for each in everything
        if each.gpu.policy not in {"", rules.name} and each.said.answer is Answer.SELECTED
    )
    counts = Counter(each.gpu.stands.standing for each in mine)
    valid = _valid(rules, everything, _unknown_profiles(policy, mine, outlook.decisions))
    conflicting = _conflicting(lost)
    applied = _applied(rules, everything, mine, lost)
    conditions = [_timed(policy, condition, outlook.now) for condition in (valid, applied, conflicting)]
    return MigPolicyStatus(
        observed_generation=policy.metadata.generation,
        gpus=len(mine),
        applied=counts[Standing.APPLIED],
        changing=counts[Standing.CHANGING],
        failed=counts[Standing.FAILED],
        message=_message(valid, applied, conflicting, outlook.advice),
        conflicts=[MigPolicyConflict(policy=name, gpus=count) for name, count in sorted(lost.items())][
            :_LISTED_CONFLICTS
        ],
        nodes=_nodes(mine),
        conditions=conditions,
    )


def _valid(rules: Rules, everything: Sequence[_Gpu], unknown: str) -> Condition:
    failing = next((each for each in everything if each.said.selector is not None and each.said.error), None)
    if rules.problem:
        return _condition(CONDITION_VALID, "False", "NotUnderstood", rules.problem)
    if failing is not None:
        return _condition(
            CONDITION_VALID, "False", "SelectorFails", f"{failing.said.error.rstrip('.')} (on {failing})."
        )
    if unknown:
        return _condition(CONDITION_VALID, "False", "UnknownProfile", unknown)
    return _condition(CONDITION_VALID, "True", "Understood", "")


def _unknown_profiles(policy: MigPolicy, mine: Sequence[_Gpu], decisions: Sequence[NodeDecision]) -> str:
    if policy.spec.mode is not MigMode.DYNAMIC:
        return ""
    nodes = {each.node for each in mine}
    boards = {
        f"{each.node}/{name}": board for each in decisions if each.node in nodes for name, board in each.boards.items()
    }
    has = profile_names(boards)
    asked = [*policy.spec.profiles, *(each.profile for each in policy.spec.warm)]
    unknown = [name for name in dict.fromkeys(asked) if name not in has]
    if not has or not unknown:
        return ""
    return f"No board of its GPUs has profile {_listed(unknown)}; they have {_listed(has, most=24)}."


def _conflicting(lost: Counter[str]) -> Condition:
    if not lost:
        return _condition(CONDITION_CONFLICTING, "False", "NoOther", "")
    total = sum(lost.values())
    message = f"{_taken(total)} to {_older(lost)}."
    return _condition(CONDITION_CONFLICTING, "True", "OlderPolicy", message)


def _taken(count: int) -> str:
    return f"{_gpus(count)} that it selects {'belongs' if count == 1 else 'belong'}"


def _older(lost: Counter[str]) -> str:
    if len(lost) == 1:
        return f"the older policy {next(iter(lost))}"
    return f"older policies: {_listed([f'{name} ({count})' for name, count in sorted(lost.items())])}"


def _applied(rules: Rules, everything: Sequence[_Gpu], mine: Sequence[_Gpu], lost: Counter[str]) -> Condition:
    if not mine:
        reason, message = _nothing(rules, everything, lost)
        return _condition(CONDITION_APPLIED, "False", reason, message)
    counts = Counter(each.gpu.stands.standing for each in mine)
    for standing, reason, being in (
        (Standing.FAILED, "Failed", "cannot be as wanted"),
        (Standing.CHANGING, "Changing", "not done yet"),
    ):
        if counts[standing]:
            return _condition(CONDITION_APPLIED, "False", reason, _sentence(standing, mine, being))
    return _condition(CONDITION_APPLIED, "True", "AsWanted", f"{_gpus(len(mine))} as wanted.")


def _sentence(standing: Standing, mine: Sequence[_Gpu], being: str) -> str:
    those = [each for each in mine if each.gpu.stands.standing is standing]
    messages = Counter(each.gpu.stands.message for each in those)
    message, count = max(messages.items(), key=lambda pair: pair[1])
    example = min(
        (each for each in those if each.gpu.stands.message == message), key=lambda each: (each.node, each.gpu.device)
    )
    others = f" and {count - 1} more" if count > 1 else ""
    reasons = f"; {len(messages) - 1} other reasons in status.nodes" if len(messages) > 1 else ""
    told = f": {example}{others}: {message}" if message else ""
    return f"{len(those)} of {_gpus(len(mine))} {being}{told}{reasons}."


def _nothing(rules: Rules, everything: Sequence[_Gpu], lost: Counter[str]) -> tuple[str, str]:
    """Why it has no GPU."""
    if rules.problem:
        return "NotUnderstood", "Has no GPU, and takes none until it can be understood."
    if not everything:
        return "NothingMatches", "Matches nothing: no node has reported a GPU."
    if lost:
        return "OlderPolicy", f"Has no GPU: {_taken(sum(lost.values()))} to {_older(lost)}."
    here = [each for each in everything if each.said.answer is not Answer.OTHER_NODE]
    if not here:
        nodes = _count(len({each.node for each in everything}), "node")
        return "NothingMatches", f"Matches nothing: spec.nodeSelector selects none of {nodes} with GPUs."
    said = Counter(each.said.answer for each in here)
    selectors = Counter(each.said.selector for each in here if each.said.answer is Answer.NOT_SELECTED)
    failing = selectors.most_common(1)[0][0] if selectors else 0
    reasons = {
        Answer.NOT_SELECTED: f"not selected by spec.deviceSelectors[{failing}]",
        Answer.EXCLUDED: "named by spec.exclude",
        Answer.INDIVISIBLE: "without MIG",
        Answer.UNKNOWN: "that cannot be judged now",
    }
    told = [f"{said[answer]} {reason}" for answer, reason in reasons.items() if said[answer]]
    return "NothingMatches", f"Matches nothing: of {_gpus(len(here))} on the nodes it selects, {_listed(told)}."


def _message(valid: Condition, applied: Condition, conflicting: Condition, advice: str) -> str:
    said = [valid.message, applied.message]
    if applied.reason != "OlderPolicy":
        said.append(conflicting.message)
    said.append(advice)
    return " ".join(each for each in said if each)


def _nodes(mine: Iterable[_Gpu]) -> list[MigPolicyNode]:
    by_node: dict[str, list[GpuDecision]] = {}
    for each in mine:
        by_node.setdefault(each.node, []).append(each.gpu)
    # Of thousands of nodes few are listed, so only these are worded.
    worst_first = sorted(by_node, key=lambda name: (*_standings_absent(by_node[name]), name))
    return [_node(name, by_node[name]) for name in sorted(worst_first[:LISTED_NODES])]


def _standings_absent(gpus: Sequence[GpuDecision]) -> tuple[bool, bool]:
    """Whether nothing has failed, and whether nothing changes."""
    standings = {each.stands.standing for each in gpus}
    return Standing.FAILED not in standings, Standing.CHANGING not in standings


def _node(name: str, gpus: Sequence[GpuDecision]) -> MigPolicyNode:
    counts = Counter(each.stands.standing for each in gpus)
    told = [
        f"{each.device or each.uuid}: {each.stands.message}"
        for each in sorted(gpus, key=lambda each: (each.stands.standing is not Standing.FAILED, each.device))
        if each.stands.message
    ]
    return MigPolicyNode(
        name=name,
        gpus=len(gpus),
        applied=counts[Standing.APPLIED],
        changing=counts[Standing.CHANGING],
        failed=counts[Standing.FAILED],
        message=f"{_listed(told, separator='; ')}." if told else "",
    )


def _timed(policy: MigPolicy, condition: Condition, now: datetime) -> Condition:
    before = next((each for each in policy.status.conditions if each.type == condition.type), None)
    unchanged = before is not None and before.status == condition.status
    return msgspec.structs.replace(
        condition,
        observed_generation=policy.metadata.generation,
        last_transition_time=(before.last_transition_time if before is not None and unchanged else None) or now,
    )


def _condition(type_: str, status: str, reason: str, message: str) -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message)


def _listed(names: Sequence[str], *, most: int = _NAMED, separator: str = ", ") -> str:
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return separator.join([*names[:most], *more])


def _gpus(count: int) -> str:
    return _count(count, "GPU")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
