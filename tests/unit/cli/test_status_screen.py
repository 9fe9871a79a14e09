import io
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from rich.console import Console

from draco.cli.status.screen import MOST_CLAIMS, MOST_DEVICES, MOST_NODES, show, show_wide
from draco.cli.tables import trimmed
from draco.overview.maintenances import UNSEEN
from draco.overview.snapshot import Snapshot
from draco.overview.status import status_of
from draco.overview.status_schema import MissingView
from draco.resources.api.draco import MigPolicy, MigPolicyStatus
from draco.resources.api.limits import DeviceAmounts, DeviceLimitStatus, LimitScope, NamespaceUse
from draco.resources.api.maintenance import (
    BudgetScope,
    MaintenanceBudget,
    MaintenanceBudgetSpec,
    MaintenanceBudgetStatus,
    MaintenancePhase,
)
from draco.resources.api.meta import Condition, ObjectMeta
from draco.resources.api.reservations import DeviceReservation, DeviceReservationSpec, DeviceReservationStatus
from draco.resources.api.sharing import SharingPolicyStatus
from draco.resources.api.slices import Counter, CounterSet, DeviceCounterConsumption
from draco.resources.api.taints import DeviceTaint
from tests.builders import (
    a_budget,
    a_claim,
    a_device,
    a_gpu_node,
    a_limit,
    a_maintenance,
    a_mig_policy,
    a_node,
    a_pod,
    a_rule,
    a_sharing_policy,
    a_slice,
    a_static_policy,
    called_lost,
)


def screen(snapshot: Snapshot, *, wide: bool = False, colour: bool = False) -> str:
    output = io.StringIO()
    console = Console(
        file=output, width=180, highlight=False, force_terminal=colour, color_system="standard" if colour else None
    )
    (show_wide if wide else show)(status_of(snapshot, server="https://cluster:6443"), console)
    return output.getvalue()


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of one section's table, without its header; columns are two or more spaces apart."""
    lines = text.split(f"\n{title}\n")[1].split("\n\n", maxsplit=1)[0].splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[1:]]


A_CLUSTER = Snapshot(
    nodes=[a_node("node-0"), a_node("node-1", ready=False)],
    slices=[a_slice("node-0", ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]), a_slice("node-1", ["gpu-0"])],
    claims=[
        a_claim("train", namespace="team-a", on=["node-0/gpu-1"], reserved_for=["train-0"]),
        a_claim("waits", namespace="team-b"),
        a_claim("nobody", namespace="team-b"),
    ],
    pods=[a_pod("eval-0", namespace="team-b", claims=["waits"])],
    rules=[a_rule("bad-fan", pool="node-0", device="gpu-2")],
    maintenances=[
        a_maintenance("swap-fan", phase=MaintenancePhase.IN_MAINTENANCE, devices=["node-0/gpu-3"], pool="node-0")
    ],
    gpu_nodes=[a_gpu_node("node-0", gpus={"gpu-0": "Healthy"})],
    missing=[MissingView(name="binding conditions", consequence="Pods cannot wait.", remedy="Turn the gate on.")],
)


def test_no_line_is_padded_to_the_width_of_its_table_in_colour_either() -> None:
    lines = [trimmed(line) for line in screen(A_CLUSTER, colour=True).splitlines()]
    assert [line for line in lines if re.sub(r"\x1b\[[0-9;]*m", "", line).endswith(" ")] == []
    assert any("DETAIL\x1b" in line for line in lines)


def test_the_message_of_an_unhealthy_gpu_ends_where_the_next_reason_begins() -> None:
    node = a_gpu_node(gpus={"gpu-0": "Unhealthy"})
    lost = [msgspec.structs.replace(gpu, message="The GPU is lost; reboot the node.") for gpu in node.status.gpus]
    node = msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=lost))
    snapshot = Snapshot(nodes=[a_node()], slices=[a_slice()], gpu_nodes=[node], rules=[a_rule(device="gpu-0")])
    assert "The GPU is lost; reboot the node; " in screen(snapshot)


