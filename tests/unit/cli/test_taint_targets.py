"""The command line of `draco taint`, and what is said if it matches nothing."""

import msgspec
import pytest

from draco.cli.taint.targets import (
    TaintTargetError,
    check_overwriting,
    device_of,
    kept_by,
    rule_on,
    rules_named,
    rules_to_remove,
    taint_of,
)
from draco.maintenance.taint_rules import extension_for, rule_for
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_device_key, a_maintenance, a_rule

GPU = a_device_key("node-0/gpu-0")
BROKEN = DeviceTaint(key="example.com/broken", effect="NoSchedule")


def exact(name: str = "mine", **more: str) -> DeviceTaintRule:
    return a_rule(name, driver=GPU.driver, pool=GPU.pool, device=GPU.device, **more)


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("example.com/broken:NoSchedule", BROKEN),
        ("broken=fan:NoExecute", DeviceTaint(key="broken", value="fan", effect="NoExecute")),
        ("broken=:None", DeviceTaint(key="broken", effect="None")),
    ],
)
def test_taints_are_written_as_kubectl_writes_them(text: str, taint: DeviceTaint) -> None:
    assert taint_of(text) == taint


@pytest.mark.parametrize("text", ["broken", "broken:", ":NoSchedule", "broken:PreferNoSchedule", "=value:NoSchedule"])
def test_what_is_no_taint_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(TaintTargetError, match="write"):
        taint_of(text)


def test_a_device_is_named_by_its_pool_or_in_full() -> None:
    assert device_of("node-0/gpu-0", [GPU]) == GPU
    assert device_of(str(GPU), [GPU]) == GPU


def test_a_device_of_two_drivers_has_to_be_named_in_full() -> None:
    other = GPU._replace(driver="gpu.example.com")
    with pytest.raises(TaintTargetError, match=r"gpu\.example\.com/node-0/gpu-0"):
        device_of("node-0/gpu-0", [GPU, other])
    assert device_of(str(other), [GPU, other]) == other


def test_a_device_that_is_not_published_is_answered_with_the_nearest() -> None:
    with pytest.raises(TaintTargetError, match=r"did you mean node-0/gpu-0\?"):
        device_of("node-0/gpu-9", [GPU, a_device_key("node-1/gpu-9")])


def test_the_rule_of_a_device_and_a_key_has_one_name() -> None:
    name = rule_on(GPU, BROKEN).metadata.name
    assert name.startswith("node-0-gpu-0-")
    assert name == rule_on(GPU, DeviceTaint(key=BROKEN.key, effect="None")).metadata.name
    assert name != rule_on(GPU._replace(driver="gpu.example.com"), BROKEN).metadata.name
    assert len(rule_on(GPU._replace(pool="p" * 250), BROKEN).metadata.name) <= 253


def test_a_key_that_the_api_server_refuses_is_refused_before_anything_is_written() -> None:
    with pytest.raises(TaintTargetError, match="key"):
        taint_of("no good:NoSchedule")


def test_another_taint_under_the_name_is_changed_only_if_that_is_asked_for() -> None:
    wanted = rule_on(GPU, BROKEN)
    spec = msgspec.structs.replace(wanted.spec, taint=DeviceTaint(key=BROKEN.key, effect="None"))
    before = msgspec.structs.replace(wanted, spec=spec)
    check_overwriting(None, wanted, overwrite=False)
    check_overwriting(wanted, wanted, overwrite=False)
    check_overwriting(before, wanted, overwrite=True)
    with pytest.raises(TaintTargetError, match="--overwrite"):
        check_overwriting(before, wanted, overwrite=False)
    of_others = msgspec.structs.replace(a_rule(driver=NVIDIA_DRIVER), metadata=wanted.metadata)
    with pytest.raises(TaintTargetError, match="other devices"):
        check_overwriting(of_others, wanted, overwrite=True)


def test_rules_are_found_by_device_and_key() -> None:
    mine, other = exact(), exact("other", taint="example.com/other")
    everyones = a_rule("wide", driver=NVIDIA_DRIVER, taint="example.com/wide")
    rules = [mine, other, everyones]
    assert rules_to_remove(GPU, "example.com/broken", rules) == [mine]
    assert rules_to_remove(GPU, "example.com/broken:NoSchedule", rules) == [mine]
    assert rules_to_remove(GPU, "example.com/broken-", rules) == [mine]
    with pytest.raises(TaintTargetError, match="wide"):
        rules_to_remove(GPU, "example.com/wide", rules)
    with pytest.raises(TaintTargetError, match="no rule"):
        rules_to_remove(GPU, "example.com/broken:NoExecute", rules)


def test_a_rule_that_is_not_there_is_answered_with_the_nearest() -> None:
    assert rules_named(["mine", "mine"], [exact()]) == [exact()]
    with pytest.raises(TaintTargetError, match=r"did you mean mine\?"):
        rules_named(["mina"], [exact()])


def test_rules_that_draco_would_write_again_are_not_removed() -> None:
    request = a_maintenance("swap-fan", driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0")
    requests = [(request.metadata.uid, "swap-fan")]
    of_request = rule_for(request, GPU)
    extension = extension_for(exact(), a_device_key("node-0/gpu-0-mig-1g.10gb-19-0"), kind=TAINT_RULES[0])
    assert "draco maintain finish swap-fan" in kept_by(of_request, [of_request], requests)
    assert "remove rule mine" in kept_by(extension, [exact(), extension], requests)
    assert not kept_by(extension, [extension], requests)  # the rule that it extended is gone
    assert not kept_by(of_request, [of_request], [])
    assert not kept_by(exact(), [exact()], requests)
