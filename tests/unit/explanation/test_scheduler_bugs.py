"""Bugs of the scheduler that may keep a claim waiting are named where they matter."""

import msgspec
import pytest

from draco.explanation.explain import explain
from draco.resources.api.claims import DeviceConstraint
from draco.resources.api.slices import Counter, DeviceCounterConsumption
from tests.builders import a_device, a_rule, a_slice
from tests.unit.explanation.clusters import GPU, a_fleet, asking


def test_bugs_of_an_older_scheduler_are_named_if_they_concern_the_claim() -> None:
    constraint = DeviceConstraint(match_attribute=f"{GPU}/productName")
    claim = asking(count=2, constraints=[constraint])
    assert explain(a_fleet(), [claim], minor=36).upstream_bugs
    assert not explain(a_fleet(), [claim], minor=37).upstream_bugs
    assert not explain(a_fleet(), [asking()], minor=36).upstream_bugs


def test_bugs_with_shared_counters_are_named_only_where_a_device_for_the_claim_draws_from_some() -> None:
    claim, fleet = asking(allocation_mode="All"), a_fleet()
    without = explain(fleet, [claim], minor=36).upstream_bugs
    drawn = [DeviceCounterConsumption(counter_set="units", counters={"memory": Counter(value="80Gi")})]
    elsewhere = a_slice("n3", [a_device("part-0", consumes_counters=drawn)], driver="other.example.com")
    fleet.put_slice(elsewhere)
    assert explain(fleet, [claim], minor=36).upstream_bugs == without
    published = a_slice("n3", [a_device("gpu-0", consumes_counters=drawn)])
    fleet.put_slice(published)
    more = [bug for bug in explain(fleet, [claim], minor=36).upstream_bugs if bug not in without]
    assert any("panics" in bug for bug in more)
    fleet.remove_slice(published.metadata.name)
    assert explain(fleet, [claim], minor=36).upstream_bugs == without


def test_a_bug_of_pools_with_one_name_is_named_only_where_two_drivers_have_such() -> None:
    claim, fleet = asking(), a_fleet()
    drawn = [DeviceCounterConsumption(counter_set="units", counters={"memory": Counter(value="80Gi")})]
    fleet.put_slice(a_slice("n3", [a_device("gpu-0", consumes_counters=drawn)]))
    assert any("same name" in bug for bug in explain(fleet, [claim], minor=36).upstream_bugs)
    fleet.remove_slice("n1-nic.example.com-1")
    alone = explain(fleet, [claim], minor=36).upstream_bugs
    assert alone
    assert not any("same name" in bug for bug in alone)


@pytest.mark.parametrize(("effect", "minor", "number"), [("NoSchedule", 37, 1), ("NoSchedule", 38, 0), ("None", 37, 0)])
def test_a_rule_without_selector_is_named_as_what_keeps_a_claim_waiting(effect: str, minor: int, number: int) -> None:
    fleet = a_fleet()
    rule = a_rule(effect=effect)
    fleet.put_rule(msgspec.structs.replace(rule, spec=msgspec.structs.replace(rule.spec, device_selector=None)))
    found = explain(fleet, [asking()], minor=minor)
    assert found.fits
    assert sum("no spec.deviceSelector" in bug for bug in found.upstream_bugs) == number
