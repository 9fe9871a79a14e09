from collections.abc import Callable, Sequence

import msgspec
import pytest
from rich.console import Console

from draco.allocation.fleet.hardware import PoolHardware
from draco.cli.status import screen as status_screen
from draco.maintenance.taint_rules import fence_for, plan_extensions
from draco.overview.snapshot import Snapshot
from draco.overview.status import claim_state, status_of
from draco.overview.status_schema import ClaimState, ClusterStatus, DeviceCounts, DeviceState, MissingView
from draco.resources.api.core import PodResourceClaimStatus, PodStatus
from draco.resources.api.draco import GpuNode, MigPolicyStatus
from draco.resources.api.maintenance import MaintenancePhase
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import Counter, CounterSet, Device, DeviceCounterConsumption, ResourceSlice
from draco.resources.api.taints import DeviceTaint, DeviceTaintSelector
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import NVIDIA_DRIVER, Autoscaler, DeviceKey, PoolKey
from tests.builders import (
    MOMENT,
    a_claim,
    a_device,
    a_gpu_node,
    a_maintenance,
    a_mig_policy,
    a_node,
    a_pod,
    a_rule,
    a_slice,
    called_lost,
)


def state_of(snapshot: Snapshot, device: str = "gpu-0") -> DeviceState:
    return next(view.state for view in status_of(snapshot).device_list if view.device == device)


def test_a_device_nobody_holds_is_free() -> None:
    assert state_of(Snapshot(nodes=[a_node()], slices=[a_slice()])) is DeviceState.FREE


def test_an_allocated_device_is_in_use_by_its_claim() -> None:
    status = status_of(Snapshot(nodes=[a_node()], slices=[a_slice()], claims=[a_claim("train", on=["node-0/gpu-1"])]))
    free, used = status.device_list
    assert (free.state, used.state) == (DeviceState.FREE, DeviceState.IN_USE)
    assert used.claims == ["default/train"]


def a_divided_gpu() -> list[ResourceSlice]:
    """A GPU with two halves, published whole and divided, with its counters in a separate slice."""
    halves = {"memory-slice-0": Counter(value="1"), "memory-slice-1": Counter(value="1")}

    def drawing(name: str, *taken: str) -> Device:
        draws = DeviceCounterConsumption(counter_set="gpu-0", counters={one: halves[one] for one in taken})
        return a_device(name, consumes_counters=[draws])

    devices = [drawing("gpu-0", *halves), drawing("left", "memory-slice-0"), drawing("right", "memory-slice-1")]
    total = CounterSet(name="gpu-0", counters=halves)
    return [a_slice(devices=devices, of=2), a_slice(devices=[], of=2, name="counters", shared_counters=[total])]


@pytest.mark.parametrize(
    ("held", "free", "blocked", "in_use"),
    [
        ("left", ["right"], [], ["gpu-0", "left"]),
        ("gpu-0", [], ["left", "right"], ["gpu-0"]),
        ("", ["gpu-0", "left", "right"], [], []),
    ],
)
def test_a_whole_is_in_use_with_any_part_and_what_others_use_up_is_blocked(
    held: str, free: list[str], blocked: list[str], in_use: list[str]
) -> None:
    claims = [a_claim(on=[f"node-0/{held}"])] if held else []
    status = status_of(Snapshot(nodes=[a_node()], slices=a_divided_gpu(), claims=claims))
    states = {state: [view.device for view in status.device_list if view.state is state] for state in DeviceState}
    assert (states[DeviceState.FREE], states[DeviceState.BLOCKED]) == (free, blocked)
    assert states[DeviceState.IN_USE] == in_use
    assert (status.devices.blocked, status.devices.in_use) == (len(blocked), len(in_use))


