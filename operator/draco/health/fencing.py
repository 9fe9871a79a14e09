"""Which agents are lost, and which nodes are fenced for it, so that no new claim gets a GPU that nobody looks after.

Owns the decision. Knows of each agent only what was seen of its lease, and for how long, on the watcher's own clock; times that
an agent wrote are never looked at. A fence keeps new claims away and nothing else: pods that run keep running.

- An agent is fenced when its lease was not seen to change for the lease's whole duration, by a watcher that could have seen it.
- A fence is lifted when the lease was seen to change again, and what the agent reports is what is published; or when there is
  nothing left to fence.
- An agent that has reported and is silent is lost, also where nothing of its node is published any more: kubelet deletes the
  slices of a driver that is away for long. Its last report says nothing of now.
- Where many are overdue at a time the fault is rather the network's or the API server's: nothing more is fenced, and what is
  fenced stays so. Nobody knows of their nodes all the same. Overdue is half the duration, so that an outage is known as one
  before its first lease has run out.
"""

from collections.abc import Iterable

import msgspec

from draco.resources.names import NodeName


class FencingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """When it is a mass outage: more than this share of the agents overdue, and no fewer than so many."""

    share: float = 0.3
    at_least: int = 3


class AgentSigns(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one node's agent.

    `silent_s` is for how long its lease was watched and did not change; None where it never had one. `renewed_s` is how long ago
    its lease was seen to change by this watcher, None if never. `reports`: it has a Node and a GpuNode. `offers`: it has devices
    to fence as well. `consistent`: what the agent reports is what is published.
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
        """Whether it should renew a lease: who never had one need not, and who offers no device may have no agent any more."""
        return self.offers and self.silent_s is not None

    @property
    def lost(self) -> bool:
        """Whether its lease has run out, so that nothing that it has reported is known to be so still."""
        return self.reports and self.silent_s is not None and self.silent_s >= self.lease_s

    @property
    def back(self) -> bool:
        """Whether it was seen to renew, and does its work."""
        return self.renewed_s is not None and self.renewed_s < self.lease_s and self.consistent

    def is_silent_for(self, leases: float) -> bool:
        """Whether it has devices to fence and did not renew for so many durations of its lease."""
        return self.offers and self.silent_s is not None and self.silent_s >= leases * self.lease_s


class FencingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now: `fence` is new, `keep` stays fenced. `stale` and `overdue` are nodes, `agents` how many have a lease.

    `lost` are the nodes whose reports say nothing any more.
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
    """When the next lease may run out."""

    @property
    def empty(self) -> bool:
        """Whether all is as it should be."""
        return not (self.fence or self.lift)

    def __str__(self) -> str:
        told = f"{len(self.stale)} of {self.agents} agents silent: fence {len(self.fence)} nodes, lift {len(self.lift)}"
        return f"{told}; fencing is suspended" if self.suspended else told


def plan_fencing(agents: Iterable[AgentSigns], terms: FencingTerms | None = None) -> FencingPlan:
    """Decide over all agents at once."""
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
