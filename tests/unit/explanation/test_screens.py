"""What a screen names, adds up and leaves out. `conftest` checks that each says nothing twice."""

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.explanation.explain import explain
from draco.explanation.model import (
    Cause,
    CauseCount,
    ChangeKind,
    Explanation,
    NearestMiss,
    PendingReason,
    ProblemKind,
    RequestExplanation,
)
from draco.explanation.note import with_summary
from draco.explanation.wording import brief, report
from draco.resources.api.claims import DeviceConstraint
from draco.resources.api.slices import Device, DeviceAttribute
from tests.builders import a_claim, a_device_class, a_node, a_slice
from tests.unit.explanation.clusters import ATTRIBUTES, GPU, H100, a_class, a_fleet, asking
from tests.unit.explanation.test_explain import held, named


def test_a_selector_that_fails_on_devices_in_use_only_is_no_cause() -> None:
    wanted = asking(f'{ATTRIBUTES}.productName == "{H100}"', device_class="any", count=2)
    fleet = a_fleet(held("n1/gpu-0"), a_claim("nic", on=["nic.example.com/n1/nic-0"]))
    told = explain(fleet, [wanted])
    assert told.summary.startswith("Request gpu wants 2 devices on one node, and no node has more than 1 free. ")
    assert [(each.kind, each.fatal) for each in told.problems] == [(ProblemKind.SELECTOR_ERRORS, False)]


def test_a_selector_that_fails_on_devices_in_use_only_is_nothing_that_stays() -> None:
    claim = asking(f'{ATTRIBUTES}.productName == "{H100}"', count=2)
    [first] = claim.spec.devices.requests
    [second] = asking(f'{ATTRIBUTES}.productName == "{H100}"', device_class="any").spec.devices.requests
    requests = [first, msgspec.structs.replace(second, name="any")]
    constraints = [DeviceConstraint(match_attribute=f"{GPU}/index", requests=["gpu"])]
    devices = msgspec.structs.replace(claim.spec.devices, requests=requests, constraints=constraints)
    wanted = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))
    told = explain(a_fleet(held("n1/gpu-0"), a_claim("nic", on=["nic.example.com/n1/nic-0"])), [wanted])
    assert "fails on" not in told.summary


def test_requests_of_several_claims_are_named_with_their_claims() -> None:
    """Two claims may both have a request gpu."""
    told = explain(a_fleet(), [named(asking(count=3), "left"), named(asking(count=4), "right")])
    assert told.summary.startswith("Request gpu of claim default/left wants 3 devices on one node, ")
    assert "Request gpu of claim default/right wants 4 devices on one node, " in "\n".join(brief(told))
    together = explain(a_fleet(held("n2/gpu-0")), [named(asking(count=2), "left"), named(asking(), "right")])
    assert "in request gpu of claim left" in "\n".join(brief(together))
    assert all(each.names_subject for each in together.nearest)


def test_causes_that_read_alike_are_added_up() -> None:
    """Two pools may name their counter sets alike."""
    causes = [CauseCount(cause=Cause.COUNTERS_SHORT, devices=number, nodes=1, text="short of a") for number in (2, 3)]
    asked = RequestExplanation(claim="default/c", request="gpu", device_class=GPU, devices=5, causes=causes)
    told = with_summary(Explanation(reason=PendingReason.COUNTERS_SHORT, requests=[asked]))
    assert told.summary == "All 5 devices that request gpu selects are short of a."
    assert "       5 short of a" in report(told)


def test_a_selector_is_named_with_its_request_where_the_claim_has_several() -> None:
    claim = asking("true")
    first, second = (
        msgspec.structs.replace(claim.spec.devices.requests[0], name=name, exactly=exactly)
        for name, exactly in (
            ("a", claim.spec.devices.requests[0].exactly),
            ("b", asking(f"{ATTRIBUTES}.nosuch == 1").spec.devices.requests[0].exactly),
        )
    )
    devices = msgspec.structs.replace(claim.spec.devices, requests=[first, second])
    wanted = msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))
    assert explain(a_fleet(), [wanted]).summary.startswith("Selector #0 of request b of claim default/c fails the pod")