@pytest.mark.parametrize(
    ("taint", "said"),
    [
        ("draco.dev/xid=Xid119:NoSchedule", "fault Xid119 (draco.dev/xid:NoSchedule)"),
        ("draco.dev/thermal=ThermalSlowdown:None", "fault ThermalSlowdown, announced only"),
        ("draco.dev/row-remap=RowRemapFailed:NoSchedule", "fault RowRemapFailed (draco.dev/row-remap:NoSchedule)"),
        ("draco.dev/maintenance:NoSchedule", "draco.dev/maintenance:NoSchedule"),
        ("example.com/xid=79:NoExecute", "example.com/xid=79:NoExecute"),
    ],
)
def test_a_taint_of_a_fault_is_read_out(taint: str, said: str) -> None:
    key, _, effect = taint.rpartition(":")
    key, _, value = key.partition("=")
    device = a_device("gpu-0", taints=[DeviceTaint(key=key, value=value, effect=effect)])
    assert rows(screen(Snapshot(nodes=[a_node()], slices=[a_slice(devices=[device])])), "DEVICES")[0][-1] == said


def test_a_sick_gpu_leads_to_draco_health() -> None:
    node = a_gpu_node(gpus={"gpu-0": "Healthy", "gpu-1": "Unhealthy"})
    text = screen(Snapshot(nodes=[a_node()], slices=[a_slice()], gpu_nodes=[node]))
    assert "Since when, and what to do: draco health node-0/gpu-1" in text
    assert "draco health" not in screen(A_CLUSTER)


def test_requests_of_every_phase_say_so_at_their_devices() -> None:
    """A request that only waits takes no device out of service."""
    for phase, state, said in (
        (MaintenancePhase.REHEARSED, "free", "rehearsed, not isolated yet"),
        (MaintenancePhase.DRAINING, "maintenance", "draining"),
        (MaintenancePhase.VERIFYING, "maintenance", "verifying"),
        (MaintenancePhase.FAILED, "maintenance", "failed"),
    ):
        request = a_maintenance("swap", phase=phase, devices=["node-0/gpu-0"])
        text = screen(Snapshot(nodes=[a_node()], slices=[a_slice()], maintenances=[request]))
        assert rows(text, "DEVICES")[0][-2:] == [state, f"DeviceMaintenance swap ({said})"]
    over = a_maintenance("swap", phase=MaintenancePhase.COMPLETED, devices=["node-0/gpu-0"])
    assert rows(screen(Snapshot(nodes=[a_node()], slices=[a_slice()], maintenances=[over])), "DEVICES")[0][-1] == "free"


def test_budgets_say_what_they_allow_and_a_pause_is_a_warning() -> None:
    some = MaintenanceBudget(
        metadata=ObjectMeta(name="one-in-ten"),
        spec=MaintenanceBudgetSpec(max_percent=10, max_failed=3, device_class_name="h100", per=BudgetScope.NODE),
        status=MaintenanceBudgetStatus(devices=16, out_of_service=1, waiting=2, message="At its limit."),
    )
    paused = MaintenanceBudget(metadata=ObjectMeta(name="pause"), spec=MaintenanceBudgetSpec(paused=True))
    text = screen(Snapshot(maintenance_budgets=[paused, some]))
    limit = "at most 10 % of class h100 per node; stops after 3 failures"
    assert rows(text, "MAINTENANCE BUDGETS") == [
        ["one-in-ten", limit, "in force", "16", "1", "2", "At its limit."],
        ["pause", "-", "paused", "-", "-", "-"],
    ]
    assert "`draco maintain resume`" in text


