"""Opaque configurations: which one applies to a device, and what is said about one that Draco does not support."""

from typing import Any

import msgspec
import pytest

from draco.allocation.configurations import VERSION, TimeSlice, mps_settings, refusal, refused, time_slice
from draco.allocation.mps import MpsLimitsError, MpsSettings
from draco.resources.api.claims import (
    DeviceAllocationConfiguration,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    OpaqueConfiguration,
    ResourceClaim,
)
from draco.resources.names import ATTRIBUTE_MPS, NVIDIA_DRIVER
from tests.builders import a_claim

PARTITION = "gpu-0-mig-1g10gb-19-0"


def gpu_config(**sharing: Any) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": "GpuConfig", **({"sharing": sharing} if sharing else {})}


def mig_config(**sharing: Any) -> dict[str, Any]:
    return {**gpu_config(**sharing), "kind": "MigDeviceConfig"}


def mps(**config: Any) -> dict[str, Any]:
    return gpu_config(strategy="MPS", mpsConfig=config)


WRONG, SLICES = gpu_config(strategy="None"), gpu_config(strategy="TimeSlicing")
MPS = gpu_config(strategy="MPS")
LONG = gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})


@pytest.mark.parametrize(
    ("parameters", "is_partition"),
    [
        (gpu_config(), False),
        (SLICES, False),
        (SLICES, None),
        (gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Default"}), False),
        (gpu_config(strategy="TimeSlicing", timeSlicingConfig=None, mpsConfig=None), False),
        ({**gpu_config(), "sharing": None}, False),
        (mig_config(), True),
        (mig_config(strategy="TimeSlicing"), True),
        (mig_config(strategy="MPS", mpsConfig={"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"}}), True),
        (LONG, False),
        (LONG, None),
        (MPS, False),
        (MPS, None),
        (gpu_config(strategy="MPS", mpsConfig=None, timeSlicingConfig=None), False),
        (mps(defaultActiveThreadPercentage=0, defaultPinnedDeviceMemoryLimit=1 << 20, multiUser=False), False),
        (mps(defaultPerDevicePinnedMemoryLimit={"0": "1Mi", "GPU-1": "2.5Gi"}), False),
        (mps(defaultPinnedDeviceMemoryLimit=None, defaultPerDevicePinnedMemoryLimit=None, multiUser=None), False),
    ],
)
def test_time_slicing_and_mps_may_be_asked_for(parameters: Any, is_partition: bool | None) -> None:
    assert refusal(parameters, is_partition=is_partition) == ""