def test_a_selector_of_a_class_is_told_once_whatever_it_fails_for() -> None:
    """For one request it fails on a free device, for the other only on one that is in use."""
    fleet = a_fleet(a_claim("nic", on=["nic.example.com/n1/nic-0"]))
    fleet.put_class(a_class("models", f'{ATTRIBUTES}.productName != ""'))
    claims = [
        named(asking(device_class="models", **how), name)
        for name, how in (("a", {}), ("b", {"allocation_mode": "All"}))
    ]
    told = explain(fleet, claims)
    assert [(each.kind, each.fatal) for each in told.problems] == [(ProblemKind.SELECTOR_ERRORS, True)]
    assert told.problems[0].text.startswith("selector #0 of class models fails on 1 device, ")


def test_a_guard_and_what_it_guards_are_told_once() -> None:
    fleet = a_fleet()
    card = Device(name="nic-1", attributes={"speed": DeviceAttribute(int_=10), f"{GPU}/spare": DeviceAttribute(int_=1)})
    fleet.put_slice(a_slice("n2", [card], driver="nic.example.com"))
    told = explain(fleet, [asking(f"has({ATTRIBUTES}.spare) && {ATTRIBUTES}.spare == 1")])
    assert [each.text for each in told.problems] == [
        f"selector #0 of claim default/c: no device of class {GPU} has {ATTRIBUTES}.spare"
    ]


def test_advice_that_the_summary_gives_in_fewer_words_is_not_given_again() -> None:
    told = explain(a_fleet(), [asking(count=3)])
    assert [each.kind for each in told.nearest] == [ChangeKind.LOWER_COUNT]
    assert list(brief(told)) == [told.summary]
    assert "Ask for 2, or use several pods with a claim each, or add a node" in told.summary
    fewer = msgspec.structs.replace(told.nearest[0], text="ask for 1 instead of 3 devices in request gpu")
    assert list(brief(msgspec.structs.replace(told, nearest=[fewer])))[1:] == [
        "Or: ask for 1 instead of 3 devices in request gpu (on node n1)."
    ]


def test_a_node_that_a_change_names_is_not_named_again() -> None:
    misses = [NearestMiss(kind=ChangeKind.UNCORDON, text=text, node="n1") for text in ("uncordon node n1", "wait")]
    told = Explanation(reason=PendingReason.NODE_RULES, summary="The cause.", nearest=misses)
    assert list(brief(told))[1:] == ["Or: uncordon node n1.", "Or: wait (on node n1)."]


def test_nodes_that_the_summary_names_with_their_cause_are_left_out_of_the_list() -> None:
    fleet = a_fleet(held("n2/gpu-0", "n2/gpu-1"))
    fleet.put_node(a_node("n3"))
    told = explain(fleet, [asking(count=2, constraints=[DeviceConstraint(match_attribute=f"{GPU}/index")])])
    lines = list(report(told))
    assert told.summary.startswith(
        "Waiting does not help: nodes n1, n2 are unable to meet the claim's constraints: among "
    )
    assert lines[lines.index("Nodes, 3 in all") + 1 :][0].startswith("  node n1 is unable to meet"), (
        "n2 is another matter now"
    )
    free = explain(a_fleet(), [asking(count=2, constraints=[DeviceConstraint(match_attribute=f"{GPU}/index")])])
    assert not any(line.startswith("Nodes, ") for line in report(free))


def test_what_is_wrong_is_named_before_what_to_do_about_it() -> None:
    gone = a_fleet()
    for node in ("n1", "n2"):
        gone.remove_node(node)
    assert explain(gone, [asking()]).summary == (
        "All 4 devices that request gpu selects are published for nodes n1, n2, which do not exist. Start nodes n1, n2 again, or "
        "delete their ResourceSlices."
    )
    twice = a_slice("n1", ["gpu-0", "gpu-0"])
    broken = Fleet.of(slices=[twice], nodes=[a_node("n1")], classes=[a_device_class()])
    assert explain(broken, [asking()]).summary.endswith(" Check DRA driver gpu.nvidia.com.")
    assert explain(broken, [asking(allocation_mode="All")]).summary.endswith(" Check DRA driver gpu.nvidia.com.")
