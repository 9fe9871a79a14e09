"""The content of `draco check`: whether Draco is installed and works, one finding per requirement. Pure: `now` is an argument."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from draco.allocation.ownership.classes import ClassFault, OfDriver, class_fault
from draco.overview.status_schema import MissingView
from draco.resources.api.base import ApiStruct, OutputStruct
from draco.resources.api.claims import DeviceClass
from draco.resources.api.core import Lease
from draco.resources.api.draco import GpuNode
from draco.resources.api.maintenance import CONDITION_BLOCKED, DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import Condition, ObjectMeta, find_condition
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import Kind
from draco.resources.names import (
    ANNOTATION_TROUBLES,
    CONDITION_CERTIFICATE,
    CONDITION_CLAIMS_THERE,
    CONDITION_COMPLETE,
    CONDITION_SOLE_ALLOCATOR,
    OPERATOR_LEASE,
)
from draco.resources.texts import agreeing, are, counted, listed

OPERATORS: Final = f"metadata.name={OPERATOR_LEASE}"
"""Field selector of the operators' leader leases."""
SCHEMA: Final = "draco.dev/check/v1"
_TRANSIENT: Final = timedelta(minutes=1)
"""How long a blocked request's Jobs may stay blocked, for example by a pod that waits for its claim."""
_LEASE_SLACK: Final = timedelta(seconds=15)
"""Tolerated difference between a node's clock and this machine's."""


class Verdict(StrEnum):
    """How to take a finding. Only `failed` means that Draco does not work."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class CheckFinding(OutputStruct, frozen=True, kw_only=True):
    """One requirement, its state, and what to do about it."""

    about: str
    verdict: Verdict
    message: str
    remedy: str = ""


class CheckReport(OutputStruct, frozen=True, kw_only=True):
    """All findings."""

    schema: str = SCHEMA
    healthy: bool
    findings: list[CheckFinding]


class WorkloadSpec(ApiStruct, frozen=True, kw_only=True):
    """Spec of a Deployment; a DaemonSet has its wanted number in its status."""

    replicas: int | None = None


class WorkloadStatus(ApiStruct, frozen=True, kw_only=True):
    """Ready pods: the first field is a Deployment's, the other two are a DaemonSet's."""

    ready_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0


class Workload(ApiStruct, frozen=True, kw_only=True):
    """A Deployment or a DaemonSet of the chart."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class SystemInfo(ApiStruct, frozen=True, kw_only=True):
    """The container runtime, such as containerd://2.1.4."""

    container_runtime_version: str = ""


class RuntimeStatus(ApiStruct, frozen=True, kw_only=True):
    """Node status as kubelet reports it."""

    node_info: SystemInfo = SystemInfo()


class RuntimeNode(ApiStruct, frozen=True, kw_only=True):
    """A node, reduced to its container runtime."""

    metadata: ObjectMeta = ObjectMeta()
    status: RuntimeStatus = RuntimeStatus()


