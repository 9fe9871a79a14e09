"""Decides what HealthPolicies make of the faults of a node's GPUs.

Owns the compiled policy (`ReadyPolicy`), the order of policies and rules, which GPUs a policy selects, and the overrides for the
node's agent. For each fault the first true rule counts, of the policy with the highest priority, then of the oldest. Must not
open requests (`remediation`) nor sum up over nodes (`policy_status`). Mistakes have mild effects. An invalid policy leaves its
GPUs to Draco's own table, and no later policy gets them: it might do what the first was there to prevent. A rule that cannot be
evaluated is skipped. What cannot be judged now, because the agent or the driver is down, stays unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from draco.cel import CompileError, EvaluationError, Selector, device_view, ready_selector
from draco.health.conditions import ConditionError, FaultCondition, SickGpu, condition_of, one_line
from draco.resources.api.claims import DeviceClass
from draco.resources.api.draco import GpuNode, GpuStatus
from draco.resources.api.health import FaultOverride, GpuFaultStatus, HealthPolicy, HealthRule
from draco.resources.api.meta import is_true
from draco.resources.api.slices import Device

MOST_OVERRIDES = 1024
"""The schema's limit for one node."""
_LAST = datetime.max.replace(tzinfo=UTC)
_MOST_ERRORS = 16


class ReadyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its rules and selectors compiled. `problem` says why it is invalid, `reason` in one word."""

    policy: HealthPolicy
    rules: tuple[tuple[HealthRule, FaultCondition], ...] = ()
    selectors: tuple[Selector, ...] = ()
    problem: str = ""
    reason: str = "Valid"

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.metadata.name

    @property
    def uid(self) -> str:
        """The policy's UID."""
        return self.policy.metadata.uid


class SeenGpus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node. `devices` are its whole GPUs by UUID, as published."""

    gpu_node: GpuNode
    labels: Mapping[str, str] = {}
    devices: Mapping[str, Device] = {}

    @property
    def readable(self) -> bool:
        """Whether the agent can read its GPUs."""
        return is_true(self.gpu_node.status.conditions, "Readable")


class RuleMatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The rule that counts for one fault, or would without dry run."""

    policy: str
    rule: HealthRule
    node: str
    gpu: GpuStatus
    fault: GpuFaultStatus

    def __str__(self) -> str:
        effect = f" → {self.rule.effect}" if self.rule.effect else ""
        return f"{self.fault.name} of {named(self.node, self.gpu)}{effect} (rule {self.rule.name})"