def test_limits_show_who_is_nearest_to_them_and_how_many_claims_wait() -> None:
    used = DeviceLimitStatus(
        observed_generation=1,
        selected=2,
        namespaces=[NamespaceUse(namespace="team-a", used=DeviceAmounts(devices=3, memory="60Gi"))],
        waiting=2,
        message="At its limit.",
    )
    per_namespace = msgspec.structs.replace(a_limit("small", devices=4, memory="80Gi"), status=used)
    together = msgspec.structs.replace(
        a_limit("whole", devices=8, per=LimitScope.SELECTION),
        status=DeviceLimitStatus(observed_generation=1, selected=2, used=DeviceAmounts(devices=5)),
    )
    text = screen(Snapshot(limits=[together, per_namespace, a_limit("unseen", devices=1)]))
    assert rows(text, "DEVICE LIMITS") == [
        ["small", "Namespace", "2", "team-a", "3 of 4 devices, 60Gi of 80Gi of GPU memory", "2", "At its limit."],
        ["unseen", "Namespace", "-", "-", "-", "-", UNSEEN],
        ["whole", "Selection", "2", "-", "5 of 8 devices", "-"],
    ]


def test_reservations_show_what_they_have_in_the_namespace_that_is_asked_for() -> None:
    mine, other = (
        DeviceReservation(
            metadata=ObjectMeta(name=name, namespace=namespace, generation=1),
            spec=DeviceReservationSpec(count=4),
            status=DeviceReservationStatus(
                observed_generation=1, reserved=4, in_use=1, expires_at=datetime(2026, 5, 1, 8, tzinfo=UTC)
            ),
        )
        for name, namespace in (("night-run", "team-a"), ("elsewhere", "team-b"))
    )
    snapshot = Snapshot(reservations=[other, mine])
    expected = ["team-a", "night-run", "4", "4", "1", "2026-05-01T08:00:00+00:00"]
    assert rows(screen(snapshot), "DEVICE RESERVATIONS")[0] == expected
    assert [each.name for each in status_of(snapshot, namespace="team-b").reservations] == ["elsewhere"]


def test_the_first_lines_say_how_the_cluster_is() -> None:
    lines = [" ".join(line.split()) for line in screen(A_CLUSTER).splitlines()[:4]]
    assert lines == [
        "Cluster https://cluster:6443",
        "Nodes 2 1 ready, 1 not ready",
        "Devices 5 1 free, 1 in use, 1 tainted, 1 maintenance, 1 offline",
        "Claims 3 1 pending, 1 not used by any pod yet, 1 in use by pods",
    ]


def test_every_node_says_how_its_devices_are() -> None:
    assert rows(screen(A_CLUSTER), "NODES") == [
        ["node-0", "Ready", "4", "1", "1", "1", "1", "-", "-"],
        ["node-1", "NotReady", "1", "-", "-", "-", "-", "-", "1"],
    ]


def test_every_device_says_who_holds_it_or_what_keeps_it() -> None:
    product = "NVIDIA H100 80GB HBM3"
    assert rows(screen(A_CLUSTER), "DEVICES") == [
        ["node-0", "gpu-0", product, "free"],
        ["gpu-1", product, "in use", "claim team-a/train"],
        ["gpu-2", product, "tainted", "example.com/broken:NoSchedule"],
        ["gpu-3", product, "maintenance", "DeviceMaintenance swap-fan (in maintenance)"],
        ["node-1", "gpu-0", product, "offline"],
    ]


def test_claims_that_wait_come_first() -> None:
    assert rows(screen(A_CLUSTER), "CLAIMS") == [
        ["team-b", "waits", "pending", "eval-0 (waits)", "-"],
        ["team-b", "nobody", "pending", "none uses it yet", "-"],
        ["team-a", "train", "in use", "train-0", "node-0/gpu-1"],
        ["Why a claim is pending: kubectl events -n team-b --for resourceclaim/waits"],
    ]


def test_claims_of_one_namespace_are_said_to_be() -> None:
    output = io.StringIO()
    show(status_of(A_CLUSTER, namespace="team-a"), Console(file=output, width=180))
    assert "1 in use by pods (only namespace team-a)" in output.getvalue()