DEPLOYMENTS: Final = Kind("apps", "v1", "deployments", "Deployment", True, Workload)
DAEMON_SETS: Final = Kind("apps", "v1", "daemonsets", "DaemonSet", True, Workload)
RUNTIME_NODES: Final = Kind("", "v1", "nodes", "Node", False, RuntimeNode)


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from the cluster. Both workloads are those of the chart; `slices` are of every driver."""

    minor: int | None
    absent_kinds: Sequence[str]
    missing: Sequence[MissingView]
    operators: Sequence[Workload]
    agents: Sequence[Workload]
    leases: Sequence[Lease]
    slices: Sequence[ResourceSlice]
    gpu_nodes: Sequence[GpuNode]
    nodes: Sequence[RuntimeNode]
    classes: Sequence[DeviceClass] = ()
    maintenances: Sequence[DeviceMaintenance] = ()
    unread: Sequence[str] = ()


def check(found: Installation, *, now: datetime) -> CheckReport:
    """Judge an installation."""
    findings = [
        _api(found),
        _kinds(found),
        *_operators(found, now),
        *_agents(found),
        *_devices(found),
        *_runtimes(found),
        *_classes(found),
        *_maintenance(found, now),
        *(_warning(about, sentence) for about, sentence in troubles(leading(found.leases, now), found.gpu_nodes)),
        *_incomplete(found.gpu_nodes),
        *(_warning("features", f"{one.name}: {one.consequence}", one.remedy) for one in found.missing),
        *(_warning("rights", sentence) for sentence in found.unread),
    ]
    return CheckReport(healthy=all(each.verdict is not Verdict.FAILED for each in findings), findings=findings)


def _api(found: Installation) -> CheckFinding:
    version = "" if found.minor is None else f" 1.{found.minor}"
    return _ok("cluster", f"Kubernetes{version} serves resource.k8s.io/v1.")


def _kinds(found: Installation) -> CheckFinding:
    if not found.absent_kinds:
        return _ok("kinds", "Draco's kinds are served.")
    return _failed(
        "kinds",
        f"The cluster does not know {listed(found.absent_kinds)}.",
        "Upgrade the release with crds.enabled=true, or apply the repository's crds/.",
    )


def _operators(found: Installation, now: datetime) -> list[CheckFinding]:
    leaders = leading(found.leases, now)
    if not found.operators and not leaders:  # a leader may run outside of the cluster, as on a local one
        message = "No operator is installed: nothing carries out maintenance or says why claims are pending."
        return [
            (_warning if found.agents else _failed)(
                "operator", message, "Install the chart with operator.enabled=true."
            )
        ]
    findings = [_replicas(each) for each in found.operators]
    places = sorted(lease.metadata.namespace for lease in leaders)
    if len(leaders) > 1:
        findings.append(
            _failed(
                "leader",
                f"Operators lead in namespaces {listed(places)}: they undo each other's writes.",
                "Uninstall all but one: `helm list --all-namespaces` shows them.",
            )
        )
    elif leaders:
        findings.append(_ok("leader", f"{leaders[0].spec.holder_identity} leads."))
    elif started := [each for each in found.operators if each.spec.replicas != 0]:
        space = started[0].metadata.namespace
        findings.append(
            _failed(
                "leader",
                "No replica of the operator leads.",
                f"See why: kubectl logs -n {space} -l app.kubernetes.io/component=operator --tail=20",
            )
        )
    return findings


def _replicas(operator: Workload) -> CheckFinding:
    wanted = 1 if operator.spec.replicas is None else operator.spec.replicas
    if wanted:
        return _pods("operator", operator, operator.status.ready_replicas, wanted, "replica")
    name, space = operator.metadata.name, operator.metadata.namespace
    return _failed(
        "operator",
        f"Deployment {name} is scaled to 0 replicas: nothing carries out maintenance or says why claims are pending.",
        f"Scale it up: kubectl scale deployment {name} -n {space} --replicas=2",
    )


def leading(leases: Sequence[Lease], now: datetime) -> list[Lease]:
    """The held leases of operators."""
    return [lease for lease in leases if _alive(lease, now)]


_OF_AGENTS = frozenset({CONDITION_CERTIFICATE, CONDITION_CLAIMS_THERE, CONDITION_SOLE_ALLOCATOR})
"""GpuNode conditions that, if False, need somebody's attention although the node is Ready."""


def troubles(leaders: Sequence[Lease], gpu_nodes: Sequence[GpuNode]) -> list[tuple[str, str]]:
    """Problems that operators and agents report although they work: who, and a sentence with the fix."""
    found = [
        ("operator", line)
        for lease in leaders
        for line in lease.metadata.annotations.get(ANNOTATION_TROUBLES, "").splitlines()
    ]
    agents: dict[str, list[str]] = {}
    for node in gpu_nodes:
        for one in node.status.conditions:
            if one.type in _OF_AGENTS and one.status == "False":
                agents.setdefault(one.message, []).append(node.metadata.name)
    return [*found, *(("agent", f"{listed(nodes)}: {sentence}") for sentence, nodes in agents.items())]


def _alive(lease: Lease, now: datetime) -> bool:
    spec = lease.spec
    if not spec.holder_identity or not spec.renew_time:
        return False
    until = datetime.fromisoformat(spec.renew_time) + timedelta(seconds=spec.lease_duration_seconds or 0)
    return now <= until + _LEASE_SLACK


def _pods(about: str, workload: Workload, ready: int, wanted: int, noun: str) -> CheckFinding:
    if ready >= wanted:
        return _ok(about, f"{counted(ready, noun)} {are(ready)} ready.")
    space = workload.metadata.namespace
    return _failed(
        about,
        f"{ready} of {counted(wanted, noun)} {are(ready)} ready.",
        f"See why: kubectl describe pods -n {space} -l app.kubernetes.io/component={about}",
    )


def _agents(found: Installation) -> list[CheckFinding]:
    if not found.agents and found.gpu_nodes:
        return []  # agents may run outside of the cluster; their nodes are judged by GpuNode
    if not found.agents:
        return [_ok("agent", "No agents are installed: Draco operates the devices of other drivers.")]
    findings = []
    for each in found.agents:
        wanted = each.status.desired_number_scheduled
        if wanted:
            findings.append(_pods("agent", each, each.status.number_ready, wanted, "agent"))
            continue
        findings.append(
            _failed(
                "agent",
                "No node has the labels that the agents look for, so none runs.",
                "Label the GPU nodes, as with `kubectl label node NODE nvidia.com/gpu.present=true`, or set agent.nodeSelector.",
            )
        )
    return findings