@pytest.mark.parametrize(
    ("parameters", "is_partition", "why"),
    [
        (
            mig_config(strategy="MPS", mpsConfig={"defaultPerDevicePinnedMemoryLimit": {"MIG-1": "1Gi"}}),
            True,
            "defaultPerDevicePinnedMemoryLimit names MIG-1: write a number, since UUIDs of MIG devices change",
        ),
        (gpu_config(strategy="MPS", timeSlicingConfig={}), False, "so sharing.timeSlicingConfig has no effect"),
        (
            mps(defaultActiveThreadPercentage=101),
            False,
            "defaultActiveThreadPercentage is 101: write a whole number from",
        ),
        (mps(defaultActiveThreadPercentage=-1), None, "defaultActiveThreadPercentage is -1: write"),
        (mps(defaultActiveThreadPercentage=12.5), False, "defaultActiveThreadPercentage is 12.5: write"),
        (mps(defaultActiveThreadPercentage=True), False, "defaultActiveThreadPercentage is True: write"),
        (mps(defaultActiveThreadPercentage="50"), False, "defaultActiveThreadPercentage is 50: write"),
        (
            mps(defaultPinnedDeviceMemoryLimit="1023Ki"),
            False,
            "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit is 1023Ki: MPS",
        ),
        (mps(defaultPinnedDeviceMemoryLimit="-1Gi"), False, "defaultPinnedDeviceMemoryLimit is -1Gi: MPS counts in Mi"),
        (mps(defaultPinnedDeviceMemoryLimit=0), False, "defaultPinnedDeviceMemoryLimit is 0: MPS counts in Mi"),
        (mps(defaultPinnedDeviceMemoryLimit="10GiB"), False, 'Limit is "10GiB" is not a quantity: write 10Gi'),
        (mps(defaultPinnedDeviceMemoryLimit=["1Gi"]), False, 'Limit is "" is not a quantity'),
        (mps(defaultPerDevicePinnedMemoryLimit=["1Gi"]), False, "defaultPerDevicePinnedMemoryLimit must be an object"),
        (mps(defaultPerDevicePinnedMemoryLimit={"0": "1Ki"}), False, "PinnedMemoryLimit[0] is 1Ki: MPS counts in Mi"),
        (mps(multiUser="yes"), False, "multiUser is yes: write true or false"),
        (mps(multiuser=True), False, "GpuConfig has no field sharing.mpsConfig.multiuser; did you mean multiUser?"),
        (gpu_config(strategy="MPS", mpsConfig=[]), False, "sharing.mpsConfig must be an object"),
        (MPS, True, "GpuConfig is not for a MIG device: write MigDeviceConfig"),
        (gpu_config(), True, "GpuConfig is not for a MIG device"),
        (mig_config(), False, "MigDeviceConfig is not for a whole GPU: write GpuConfig"),
        (
            gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "long"}),
            False,
            "there is no interval long: there are Default, Short, Medium, Long",
        ),
        (
            mig_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Default"}),
            True,
            "MigDeviceConfig has no field sharing.timeSlicingConfig; it has mpsConfig, strategy",
        ),
        (gpu_config(strategy="TimeSlicing", mpsConfig={}), False, "so sharing.mpsConfig has no effect"),
        (gpu_config(strategy="timeslicing"), False, "sharing.strategy is timeslicing: there are TimeSlicing and MPS"),
        ({**gpu_config(), "sharing": {}}, False, "sharing.strategy is missing"),
        ({**SLICES, "sharring": {}}, False, "GpuConfig has no field sharring; did you mean sharing?"),
        ({**SLICES, "Sharing": {}}, False, "GpuConfig has no field Sharing; did you mean sharing?"),
        (gpu_config(strategy="MPS", mpsConfig={"pinned": 1}), False, "GpuConfig has no field sharing.mpsConfig.pinned"),
        ({**gpu_config(), "sharing": "TimeSlicing"}, False, "sharing must be an object"),
        ({**gpu_config(), "sharing": ["TimeSlicing"]}, False, "sharing must be an object"),
        (gpu_config(strategy="TimeSlicing", timeSlicingConfig="Default"), False, "timeSlicingConfig must be an object"),
        ({"apiVersion": VERSION}, False, "it names no kind: there are GpuConfig"),
        ({"kind": ["GpuConfig"]}, False, "it names no kind: there are GpuConfig"),
        ({**gpu_config(), "kind": "GPUConfig"}, False, "there is no kind GPUConfig; did you mean GpuConfig?"),
        (
            {"kind": "HamiConfig", "apiVersion": "hami.io/v1"},
            False,
            f"NVIDIA has no kind HamiConfig of hami.io/v1: there are GpuConfig and MigDeviceConfig of {VERSION}",
        ),
        ({"kind": "GpuConfig"}, False, f"its apiVersion is missing: write {VERSION}"),
        (
            {**gpu_config(), "apiVersion": "resource.nvidia.com/v1"},
            False,
            f"its apiVersion is resource.nvidia.com/v1: write {VERSION}",
        ),
        ({**gpu_config(), "kind": "VfioDeviceConfig"}, False, "Draco gives no GPU to a virtual machine"),
        ([gpu_config()], False, "its parameters are a list"),
        ("GpuConfig", None, "its parameters are no object"),
        (None, None, "its parameters are no object"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(parameters: Any, is_partition: bool | None, why: str) -> None:
    assert why in refusal(parameters, is_partition=is_partition)


def claim(
    *configs: tuple[str, list[str], Any], device: str = "gpu-0", driver: str = NVIDIA_DRIVER, request: str = "gpu"
) -> ResourceClaim:
    """A claim with one allocated device, and configurations by source and requests."""
    made = a_claim("one", on=[f"node-0/{device}"])
    assert made.status.allocation is not None
    config = [
        DeviceAllocationConfiguration(
            source=source, requests=requests, opaque=OpaqueConfiguration(driver=driver, parameters=said)
        )
        for source, requests, said in configs
    ]
    results = [msgspec.structs.replace(each, request=request) for each in made.results]
    devices = msgspec.structs.replace(made.status.allocation.devices, results=results, config=config)
    status = msgspec.structs.replace(
        made.status, allocation=msgspec.structs.replace(made.status.allocation, devices=devices)
    )
    return msgspec.structs.replace(made, status=status)


@pytest.mark.parametrize(
    ("configs", "is_refused"),
    [
        ([("FromClass", ["gpu"], WRONG)], True),
        ([("FromClass", ["gpu"], WRONG), ("FromClaim", ["gpu"], SLICES)], False),
        ([("FromClaim", ["gpu"], SLICES), ("FromClass", ["gpu"], WRONG)], False),
        ([("FromClass", ["gpu"], SLICES), ("FromClaim", [], WRONG)], True),
        ([("FromClaim", [], WRONG), ("FromClaim", [], SLICES)], False),
        ([("FromClaim", [], SLICES), ("FromClaim", [], WRONG)], True),
        ([("FromClass", ["gpu"], WRONG), ("FromClaim", ["other"], SLICES)], True),
        ([("FromClaim", ["other"], WRONG)], False),
        ([("FromClaim", [], mig_config())], False),
        ([("FromClaim", [], mig_config(strategy="None"))], True),
        ([("FromClaim", [], {**gpu_config(), "kind": "VfioDeviceConfig"})], True),
        ([("FromClaim", ["gpu"], mig_config(strategy="TimeSlicing"))], True),
        ([("FromClass", ["gpu"], WRONG), ("FromClaim", [], mig_config())], True),
    ],
)
def test_of_several_the_last_that_is_about_the_device_counts(configs: Any, is_refused: bool) -> None:
    assert (refused(claim(*configs), NVIDIA_DRIVER) is not None) == is_refused


def test_what_is_said_to_all_devices_is_for_those_of_its_kind() -> None:
    both = claim(("FromClaim", [], SLICES), ("FromClaim", [], mig_config(strategy="None")), device="gpu-0")
    assert refused(both, NVIDIA_DRIVER) is not None, "it is for no device of the claim"
    assert both.status.allocation is not None
    partition = msgspec.structs.replace(both.results[0], request="part", device=PARTITION)
    devices = msgspec.structs.replace(both.status.allocation.devices, results=[*both.results, partition])
    allocation = msgspec.structs.replace(both.status.allocation, devices=devices)
    found = refused(
        msgspec.structs.replace(both, status=msgspec.structs.replace(both.status, allocation=allocation)), NVIDIA_DRIVER
    )
    assert found is not None
    assert found.request == "part"


def test_what_is_for_another_driver_is_nobodys_business() -> None:
    assert refused(claim(("FromClaim", [], [1]), driver="nic.example.com"), NVIDIA_DRIVER) is None
    assert refused(claim(("FromClaim", [], WRONG)), "nic.example.com") is None
    assert refused(claim(("FromClaim", [], WRONG), driver="nic.example.com"), "nic.example.com") is None, (
        "it has no device"
    )


def test_a_configuration_for_a_request_is_for_its_alternatives_too() -> None:
    for named in ("gpu", "gpu/own"):
        assert refused(claim(("FromClaim", [named], WRONG), request="gpu/own"), NVIDIA_DRIVER) is not None
    assert refused(claim(("FromClaim", ["gpu/other"], WRONG), request="gpu/own"), NVIDIA_DRIVER) is None


@pytest.mark.parametrize("request_name", ["gpu", "gpu/own"])
def test_the_class_is_named_that_says_it(request_name: str) -> None:
    made = claim(("FromClass", [request_name], WRONG), request=request_name)
    asked = (
        DeviceRequest(name="gpu", exactly=ExactDeviceRequest(device_class_name="shared-mps"))
        if request_name == "gpu"
        else DeviceRequest(name="gpu", first_available=[DeviceSubRequest(name="own", device_class_name="shared-mps")])
    )
    spec = msgspec.structs.replace(made.spec, devices=msgspec.structs.replace(made.spec.devices, requests=[asked]))
    found = refused(msgspec.structs.replace(made, spec=spec), NVIDIA_DRIVER)
    assert str(found).startswith(
        f"DeviceClass shared-mps's configuration for request {request_name} cannot be carried out, because "
    )


def test_a_partition_is_told_from_a_whole_gpu_by_its_name() -> None:
    assert refused(claim(("FromClaim", ["gpu"], SLICES), device=PARTITION), NVIDIA_DRIVER) is not None
    assert (
        refused(claim(("FromClaim", ["gpu"], mig_config(strategy="TimeSlicing")), device=PARTITION), NVIDIA_DRIVER)
        is None
    )


@pytest.mark.parametrize(
    ("configs", "wanted"),
    [
        ([], TimeSlice.DEFAULT),
        ([("FromClaim", [], gpu_config())], TimeSlice.DEFAULT),
        ([("FromClaim", [], SLICES)], TimeSlice.DEFAULT),
        ([("FromClaim", ["gpu"], LONG)], TimeSlice.LONG),
        ([("FromClass", ["gpu"], LONG), ("FromClaim", ["gpu"], SLICES)], TimeSlice.DEFAULT),
        ([("FromClass", ["gpu"], LONG), ("FromClaim", ["other"], SLICES)], TimeSlice.LONG),
        ([("FromClaim", [], mig_config()), ("FromClass", ["gpu"], LONG)], TimeSlice.LONG),
    ],
)
def test_the_time_slice_is_that_of_the_configuration_that_applies(configs: Any, wanted: TimeSlice) -> None:
    made = claim(*configs)
    assert time_slice(made, made.results[0]) is wanted


def test_a_time_slice_is_refused_where_none_can_be_set() -> None:
    made = claim(("FromClaim", [], LONG))
    assert refused(made, NVIDIA_DRIVER, lambda *_: True) is None
    assert refused(made, NVIDIA_DRIVER, lambda *_: None) is None
    assert str(refused(made, NVIDIA_DRIVER, lambda *_: False)) == (
        "the claim's configuration for request gpu cannot be carried out, because it asks for time slices of Long, and the board "
        "or the driver of node-0/gpu-0 cannot set them"
    )
    assert refused(claim(("FromClaim", [], SLICES)), NVIDIA_DRIVER, lambda *_: False) is None


def test_administrative_access_sets_no_time_slice() -> None:
    made = claim(("FromClaim", [], LONG))
    assert made.status.allocation is not None
    results = [msgspec.structs.replace(each, admin_access=True) for each in made.results]
    devices = msgspec.structs.replace(made.status.allocation.devices, results=results)
    allocation = msgspec.structs.replace(made.status.allocation, devices=devices)
    status = msgspec.structs.replace(made.status, allocation=allocation)
    found = refused(msgspec.structs.replace(made, status=status), NVIDIA_DRIVER)
    assert str(found).endswith("a request with adminAccess changes nothing on a GPU that others use")


def test_a_mistake_is_to_be_corrected_and_what_draco_does_not_do_to_be_removed() -> None:
    mistaken = refused(claim(("FromClaim", ["gpu"], {**SLICES, "sharring": {}})), NVIDIA_DRIVER)
    unsupported = refused(claim(("FromClaim", ["gpu"], {**gpu_config(), "kind": "VfioDeviceConfig"})), NVIDIA_DRIVER)
    assert mistaken is not None
    assert unsupported is not None
    assert (mistaken.remedy, unsupported.remedy) == ("correct it", "remove it")


def test_mps_is_refused_where_it_does_not_run() -> None:
    made = claim(("FromClaim", [], MPS))
    assert refused(made, NVIDIA_DRIVER, lambda _, way: way == ATTRIBUTE_MPS) is None
    assert str(refused(made, NVIDIA_DRIVER, lambda _, way: way != ATTRIBUTE_MPS)) == (
        "the claim's configuration for request gpu cannot be carried out, because it asks for MPS, and node-0/gpu-0 cannot have "
        "it: that takes a board since Volta, a driver with nvidia-cuda-mps-control, and mps.enabled of the chart"
    )


def test_a_container_can_be_the_client_of_one_mig_devices_daemon_only() -> None:
    made = claim(("FromClaim", ["gpu"], mig_config(strategy="MPS")), device=PARTITION)
    assert refused(made, NVIDIA_DRIVER) is None
    asked = DeviceRequest(name="gpu", exactly=ExactDeviceRequest(device_class_name="mig.nvidia.com", count=3))
    devices = msgspec.structs.replace(made.spec.devices, requests=[asked])
    several = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, devices=devices))
    found = refused(several, NVIDIA_DRIVER)
    assert found is not None
    assert found.remedy == "correct it"
    assert (
        "MPS on 3 MIG devices of one request, each has an MPS daemon of its own, and a container can be the client"
        in found.why
    )


