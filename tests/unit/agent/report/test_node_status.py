"""What is reported about a node: GPUs, conditions, health."""

import msgspec
import pytest

from draco.agent.hardware.faults import with_fault
from draco.agent.hardware.gpus import DriverInfo, Gpu, GpuMigView, HeldInstance, Instance, UnidentifiedGpu, UnreadFact
from draco.agent.hardware.monitor import HardwareView
from draco.agent.metrics import AgentMetrics
from draco.agent.plugin.health_service import reports
from draco.agent.plugin.registration import RegistrationState
from draco.agent.report.node_status import JOINING, NodeReport, status
from draco.agent.state.facts import NodeFacts, PublishedPool, WantedNode
from draco.health.table import HealthState
from draco.kube.discovery import Features
from draco.resources.api.draco import InstanceUse, MigMode, MigState, WantedGpu
from tests.builders import MOMENT, a_gpu

DRIVER = DriverInfo("580.95.05", "13.0", "13.580.95.05")
FINE = HardwareView(driver=DRIVER, gpus=(a_gpu(1), a_gpu(0, numa_node=1)), read_at=MOMENT)


def node_report(view: HardwareView = FINE, **changes: object) -> NodeReport:
    plain: dict[str, object] = {"published": PublishedPool(3, 2), "problem": "", "recovered": True, **changes}
    of_node = {
        name: plain.pop(name) for name in ("registration", "folders_problem", "certificate_problem") if name in plain
    }
    of_node = {"registration": RegistrationState(accepted=True, error=""), **of_node}
    facts = NodeFacts(view=view, **plain)  # type: ignore[arg-type]
    return NodeReport(driver="gpu.nvidia.com", facts=facts, claims=1, **of_node)  # type: ignore[arg-type]


def conditions(of: NodeReport) -> dict[str, tuple[str, str, str]]:
    return {one.type: (one.status, one.reason, one.message) for one in status(of, generation=1).conditions}


def test_the_status_names_gpus_in_order_and_is_ready() -> None:
    said = status(node_report(), generation=4)
    assert [(gpu.device, gpu.memory, gpu.health, gpu.numa_node) for gpu in said.gpus] == [
        ("gpu-0", "81559Mi", "Healthy", 1),
        ("gpu-1", "81559Mi", "Healthy", None),
    ]
    assert (said.driver_version, said.pool_generation, said.prepared_claims, said.gpu_count) == ("580.95.05", 3, 1, 2)
    assert {one.type: one.status for one in said.conditions} == dict.fromkeys(
        ("Ready", "Readable", "Published", "Registered", "Writable", "Exclusive", "Complete"), "True"
    )
    assert {one.observed_generation for one in said.conditions} == {4}


def test_the_status_counts_what_mig_has_made_of_the_gpus() -> None:
    gpus = [gpu.uuid for gpu in FINE.gpus]
    there = [
        HeldInstance(instance=Instance(gpu=gpus[0], gi=gi, profile_id=19, start=gi, size=1), use=InstanceUse.FOREIGN)
        for gi in range(3)
    ]
    divided = GpuMigView(gpu=gpus[0], capable=True, enabled=True, held=tuple(there))
    said = status(
        node_report(divisions={gpus[0]: divided, gpus[1]: GpuMigView(gpu=gpus[1], capable=True)}), generation=1
    )
    assert (said.gpu_count, said.mig_gpu_count, said.mig_instance_count) == (2, 1, 3)
    plain = status(node_report(), generation=1)
    assert (plain.gpu_count, plain.mig_gpu_count, plain.mig_instance_count) == (2, 0, 0)


def test_a_node_whose_folders_cannot_be_written_is_not_ready_and_says_which() -> None:
    told = conditions(node_report(folders_problem="No claim can be prepared: Read-only file system (/var/run/cdi)."))
    assert told["Writable"] == (
        "False",
        "FolderRefused",
        "No claim can be prepared: Read-only file system (/var/run/cdi).",
    )
    assert told["Ready"][:2] == ("False", "FolderRefused")


FEATURES = Features(
    dra=True,
    taint_rules=None,
    partitionable_devices=True,
    binding_conditions=None,
    device_taints=None,
    device_status=None,
)


def test_whether_partitions_can_be_published_is_said_once_it_is_known_and_is_no_matter_of_being_ready() -> None:
    assert "Partitionable" not in conditions(node_report())
    assert conditions(node_report(features=FEATURES))["Partitionable"] == ("True", "CountersKept", "")
    told = conditions(node_report(features=msgspec.structs.replace(FEATURES, partitionable_devices=False)))
    assert told["Partitionable"][:2] == ("False", "CountersNotKept")
    assert "on 1.35 enable the feature gate" in told["Partitionable"][2]
    assert told["Ready"][0] == "True"
    unknown = msgspec.structs.replace(FEATURES, partitionable_devices=None)
    assert "Partitionable" not in conditions(node_report(features=unknown))