def test_a_device_is_blocked_if_several_in_use_together_leave_too_little_of_a_counter() -> None:
    def drawing(name: str, cores: int) -> Device:
        draws = DeviceCounterConsumption(counter_set="die", counters={"cores": Counter(value=str(cores))})
        return a_device(name, consumes_counters=[draws])

    total = CounterSet(name="die", counters={"cores": Counter(value="3")})
    slices = [
        a_slice(devices=[drawing("a", 1), drawing("b", 1), drawing("c", 1), drawing("two", 2)], of=2),
        a_slice(devices=[], of=2, name="counters", shared_counters=[total]),
    ]
    snapshot = Snapshot(nodes=[a_node()], slices=slices, claims=[a_claim(on=["node-0/a", "node-0/b"])])
    assert (state_of(snapshot, "c"), state_of(snapshot, "two")) == (DeviceState.FREE, DeviceState.BLOCKED)


def test_looking_at_a_partition_as_an_administrator_blocks_nobody() -> None:
    claims = [a_claim(on=["node-0/gpu-0"], admin_access=True)]
    status = status_of(Snapshot(nodes=[a_node()], slices=a_divided_gpu(), claims=claims))
    assert (status.devices.free, status.devices.blocked) == (3, 0)


def test_admin_access_takes_nothing_from_anyone() -> None:
    snapshot = Snapshot(nodes=[a_node()], slices=[a_slice()], claims=[a_claim(on=["node-0/gpu-0"], admin_access=True)])
    assert state_of(snapshot) is DeviceState.FREE


@pytest.mark.parametrize(
    ("effect", "state"),
    [
        ("NoSchedule", DeviceState.TAINTED),
        ("NoExecute", DeviceState.TAINTED),
        ("None", DeviceState.FREE),
        ("SomethingNew", DeviceState.FREE),
    ],
)
def test_a_taint_of_the_slice_counts_when_its_effect_keeps_claims_away(effect: str, state: DeviceState) -> None:
    device = a_device("gpu-0", taints=[DeviceTaint(key="example.com/hot", effect=effect)])
    status = status_of(Snapshot(nodes=[a_node()], slices=[a_slice(devices=[device])]))
    assert status.device_list[0].state is state
    assert status.device_list[0].taints == [f"example.com/hot:{effect}"]


def test_a_device_that_draco_allocates_is_free_or_in_use_like_any_other() -> None:
    devices = [
        a_device(name, taints=[DeviceTaint(key="draco.dev/operator-allocated", effect="NoSchedule")])
        for name in ("gpu-0", "gpu-1")
    ]
    claims = [a_claim("train", on=["node-0/gpu-0"], reserved_for=["train"])]
    status = status_of(Snapshot(nodes=[a_node()], slices=[a_slice(devices=devices)], claims=claims))
    assert [view.state for view in status.device_list] == [DeviceState.IN_USE, DeviceState.FREE]
    assert status.device_list[1].taints == ["draco.dev/operator-allocated:NoSchedule"]


def test_a_tainted_device_in_use_says_both() -> None:
    view = status_of(
        Snapshot(
            nodes=[a_node()],
            slices=[a_slice(devices=["gpu-0"])],
            claims=[a_claim("train", on=["node-0/gpu-0"])],
            rules=[a_rule(pool="node-0", device="gpu-0")],
        )
    ).device_list[0]
    assert (view.state, view.claims, view.taints) == (
        DeviceState.TAINTED,
        ["default/train"],
        ["example.com/broken:NoSchedule"],
    )


TAINTED_PHASES = (
    MaintenancePhase.ISOLATED,
    MaintenancePhase.DRAINING,
    MaintenancePhase.IN_MAINTENANCE,
    MaintenancePhase.VERIFYING,
    MaintenancePhase.FAILED,
)


@pytest.mark.parametrize("phase", TAINTED_PHASES)
def test_a_device_under_maintenance_names_the_request(phase: MaintenancePhase) -> None:
    snapshot = Snapshot(
        nodes=[a_node()],
        slices=[a_slice()],
        rules=[a_rule(pool="node-0", device="gpu-0")],
        maintenances=[a_maintenance("swap-fan", phase=phase, devices=["node-0/gpu-0"])],
    )
    view = status_of(snapshot).device_list[0]
    assert (view.state, view.maintenance) == (DeviceState.MAINTENANCE, "swap-fan")