def test_mps_on_a_mig_device_is_refused_where_it_does_not_run() -> None:
    made = claim(("FromClaim", [], mig_config(strategy="MPS")), device=PARTITION)
    found = refused(made, NVIDIA_DRIVER, lambda *_: False)
    assert found is not None
    assert found.lacks == ATTRIBUTE_MPS
    assert refused(made, NVIDIA_DRIVER, lambda *_: True) is None


def test_devices_of_one_configuration_are_told_together() -> None:
    made = claim(("FromClaim", [], LONG), ("FromClaim", ["gpu"], mps(defaultActiveThreadPercentage=50, multiUser=True)))
    found = mps_settings(made, made.results[0])
    assert found == (1, MpsSettings(percentage=50, multi_user=True))
    assert mps_settings(claim(("FromClaim", [], LONG)), made.results[0]) is None


def test_a_limit_is_for_a_device_by_uuid_or_by_its_number_among_the_sorted() -> None:
    asked = MpsSettings(limit_mib=10, limits_mib={"1": 20, "GPU-a": 30})
    assert asked.limits(["GPU-c", "GPU-a", "GPU-b"]) == [10, 30, 20]
    with pytest.raises(MpsLimitsError, match=r"Limit names 3, and the configuration is for one device \(GPU-a\)"):
        MpsSettings(limits_mib={"3": 1}).limits(["GPU-a"])
    with pytest.raises(MpsLimitsError, match=r"names GPU-x, and the configuration is for 2 devices \(GPU-a, GPU-b\)"):
        MpsSettings(limits_mib={"GPU-x": 1}).limits(["GPU-b", "GPU-a"])