def test_whose_edits_containers_get_is_told_and_keeps_no_node_from_being_ready() -> None:
    assert "ToolkitUsed" not in conditions(node_report())
    assert conditions(node_report(edits_problem=""))["ToolkitUsed"] == ("True", "EditsTaken", "")
    told = conditions(node_report(edits_problem="It is not there."))
    assert told["ToolkitUsed"] == ("False", "OwnEdits", "It is not there.")
    assert told["Ready"][0] == conditions(node_report())["Ready"][0]


def test_a_bad_certificate_is_told_and_keeps_no_node_from_being_ready() -> None:
    assert "CertificateFit" not in conditions(node_report())
    assert conditions(node_report(certificate_problem=""))["CertificateFit"] == ("True", "Trusted", "")
    told = conditions(node_report(certificate_problem="Renew it."))
    assert (told["CertificateFit"], told["Ready"][0]) == (("False", "Unfit", "Renew it."), "True")


def test_a_driver_that_was_upgraded_and_not_loaded_again_is_told_and_the_gpus_are_as_healthy_as_before() -> None:
    said = node_report(msgspec.structs.replace(FINE, mismatch="Reload the driver."))
    told = conditions(said)
    assert told["Readable"] == ("False", "DriverMismatch", "Reload the driver.")
    assert told["Ready"] == ("False", "DriverMismatch", "Reload the driver.")
    assert {gpu.health for gpu in status(said, generation=1).gpus} == {"Healthy"}
    metrics = AgentMetrics()
    for view, expected in ((said.facts.view, 1), (FINE, 0)):
        metrics.hardware(view)
        assert metrics.registry.get_sample_value("draco_agent_driver_mismatch") == expected


def test_ready_says_everything_that_is_lacking() -> None:
    told = conditions(
        node_report(published=None, problem="No Node.", registration=RegistrationState(error="Kubelet says no."))
    )
    assert told["Published"] == ("False", "NotWritten", "No Node.")
    assert told["Registered"] == ("False", "NotAccepted", "Kubelet says no.")
    assert told["Ready"] == ("False", "NotWritten", "No Node. Kubelet says no.")


def test_gpus_that_cannot_be_read_any_more_are_unknown_not_healthy() -> None:
    stale = HardwareView(driver=DRIVER, gpus=FINE.gpus, fault="The driver is gone.", read_at=MOMENT)
    assert {gpu.health for gpu in status(node_report(stale), generation=1).gpus} == {"Unknown"}
    assert {(one.state, one.message) for one in reports(stale)} == {(HealthState.UNKNOWN, "The driver is gone.")}
    assert {one.at for one in reports(stale)} == {int(MOMENT.timestamp())}
    assert conditions(node_report(stale))["Readable"] == ("False", "Unreadable", "The driver is gone.")


def test_a_fault_is_told_also_while_the_gpus_cannot_be_read() -> None:
    sick = with_fault(a_gpu(0), "Xid79", "It has fallen off the bus.")
    view = HardwareView(driver=DRIVER, gpus=(sick, a_gpu(1)), fault="The driver is gone.", read_at=MOMENT)
    assert [(one.state, one.message) for one in reports(view)] == [
        (HealthState.UNHEALTHY, "It has fallen off the bus."),
        (HealthState.UNKNOWN, "The driver is gone."),
    ]


def test_a_call_that_hangs_is_the_reason_also_of_a_gpu_that_was_unreadable_before() -> None:
    gpu = with_fault(with_fault(a_gpu(0), "Unreadable", "It said nothing."), "DriverHangs", "It hangs.")
    [said] = reports(HardwareView(driver=DRIVER, gpus=(gpu,), read_at=MOMENT))
    assert (said.state, said.fault, said.message) == (HealthState.UNKNOWN, "DriverHangs", "It hangs.")


@pytest.mark.parametrize("first", ["DriverMismatch", "EccThreshold"])
def test_a_broken_gpu_is_unhealthy_also_while_the_driver_does_not_match(first: str) -> None:
    second = "EccThreshold" if first == "DriverMismatch" else "DriverMismatch"
    gpu = with_fault(with_fault(a_gpu(0), first, f"{first}."), second, f"{second}.")
    [said] = reports(HardwareView(driver=DRIVER, gpus=(gpu,), read_at=MOMENT))
    assert (said.state, said.fault) == (HealthState.UNHEALTHY, "EccThreshold")


