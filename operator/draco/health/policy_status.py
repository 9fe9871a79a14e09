"""The status of a HealthPolicy over all nodes: counts, condition Accepted, message. Errors first, then tasks, then faults."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from draco.health.policy import PolicyShare, ReadyPolicy, RuleMatch
from draco.health.remediation import RemedyNote
from draco.resources.api.health import HealthPolicyStatus
from draco.resources.api.meta import Condition, timed
from draco.resources.texts import counted, short_sentence

CONDITION_ACCEPTED = "Accepted"
LONGEST_MESSAGE = 300


class PolicyTotals:
    """The shares of one policy on the nodes that were added."""

    def __init__(self) -> None:
        self.gpus = 0
        self.faulty = 0
        self.matches = 0
        self.first: RuleMatch | None = None
        self.error = ""
        self.withheld: tuple[str, int] = ("", 0)

    def add(self, share: PolicyShare) -> None:
        """Add its share on one node. Nodes are added in the order of their names."""
        self.gpus += share.gpus
        self.matches += len(share.matches)
        self.faulty += len({match.gpu.uuid for match in share.matches})
        if self.first is None and share.matches:
            self.first = share.matches[0]
        self.error = self.error or next(iter(share.errors), "")
        if share.withheld:
            self.withheld = (share.withheld, self.withheld[1] + 1)


def status_of(
    policy: ReadyPolicy, totals: PolicyTotals, notes: Sequence[RemedyNote], remediating: int, now: datetime
) -> HealthPolicyStatus:
    """The policy's status."""
    meta = policy.policy.metadata
    accepted = Condition(
        type=CONDITION_ACCEPTED,
        status="False" if policy.problem else "True",
        reason=policy.reason,
        message=short_sentence(policy.problem, LONGEST_MESSAGE) if policy.problem else "Its rules can be evaluated.",
    )
    conditions = policy.policy.status.conditions
    return HealthPolicyStatus(
        observed_generation=meta.generation,
        gpus=totals.gpus,
        faulty=totals.faulty,
        remediating=remediating,
        message=short_sentence(_message(policy, totals, notes), LONGEST_MESSAGE),
        conditions=[timed(accepted, conditions, now.replace(microsecond=0), generation=meta.generation)],
    )


def _message(policy: ReadyPolicy, totals: PolicyTotals, notes: Sequence[RemedyNote]) -> str:
    if policy.problem:
        return f"{policy.problem} Until this is corrected, Draco applies its defaults to faults of these GPUs."
    return " ".join(_sentences(policy, totals, notes))


def _sentences(policy: ReadyPolicy, totals: PolicyTotals, notes: Sequence[RemedyNote]) -> Iterable[str]:
    ordered = sorted(notes, key=lambda note: (not note.given_up, note.text))
    if ordered and ordered[0].given_up:
        yield ordered[0].text
    if totals.error:
        yield totals.error
    if totals.withheld[0]:
        yield (
            f"It does not apply to some GPUs of {counted(totals.withheld[1], 'node')}: HealthPolicy {totals.withheld[0]} comes "
            "first there, and is not accepted."
        )
    if not totals.gpus:
        yield "It selects no GPU."
    elif totals.first is None:
        yield f"None of {counted(totals.gpus, 'GPU')} has a fault that a rule matches."
    else:
        more = f", and {counted(totals.matches - 1, 'other fault')}" if totals.matches > 1 else ""
        yield f"{would(totals.first) if policy.policy.spec.dry_run else totals.first}{more}."
    if ordered and not ordered[0].given_up:
        yield ordered[0].text


def would(match: RuleMatch) -> str:
    """What a policy in dry run would do about one fault."""
    rule = match.rule
    steps = []
    if rule.effect:
        steps.append(f"treat {match.fault.name} as {rule.effect}")
    if rule.clean_probes:
        steps.append(f"end {match.fault.name} after {counted(rule.clean_probes, 'clean reading')}")
    if rule.remediation:
        steps.append(f"open a DeviceMaintenance with CronJob {rule.remediation.from_cron_job}")
    done = " and ".join(steps) or f"leave {match.fault.name} as it is"
    return f"Dry run: would {done} on {match.gpu.device or match.gpu.uuid} of {match.node} (rule {rule.name})"