CAN_SLICE = 'device.attributes["draco.dev"].?timeSlicing.orValue(true)'
CAN_MPS = 'device.attributes["draco.dev"].?mps.orValue(true)'


@pytest.mark.parametrize(
    ("source", "parameters", "waiting", "allocated"),
    [
        ("FromClaim", WRONG, "correct it", "correct it in a new claim"),
        ("FromClaim", {**gpu_config(), "kind": "VfioDeviceConfig"}, "remove it", "make a new claim without it"),
        (
            "FromClaim",
            LONG,
            "remove it",
            f"make a new claim without it, or with the selector {CAN_SLICE}",
        ),
        (
            "FromClaim",
            MPS,
            "set mps.enabled in the chart's values if it is off, or remove it",
            f"set mps.enabled in the chart's values if it is off, or make a new claim without it, or with the selector {CAN_MPS}",
        ),
        (
            "FromClass",
            WRONG,
            "correct it there, or override it in the claim",
            "correct it there, or override it in a new claim",
        ),
        (
            "FromClass",
            LONG,
            "remove it there, or override it in the claim",
            f"remove it there, or override it in a new claim, or with the selector {CAN_SLICE}",
        ),
    ],
)
def test_each_refusal_has_its_fix(source: str, parameters: Any, waiting: str, allocated: str) -> None:
    found = refused(claim((source, ["gpu"], parameters)), NVIDIA_DRIVER, lambda *_: False)
    assert found is not None
    assert (found.remedy_before_allocation, found.remedy_once_allocated) == (waiting, allocated)
