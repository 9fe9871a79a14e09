"""Whether Draco works: what each finding is based on, and that its sentence names the fix."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.overview.installation import CheckFinding, Installation, RuntimeNode, Verdict, Workload, check
from draco.overview.status_schema import MissingView
from draco.resources.api.claims import DeviceClass
from draco.resources.api.core import Lease
from draco.resources.api.draco import GpuNode, GpuNodeStatus
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import Condition, micro_time
from tests.builders import a_maintenance, a_slice

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def operator(*, ready: int = 2, wanted: int = 2) -> Workload:
    found = {
        "metadata": {"name": "o", "namespace": "system"},
        "spec": {"replicas": wanted},
        "status": {"readyReplicas": ready},
    }
    return msgspec.convert(found, Workload)


def agents(*, ready: int = 2, wanted: int = 2) -> Workload:
    status = {"desiredNumberScheduled": wanted, "numberReady": ready}
    return msgspec.convert({"metadata": {"name": "a", "namespace": "system"}, "status": status}, Workload)


def lease(*, namespace: str = "system", age_s: float = 1.0, holder: str = "replica-1") -> Lease:
    renewed = micro_time(NOW - timedelta(seconds=age_s))
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    return msgspec.convert({"metadata": {"name": "draco-operator", "namespace": namespace}, "spec": spec}, Lease)


def gpu_node(name: str, status: str = "True", message: str = "") -> GpuNode:
    ready = {"type": "Ready", "status": status, "reason": "x", "message": message}
    return msgspec.convert({"metadata": {"name": name}, "status": {"conditions": [ready]}}, GpuNode)


def node(name: str, runtime: str) -> RuntimeNode:
    return msgspec.convert(
        {"metadata": {"name": name}, "status": {"nodeInfo": {"containerRuntimeVersion": runtime}}}, RuntimeNode
    )


def findings(**changes: Any) -> list[CheckFinding]:
    healthy: dict[str, Any] = {
        "minor": 36,
        "absent_kinds": [],
        "missing": [],
        "operators": [operator()],
        "agents": [agents()],
        "leases": [lease()],
        "slices": [a_slice("node-1", ["gpu-0", "gpu-1"])],
        "gpu_nodes": [gpu_node("node-1")],
        "nodes": [node("node-1", "containerd://2.1.4")],
    }
    return check(Installation(**{**healthy, **changes}), now=NOW).findings


def trouble(**changes: Any) -> list[CheckFinding]:
    return [each for each in findings(**changes) if each.verdict is not Verdict.OK]


def test_all_is_well() -> None:
    assert trouble() == []
    said = {each.about: each.message for each in findings()}
    assert said["devices"] == "1 node publishes 2 devices."
    assert said["leader"] == "replica-1 leads."


@pytest.mark.parametrize(
    ("changes", "about", "sentence", "remedy"),
    [
        ({"absent_kinds": ["GpuNode"]}, "kinds", "does not know GpuNode", "crds.enabled=true"),
        ({"operators": [operator(ready=1)]}, "operator", "1 of 2 replicas is ready", "kubectl describe pods -n system"),
        (
            {"operators": [operator(ready=0, wanted=0)], "leases": []},
            "operator",
            "Deployment o is scaled to 0 replicas",
            "kubectl scale deployment o -n system --replicas=2",
        ),
        (
            {"operators": [], "agents": [], "leases": []},
            "operator",
            "No operator is installed",
            "operator.enabled=true",
        ),
        ({"leases": []}, "leader", "No replica of the operator leads", "kubectl logs -n system"),
        ({"leases": [lease(age_s=31)]}, "leader", "No replica of the operator leads", "kubectl logs"),
        ({"leases": [lease(holder="")]}, "leader", "No replica of the operator leads", "kubectl logs"),
        (
            {"leases": [lease(), lease(namespace="other")]},
            "leader",
            "Operators lead in namespaces other, system",
            "helm list --all-namespaces",
        ),
        ({"agents": [agents(ready=0)]}, "agent", "0 of 2 agents are ready", "component=agent"),
        ({"agents": [agents(wanted=0, ready=0)]}, "agent", "No node has the labels", "kubectl label node NODE"),
        ({"slices": []}, "devices", "No node publishes devices", "agents' log"),
        (
            {"gpu_nodes": [gpu_node("node-1", "False", "NVML: no driver.")]},
            "node",
            "node-1: NVML: no driver.",
            "kubectl describe gpunode node-1",
        ),
    ],
)
def test_what_does_not_work_fails_and_names_the_fix(
    changes: dict[str, Any], about: str, sentence: str, remedy: str
) -> None:
    [found] = trouble(**changes)
    assert (found.about, found.verdict) == (about, Verdict.FAILED)
    assert sentence in found.message
    assert remedy in found.remedy


def test_an_operator_and_agents_that_run_as_processes_are_at_work() -> None:
    assert trouble(operators=[], agents=[]) == []
    said = {each.about: each.message for each in findings(operators=[], agents=[])}
    assert said["leader"] == "replica-1 leads."
    assert "agent" not in said


def test_an_operator_alone_is_at_work_before_a_driver_is() -> None:
    [found] = trouble(agents=[], gpu_nodes=[], slices=[])
    assert (found.about, found.verdict) == ("devices", Verdict.WARNING)
    assert "Install a DRA driver" in found.remedy


@pytest.mark.parametrize("name", ["SoleAllocator", "ClaimsThere"])
def test_what_an_agent_says_beside_being_ready_is_a_warning(name: str) -> None:
    conditions = [Condition(type="Ready", status="True"), Condition(type=name, status="False", message="Look at it.")]
    node = msgspec.structs.replace(gpu_node("node-0"), status=GpuNodeStatus(conditions=conditions))
    [found] = trouble(gpu_nodes=[node])
    assert (found.about, found.verdict, found.message) == ("agent", Verdict.WARNING, "node-0: Look at it.")
    lifted = [Condition(type="Ready", status="True"), Condition(type=name, status="True")]
    fine = msgspec.structs.replace(node, status=GpuNodeStatus(conditions=lifted))
    assert trouble(gpu_nodes=[fine]) == []


def test_what_operator_and_agents_say_troubles_them_is_a_warning() -> None:
    troubled = msgspec.convert(
        {
            **msgspec.to_builtins(lease()),
            "metadata": {"name": "draco-operator", "annotations": {"draco.dev/troubles": "Kopf is down.\nAnd more."}},
        },
        Lease,
    )
    unfit = [
        msgspec.structs.replace(
            gpu_node(f"node-{index}"),
            status=GpuNodeStatus(
                conditions=[
                    Condition(type="Ready", status="True"),
                    Condition(type="CertificateFit", status="False", message="It has expired; renew it."),
                ]
            ),
        )
        for index in range(5)
    ]
    found = trouble(leases=[troubled], gpu_nodes=unfit)
    assert {each.verdict for each in found} == {Verdict.WARNING}
    assert [(each.about, each.message) for each in found] == [
        ("operator", "Kopf is down."),
        ("operator", "And more."),
        ("agent", "node-0, node-1, node-2 and 2 more: It has expired; renew it."),
    ]
    ended = msgspec.structs.replace(troubled, spec=lease(age_s=60).spec)
    assert "Kopf is down." not in [each.message for each in trouble(leases=[ended])], (
        "nobody knows whether that is so still"
    )


def test_a_lease_is_alive_as_long_as_clocks_may_differ() -> None:
    assert trouble(leases=[lease(age_s=29)]) == []


def test_agents_without_an_operator_and_an_operator_without_agents_are_no_failure() -> None:
    [found] = trouble(operators=[], leases=[])
    assert (found.about, found.verdict) == ("operator", Verdict.WARNING)
    assert trouble(agents=[], gpu_nodes=[]) == []


def test_a_runtime_that_may_not_know_cdi_is_a_warning_on_nodes_with_gpus_of_ours_only() -> None:
    old = [node("node-1", "containerd://1.7.24"), node("cpu-1", "containerd://1.7.24")]
    [found] = trouble(nodes=old)
    assert (found.verdict, found.message) == (
        Verdict.WARNING,
        "containerd 1 on node-1 gives containers their GPUs only where CDI is switched on.",
    )
    assert "enable_cdi = true" in found.remedy


def test_missing_features_are_warnings() -> None:
    [found] = trouble(missing=[MissingView(name="device taints", consequence="It is so.", remedy="Do this.")])
    assert (found.verdict, found.message, found.remedy) == (Verdict.WARNING, "device taints: It is so.", "Do this.")


def device_class(name: str, expression: str, *, label: bool) -> DeviceClass:
    labels = {"draco.dev/allocator": "operator"} if label else {}
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": spec}, DeviceClass)


def test_classes_whose_claims_two_or_none_may_allocate_are_named_by_what_is_published() -> None:
    any_gpu = 'device.driver == "gpu.nvidia.com"'
    dracos = f'{any_gpu} && device.attributes["draco.dev"].?allocator.orValue("") == "operator"'
    (both, neither) = trouble(
        classes=[
            device_class("fine", dracos, label=True),
            device_class("plain", any_gpu, label=False),
            device_class("second", any_gpu, label=True),
            device_class("first", any_gpu, label=True),
            device_class("lost", dracos, label=False),
            device_class("broken", "device.(", label=True),
        ]
    )
    assert (both.verdict, neither.verdict) == (Verdict.WARNING, Verdict.WARNING)
    assert both.message.startswith("DeviceClass first, second: both Draco and kube-scheduler may allocate its claims")
    assert both.remedy == 'Add the selector device.attributes["draco.dev"].?allocator.orValue("") == "operator".'
    assert neither.message.startswith("DeviceClass lost: nobody allocates its claims")
    assert neither.remedy == "Give it the label draco.dev/allocator=operator."


def test_what_agents_do_not_know_of_their_gpus_is_said_once_for_all_nodes() -> None:
    lacking = [
        msgspec.structs.replace(
            gpu_node(f"node-{index}"),
            status=GpuNodeStatus(
                conditions=[
                    Condition(type="Ready", status="True"),
                    Condition(type="Complete", status="False", message=said),
                ]
            ),
        )
        for index, said in enumerate(
            ["gpu-0: published without memory.", "gpu-0: published without memory.\nOnly here."]
        )
    ]
    assert [(each.about, each.verdict, each.message) for each in trouble(gpu_nodes=lacking)] == [
        ("gpu", Verdict.WARNING, "node-0, node-1: gpu-0: published without memory."),
        ("gpu", Verdict.WARNING, "node-1: Only here."),
    ]


def a_blocked_request(age_s: float, *, phase: MaintenancePhase = MaintenancePhase.VERIFYING) -> DeviceMaintenance:
    since = NOW - timedelta(seconds=age_s)
    said = Condition(type="Blocked", status="True", message="No Job.", last_transition_time=since)
    request = a_maintenance(phase=phase)
    status = msgspec.structs.replace(request.status, conditions=[said], message="It failed.")
    return msgspec.structs.replace(request, status=status)


def test_a_request_that_goes_no_further_by_itself_is_found_with_its_reason() -> None:
    (found,) = trouble(maintenances=[a_blocked_request(120)])
    assert (found.verdict, found.message) == (Verdict.FAILED, "DeviceMaintenance swap-fan cannot continue: No Job.")
    assert "draco maintain status swap-fan" in found.remedy
    assert trouble(maintenances=[a_blocked_request(5), a_maintenance(phase=MaintenancePhase.VERIFYING)]) == []
    (failed,) = trouble(maintenances=[a_blocked_request(120, phase=MaintenancePhase.FAILED)])
    assert (failed.verdict, "It failed." in failed.message) == (Verdict.WARNING, True)
