"""Whose pods are warned and evicted because nobody uses what they hold."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from draco.limits.unused import FRESH, LOOK_AGAIN, UnusedInput, UnusedPlan, UnusedTerms, plan, terms_of
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodStatus
from draco.resources.api.limits import DeviceLimit, UnusedLimit
from draco.resources.api.usage import DeviceUsage, GpuUsageStatus, UnusedDevice
from draco.resources.names import ANNOTATION_EVICT_UNUSED, ANNOTATION_MIRROR, NVIDIA_DRIVER, PoolKey
from tests.builders import MOMENT, a_claim, a_device_key, a_limit, a_pod

POOL = PoolKey(NVIDIA_DRIVER, "node-0")
TERMS = UnusedTerms(limit="idle", after=timedelta(hours=4), notice=timedelta(minutes=15))
BEGAN = MOMENT - timedelta(days=2)


def hours(number: float) -> datetime:
    """So long before now."""
    return MOMENT - timedelta(hours=number)


def held(name: str = "train", *devices: str, **said: Any) -> ResourceClaim:
    return a_claim(name, on=[f"node-0/{each}" for each in devices or ["gpu-0"]], reserved_for=["train"], **said)


def runs(name: str = "train", *, began: datetime = BEGAN, phase: str = "Running", **said: Any) -> Pod:
    status = PodStatus(phase=phase, start_time=began)
    return a_pod(name, claims=["train"], node="node-0", status=status, **said)


def report(*unused: tuple[ResourceClaim, str, float], ago: timedelta = timedelta(0), **said: Any) -> GpuUsageStatus:
    """What the node's agent says: claims' devices, each unused for so many hours."""
    return GpuUsageStatus(
        time=MOMENT - ago,
        devices=[DeviceUsage(uuid=f"GPU-{number}", device=f"gpu-{number}") for number in range(4)],
        unused=[
            UnusedDevice(
                uuid=f"GPU-{device[4:]}",
                namespace="default",
                claim=claim.metadata.name,
                claim_uid=claim.metadata.uid,
                since=hours(ago_hours),
            )
            for claim, device, ago_hours in unused
        ],
        **said,
    )


CLAIM = held()
UNUSED = report((CLAIM, "gpu-0", 5))


def planned(
    usage: GpuUsageStatus | None = UNUSED,
    *,
    claim: ResourceClaim = CLAIM,
    pods: Sequence[Pod] | None = None,
    **said: Any,
) -> UnusedPlan:
    usages = {POOL: usage} if usage is not None else {}
    known = {"now": MOMENT, "terms": TERMS, "usages": usages, "pods": [runs()] if pods is None else pods, **said}
    return plan(UnusedInput(claim=claim, **known))


def warned_and_later(usage: GpuUsageStatus = UNUSED, *, minutes: float, **said: Any) -> UnusedPlan:
    """The plan so many minutes after the notice, with a fresh report."""
    now = MOMENT + timedelta(minutes=minutes)
    later = msgspec.structs.replace(usage, time=now)
    return planned(later, now=now, noticed=planned(UNUSED).notice, **said)


def test_the_pods_are_warned_first_and_evicted_when_the_notice_says() -> None:
    first = planned()
    assert first.notice is not None
    assert (first.notice.evict_at, first.evict) == (MOMENT + TERMS.notice, ())
    assert first.look_again == TERMS.notice
    assert warned_and_later(minutes=14).evict == ()
    due = warned_and_later(minutes=15)
    assert [pod.metadata.name for pod in due.evict] == ["train"]
    assert str(due) == "evict default/train: unused for 5:15:00"


def test_the_notice_is_part_of_the_time() -> None:
    soon = planned(report((CLAIM, "gpu-0", 3.5)))
    assert (soon.notice, soon.look_again) == (None, timedelta(minutes=15))
    early = planned(report((CLAIM, "gpu-0", 3.75)))
    assert early.notice is not None
    assert early.notice.evict_at == hours(3.75) + TERMS.after


def test_a_claim_that_was_used_in_between_begins_again() -> None:
    assert warned_and_later(report(), minutes=20).evict == ()
    again = warned_and_later(report((CLAIM, "gpu-0", 0)), minutes=20)
    assert (again.evict, again.notice) == ((), None)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        msgspec.structs.replace(UNUSED, time=None),
        msgspec.structs.replace(UNUSED, time=MOMENT - FRESH - timedelta(seconds=1)),
        msgspec.structs.replace(UNUSED, time=MOMENT + FRESH + timedelta(seconds=1)),
        msgspec.structs.replace(UNUSED, devices=[], unread=["GPU-0"]),
    ],
    ids=["no report", "never written", "old", "of another clock", "unread"],
)
def test_unknown_is_not_unused_and_is_looked_at_again_soon(usage: GpuUsageStatus | None) -> None:
    found = planned(usage)
    assert (found.notice, found.evict, found.look_again) == (None, (), LOOK_AGAIN)


def test_what_is_known_to_be_used_is_not_read_again_before_it_can_be_due() -> None:
    assert planned(report()).look_again == TERMS.after - TERMS.notice - FRESH


def test_a_notice_outlasts_a_moment_in_which_it_is_unknown() -> None:
    first = planned()
    unknown = planned(None, noticed=first.notice)
    assert (unknown.notice, unknown.evict) == (first.notice, ())


def test_a_lost_notice_is_given_again_so_a_restart_only_makes_it_later() -> None:
    due = warned_and_later(minutes=20)
    assert due.evict
    again = planned(
        msgspec.structs.replace(UNUSED, time=MOMENT + timedelta(minutes=20)), now=MOMENT + timedelta(minutes=20)
    )
    assert again.notice is not None
    assert (again.evict, again.notice.evict_at) == ((), MOMENT + timedelta(minutes=35))


def test_all_devices_of_the_claim_must_be_unused_and_the_last_one_counts() -> None:
    claim = held("train", "gpu-0", "gpu-1")
    assert planned(report((claim, "gpu-0", 5)), claim=claim).notice is None
    both = planned(report((claim, "gpu-0", 9), (claim, "gpu-1", 5)), claim=claim)
    assert both.since == hours(5)


def test_so_must_be_all_other_claims_of_the_pods_and_of_their_groups() -> None:
    other = held("other", "gpu-1")
    assert planned(others=[other]).notice is None
    assert planned(report((CLAIM, "gpu-0", 9), (other, "gpu-1", 5)), others=[other]).since == hours(5)
    foreign = a_claim("nic", on=["nic.example.com/node-0/gpu-0"], reserved_for=["train"])
    assert planned(others=[foreign]).notice is None, "nobody tells whether a device of another driver is used"


def test_another_claim_of_the_same_name_is_not_this_one() -> None:
    assert (
        planned(
            claim=msgspec.structs.replace(CLAIM, metadata=msgspec.structs.replace(CLAIM.metadata, uid="new"))
        ).notice
        is None
    )


def test_a_monitor_with_administrative_access_neither_keeps_a_claim_nor_is_evicted() -> None:
    monitor = a_claim("monitor", on=["node-0/gpu-0"], reserved_for=["train"], admin_access=True)
    assert planned(others=[monitor]).notice is not None
    assert terms_of(monitor, {}, [a_limit(unused=UnusedLimit(evict_after="4h"))]) is None


def test_a_pod_that_started_later_has_its_own_time() -> None:
    found = planned(pods=[runs(), runs("late", began=hours(1))])
    assert (found.notice, found.look_again) == (None, TERMS.after - TERMS.notice - timedelta(hours=1))
    assert planned(pods=[runs(), runs("late", began=hours(3.75))]).since == hours(3.75)


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ([], "no pod stays with it"),
        ([runs(), runs("kept", annotations={ANNOTATION_EVICT_UNUSED: "false"})], "default/kept has the annotation"),
        ([runs("fixed", annotations={ANNOTATION_MIRROR: "x"})], "static pod"),
        ([runs(), runs("new", phase="Pending")], "default/new has not started"),
    ],
)
def test_some_pods_keep_it_whether_it_is_used_or_not(pods: list[Pod], why: str) -> None:
    found = planned(pods=pods)
    assert why in found.why
    assert (found.notice, found.evict) == (None, ())


def test_an_annotation_of_the_claim_keeps_all_its_pods() -> None:
    metadata = msgspec.structs.replace(CLAIM.metadata, annotations={ANNOTATION_EVICT_UNUSED: "false"})
    assert planned(claim=msgspec.structs.replace(CLAIM, metadata=metadata)).notice is None


def test_maintenance_decides_over_the_pods_of_its_devices() -> None:
    assert planned(maintained={a_device_key("node-0/gpu-1")}).notice is not None
    assert warned_and_later(minutes=20, maintained={a_device_key("node-0/gpu-0")}).evict == ()


def test_pods_that_are_evicted_are_not_warned_again_while_others_leave() -> None:
    noticed = planned().notice
    assert planned(pods=[], noticed=noticed).notice == noticed


def test_changed_terms_are_announced_again() -> None:
    shorter = msgspec.structs.replace(TERMS, after=timedelta(hours=2))
    found = warned_and_later(minutes=20, terms=shorter)
    assert found.notice is not None
    assert (found.evict, found.notice.terms) == ((), shorter)


def a_limit_of(name: str, after: str, **spec: Any) -> DeviceLimit:
    return a_limit(name, unused=UnusedLimit(evict_after=after), **spec)


def test_the_limit_that_ends_first_counts_of_those_that_select_the_claim() -> None:
    limits = [
        a_limit("amounts", devices=1),
        a_limit_of("day", "24h"),
        a_limit_of("tenant", "2h", tenant="a"),
        a_limit_of("class", "1h", device_class_names=["other.example.com"]),
        a_limit_of("driver", "1h", driver="other.example.com"),
    ]

    def found(**labels: str) -> str:
        terms = terms_of(CLAIM, labels, limits)
        return terms.limit if terms else ""

    assert (found(), found(tenant="a")) == ("day", "tenant")
    assert terms_of(CLAIM, {}, limits[:1]) is None