def test_a_gpu_that_never_told_its_identity_is_named() -> None:
    view = HardwareView(
        driver=DRIVER, gpus=FINE.gpus, unidentified=(UnidentifiedGpu(2, "It is lost."),), read_at=MOMENT
    )
    assert conditions(node_report(view))["Readable"] == ("False", "GpuUnidentified", "GPU 2: It is lost.")


def test_an_unhealthy_gpu_is_reported_with_its_reason() -> None:
    view = HardwareView(driver=DRIVER, gpus=(with_fault(a_gpu(0), "Lost", "The GPU is lost."),), read_at=MOMENT)
    [gpu] = status(node_report(view), generation=1).gpus
    assert (gpu.health, gpu.message) == ("Unhealthy", "The GPU is lost.")


def complete(*gpus: Gpu, driver: DriverInfo = DRIVER, deaf: str = "", **changes: object) -> tuple[str, list[str]]:
    view = HardwareView(driver=driver, gpus=tuple(gpus), deaf=deaf, read_at=MOMENT)
    found, _, message = conditions(node_report(view, **changes))["Complete"]
    return found, message.splitlines()


def test_what_is_not_known_of_gpus_is_said_once_for_all_that_it_is_so_of_and_keeps_no_node_from_being_ready() -> None:
    lacking = (UnreadFact("memory", "published without memory: it has none.", lacking=True),)
    gpus = [a_gpu(minor, unread=lacking, memory_bytes=None) for minor in range(2)]
    assert complete(*gpus, a_gpu(2)) == ("False", ["gpu-0, gpu-1: published without memory: it has none."])
    said = status(node_report(HardwareView(driver=DRIVER, gpus=(gpus[0],), read_at=MOMENT)), generation=1)
    [gpu] = said.gpus
    assert (gpu.memory, gpu.health, gpu.message, gpu.notes) == ("", "Healthy", "", [lacking[0].message])
    assert {one.type for one in said.conditions if one.status == "False"} == {"Complete"}


def test_what_is_not_known_of_the_driver_is_said() -> None:
    unread = (UnreadFact("cudaDriverVersion", "published without cudaDriverVersion: it is too old."),)
    state, lines = complete(a_gpu(0), driver=DriverInfo("r590-beta", "", "", unread), deaf="It has no events.")
    assert state == "False"
    assert lines[0] == "Published without cudaDriverVersion: it is too old."
    assert lines[1].startswith("Published without driverVersion: r590-beta is no version of three numbers")
    assert lines[2] == "The agent receives no XIDs and reads the GPUs only at intervals: It has no events."
    assert status(node_report(HardwareView(driver=DriverInfo("r590-beta", "", ""))), generation=1).driver_version == (
        "r590-beta"
    )


def test_a_gpu_that_joins_its_fabric_is_said() -> None:
    assert complete(a_gpu(0, joining=True), a_gpu(1))[1] == [f"gpu-0: {JOINING}"]


def test_a_gpu_that_somebody_left_in_mig_mode_says_how_to_get_it_back() -> None:
    old = a_gpu(0, architecture="Ampere", compute_major=8)
    left = GpuMigView(gpu=old.uuid, capable=True, enabled=True)
    [note] = complete(old, divisions={old.uuid: left})[1]
    assert f"`nvidia-smi -i {old.uuid} -mig 0`" in note
    assert f"`nvidia-smi --gpu-reset -i {old.uuid}`" in note
    wanted = WantedNode(gpus={old.uuid: WantedGpu(uuid=old.uuid, policy="p", mode=MigMode.DYNAMIC)})
    assert complete(old, divisions={old.uuid: left}, wanted=wanted) == ("True", []), "its policy sees to it"
    pending = msgspec.structs.replace(left, pending=True, state=MigState.NEEDS_RESET)
    assert complete(old, divisions={old.uuid: pending}) == ("True", []), "it says itself what it waits for"
    assert complete(a_gpu(0), divisions={old.uuid: left}) == ("True", []), "a claim of all of it turns the mode off"


def test_gpus_that_can_be_given_to_nobody_are_listed() -> None:
    view = HardwareView(driver=DRIVER, unidentified=(UnidentifiedGpu(2, "No minor number.", "GPU-2"),), read_at=MOMENT)
    [one] = status(node_report(view), generation=1).unidentified
    assert (one.index, one.uuid, one.message) == (2, "GPU-2", "No minor number.")