@pytest.mark.parametrize("phase", [None, *(phase for phase in MaintenancePhase if phase not in TAINTED_PHASES)])
def test_a_request_that_holds_no_device_leaves_it_free(phase: MaintenancePhase | None) -> None:
    snapshot = Snapshot(
        nodes=[a_node()], slices=[a_slice()], maintenances=[a_maintenance(phase=phase, devices=["node-0/gpu-0"])]
    )
    assert state_of(snapshot) is DeviceState.FREE


def test_an_unhealthy_gpu_is_found_through_its_node_report() -> None:
    snapshot = Snapshot(
        nodes=[a_node()], slices=[a_slice()], gpu_nodes=[a_gpu_node(gpus={"gpu-0": "Unhealthy", "gpu-1": "Unknown"})]
    )
    status = status_of(snapshot)
    assert [view.state for view in status.device_list] == [DeviceState.UNHEALTHY, DeviceState.FREE]
    assert status.device_list[1].health == "Unknown"


def test_the_report_of_one_driver_says_nothing_about_anothers_device_of_the_same_name() -> None:
    snapshot = Snapshot(
        nodes=[a_node()],
        slices=[a_slice(driver="gpu.example.com")],
        gpu_nodes=[a_gpu_node(gpus={"gpu-0": "Unhealthy"})],
    )
    assert state_of(snapshot) is DeviceState.FREE


def test_devices_of_a_node_that_is_not_ready_are_offline() -> None:
    snapshot = Snapshot(nodes=[a_node(ready=False)], slices=[a_slice()])
    assert state_of(snapshot) is DeviceState.OFFLINE
    assert not status_of(snapshot).nodes[0].ready


def test_devices_of_no_node_are_listed_under_no_name_and_stay_usable() -> None:
    status = status_of(Snapshot(slices=[a_slice("", pool="network", all_nodes=True)]))
    assert [(node.name, node.devices.free) for node in status.nodes] == [("", 2)]


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old = a_slice(devices=["gpu-0", "gpu-1", "gpu-2"], generation=1)
    new = a_slice(devices=["gpu-0"], generation=2)
    assert status_of(Snapshot(nodes=[a_node()], slices=[old, new])).devices.total == 1


def test_pools_of_two_drivers_with_one_name_are_two_pools() -> None:
    slices = [a_slice(generation=7), a_slice(driver="gpu.example.com", generation=1)]
    assert status_of(Snapshot(nodes=[a_node()], slices=slices)).devices.total == 4


def test_who_publishes_under_another_nodes_name_hides_nothing_and_is_named() -> None:
    intruder = a_slice("node-b", ["gpu-0"], pool="node-a", name="x", generation=10**9)
    status = status_of(Snapshot(nodes=[a_node("node-a"), a_node("node-b")], slices=[a_slice("node-a"), intruder]))
    assert [(view.node, view.device) for view in status.device_list] == [
        ("node-a", "gpu-0"),
        ("node-a", "gpu-1"),
        ("node-b", "gpu-0"),
    ]
    (warning,) = status.warnings
    assert warning == (
        "Pool gpu.nvidia.com/node-a of node node-a is published for node node-b too, by slice x: where both have a device of the "
        "same name, only one of the two can be allocated. Delete that slice and find out who writes it."
    )


def test_an_incomplete_pool_is_a_warning() -> None:
    warnings = status_of(Snapshot(nodes=[a_node()], slices=[a_slice(of=2)])).warnings
    assert warnings == [
        (
            "Pool gpu.nvidia.com/node-0 is incomplete: 1 of 2 slices; the scheduler allocates nothing from it until "
            "its driver has published the rest."
        )
    ]


def test_states_add_up_to_the_total() -> None:
    counts = status_of(
        Snapshot(
            nodes=[a_node("node-0"), a_node("node-1", ready=False)],
            slices=[a_slice("node-0", [f"gpu-{i}" for i in range(5)]), a_slice("node-1", ["gpu-0"])],
            claims=[a_claim(on=["node-0/gpu-1"])],
            rules=[a_rule(pool="node-0", device="gpu-2")],
            maintenances=[a_maintenance(phase=MaintenancePhase.IN_MAINTENANCE, devices=["node-0/gpu-3"])],
            gpu_nodes=[a_gpu_node("node-0", gpus={"gpu-4": "Unhealthy"})],
        )
    ).devices
    assert counts == DeviceCounts(total=6, free=1, in_use=1, tainted=1, maintenance=1, unhealthy=1, offline=1)