def _devices(found: Installation) -> list[CheckFinding]:
    publishing = {each.spec.node_name for each in found.slices if each.spec.devices}
    total = sum(len(each.spec.devices) for each in found.slices)
    if total:
        publish = agreeing(len(publishing), "publishes", "publish")
        findings = [_ok("devices", f"{counted(len(publishing), 'node')} {publish} {counted(total, 'device')}.")]
    elif found.agents:
        findings = [_failed("devices", "No node publishes devices.", "Look at the agents' log.")]
    else:
        message = "No node publishes devices yet: Draco has nothing to operate."
        findings = [_warning("devices", message, "Install a DRA driver on the GPU nodes.")]
    for node in found.gpu_nodes:
        ready = find_condition(node.status.conditions, "Ready")
        if ready is None or ready.status != "True":
            said = ready.message if ready else "its agent has not reported yet."
            findings.append(
                _failed(
                    "node",
                    f"{node.metadata.name}: {said}",
                    f"See all of it: kubectl describe gpunode {node.metadata.name}",
                )
            )
    return findings


def _incomplete(gpu_nodes: Sequence[GpuNode]) -> list[CheckFinding]:
    """What agents do not know or cannot use of their GPUs, each sentence once."""
    nodes: dict[str, list[str]] = {}
    for node in gpu_nodes:
        one = find_condition(node.status.conditions, CONDITION_COMPLETE)
        for line in one.message.splitlines() if one is not None and one.status == "False" else ():
            nodes.setdefault(line, []).append(node.metadata.name)
    return [_warning("gpu", f"{listed(names)}: {line}") for line, names in nodes.items()]


def _runtimes(found: Installation) -> list[CheckFinding]:
    """Containerd before 2.0 reads CDI specs only if configured to; otherwise pods do not start."""
    ours = {node.metadata.name for node in found.gpu_nodes}
    old = [
        node.metadata.name
        for node in found.nodes
        if node.metadata.name in ours and node.status.node_info.container_runtime_version.startswith("containerd://1.")
    ]
    if not old:
        return []
    return [
        _warning(
            "runtime",
            f"containerd 1 on {listed(old)} gives containers their GPUs only where CDI is switched on.",
            'Set enable_cdi = true in section plugins."io.containerd.grpc.v1.cri" of config.toml, or use containerd 2.',
        )
    ]


def _classes(found: Installation) -> list[CheckFinding]:
    published = [OfDriver(each.spec.driver, device) for each in found.slices for device in each.spec.devices]
    by_fault: dict[ClassFault, list[str]] = {}
    for each in found.classes:
        if fault := class_fault(each, published):
            by_fault.setdefault(fault, []).append(each.metadata.name)
    return [
        _warning(
            "class", f"DeviceClass {listed(sorted(names))}: {fault.cause}.", f"{fault.fix[0].upper()}{fault.fix[1:]}."
        )
        for fault, names in by_fault.items()
    ]


def _maintenance(found: Installation, now: datetime) -> list[CheckFinding]:
    """Requests that need somebody's help; a request blocked only recently may still recover."""
    findings = []
    for each in sorted(found.maintenances, key=lambda request: request.metadata.name):
        name, said = each.metadata.name, find_condition(each.status.conditions, CONDITION_BLOCKED)
        if each.status.phase is MaintenancePhase.FAILED:
            message = f"DeviceMaintenance {name} has failed: {each.status.message}"
            findings.append(_warning("request", message, f"See what to do: draco maintain status {name}"))
        elif said is not None and said.status == "True" and _lasts(said, now):
            message = f"DeviceMaintenance {name} cannot continue: {said.message}"
            findings.append(_failed("request", message, f"See all of it: draco maintain status {name}"))
    return findings


def _lasts(said: Condition, now: datetime) -> bool:
    return said.last_transition_time is not None and now - said.last_transition_time >= _TRANSIENT


def _ok(about: str, message: str) -> CheckFinding:
    return CheckFinding(about=about, verdict=Verdict.OK, message=message)


def _failed(about: str, message: str, remedy: str) -> CheckFinding:
    return CheckFinding(about=about, verdict=Verdict.FAILED, message=message, remedy=remedy)


def _warning(about: str, message: str, remedy: str = "") -> CheckFinding:
    return CheckFinding(about=about, verdict=Verdict.WARNING, message=message, remedy=remedy)