def test_a_request_that_cannot_begin_says_why() -> None:
    request = a_maintenance("swap-fan", device="gpu-9")
    stuck = msgspec.structs.replace(
        request, status=msgspec.structs.replace(request.status, message="No published device matches device gpu-9.")
    )
    assert rows(screen(Snapshot(maintenances=[stuck])), "MAINTENANCE")[:1] == [
        [
            "swap-fan",
            "Pending",
            "none",
            "0",
            "0",
            "the operator",
            "fan replacement",
            "No published device matches device gpu-9.",
        ]
    ]


def test_mig_policies_say_how_far_they_are() -> None:
    halves = with_status(a_static_policy("halves", "3g.40gb"), gpus=5, applied=2, changing=1, failed=2, message="Two.")
    text = screen(Snapshot(mig_policies=[halves, with_status(a_mig_policy("by-demand"), message="None.")]))
    assert rows(text, "MIG POLICIES")[:2] == [
        ["by-demand", "Dynamic", "-", "-", "-", "-", "None."],
        ["halves", "Static, layout", "5", "2", "1", "2", "Two."],
    ]
    assert "MIG POLICIES" not in screen(Snapshot(nodes=[a_node()]))


def test_sharing_policies_say_for_whom_they_wait() -> None:
    status = SharingPolicyStatus(observed_generation=1, gpus=3, shared=1, waiting=1, failed=1, message="For a.")
    text = screen(Snapshot(sharing_policies=[msgspec.structs.replace(a_sharing_policy("by-memory"), status=status)]))
    assert rows(text, "SHARING POLICIES")[:1] == [["by-memory", "Memory", "3", "1", "1", "1", "For a."]]
    assert "SHARING POLICIES" not in screen(Snapshot(nodes=[a_node()]))


def with_status(policy: MigPolicy, **status: Any) -> MigPolicy:
    return msgspec.structs.replace(policy, status=MigPolicyStatus(observed_generation=1, **status))


def test_devices_of_a_few_nodes_are_listed_while_they_fit_a_screen() -> None:
    names = [f"gpu-{index}" for index in range(MOST_DEVICES)]
    assert len(rows(screen(Snapshot(nodes=[a_node()], slices=[a_slice(devices=names)])), "DEVICES")) == MOST_DEVICES
    more = screen(Snapshot(nodes=[a_node()], slices=[a_slice(devices=[*names, "one-more"])]))
    assert "\nDEVICES\n" not in more
    assert rows(more, "NODES")[0][0] == "node-0"


def test_rules_say_what_they_hit_and_requests_where_they_stand() -> None:
    text = screen(A_CLUSTER)
    assert rows(text, "TAINT RULES") == [
        [
            "bad-fan",
            "example.com/broken:NoSchedule",
            "pool=node-0, device=gpu-2",
            "gpu.nvidia.com/node-0/gpu-2",
            "none",
            "none",
        ]
    ]
    assert rows(text, "MAINTENANCE") == [
        ["swap-fan", "InMaintenance", "gpu.nvidia.com/node-0/gpu-3", "0", "0", "the operator", "fan replacement"],
        ["What to do next: draco maintain status NAME"],
    ]


def test_a_rule_that_breaks_a_budget_is_pointed_out_unless_it_deletes_nothing() -> None:
    claim = a_claim("train", on=["node-0/gpu-0"], reserved_for=["train-0"])
    pod = a_pod("train-0", claims=["train"], node="node-0", labels={"app": "train"})
    for effect, is_said in (("NoExecute", True), ("None", True), ("NoSchedule", False)):
        text = screen(
            Snapshot(
                nodes=[a_node()],
                slices=[a_slice()],
                claims=[claim],
                users=[pod],
                budgets=[a_budget("train", app="train")],
                rules=[a_rule("bad-fan", effect=effect, pool="node-0", device="gpu-0")],
            )
        )
        assert rows(text, "TAINT RULES")[0][-2:] == ["default/train", "default/train-0"]
        assert ("- bad-fan: PodDisruptionBudget default/train allows fewer" in text) is is_said


def test_what_is_missing_comes_with_what_to_do() -> None:
    assert "- binding conditions: Pods cannot wait. Turn the gate on." in screen(A_CLUSTER)


