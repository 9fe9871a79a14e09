"""The status of a DeviceLimit."""

from typing import Any

from draco.limits.amounts import ONE, DeviceOrigin, Holdings, LimitedAmount
from draco.limits.rules import rule_of
from draco.limits.status import LISTED_NAMESPACES, limit_status, use_of
from draco.resources.api.limits import DeviceLimit, DeviceLimitStatus, LimitScope, UnusedLimit
from tests.builders import MOMENT, a_device_class, a_limit

GPU = DeviceOrigin("gpu.draco.dev", "gpu.nvidia.com")


def status(limit: DeviceLimit, held: dict[str, int], **said: Any) -> DeviceLimitStatus:
    namespaces = {name: {"tenant": name[0]} for name in held}
    holdings: dict[str, Holdings] = {name: {GPU: {LimitedAmount.DEVICES: n * ONE}} for name, n in held.items()}
    use = use_of(rule_of(limit), namespaces, holdings, said.pop("unknown", ()), said.pop("unsized", ()))
    terms = {"classes": {}, "waiting": 0, "allocates": True, "now": MOMENT, **said}
    return limit_status(limit, use, **terms)


def test_it_names_the_namespace_that_has_most() -> None:
    found = status(a_limit(tenant="a", devices=4), {"a-1": 1, "a-2": 3, "b": 9}, waiting=2)
    assert found.message == "2 namespaces; a-2 has most: 3 of 4 devices. 2 claims wait because of it."
    assert (found.selected, [each.namespace for each in found.namespaces]) == (2, ["a-2", "a-1"])
    assert found.used is not None
    assert found.used.devices == 4
    assert found.conditions[0].status == "True"


def test_it_says_who_holds_more_than_is_permitted_and_that_nothing_is_taken_away() -> None:
    found = status(a_limit(devices=2), {"a": 3, "b": 2})
    assert found.message == (
        "a holds more than is permitted: 3 of 2 devices. Claims keep their devices; Draco allocates no more there until less is "
        "held or more is permitted."
    )
    assert (found.conditions[0].status, found.conditions[0].reason) == ("False", "Exceeded")
    together = status(a_limit(devices=4, per=LimitScope.SELECTION), {"a": 3, "b": 2})
    assert together.message.startswith("Together they hold more than is permitted: 5 of 4 devices.")


def test_a_selector_that_selects_nothing_is_said() -> None:
    found = status(a_limit(tenant="z", devices=2), {"a": 3})
    assert (found.conditions[0].status, found.conditions[0].reason) == ("Unknown", "NothingSelected")


def test_classes_that_are_missing_or_the_schedulers_are_said() -> None:
    names = ["none.example.com", "gpu.nvidia.com"]
    found = status(a_limit(devices=2, device_class_names=names), {"a": 0}, classes={"gpu.nvidia.com": a_device_class()})
    assert "There is no DeviceClass none.example.com." in found.message
    assert (
        "kube-scheduler allocates claims of DeviceClass gpu.nvidia.com: they are counted, not refused." in found.message
    )
    only_missing = status(a_limit(devices=2, device_class_names=names[:1]), {"a": 0})
    assert only_missing.conditions[0].reason == "NoDeviceClass"


def test_where_draco_does_not_allocate_it_says_that_it_only_counts() -> None:
    assert "operator.allocate" in status(a_limit(devices=2), {"a": 1}, allocates=False).message


def test_devices_of_unknown_size_are_named() -> None:
    assert "gpu-9 is held and not published" in status(a_limit(devices=2), {"a": 1}, unknown=["gpu-9"]).message


def test_the_list_of_namespaces_is_bounded() -> None:
    found = status(a_limit(devices=2), {f"team-{number:03}": 1 for number in range(100)})
    assert (found.selected, len(found.namespaces)) == (100, LISTED_NAMESPACES)


def test_a_limit_by_memory_says_which_gpus_count_none() -> None:
    found = status(a_limit(memory="80Gi"), {"a": 1}, unsized=["gpu-0"])
    assert "gpu-0 is held and published without memory, and counts 0 of it: limit gpuShare or devices" in found.message
    assert "without memory" not in status(a_limit(devices=2), {"a": 1}, unsized=["gpu-0"]).message


def test_a_limit_of_unused_time_says_so_and_what_keeps_draco_from_it() -> None:
    unused = UnusedLimit(evict_after="4h")
    found = status(a_limit(unused=unused), {"a": 3}, allocates=False)
    assert (
        found.message == "1 namespace, without a limit on amounts. Pods are evicted if what they hold is unused for 4h."
    )
    assert found.conditions[0].status == "True"
    both = status(a_limit(devices=4, unused=unused), {"a": 3}, trouble="Draco may not.", waiting=1, warned=2)
    assert both.message == (
        "1 namespace; a has most: 3 of 4 devices. 1 claim waits because of it. Pods are evicted if what they hold is unused for "
        "4h; those of 2 claims are warned. Draco may not."
    )
