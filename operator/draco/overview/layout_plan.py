"""What policies in files, and the deletion of policies, would change, GPU by GPU.

Runs the operator's own decision (`mig_policy`) with the future policies, then again as if agents had applied the result, to find
the final state of each GPU. `layout_foreseen` words the change of one GPU. Pure: the time is an argument.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from draco.mig.board import Board
from draco.mig.gpu_plan import plan_gpu
from draco.mig_policy.boards import observed
from draco.mig_policy.decide import GpuDecision, NodeDecision, SeenNode, decide
from draco.mig_policy.gpu_counts import CONDITION_APPLIED, CONDITION_CONFLICTING, CONDITION_VALID
from draco.mig_policy.matching import PolicyMatch, Rules, oldest_first, permit, rules_of
from draco.mig_policy.promises import promises
from draco.mig_policy.summary import summary
from draco.mig_policy.warm_ahead import within_limits
from draco.overview.layout_foreseen import ForeseenGpu, planned, without_policy
from draco.overview.layout_schema import GpuPlanView, LayoutOutcome, PlanView, PolicyPlanView
from draco.overview.layouts import Holders, ObservedNodes, holders_of
from draco.overview.snapshot import natural
from draco.resources.api.draco import GpuNode, GpuStatus, MigPolicy, MigPolicyStatus, PromisedDevice, WantedGpu
from draco.resources.api.meta import LabelSelector, ObjectMeta
from draco.resources.api.slices import ResourceSlice, by_pool
from draco.resources.names import PoolKey
from draco.resources.windows import Openness

_NONE_OF_ITS_OWN = frozenset({"NotUnderstood", "NothingMatches", "OlderPolicy"})


class _Policies(NamedTuple):
    """The policies before and after, prepared, and when each may reset."""

    before: Sequence[Rules]
    after: Sequence[Rules]
    permits: Mapping[str, Openness]
    asked: frozenset[str]
    deleted: Sequence[MigPolicy]

    @property
    def shown(self) -> frozenset[str]:
        """The policies whose GPUs are reported."""
        return self.asked | {each.metadata.name for each in self.deleted}

    @property
    def granted(self) -> dict[str, bool]:
        return {name: each.is_open for name, each in self.permits.items()}

    @property
    def understood(self) -> list[str]:
        """The policies asked about that have no problem, so that their GPUs can be reported."""
        return [each.name for each in self.after if each.name in self.asked and not each.problem]

    def named(self, name: str) -> Rules | None:
        return next((each for each in self.after if each.name == name), None)


class _Node(NamedTuple):
    """One node now, and `then`, after its agent applied the decision; with the decisions before and after.

    `promised` is what the operator then tells the agent about claims.
    """

    node: GpuNode
    then: GpuNode
    before: NodeDecision
    taken_up: NodeDecision
    held: Holders
    promised: Sequence[PromisedDevice]

    @property
    def had(self) -> Mapping[str, WantedGpu]:
        """What has been wanted of its GPUs until now, by UUID."""
        return {each.uuid: each for each in (*self.before.wanted, *self.node.spec.gpus)}

    def owner(self, uuid: str) -> str:
        """The policy that has had a GPU until now; "" for none."""
        decided = next((each.policy for each in self.before.gpus if each.uuid == uuid), "")
        return self.had[uuid].policy if uuid in self.had else decided


def plan(seen: ObservedNodes, now: datetime) -> PlanView:
    """What applying `seen.asked` and deleting `seen.deleted` changes."""
    policies = _policies(seen, now)
    holders = holders_of(seen.claims)
    slices = by_pool(seen.slices)
    found = [node for _, node in sorted(seen.gpu_nodes.items(), key=lambda pair: natural(pair[0]))]
    # Demand is not measured here: assume that GPUs keep their current warm instances, within the future policies' limits.
    kept = within_limits(found, [each.policy for each in policies.after])
    nodes = [
        _node(seen, node, policies, slices, holders, keeping=keeping) for node, keeping in zip(found, kept, strict=True)
    ]
    gpus = [each for node in nodes for each in _gpus(node, policies)]
    decisions = [node.taken_up for node in nodes]
    shown = [_deleted(policy, nodes) for policy in policies.deleted]
    shown += [
        _policy(rules, summary(rules, decisions, now), seen.policies.get(rules.name))
        for rules in policies.after
        if rules.name in policies.asked
    ]
    return PlanView(
        server=seen.server,
        applicable=not any(each.problem for each in shown)
        and not any(each.outcome is LayoutOutcome.CANNOT for each in gpus),
        policies=shown,
        gpus=gpus,
        notes=[*seen.notes, *_gone(seen, policies), *_without_labels(seen, policies)],
    )


def _policies(seen: ObservedNodes, now: datetime) -> _Policies:
    after = {name: each for name, each in seen.policies.items() if name not in seen.deleted}
    for each in seen.asked:
        known = seen.policies.get(each.metadata.name)
        # A change does not make a policy younger.
        after[each.metadata.name] = msgspec.structs.replace(each, metadata=known.metadata) if known else _new(each)
    rules = [rules_of(each) for each in oldest_first(after.values())]
    return _Policies(
        before=[rules_of(each) for each in oldest_first(seen.policies.values())],
        after=rules,
        permits={each.name: permit(each.policy.spec.reset, now) for each in rules},
        asked=frozenset(each.metadata.name for each in seen.asked),
        deleted=[seen.policies[name] for name in seen.deleted],
    )


def _new(policy: MigPolicy) -> MigPolicy:
    meta = ObjectMeta(name=policy.metadata.name, creation_timestamp=policy.metadata.creation_timestamp, generation=1)
    return msgspec.structs.replace(policy, metadata=meta)


def _node(
    seen: ObservedNodes,
    node: GpuNode,
    policies: _Policies,
    slices: Mapping[PoolKey, Sequence[ResourceSlice]],
    holders: Mapping[PoolKey, Holders],
    *,
    keeping: GpuNode,
) -> _Node:
    name = node.metadata.name
    at = SeenNode.of(node, seen.nodes.get(name), slices.get(node.pool, ()))
    before = decide(at, policies.before, policies.granted)
    decided = decide(msgspec.structs.replace(at, gpu_node=keeping), policies.after, policies.granted)
    taken_up = msgspec.structs.replace(
        node,
        spec=msgspec.structs.replace(node.spec, gpus=decided.wanted),
        status=msgspec.structs.replace(node.status, observed_generation=node.metadata.generation),
    )
    again = decide(msgspec.structs.replace(at, gpu_node=taken_up), policies.after, policies.granted)
    # A GPU that is not reported now is lost from the second decision; add it from the first.
    lost = [each for each in decided.gpus if each.uuid not in {known.uuid for known in again.gpus}]
    again = msgspec.structs.replace(again, gpus=(*again.gpus, *lost))
    held = holders.get(node.pool, {})
    promised = promises(node, decided.wanted, {device: claims[0] for device, claims in held.items()})
    return _Node(node, taken_up, before, again, held, promised)


def _gpus(node: _Node, policies: _Policies) -> Iterable[GpuPlanView]:
    reported = {each.uuid: each for each in node.node.status.gpus}
    for decision in sorted(node.taken_up.gpus, key=lambda each: natural(each.device)):
        uuid = decision.uuid
        before = node.owner(uuid)
        plain = GpuPlanView(
            node=node.node.metadata.name,
            device=decision.device,
            uuid=uuid,
            outcome=LayoutOutcome.OLDER,
            before=before,
            policy=decision.policy,
            mode=decision.wanted.mode.value if decision.wanted else "",
        )
        if policies.shown & {decision.policy, before}:
            gpu = reported.get(uuid, GpuStatus(device=decision.device, uuid=uuid))
            seen = observed(gpu, node.taken_up.boards.get(decision.board, Board(())), node.held)
            made = plan_gpu(seen, decision.wanted, [each for each in node.promised if each.uuid == uuid])
            what = ForeseenGpu(gpu, seen, made)
            rules, allowed = policies.named(decision.policy), policies.permits.get(decision.policy, Openness(False))
            view = planned(plain, what, decision, node.then, rules=rules, allowed=allowed)
            yield view if decision.policy else without_policy(view, what, node.had.get(uuid))
        elif (said := _said(decision, policies.understood)) is not None:
            yield msgspec.structs.replace(plain, outcome=said[0], message=said[1])


def _said(decision: GpuDecision, understood: Iterable[str]) -> tuple[LayoutOutcome, str] | None:
    """The outcome for a GPU that none of these policies has; None if they do not select it."""
    verdicts = [decision.verdicts[name] for name in understood if name in decision.verdicts]
    if any(each.answer is PolicyMatch.SELECTED for each in verdicts):
        return LayoutOutcome.OLDER, f"belongs to the older policy {decision.policy}"
    unknown = next((each for each in verdicts if each.answer is PolicyMatch.UNKNOWN), None)
    return (LayoutOutcome.UNKNOWN, unknown.error.rstrip(".")) if unknown else None


def _policy(rules: Rules, status: MigPolicyStatus, before: MigPolicy | None) -> PolicyPlanView:
    conditions = {each.type: each for each in status.conditions}
    valid, applied = conditions[CONDITION_VALID], conditions[CONDITION_APPLIED]
    problem = valid.message if valid.status == "False" else ""
    if not problem and applied.reason in _NONE_OF_ITS_OWN:
        problem = applied.message
    conflicts = conditions[CONDITION_CONFLICTING].message
    return PolicyPlanView(
        name=rules.name,
        mode=rules.policy.spec.mode.value,
        layout=rules.policy.spec.layout,
        new=before is None,
        unchanged=before is not None and before.spec == rules.policy.spec,
        gpus=status.gpus or 0,
        problem=problem,
        message="" if applied.reason == "OlderPolicy" else conflicts,
    )


def _deleted(policy: MigPolicy, nodes: Iterable[_Node]) -> PolicyPlanView:
    name = policy.metadata.name
    heirs = Counter(
        decision.policy for node in nodes for decision in node.taken_up.gpus if node.owner(decision.uuid) == name
    )
    return PolicyPlanView(
        name=name,
        mode=policy.spec.mode.value,
        layout=policy.spec.layout,
        new=False,
        deleted=True,
        gpus=sum(heirs.values()),
        message=_inherited(heirs),
    )


def _inherited(heirs: Mapping[str, int]) -> str:
    """Which policies inherit its GPUs."""
    shares = sorted((not name, f"policy {name}" if name else "no policy", count) for name, count in heirs.items())
    if not shares:
        return "It has no GPU."
    if len(shares) == 1:
        (_, heir, count) = shares[0]
        return f"Its {'GPU goes' if count == 1 else 'GPUs go'} to {heir}."
    return f"Its GPUs go to {', '.join(f'{heir} ({count})' for _, heir, count in shares)}."


def _without_labels(seen: ObservedNodes, policies: _Policies) -> list[str]:
    """A note if node selectors need labels that the files do not contain."""
    asking = [each.name for each in policies.after if each.policy.spec.node_selector not in (None, LabelSelector())]
    missing = [name for name in seen.gpu_nodes if name not in seen.nodes]
    if seen.server or not asking or not missing:
        return []
    nodes = "node" if len(seen.gpu_nodes) == 1 else "nodes"
    whose = f"{len(missing)} of {len(seen.gpu_nodes)} {nodes}"
    text = f"The files do not contain the labels of {whose}, which spec.nodeSelector of {', '.join(asking)} needs"
    return [f"{text}; give `kubectl get nodes -o json` with -f, too."]


def _gone(seen: ObservedNodes, policies: _Policies) -> list[str]:
    known = {each.name for each in policies.after}
    named = {each.policy for node in seen.gpu_nodes.values() for each in node.spec.gpus}
    gone = sorted(named - known - set(seen.deleted))
    if not gone or seen.server:
        return []
    text = f"GPUs of the files belong to {', '.join(gone)}, which is not in the files: the plan treats it as deleted"
    return [f"{text}; give it with -f, too."]