@pytest.mark.parametrize(
    ("claim", "state"),
    [
        (a_claim(), ClaimState.PENDING),
        (a_claim(on=["node-0/gpu-0"]), ClaimState.ALLOCATED),
        (a_claim(on=["node-0/gpu-0"], reserved_for=["pod"]), ClaimState.RESERVED),
        (a_claim(on=["node-0/gpu-0"], reserved_for=["pod"], deleting=True), ClaimState.DELETING),
    ],
)
def test_a_claims_state_is_how_far_it_has_come(claim, state) -> None:  # type: ignore[no-untyped-def]
    assert claim_state(claim) is state


def test_a_pending_claim_names_the_pods_that_wait_for_it() -> None:
    made = PodStatus(resource_claim_statuses=[PodResourceClaimStatus(name="own", resource_claim_name="pod-2-own-x7")])
    pods = [
        a_pod("pod-10", claims=["shared"]),
        a_pod("pod-2", claims=["shared"], templates=["own"], status=made),
        a_pod("placed", claims=["shared"], node="node-0"),
        a_pod("elsewhere", namespace="team-b", claims=["shared"]),
    ]
    claims = [a_claim("shared"), a_claim("pod-2-own-x7"), a_claim("nobody")]
    status = status_of(Snapshot(claims=claims, pods=pods))
    assert {view.name: view.waiting for view in status.claim_list} == {
        "shared": ["pod-2", "pod-10"],
        "pod-2-own-x7": ["pod-2"],
        "nobody": [],
    }
    assert (status.claims.pending, status.claims.unused) == (3, 1)


def test_nobody_waits_for_a_claim_that_is_allocated() -> None:
    snapshot = Snapshot(claims=[a_claim("held", on=["node-0/gpu-0"])], pods=[a_pod(claims=["held"])])
    assert status_of(snapshot).claim_list[0].waiting == []
    assert status_of(snapshot).claims.unused == 0


def test_what_could_not_be_read_is_a_warning() -> None:
    assert "Pods are not shown." in status_of(Snapshot(unread=["Pods are not shown."])).warnings


def test_a_namespace_narrows_the_claims_but_not_what_devices_are_in_use_for() -> None:
    claims = [a_claim("mine"), a_claim("theirs", namespace="team-b", on=["node-0/gpu-0"])]
    status = status_of(Snapshot(nodes=[a_node()], slices=[a_slice()], claims=claims), namespace="default")
    assert [view.name for view in status.claim_list] == ["mine"]
    assert status.claims.total == 1
    assert status.devices.in_use == 1


@pytest.mark.parametrize(
    ("selector", "devices"),
    [
        ({"driver": "gpu.nvidia.com"}, 4),
        ({"pool": "node-1"}, 2),
        ({"pool": "node-1", "device": "gpu-1"}, 1),
        ({"driver": "gpu.example.com"}, 0),
        ({}, 4),
    ],
)
def test_a_rule_hits_what_its_selector_names(selector: dict[str, str], devices: int) -> None:
    snapshot = Snapshot(
        nodes=[a_node("node-0"), a_node("node-1")],
        slices=[a_slice("node-0"), a_slice("node-1")],
        rules=[a_rule(**selector)],
    )
    assert len(status_of(snapshot).taint_rules[0].devices) == devices


def test_a_rule_without_selector_hits_nothing() -> None:
    rule = a_rule()
    rule = msgspec.structs.replace(rule, spec=msgspec.structs.replace(rule.spec, device_selector=None))
    status = status_of(Snapshot(nodes=[a_node()], slices=[a_slice()], rules=[rule]))
    assert status.taint_rules[0].devices == []
    assert status.devices.free == 2
    [warning] = status.warnings
    assert "kube-scheduler up to 1.37 keeps new claims off every device (kubernetes#141620)" in warning


