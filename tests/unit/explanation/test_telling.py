"""The exact words for a cause: numbers, names, amounts and what is left out."""

from typing import Any

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.cel.paths import AttributePath
from draco.explanation.explain import explain
from draco.explanation.findings.node_rules import selector_text, tolerates
from draco.explanation.model import (
    AllocatedClaim,
    Cause,
    CauseCount,
    ChangeKind,
    Explanation,
    Holder,
    NearestMiss,
    PendingReason,
    Problem,
    ProblemKind,
    Shortage,
)
from draco.explanation.problems.claims import problems_of
from draco.explanation.problems.published import closest_value
from draco.explanation.wording import BRIEF, brief, cause_text, report, together
from draco.resources.api.claims import CapacityRequirements, DeviceConstraint, ResourceClaim
from draco.resources.api.core import NodeTaint, Toleration
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from draco.resources.api.taints import DeviceTaint, DeviceToleration
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.selectors.accesses import with_path
from tests.builders import a_claim, a_device_class, a_node, a_slice, as_shares
from tests.unit.explanation.clusters import ATTRIBUTES, CAPACITY, GPU, a_fleet, asking


def a_cluster(*devices: Device, **published: Any) -> Fleet:
    """One node with these devices."""
    slices = [a_slice("n1", devices, **published)]
    return Fleet.of(slices=slices, nodes=[a_node("n1")], classes=[a_device_class()])


def causes(told: Explanation) -> dict[Cause, CauseCount]:
    return {count.cause: count for count in told.requests[0].causes}


def test_holders_are_told_as_far_as_they_are_known() -> None:
    in_use = CauseCount(cause=Cause.IN_USE, devices=2, nodes=1, text="")
    assert cause_text(in_use) == "in use by other claims"
    holder = Holder(claim="default/job", consumers=["pod worker"])
    known = CauseCount(cause=Cause.IN_USE, devices=2, nodes=1, text="", holders=[holder], holders_total=1)
    assert "default/job" in cause_text(known)
    assert "such as" not in cause_text(known)


@pytest.mark.parametrize(
    "claim",
    [
        asking(count=3),
        asking(f"{ATTRIBUTES}.productNam == 'x'"),
        asking(f"{ATTRIBUTES}.speed == 100"),
        asking(device_class="gpu.nvidia.cm"),
        asking(f'{CAPACITY}.memory.compareTo(quantity("100Gi")) >= 0'),
        asking(f'{ATTRIBUTES}.productName == "H100"'),
    ],
    ids=[
        "too many",
        "an attribute misspelled",
        "another driver's attribute",
        "a class misspelled",
        "too much",
        "a slip",
    ],
)
def test_a_cause_is_said_once_and_so_is_its_remedy(claim: ResourceClaim) -> None:
    told = explain(a_fleet(), [claim])
    assert told.nearest or told.problems[0].remedy
    assert list(brief(told)) == [told.summary]


def test_of_several_taints_only_those_that_are_not_tolerated_are_told() -> None:
    taints = [DeviceTaint(key="known", effect="NoSchedule"), DeviceTaint(key="new", effect="NoSchedule")]
    tolerated = asking(tolerations=[DeviceToleration(key="known", operator="Exists")])
    told = explain(a_cluster(Device(name="gpu-0", taints=taints)), [tolerated])
    assert [each.taint for each in causes(told)[Cause.TAINTED].taints] == ["new:NoSchedule"]


def test_of_several_capacities_the_one_that_is_short_is_told() -> None:
    capacity = {"slots": DeviceCapacity(value="8"), "memory": DeviceCapacity(value="40Gi")}
    fleet = a_cluster(Device(name="gpu-0", capacity=capacity, allow_multiple_allocations=True))
    wanted = CapacityRequirements(requests={"slots": "1", "memory": "80Gi"})
    short = causes(explain(fleet, [asking(capacity=wanted)]))[Cause.CAPACITY_SHORT].shortage
    assert short is not None
    assert (short.name, short.needed, short.left) == ("memory", "80Gi", "40Gi")


