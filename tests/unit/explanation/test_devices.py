"""Each device on its own, for users who ask about it."""

from collections import Counter

import msgspec

from draco.explanation.explain import explain
from draco.explanation.findings.devices import device_verdicts
from draco.explanation.model import Cause
from draco.resources.api.meta import ObjectMeta
from tests.builders import a_claim, a_rule
from tests.unit.explanation.clusters import A100, ATTRIBUTES, GPU, H100, a_class, a_fleet, asking


def test_each_device_has_its_own_verdict_with_what_was_seen_of_it() -> None:
    fleet = a_fleet(a_claim("job", on=[f"{GPU}/n1/gpu-0"], reserved_for=["worker"]))
    verdicts = {each.device: each for each in device_verdicts(fleet, [asking(f'{ATTRIBUTES}.productName == "{H100}"')])}
    in_use, free, other = (verdicts[f"{GPU}/{device}"] for device in ("n1/gpu-0", "n1/gpu-1", "n2/gpu-0"))
    assert (in_use.cause, in_use.holders[0].claim, in_use.node) == (Cause.IN_USE, "default/job", "n1")
    assert free.cause is Cause.FREE
    assert (other.cause, [seen.value for seen in other.values]) == (Cause.NOT_SELECTED, [A100])


def test_the_verdicts_add_up_to_the_counts() -> None:
    fleet = a_fleet(a_claim("job", on=[f"{GPU}/n1/gpu-0"]))
    claim = asking(f'{ATTRIBUTES}.productName == "{H100}"', count=2)
    [request] = explain(fleet, [claim]).requests
    counts: Counter[Cause] = Counter()
    for count in request.causes:
        counts[count.cause] += count.devices
    assert Counter(each.cause for each in device_verdicts(fleet, [claim])) == counts


def test_what_keeps_kube_scheduler_away_is_in_the_way_of_no_claim_of_dracos() -> None:
    fleet = a_fleet()
    ours = ObjectMeta(name="ours", labels={"draco.dev/allocator": "operator"})
    fleet.put_class(msgspec.structs.replace(a_class("ours"), metadata=ours))
    fleet.put_rule(a_rule(taint="draco.dev/operator-allocated", driver=GPU))
    told = {each.device: each.cause for each in device_verdicts(fleet, [asking(device_class="ours")])}
    assert told[f"{GPU}/n1/gpu-0"] is Cause.FREE