def test_a_rule_with_an_empty_selector_is_a_warning() -> None:
    assert status_of(Snapshot(rules=[a_rule("oops")])).warnings == [
        "DeviceTaintRule oops has an empty selector: it taints every device of the cluster."
    ]


def test_a_fenced_node_is_a_warning() -> None:
    gpu_node = GpuNode(metadata=ObjectMeta(name="node-7", uid="u"))
    fence = fence_for(gpu_node, PoolKey(NVIDIA_DRIVER, "node-7"))
    assert status_of(Snapshot(rules=[fence])).warnings == [
        "Node node-7 is fenced: its agent does not renew its lease, so no new claim gets a GPU there. See the agent's pod."
    ]


def test_a_node_is_known_by_its_gpunode_though_nothing_of_it_is_published() -> None:
    lost, ready = called_lost(a_gpu_node("node-7", gpus=8)), a_gpu_node("node-8")
    nodes = [a_node("node-7"), a_node("node-8"), a_node("node-9")]
    status = status_of(Snapshot(nodes=nodes, gpu_nodes=[lost, ready], slices=[a_slice("node-8")]))
    assert [(each.name, each.gpus, each.agent) for each in status.nodes] == [
        ("node-7", 8, "AgentLost"),
        ("node-8", 2, ""),
        ("node-9", None, ""),
    ]
    assert status.warnings == ["Node node-7: none of its 8 GPUs is published. The agent has not renewed its lease."]
    fenced = Snapshot(nodes=nodes, gpu_nodes=[lost], slices=[a_slice("node-7")])
    assert status_of(fenced).warnings == [], "its devices are shown, and that they are fenced"


def test_a_rule_hits_a_claim_whose_device_is_no_longer_published() -> None:
    snapshot = Snapshot(claims=[a_claim("train", on=["node-9/gpu-0"])], rules=[a_rule(pool="node-9")])
    rule = status_of(snapshot).taint_rules[0]
    assert (rule.devices, rule.claims) == ([], ["default/train"])


def test_devices_and_nodes_are_in_the_order_a_person_counts() -> None:
    names = [f"node-{i}" for i in (10, 2, 1)]
    slices = [a_slice(name, [f"gpu-{i}" for i in (10, 9, 1)]) for name in names]
    status = status_of(Snapshot(nodes=[a_node(name) for name in names], slices=slices))
    assert [node.name for node in status.nodes] == ["node-1", "node-2", "node-10"]
    assert [view.device for view in status.device_list[:3]] == ["gpu-1", "gpu-9", "gpu-10"]


def test_the_json_document_names_its_schema_and_leaves_no_field_out() -> None:
    missing = MissingView(name="DeviceTaintRule", consequence="No rules.", remedy="Turn the gate on.")
    status = status_of(
        Snapshot(nodes=[a_node()], slices=[a_slice(devices=["gpu-0"])], missing=[missing]), server="https://x"
    )
    document = msgspec.json.decode(msgspec.json.encode(status))
    assert document["schema"] == "draco.dev/status/v1"
    assert set(document) == {
        "schema", "server", "namespace", "devices", "claims", "nodes", "deviceList", "claimList", "taintRules", "maintenance",
        "budgets", "migPolicies", "sharingPolicies", "limits", "reservations",
        "missing", "warnings",
    }  # fmt: skip
    assert document["deviceList"] == [
        {
            "driver": "gpu.nvidia.com",
            "pool": "node-0",
            "device": "gpu-0",
            "node": "node-0",
            "product": "NVIDIA H100 80GB HBM3",
            "state": "free",
            "claims": [],
            "claimsOnParts": [],
            "taints": [],
            "maintenance": "",
            "maintenancePhase": "",
            "health": "",
            "message": "",
        }
    ]
    assert document["devices"]["inUse"] == 0


