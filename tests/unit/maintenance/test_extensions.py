"""A taint on a device is a taint on its hardware: which rules are extended, to which devices, and when that ends."""

import msgspec
import pytest

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.taint_rules import (
    extended_device,
    extends,
    extension_for,
    plan_extensions,
    plan_orphans,
    rule_for,
)
from draco.resources.api.taints import DeviceTaintRule, DeviceTaintSelector
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import ANNOTATION_EXTEND, LABEL_EXTENDS, NVIDIA_DRIVER
from tests.builders import MOMENT, a_device_key, a_maintenance, a_rule, a_slice
from tests.unit.maintenance.test_scope import DIVIDED, PARTS, a_whole, hardware

V1BETA2 = TAINT_RULES[1]
LARGER = "gpu-0-mig-3g40gb-9-0"
ADMINS = a_rule("broken", driver=NVIDIA_DRIVER, pool="node-1", device="gpu-0", effect="NoExecute")


def tainted(rules: tuple[DeviceTaintRule, ...]) -> set[str]:
    return {str(rule.spec.device_selector.device) for rule in rules if rule.spec.device_selector}


def with_meta(rule: DeviceTaintRule, **fields: object) -> DeviceTaintRule:
    return msgspec.structs.replace(rule, metadata=msgspec.structs.replace(rule.metadata, **fields))


def plan(
    *in_place: DeviceTaintRule, rule: DeviceTaintRule = ADMINS, pool: PoolHardware = DIVIDED
) -> tuple[set[str], set[str]]:
    made = plan_extensions(rule, in_place, pool, kind=V1BETA2)
    return tainted(made.apply), tainted(made.delete)


def extensions(rule: DeviceTaintRule = ADMINS) -> tuple[DeviceTaintRule, ...]:
    return plan_extensions(rule, (), DIVIDED, kind=V1BETA2).apply


def test_a_rule_on_a_whole_gpu_taints_its_partitions_alike() -> None:
    made = extensions()
    assert tainted(made) == set(PARTS)
    for rule in made:
        assert (rule.spec.taint.key, rule.spec.taint.effect) == ("example.com/broken", "NoExecute")
        (owner,) = rule.metadata.owner_references
        assert (owner.api_version, owner.kind, owner.name, owner.uid) == (
            V1BETA2.api_version,
            "DeviceTaintRule",
            "broken",
            ADMINS.metadata.uid,
        )
        assert extends(rule) == ADMINS.metadata.uid
        assert len(rule.metadata.name) < 98
    assert plan(*made) == (set(), set())


def test_a_rule_on_a_partition_taints_the_whole_and_not_its_neighbours() -> None:
    of_a_part = a_rule("bad-slice", driver=NVIDIA_DRIVER, pool="node-1", device=PARTS[2])
    assert plan(rule=of_a_part)[0] == {"gpu-0"}


@pytest.mark.parametrize(
    "rule",
    [
        a_rule(),
        a_rule(driver=NVIDIA_DRIVER, pool="node-1"),
        a_rule(driver=NVIDIA_DRIVER, device="gpu-0"),
        a_rule(pool="node-1", device="gpu-0"),
        with_meta(ADMINS, annotations={ANNOTATION_EXTEND: "false"}),
        rule_for(a_maintenance(), a_device_key("node-1/gpu-0")),
        extension_for(ADMINS, a_device_key("node-1/gpu-0"), kind=V1BETA2),
        with_meta(extension_for(ADMINS, a_device_key("node-1/gpu-0"), kind=V1BETA2), labels={}),
    ],
)
def test_rules_that_are_ours_or_name_no_single_device_are_not_extended(rule: DeviceTaintRule) -> None:
    assert extended_device(rule) is None
    assert plan(*extensions(), rule=rule) == (set(), set(PARTS))


def test_somebody_elses_rule_is_no_extension_even_with_our_label() -> None:
    assert extends(with_meta(a_rule("theirs"), labels={LABEL_EXTENDS: "some-uid"})) == ""


