"""Which agents are lost, and which nodes are fenced, so that no new claim gets a GPU that nobody looks after.

Owns the decision. An agent is judged only by what the watcher observed of its lease, on the watcher's own clock; timestamps of
agents are never read. A fence only keeps new claims away: running pods continue.

- An agent is fenced when a watcher that could see its lease saw no renewal for the lease's whole duration.
- A fence is lifted when a renewal was seen and the agent's report matches what is published, or when nothing is left to fence.
- A silent agent that has reported before is lost, even if nothing of its node is published any more (kubelet deletes the slices
  of a driver that is away for long). Its last report is outdated.
- If many agents are overdue together, the likely cause is the network or the API server: fencing is suspended, existing fences
  stay, and the nodes still count as lost. Overdue is half the duration, so an outage shows before the first lease expires.
"""

from collections.abc import Iterable

import msgspec

from draco.resources.names import NodeName


class FencingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """A mass outage: more than `share` of the agents are overdue, and at least `at_least`."""

    share: float = 0.3
    at_least: int = 3


class AgentSigns(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one node's agent.

    `silent_s` is how long its lease was watched without a renewal; None if it never had one. `renewed_s` is how long ago this
    watcher saw a renewal, None if never. `reports`: it has a Node and a GpuNode. `offers`: it also has devices to fence.
    `consistent`: its report matches what is published.
    """

    node: NodeName
    lease_s: float
    silent_s: float | None
    renewed_s: float | None = None
    reports: bool = True
    offers: bool = True
    consistent: bool = True
    fenced: bool = False

    @property
    def counts(self) -> bool:
        """Whether it should renew a lease. One that never had a lease need not; one without devices may be gone."""
        return self.offers and self.silent_s is not None

    @property
    def lost(self) -> bool:
        """Whether its lease has expired, so that its report is outdated."""
        return self.reports and self.silent_s is not None and self.silent_s >= self.lease_s

    @property
    def back(self) -> bool:
        """Whether it has renewed its lease and is consistent."""
        return self.renewed_s is not None and self.renewed_s < self.lease_s and self.consistent

    def is_silent_for(self, leases: float) -> bool:
        """Whether it has devices to fence and did not renew for this many lease durations."""
        return self.offers and self.silent_s is not None and self.silent_s >= leases * self.lease_s


class FencingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now: `fence` is new, `keep` stays fenced. `stale` and `overdue` are nodes, `agents` is the number with a lease.

    `lost` are the nodes whose reports are outdated. `look_again_s` is when the next lease may expire.
    """

    fence: tuple[NodeName, ...] = ()
    keep: tuple[NodeName, ...] = ()
    lift: tuple[NodeName, ...] = ()
    stale: tuple[NodeName, ...] = ()
    overdue: tuple[NodeName, ...] = ()
    lost: tuple[NodeName, ...] = ()
    agents: int = 0
    suspended: bool = False
    look_again_s: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.fence or self.lift)

    def __str__(self) -> str:
        told = f"{len(self.stale)} of {self.agents} agents silent: fence {len(self.fence)} nodes, lift {len(self.lift)}"
        return f"{told}; fencing is suspended" if self.suspended else told


def plan_fencing(agents: Iterable[AgentSigns], terms: FencingTerms | None = None) -> FencingPlan:
    """Decide about all agents together."""
    terms = terms or FencingTerms()
    known = sorted(agents, key=lambda each: each.node)
    counted = [each for each in known if each.counts]
    overdue = tuple(each.node for each in counted if each.is_silent_for(0.5))
    stale = [each for each in counted if each.is_silent_for(1)]
    fenced = [each for each in known if each.fenced]
    suspended = is_mass_outage(len(overdue), len(counted), terms)
    due = [each for each in stale if not each.fenced]
    running_out = [each.lease_s - each.silent_s for each in known if each.silent_s is not None and not each.lost]
    return FencingPlan(
        fence=() if suspended else tuple(each.node for each in due),
        keep=tuple(each.node for each in fenced if each.offers and not each.back),
        lift=tuple(each.node for each in fenced if not each.offers or each.back),
        stale=tuple(each.node for each in stale),
        overdue=overdue,
        lost=tuple(each.node for each in known if each.lost),
        agents=len(counted),
        suspended=suspended and bool(due),
        look_again_s=min(running_out, default=None),
    )


def is_mass_outage(overdue: int, agents: int, terms: FencingTerms) -> bool:
    """Whether so many agents are overdue that they are hardly to blame."""
    return overdue >= terms.at_least and overdue > terms.share * agents