@pytest.mark.parametrize(
    ("generation", "observed", "deleted", "said"),
    [
        (2, 2, False, "3 GPUs set up as the policy asks."),
        (2, 1, False, "The operator has not processed its last change yet; is it running?"),
        (1, 0, False, "The operator has not processed it yet; is it running?"),
        (2, 2, True, "It is being deleted."),
    ],
)
def test_a_policy_says_what_the_operator_does_or_that_it_says_nothing_yet(
    generation: int, observed: int, deleted: bool, said: str
) -> None:
    policy = a_mig_policy()
    meta = msgspec.structs.replace(
        policy.metadata, generation=generation, deletion_timestamp=MOMENT if deleted else None
    )
    status = MigPolicyStatus(observed_generation=observed, message="3 GPUs set up as the policy asks.")
    (view,) = status_of(
        Snapshot(mig_policies=[msgspec.structs.replace(policy, metadata=meta, status=status)])
    ).mig_policies
    assert view.message == said


PARTS = [f"gpu-0-mig-1g10gb-19-{start}" for start in range(7)]


def test_a_gpu_is_in_use_by_the_claims_on_its_partitions_even_on_one_published_no_more() -> None:
    claims = [a_claim(f"tenant-{n}", on=[f"node-0/{PARTS[n]}"]) for n in range(3)]
    status = status_of(
        Snapshot(nodes=[a_node()], slices=[a_slice(devices=["gpu-0", "gpu-1", *PARTS[:2]])], claims=claims)
    )
    views = {view.device: view for view in status.device_list}
    assert (views["gpu-0"].state, views["gpu-0"].claims) == (DeviceState.IN_USE, [])
    assert views["gpu-0"].claims_on_parts == ["default/tenant-0", "default/tenant-1", "default/tenant-2"]
    assert views["gpu-1"].state is DeviceState.FREE


def test_a_partition_of_a_gpu_that_is_held_whole_is_blocked_without_any_counter() -> None:
    status = status_of(
        Snapshot(nodes=[a_node()], slices=[a_slice(devices=["gpu-0", *PARTS])], claims=[a_claim(on=["node-0/gpu-0"])])
    )
    assert {view.state for view in status.device_list if view.device != "gpu-0"} == {DeviceState.BLOCKED}