def test_a_capacity_that_the_devices_lack_is_not_said_to_be_short() -> None:
    told = explain(a_cluster(Device(name="gpu-0")), [asking(capacity=CapacityRequirements(requests={"memory": "1Gi"}))])
    assert causes(told)[Cause.CAPACITY_SHORT].text == "without the capacity memory, of which 1Gi is requested"


@pytest.mark.parametrize(
    "constraint",
    [DeviceConstraint(match_attribute="example.com/rack"), DeviceConstraint(distinct_attribute="example.com/rack")],
)
def test_the_attribute_that_a_constraint_misses_is_named(constraint: DeviceConstraint) -> None:
    told = explain(a_fleet(), [asking(count=2, constraints=[constraint])])
    assert (
        causes(told)[Cause.CONSTRAINT].text
        == "without the attribute example.com/rack, which a constraint of the claim compares"
    )


def test_the_reason_of_an_error_says_whether_pools_selectors_or_the_claim_are_at_fault() -> None:
    every = asking(allocation_mode="All")
    assert explain(a_cluster(Device(name="gpu-0"), of=2), [every]).reason is PendingReason.POOL_BROKEN
    negative = DeviceCapacity(value="-1Gi")
    assert (
        explain(a_cluster(Device(name="gpu-0", capacity={"memory": negative})), [asking()]).reason
        is PendingReason.INVALID
    )


def test_a_selector_that_fails_on_a_device_for_another_node_is_an_error_as_the_scheduler_meets_it() -> None:
    devices = [
        Device(name="x", node_name="n0", attributes={"model": DeviceAttribute(string="A")}),
        Device(name="y", node_name="n0"),
        Device(name="z", node_name="n1", attributes={"model": DeviceAttribute(string="B")}),
    ]
    published = a_slice("", devices, pool="each", per_device_node_selection=True)
    fleet = Fleet.of(slices=[published], nodes=[a_node("n0"), a_node("n1")], classes=[a_device_class()])
    told = explain(fleet, [asking(f'{ATTRIBUTES}.model == "A"')])
    assert not told.fits
    assert "no such key: model" in told.error


def test_every_device_of_a_node_that_has_more_than_a_claim_may_have_is_told() -> None:
    told = explain(a_cluster(*(Device(name=f"gpu-{number}") for number in range(33))), [asking(allocation_mode="All")])
    assert told.summary.startswith(
        "Request gpu takes every device of a node, one node has 33, and a claim gets no more than 32. Ask for a count, or "
        "select fewer."
    )
    assert not any(problem.fatal for problem in told.problems), "another node may have fewer"


def test_a_search_that_was_too_long_is_told_as_such() -> None:
    devices = [Device(name=f"gpu-{n}", attributes={"half": DeviceAttribute(int_=n % 2)}) for n in range(40)]
    pair = DeviceConstraint(match_attribute=f"{GPU}/half")
    told = explain(a_cluster(*devices), [asking(count=21, constraints=[pair])])
    assert told.reason is PendingReason.SEARCH_TOO_LONG
    assert not told.nearest, "nothing is known of what would do"


def test_demands_that_leave_values_between_them_are_no_contradiction() -> None:
    [problem] = problems_of(a_fleet(), [asking(f"{ATTRIBUTES}.index > 5 && {ATTRIBUTES}.index < 9")])
    assert "can never both be true" not in problem.text
    [problem] = problems_of(a_fleet(), [asking(f"{ATTRIBUTES}.index >= 5 && {ATTRIBUTES}.index <= 5")])
    assert "can never both be true" not in problem.text


def test_of_many_published_values_some_are_told_and_how_many_more_there_are() -> None:
    devices = [Device(name=f"gpu-{n}", attributes={"rack": DeviceAttribute(string=f"rack-{n}")}) for n in range(6)]
    [problem] = problems_of(a_cluster(*devices), [asking(f'{ATTRIBUTES}.rack == "zzz"')])
    assert problem.text.endswith('there is "rack-0", "rack-1", "rack-2", "rack-3" and 2 other values')