def test_the_driver_is_shown_when_there_is_more_than_one() -> None:
    snapshot = Snapshot(nodes=[a_node()], slices=[a_slice(), a_slice(driver="gpu.example.com")])
    assert ["node-0", "gpu.example.com", "gpu-0", "NVIDIA H100 80GB HBM3", "free"] in rows(screen(snapshot), "DEVICES")


def test_a_cluster_without_devices_says_so() -> None:
    assert "No node publishes devices." in screen(Snapshot(nodes=[a_node()]))


def test_colour_repeats_what_the_words_say() -> None:
    plain, coloured = screen(A_CLUSTER), screen(A_CLUSTER, colour=True)
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured


def test_devices_whose_counters_are_used_up_are_blocked_and_it_is_said_where_to_look() -> None:
    draws = DeviceCounterConsumption(counter_set="gpu-0", counters={"memory": Counter(value="80Gi")})
    devices = [a_device(name, consumes_counters=[draws]) for name in ("whole", "part")]
    total = CounterSet(name="gpu-0", counters={"memory": Counter(value="80Gi")})
    claims = [a_claim("train", on=["node-0/part"])]
    text = screen(Snapshot(nodes=[a_node()], slices=[a_slice(devices=devices, shared_counters=[total])], claims=claims))
    assert "1 in use, 1 blocked" in text
    assert rows(text, "NODES") == [["node-0", "Ready", "2", "-", "1", "1", "-", "-", "-"]]
    assert rows(text, "DEVICES")[-1] == [
        "Blocked: their hardware is in use by others. How GPUs are divided: draco layout show"
    ]


def a_large_cluster() -> Snapshot:
    names = [f"node-{index}" for index in range(MOST_NODES + 1)]
    return Snapshot(
        nodes=[a_node(name) for name in names],
        slices=[a_slice(name, ["gpu-0", "gpu-1"]) for name in names],
        claims=[a_claim(f"claim-{index}") for index in range(MOST_CLAIMS + 3)],
        rules=[a_rule(pool="node-3", device="gpu-1")],
    )


def test_a_large_cluster_lists_only_devices_that_are_out_of_service() -> None:
    text = screen(a_large_cluster())
    assert rows(text, "DEVICES OUT OF SERVICE") == [
        ["node-3", "gpu-1", "NVIDIA H100 80GB HBM3", "tainted", "example.com/broken:NoSchedule"],
        ["Devices that are free or in use are counted above; list every one with -o wide."],
    ]
    assert "and 3 more" in text


def test_a_large_cluster_lists_only_nodes_that_are_not_in_order() -> None:
    assert rows(screen(a_large_cluster()), "NODES") == [
        ["node-3", "Ready", "2", "1", "-", "1", "-", "-"],
        [f"({MOST_NODES} others)", "Ready", "32", "32", "-", "-", "-", "-"],
    ]


def test_wide_lists_every_device_and_every_claim() -> None:
    text = screen(a_large_cluster(), wide=True)
    assert len(rows(text, "DEVICES")) == 2 * (MOST_NODES + 1)
    assert len(rows(text, "CLAIMS")) == MOST_CLAIMS + 3


def test_a_node_whose_agent_does_not_work_is_shown_with_that_and_without_devices_too() -> None:
    lost, silent = called_lost(a_gpu_node("node-0")), a_gpu_node("node-1")
    refused = Condition(type="Ready", status="False", reason="NotAccepted", message="Kubelet refused it.")
    silent = msgspec.structs.replace(silent, status=msgspec.structs.replace(silent.status, conditions=[refused]))
    shown = Snapshot(nodes=[a_node("node-0"), a_node("node-1")], gpu_nodes=[lost, silent], slices=[a_slice("node-1")])
    table = rows(screen(shown), "NODES")
    assert [row[:3] for row in table] == [
        ["node-0", "Ready, agent lost", "0"],
        ["node-1", "Ready, agent not ready", "2"],
    ]
