"""Which parts each new fact or change of the node wakes: the whole list.

Parts are woken in the order given: a GPU's faults and health are known before it is offered. Owns the list, and the reactions
that concern several parts. `state` has the facts and the kinds of change.
"""

from draco.agent.parts import AgentParts
from draco.agent.state.changes import (
    ClaimInTheWay,
    ClaimRewritten,
    ClaimSettled,
    GpuWorkedOn,
    HealthChanged,
    LeaseRenewed,
    PoliciesChanged,
    RecordRead,
    RegistrationHeard,
    ReportDue,
)
from draco.agent.state.facts import NodeFacts


def connect(parts: AgentParts) -> None:
    """Connect the parts of one agent to the changes they follow."""
    state, on, on_fact = parts.state, parts.state.on, parts.state.on_fact
    claims, keeper, offers, startup = parts.claim_reporter, parts.keeper, parts.offers, parts.startup
    events, faults, slices, mps = parts.node_events, parts.faults, parts.time_slices, parts.mps
    report, due = parts.node_reporter.touch, parts.node_reporter.report_now

    def health(_change: object) -> None:
        facts = state.facts
        if parts.health.update(facts.view, parts.checkpoint.claims.values(), facts.divisions):
            state.tell(HealthChanged())

    def forget(facts: NodeFacts) -> None:
        faults.forgotten = facts.wanted.forgotten

    def judge(_change: object) -> None:
        wanted = state.facts.wanted
        faults.overrides = tuple(wanted.health)
        faults.repaired.extend(wanted.repaired)
        parts.hardware.judge_again()

    # Hardware
    on_fact("view", mps.seen, health, events.gpus_read, lambda facts: parts.metrics.hardware(facts.view), offers.touch)
    on_fact("view", keeper.seen, startup.seen, parts.edits_refresh.gpus_read, report, slices.seen)
    on_fact("divisions", events.instances_seen, health, offers.touch, report)
    on_fact("time_slicing", offers.touch, report)
    on_fact("mps", events.mps_seen, parts.metrics.mps, offers.touch, claims.touch_all, report)
    on(GpuWorkedOn, offers.touch, startup.worked_on, report)
    on_fact("device_plugins", events.device_plugins_seen, offers.touch, report)
    on_fact("edits_problem", report)
    on_fact("limit_library", offers.touch, report)
    # Claims
    on(RecordRead, health, claims.touch_all)
    on_fact("recovered", events.instances_seen, health, offers.touch, report)
    on(ClaimSettled, keeper.claim_settled, health, lambda change: claims.touch(change.claim))
    on(
        ClaimSettled,
        slices.claim_settled,
        mps.claim_settled,
        offers.claim_settled,
        lambda change: parts.leftovers.claim_settled(change.claim),
        report,
    )
    on(ClaimRewritten, lambda change: claims.touch(change.claim))
    on(ClaimInTheWay, lambda change: parts.leftovers.in_the_way(change.uid))
    on_fact("leftovers", report)
    on(HealthChanged, claims.touch_all)
    # The GpuNode, and other plugins
    on_fact("wanted", forget)
    on(PoliciesChanged, judge, offers.touch, due)  # reports that the spec was seen, even if nothing else changed
    on(ReportDue, due)
    on(LeaseRenewed, keeper.lease_renewed)
    on(RegistrationHeard, events.registration_heard, report)
    on_fact("conflict", events.conflict_seen, parts.publisher.conflict_seen, report)
    on_fact("published", report)
    on_fact("problem", report)
    on_fact("features", offers.features_seen, parts.publisher.features_seen, report, claims.touch_all)
    # Who uses the GPUs
    for reader in (parts.findings, parts.usage_conditions, parts.usage_reporter, parts.limit_keeper):
        parts.usage.subscribe(reader.read)