def test_the_closest_value_is_of_the_same_kind_and_of_versions_the_next_one() -> None:
    sizes = [Quantity.parse(text) for text in ("10Gi", "40Gi", "80Gi")]
    assert closest_value(Quantity.parse("48Gi"), sizes) == Quantity.parse("40Gi")
    assert closest_value(48, [*sizes, 10, 50]) == 50
    versions = [SemVer.parse(text) for text in ("1.0.0", "2.0.0", "3.0.0")]
    assert closest_value(SemVer.parse("1.5.0"), versions) == versions[1]
    assert closest_value(SemVer.parse("9.0.0"), versions) == versions[2]
    assert closest_value(True, [1, 2]) is None


def test_a_name_in_quotes_stays_in_quotes_and_a_plain_one_takes_no_name_that_needs_them() -> None:
    old, new = AttributePath("attributes", GPU, "modle"), AttributePath("attributes", GPU, "model-name")
    assert with_path(f'{ATTRIBUTES}["modle"] == "A"', old, new) == f'{ATTRIBUTES}["model-name"] == "A"'
    assert with_path(f'{ATTRIBUTES}.modle == "A"', old, new) is None


def test_a_requirement_of_one_value_reads_as_an_equation() -> None:
    def text(operator: str, *values: str) -> str:
        wanted = NodeSelectorRequirement(key="zone", operator=operator, values=list(values))
        return selector_text(NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[wanted])]))

    assert (text("In", "a"), text("In", "a", "b")) == ("zone=a", "zone in (a, b)")
    assert (text("NotIn", "a"), text("NotIn", "a", "b")) == ("zone!=a", "zone not in (a, b)")


def test_a_toleration_that_compares_numbers_is_exact_at_its_bound() -> None:
    taint = NodeTaint(key="load", value="5", effect="NoSchedule")
    covered = [
        (operator, value)
        for operator in ("Gt", "Lt")
        for value in ("4", "5", "6")
        if tolerates(Toleration(key="load", operator=operator, value=value), taint)
    ]
    assert covered == [("Gt", "4"), ("Lt", "6")]


def test_the_report_of_an_allocated_claim_tells_conditions_only_where_there_are_any() -> None:
    def lines(**told: Any) -> str:
        claim = AllocatedClaim(claim="default/c", devices=["d/p/x"], **told)
        return "\n".join(report(Explanation(reason=PendingReason.ALLOCATED, summary="", allocated=[claim])))

    assert "failed" not in lines()
    assert "waits for" not in lines()
    assert "failed: x: broken" in lines(failed=["x: broken"])
    assert "waits for: x: attached" in lines(waiting_for=["x: attached"])


def _nearest(*texts: str) -> Explanation:
    misses = [NearestMiss(kind=ChangeKind.LIFT_TAINT, text=text) for text in texts]
    return Explanation(reason=PendingReason.IN_USE, summary="The cause. Lift a.", nearest=misses)


def test_five_lines_say_the_cause_and_what_else_would_do_and_how_much_more_there_is() -> None:
    assert list(brief(_nearest("lift a", "lift b"))) == ["The cause. Lift a.", "Or: lift b."]
    assert len(list(brief(_nearest("lift a", *"bcde")))) == BRIEF
    *_, fourth, last = brief(_nearest("lift a", *"bcdefg"))
    assert (fourth, last) == ("Or: d.", "3 more lines with -v.")
    assert len(list(brief(_nearest("lift a", *"bcdefg")))) == BRIEF
    assert "  g" in report(_nearest("lift a", *"bcdefg"))