def test_a_changed_taint_is_changed_on_every_part() -> None:
    milder = msgspec.structs.replace(
        ADMINS,
        spec=msgspec.structs.replace(ADMINS.spec, taint=msgspec.structs.replace(ADMINS.spec.taint, effect="None")),
    )
    assert plan(*extensions(), rule=milder) == (set(PARTS), set())


def test_a_partition_published_later_is_tainted_and_one_published_no_more_stays_so() -> None:
    alone = hardware([a_whole(0, "GPU-a")])
    assert plan(pool=alone) == (set(), set())
    assert plan(*extensions()[:3]) == (set(PARTS[3:]), set())
    assert plan(*extensions(), pool=alone) == (set(), set())


def test_what_overlapped_a_partition_stays_tainted_when_its_gpu_is_divided_otherwise() -> None:
    """The extent of a partition that is no longer published is unknown: the overlapping device may be the bad hardware."""
    of_a_part = a_rule("bad-slice", driver=NVIDIA_DRIVER, pool="node-1", device=PARTS[2])
    on_larger = extension_for(of_a_part, a_device_key(f"node-1/{LARGER}"), kind=V1BETA2)
    divided_otherwise = PoolHardware([a_slice("node-1", [LARGER])])
    assert plan(rule=of_a_part, pool=divided_otherwise)[0] == {"gpu-0"}, "nothing published says that they overlap"
    assert plan(on_larger, rule=of_a_part, pool=divided_otherwise) == ({"gpu-0"}, set())
    both = PoolHardware([a_slice("node-1", [LARGER, PARTS[2]])])
    assert plan(on_larger, rule=of_a_part, pool=both)[1] == {LARGER}, "they are there together, so they do not overlap"


def test_what_is_another_gpus_now_is_given_back() -> None:
    partitions = [device for name in PARTS if (device := DIVIDED.published_as(name))]
    moved = PoolHardware([a_slice("node-1", ["gpu-0", *PARTS])])
    other = hardware([a_whole(0, "GPU-x"), *partitions])
    assert plan(*extensions(), pool=other) == (set(), set(PARTS))
    assert plan(*extensions(), pool=moved) == (set(), set())


def test_an_extension_changed_by_hand_is_put_right() -> None:
    first, *others = extensions()
    elsewhere = msgspec.structs.replace(first.spec, device_selector=DeviceTaintSelector(driver=NVIDIA_DRIVER))
    changed = msgspec.structs.replace(first, spec=elsewhere)
    assert plan(changed, *others) == (tainted((first,)), set())


@pytest.mark.parametrize(
    "taken",
    [{"labels": {LABEL_EXTENDS: ADMINS.metadata.uid}}, {"annotations": {}}, {"owner_references": []}],
    ids=["label", "annotation", "owner"],
)
def test_what_somebody_takes_off_an_extension_is_put_back(taken: dict[str, object]) -> None:
    first, *others = extensions()
    assert plan(with_meta(first, **taken), *others) == (tainted((first,)), set())


def test_an_extension_of_another_device_than_the_rule_names_now_goes_though_its_own_is_published_no_more() -> None:
    alone = hardware([a_whole(0, "GPU-a"), a_whole(1, "GPU-b")])
    edited = msgspec.structs.replace(
        ADMINS,
        spec=msgspec.structs.replace(
            ADMINS.spec, device_selector=DeviceTaintSelector(driver=NVIDIA_DRIVER, pool="node-1", device="gpu-1")
        ),
    )
    assert plan(*extensions(), rule=edited, pool=alone) == (set(), set(PARTS))


def test_an_extension_under_a_name_that_no_device_has_goes() -> None:
    first, *others = extensions()
    astray = with_meta(first, name=f"{first.metadata.name}-copy")
    assert plan(astray, first, *others) == (set(), tainted((astray,)))


def test_without_the_rule_nothing_of_it_stays() -> None:
    assert plan_orphans("uid", extensions()).delete == extensions()
    assert plan(*extensions(), rule=with_meta(ADMINS, deletion_timestamp=MOMENT)) == (set(), set(PARTS))