class PolicyShare(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One policy on one node: the GPUs that it selects, the faults that match its rules, and evaluation errors.

    `withheld` names an invalid policy that keeps faulty GPUs from this one.
    """

    gpus: int = 0
    matches: tuple[RuleMatch, ...] = ()
    errors: tuple[str, ...] = ()
    withheld: str = ""


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The decision for a node. `shares` are by policy UID."""

    node: str
    overrides: tuple[FaultOverride, ...] = ()
    shares: Mapping[str, PolicyShare] = {}

    def __str__(self) -> str:
        said = [f"{each.fault} of {each.uuid}: {each.effect or 'as it is'} by {each.policy}" for each in self.overrides]
        return f"{self.node}: " + ("; ".join(said) or "as agents say")


def ready(policy: HealthPolicy, device_class: DeviceClass | None) -> ReadyPolicy:
    """Compile a policy. `device_class` is the one that it names, None if that does not exist."""
    spec = policy.spec
    rules = []
    for rule in spec.rules:
        condition = condition_of(rule.condition)
        if isinstance(condition, CompileError):
            said = f"The condition of rule {rule.name} is invalid: {one_line(condition)}."
            return ReadyPolicy(policy=policy, problem=said, reason="InvalidCondition")
        rules.append((rule, condition))
    wanted = [(f"spec.deviceSelectors[{index}]", each) for index, each in enumerate(spec.device_selectors)]
    if spec.device_class_name:
        if device_class is None:
            said = f"There is no DeviceClass {spec.device_class_name}."
            return ReadyPolicy(policy=policy, problem=said, reason="ClassNotFound")
        of_class = device_class.spec.selectors
        wanted += [(f"selectors[{i}] of DeviceClass {spec.device_class_name}", each) for i, each in enumerate(of_class)]
    selectors = []
    for place, selector in wanted:
        compiled = ready_selector(selector.cel.expression if selector.cel else "")
        if isinstance(compiled, str):
            return ReadyPolicy(policy=policy, problem=f"{place} is invalid: {compiled}.", reason="InvalidSelector")
        selectors.append(compiled)
    return ReadyPolicy(policy=policy, rules=tuple(rules), selectors=tuple(selectors))


def first_asked_first(policies: Iterable[HealthPolicy]) -> list[HealthPolicy]:
    """Policies in order of evaluation, without those being deleted."""
    return sorted(
        (policy for policy in policies if policy.metadata.deletion_timestamp is None),
        key=lambda policy: (
            -policy.spec.priority,
            policy.metadata.creation_timestamp or _LAST,
            policy.metadata.name,
        ),
    )


def decide_node(seen: SeenGpus, policies: Sequence[ReadyPolicy]) -> NodeHealth:
    """What the policies, in their order, make of the faults of one node."""
    deciding = _NodeDecision(seen, policies)
    for gpu in seen.gpu_node.status.gpus:
        deciding.ask_about(gpu)
    overrides = sorted([*deciding.overrides, *_unreported(seen, policies)], key=_place)
    shares = {
        each.uid: PolicyShare(
            gpus=deciding.gpus[each.uid],
            matches=tuple(deciding.matches[each.uid]),
            errors=tuple(deciding.errors[each.uid]),
            withheld=deciding.withheld.get(each.uid, ""),
        )
        for each in policies
    }
    return NodeHealth(node=seen.gpu_node.metadata.name, overrides=tuple(overrides[:MOST_OVERRIDES]), shares=shares)


def in_order(overrides: Iterable[FaultOverride]) -> list[FaultOverride]:
    """Overrides in the order in which they are compared and written."""
    return sorted(overrides, key=_place)


def named(node: str, gpu: GpuStatus) -> str:
    """The name of a GPU in messages."""
    return f"{gpu.device or gpu.uuid} of {node}"


class _NodeDecision:
    def __init__(self, seen: SeenGpus, policies: Sequence[ReadyPolicy]) -> None:
        self._seen = seen
        self._policies = policies
        self._node = seen.gpu_node.metadata.name
        self._before = {_place(each): each for each in seen.gpu_node.spec.health}
        self.overrides: list[FaultOverride] = []
        self.gpus: dict[str, int] = {each.uid: 0 for each in policies}
        self.matches: dict[str, list[RuleMatch]] = {each.uid: [] for each in policies}
        self.errors: dict[str, list[str]] = {each.uid: [] for each in policies}
        self.withheld: dict[str, str] = {}

    def ask_about(self, gpu: GpuStatus) -> None:
        asked: list[tuple[ReadyPolicy, bool]] = []
        for each in self._policies:
            selected = self._selects(each, gpu)
            if selected is not None and not selected:
                continue
            self.gpus[each.uid] += selected is True
            asked.append((each, selected is True))
        status = self._seen.gpu_node.status
        sick = SickGpu(gpu=gpu, node=self._node, driver=status.driver, driver_version=status.driver_version)
        for fault in gpu.faults:
            self._ask(asked, fault, sick)

    def _selects(self, ready_policy: ReadyPolicy, gpu: GpuStatus) -> bool | None:
        """Whether the policy selects the GPU; None if unknown now."""
        wanted = ready_policy.policy.spec.node_selector
        if wanted is not None and not wanted.selects(self._seen.labels):
            return False
        if ready_policy.problem or not ready_policy.selectors:
            return True
        device = self._seen.devices.get(gpu.uuid)
        if device is None:
            return None
        try:
            view = device_view(self._seen.gpu_node.status.driver, device)
            return all(selector.matches(view) for selector in ready_policy.selectors)
        except EvaluationError as error:
            said = " ".join(str(error).split()).rstrip(".")
            self._err(ready_policy, f"Its selectors cannot be evaluated for {named(self._node, gpu)}: {said}.")
            return False

    def _ask(self, asked: Sequence[tuple[ReadyPolicy, bool]], fault: GpuFaultStatus, sick: SickGpu) -> None:
        for index, (each, is_selected) in enumerate(asked):
            if each.problem and each.policy.spec.dry_run:
                continue
            if each.problem:
                for behind, _ in asked[index + 1 :]:
                    self.withheld.setdefault(behind.uid, each.name)
                return
            if not is_selected:
                kept = self._before.get((sick.gpu.uuid, fault.name, _instance(fault.instance)))
                if kept is not None and kept.policy == each.name and not each.policy.spec.dry_run:
                    self.overrides.append(kept)
                    return
                continue
            rule = self._first_true(each, fault, sick)
            if rule is None:
                continue
            match = RuleMatch(policy=each.name, rule=rule, node=self._node, gpu=sick.gpu, fault=fault)
            self.matches[each.uid].append(match)
            if each.policy.spec.dry_run:
                continue  # a dry run changes nothing, also for later policies
            if rule.effect is not None or rule.clean_probes is not None:
                self.overrides.append(_override(match))
            return

    def _first_true(self, ready_policy: ReadyPolicy, fault: GpuFaultStatus, sick: SickGpu) -> HealthRule | None:
        for rule, condition in ready_policy.rules:
            try:
                if condition.holds(fault, sick):
                    return rule
            except ConditionError as error:
                about = f"{fault.name} of {named(self._node, sick.gpu)}"
                self._err(ready_policy, f"Rule {rule.name} cannot be evaluated for {about}: {str(error).rstrip('.')}.")
        return None

    def _err(self, ready_policy: ReadyPolicy, text: str) -> None:
        if len(self.errors[ready_policy.uid]) < _MOST_ERRORS:
            self.errors[ready_policy.uid].append(text)


def _override(match: RuleMatch) -> FaultOverride:
    return FaultOverride(
        uuid=match.gpu.uuid,
        fault=match.fault.name,
        instance=match.fault.instance,
        effect=match.rule.effect,
        clean_probes=match.rule.clean_probes,
        policy=match.policy,
    )


def _unreported(seen: SeenGpus, policies: Sequence[ReadyPolicy]) -> Iterator[FaultOverride]:
    """Overrides of GPUs that the agent cannot list while its driver is unreadable; they are evaluated again later."""
    if seen.readable:
        return
    listed = {gpu.uuid for gpu in seen.gpu_node.status.gpus}
    in_force = {each.name for each in policies if not each.policy.spec.dry_run and not each.problem}
    for each in seen.gpu_node.spec.health:
        if each.uuid not in listed and each.policy in in_force:
            yield each


def _place(override: FaultOverride) -> tuple[str, str, int]:
    return override.uuid, override.fault, _instance(override.instance)


def _instance(instance: int | None) -> int:
    return -1 if instance is None else instance