def test_a_rule_on_a_gpu_hits_its_partitions_and_their_claims_and_says_which_rules_are_its_own() -> None:
    rule = a_rule("broken", driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0")
    slices = [a_slice(devices=["gpu-0", "gpu-1", *PARTS])]
    made = plan_extensions(rule, (), PoolHardware(slices), kind=TAINT_RULES[0]).apply
    claims = [a_claim("tenant", on=[f"node-0/{PARTS[3]}"])]
    status = status_of(Snapshot(nodes=[a_node()], slices=slices, claims=claims, rules=[rule, *made]))
    views = {view.name: view for view in status.taint_rules}
    assert len(views["broken"].devices) == 8
    assert (views["broken"].claims, views["broken"].extends) == (["default/tenant"], "")
    assert {view.extends for view in views.values()} == {"", "broken"}
    text, wide = (shown(status, show) for show in (status_screen.show, status_screen.show_wide))
    assert "7 rules of DeviceMaintenances and of Draco's extensions" in text
    assert "draco-extension-" not in text
    assert wide.count("draco-extension-") == 7


def shown(status: ClusterStatus, show: Callable[[ClusterStatus, Console], None]) -> str:
    console = Console(width=10_000)
    with console.capture() as capture:
        show(status, console)
    return capture.get()


def waiting(*, tainted: bool = True, held: bool = False, autoscalers: Sequence[Autoscaler] = ()) -> list[str]:
    """The warnings about a waiting pod, beside two GPUs of which one may be tainted, and held."""
    taints = [DeviceTaint(key="example.com/broken", effect="NoSchedule")] if tainted else []
    claims = [a_claim("more"), *([a_claim("train", on=["node-0/gpu-0"])] if held else [])]
    snapshot = Snapshot(
        nodes=[a_node()],
        slices=[a_slice(devices=[a_device("gpu-0", taints=taints), a_device("gpu-1")])],
        claims=claims,
        pods=[a_pod("newcomer", claims=["more"])],
        autoscalers=autoscalers,
    )
    return status_of(snapshot).warnings


def test_a_tainted_device_that_looks_free_to_an_autoscaler_is_a_warning_while_pods_wait() -> None:
    [karpenter, other] = waiting(autoscalers=list(Autoscaler))
    assert karpenter == (
        "1 pod waits for devices, and Karpenter may add no node: 1 tainted device (gpu-0 of node-0) looks free to it, because "
        "it knows no taints of devices. `draco explain` says what a pod lacks; add a node yourself, or return it to service."
    )
    assert "Cluster Autoscaler may add no node" in other
    assert "reads no taint rules" in other


def test_nothing_is_said_of_autoscalers_where_none_is_misled() -> None:
    assert waiting(autoscalers=[]) == []
    assert waiting(tainted=False, autoscalers=list(Autoscaler)) == []
    assert waiting(held=True, autoscalers=list(Autoscaler)) == []
    nobody = Snapshot(
        nodes=[a_node()],
        slices=[a_slice()],
        claims=[a_claim("more")],
        rules=[a_rule("broken", driver=NVIDIA_DRIVER)],
        autoscalers=list(Autoscaler),
    )
    assert status_of(nobody).warnings == []


def test_rules_for_single_devices_make_work_that_grows_with_the_fleet_and_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[DeviceKey] = []
    matches = DeviceTaintSelector.matches

    def counted(self: DeviceTaintSelector, device: DeviceKey) -> bool:
        asked.append(device)
        return matches(self, device)

    monkeypatch.setattr(DeviceTaintSelector, "matches", counted)

    def comparisons(nodes: int) -> int:
        asked.clear()
        names = [f"node-{number}" for number in range(nodes)]
        each = [
            a_rule(f"{name}-{device}", driver=NVIDIA_DRIVER, pool=name, device=device)
            for name in names
            for device in ("gpu-0", "gpu-1")
        ]
        claims = [a_claim(name, on=[f"{name}/gpu-0"]) for name in names]
        status = status_of(
            Snapshot(nodes=[a_node(n) for n in names], slices=[a_slice(n) for n in names], rules=each, claims=claims)
        )
        assert (status.devices.tainted, {len(rule.devices) for rule in status.taint_rules}) == (2 * nodes, {1})
        return len(asked)

    assert comparisons(12) <= 2 * comparisons(6)


def test_a_pool_that_claims_have_devices_of_and_nobody_publishes_is_a_warning() -> None:
    held = a_claim("train", on=["node-0/gpu-0"])
    (warning,) = status_of(Snapshot(nodes=[a_node()], claims=[held])).warnings
    assert warning == (
        "Pool gpu.nvidia.com/node-0 is not published, and 1 claim (default/train) has devices of it: see the log of driver "
        "gpu.nvidia.com there; the API server may refuse its slices."
    )
    assert status_of(Snapshot(nodes=[a_node()], slices=[a_slice()], claims=[held])).warnings == []


def test_pods_that_cannot_start_with_what_their_claims_have_are_named_together() -> None:
    pods = [a_pod(name, claims=[name], node="node-0") for name in ("late", "later")]
    claims = [a_claim(name, on=[f"node-0/gpu-{number}"]) for number, name in enumerate(("late", "later"))]
    nodes = [a_node(), a_node("node-1")]
    (warning,) = status_of(
        Snapshot(nodes=nodes, slices=[a_slice("node-1")], claims=claims, pods=pods, gpu_nodes=[a_gpu_node()])
    ).warnings
    assert warning == (
        "Pod default/late cannot start on node-0: driver gpu.nvidia.com publishes nothing on node-0 now; start the driver there, "
        "or delete the pod, so that its claim is allocated again. The same holds for default/later."
    )
    starting = Snapshot(nodes=nodes, slices=[a_slice(), a_slice("node-1")], claims=claims, pods=pods)
    assert status_of(starting).warnings == []
    tainted = msgspec.structs.replace(starting, rules=[a_rule("broken", pool="node-0", device="gpu-1")])
    (warning,) = status_of(tainted).warnings
    assert warning == (
        "Pod default/later cannot start on node-0: gpu.nvidia.com/node-0/gpu-1 has been tainted with "
        "example.com/broken:NoSchedule; lift the taint, or delete the pod, so that its claim is allocated again."
    )
