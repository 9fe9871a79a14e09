"""Which parts each change of the node wakes: the whole list.

Parts are woken in the order given: a GPU's faults and health are known before it is offered. Owns the list, and the reactions
that concern several parts. `state` has the kinds of change.
"""

from draco.agent.parts import AgentParts
from draco.agent.state.changes import (
    ClaimInTheWay,
    ClaimRewritten,
    ClaimSettled,
    ConflictSeen,
    DevicePluginsSeen,
    EditsFound,
    FeaturesSeen,
    GpusRead,
    GpuWorkedOn,
    HealthChanged,
    InstancesSeen,
    LeaseRenewed,
    LeftoversSeen,
    PoliciesChanged,
    RecordRead,
    Recovered,
    RegistrationHeard,
    ReportDue,
    SlicesWritten,
    WantedSeen,
)


def connect(parts: AgentParts) -> None:
    """Connect the parts of one agent to the changes they follow."""
    on, state = parts.state.on, parts.state
    claims, keeper, offers, startup = parts.claim_reporter, parts.keeper, parts.offers, parts.startup
    events, faults = parts.node_events, parts.faults
    report, due = parts.node_reporter.touch, parts.node_reporter.report_now

    def health(_change: object) -> None:
        facts = state.facts
        if parts.health.update(facts.view, parts.checkpoint.claims.values(), facts.divisions):
            state.tell(HealthChanged())

    def forget(change: WantedSeen) -> None:
        faults.forgotten = change.wanted.forgotten

    def judge(_change: object) -> None:
        wanted = state.facts.wanted
        faults.overrides = tuple(wanted.health)
        faults.repaired.extend(wanted.repaired)
        parts.hardware.judge_again()

    # Hardware
    on(GpusRead, health, events.gpus_read, lambda change: parts.metrics.hardware(change.view), offers.touch)
    on(GpusRead, keeper.seen, startup.seen, parts.edits_refresh.gpus_read, report)
    on(InstancesSeen, events.instances_seen, health, offers.touch, report)
    on(GpuWorkedOn, offers.touch, startup.worked_on, report)
    on(DevicePluginsSeen, events.device_plugins_seen, offers.touch, report)
    on(EditsFound, report)
    # Claims
    on(RecordRead, health, claims.touch_all)
    on(Recovered, events.instances_seen, health, offers.touch, report)
    on(ClaimSettled, keeper.claim_settled, health, lambda change: claims.touch(change.claim))
    on(ClaimSettled, lambda change: parts.leftovers.claim_settled(change.claim), report)
    on(ClaimRewritten, lambda change: claims.touch(change.claim))
    on(ClaimInTheWay, lambda change: parts.leftovers.in_the_way(change.uid))
    on(LeftoversSeen, report)
    on(HealthChanged, claims.touch_all)
    # The GpuNode, and other plugins
    on(WantedSeen, forget)
    on(PoliciesChanged, judge, offers.touch, due)  # reports that the spec was seen, even if nothing else changed
    on(ReportDue, due)
    on(LeaseRenewed, keeper.lease_renewed)
    on(RegistrationHeard, events.registration_heard, report)
    on(ConflictSeen, events.conflict_seen, parts.publisher.conflict_seen, report)
    on(SlicesWritten, report)
    on(FeaturesSeen, offers.features_seen, parts.publisher.features_seen, report, claims.touch_all)