def test_what_would_help_is_sorted_by_who_can_do_it() -> None:
    kinds = [ChangeKind.LIFT_TAINT, ChangeKind.FREE_CLAIM, ChangeKind.LOWER_COUNT, ChangeKind.UNCORDON]
    misses = [NearestMiss(kind=each, text=each.value) for each in kinds]
    told = Explanation(reason=PendingReason.IN_USE, summary="The cause.", nearest=misses)
    assert list(brief(told))[1:] == ["Or: LowerCount.", "Or: FreeClaim.", "Or: LiftTaint.", "Or: Uncordon."]


@pytest.mark.parametrize(
    ("kind", "text", "expression"),
    [
        (ChangeKind.LOWER_COUNT, "ask for 1 instead of 3 devices in request gpu", ""),
        (ChangeKind.LOWER_CAPACITY, "ask for 80Gi instead of 90Gi of memory in request gpu", ""),
        (ChangeKind.RELAX_SELECTOR, 'ask for a/model == "b" instead of == "c" in request gpu', 'a.model == "b"'),
    ],
)
def test_a_change_that_a_remedy_has_in_other_words_is_not_said_again(
    kind: ChangeKind, text: str, expression: str
) -> None:
    miss = NearestMiss(kind=kind, text=text, expression=expression)
    summary = 'The cause. Ask for 1, or use several pods. Ask for 80Gi. Write a.model == "b".'
    told = Explanation(reason=PendingReason.IN_USE, summary=summary, nearest=[miss])
    assert list(brief(told)) == [summary]
    other = msgspec.structs.replace(miss, text=text.replace("1 ", "2 ").replace("80Gi", "8Gi"), expression="b")
    assert len(list(brief(msgspec.structs.replace(told, nearest=[other])))) == 2


def test_a_problem_that_the_summary_has_with_another_remedy_is_not_said_again() -> None:
    problem = Problem(kind=ProblemKind.TOO_MANY_DEVICES, text="request a wants 3 devices", remedy="ask for 1")
    for summary in ("Request a wants 3 devices. Add a node.", "Waiting does not help: request a wants 3 devices."):
        told = Explanation(reason=PendingReason.IN_USE, summary=summary, problems=[problem])
        assert list(brief(told)) == [summary]


def test_causes_that_differ_only_in_the_counter_are_one() -> None:
    def short(name: str, left: str, devices: int = 1) -> CauseCount:
        shortage = Shortage(name=name, needed="4", left=left, total="4", takers=["d (default/c)"])
        return CauseCount(cause=Cause.COUNTERS_SHORT, devices=devices, nodes=1, text=name, shortage=shortage)

    one, other = together([short("set/a", "0"), short("set/b", "0", 2), short("set/c", "1")])
    assert one.devices == 3
    assert one.text == "short of counters set/a, set/b: 4 needed, 0 of 4 left, taken by d (default/c)"
    assert other.text == "set/c"


def test_requests_for_shares_of_one_device_are_not_told_to_lack_devices() -> None:
    shared = Device(name="gpu-0", capacity={"memory": DeviceCapacity(value="40Gi")}, allow_multiple_allocations=True)
    fleet = Fleet.of(slices=[a_slice("n3", [shared])], nodes=[a_node("n3")], classes=[a_device_class()])
    claim = asking(capacity=CapacityRequirements(requests={"memory": "30Gi"}))
    requests = [msgspec.structs.replace(claim.spec.devices.requests[0], name=name) for name in "ab"]
    devices = msgspec.structs.replace(claim.spec.devices, requests=requests)
    both = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))
    assert "Node n3 is too small: beside a too little is left for b. Ask for less, or use several" in str(
        explain(fleet, [both])
    )
    large = msgspec.structs.replace(shared, capacity={"memory": DeviceCapacity(value="60Gi")})
    fleet.put_slice(a_slice("n3", [large]))
    fleet.put_claim(as_shares(a_claim("other", on=["n3/gpu-0"]), "other", memory="10Gi"))
    said = "Node n3 is too small: other claims have shares of its devices, and beside a too little is left for b."
    assert said in str(explain(fleet, [both]))
