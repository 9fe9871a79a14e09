"""Which pods start together, and how many, according to PodGroups and the labels of Kueue, LeaderWorkerSet and JobSet."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from draco.allocation.ownership.gangs import (
    GangKey,
    GangSource,
    GangTerms,
    UnknownTerms,
    default_topology,
    gang_of,
    has_served,
    terms_of,
)
from draco.resources.api.claims import DeviceClass
from draco.resources.api.core import Pod, PodSchedulingGroup, PodStatus
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.scheduling import (
    GangSchedulingPolicy,
    PodGroup,
    PodGroupSchedulingConstraints,
    PodGroupSchedulingPolicy,
    PodGroupSpec,
    TopologyConstraint,
)
from tests.builders import a_claim, a_device_class, a_pod

TOPOLOGY = "draco.dev/topology"
KUEUE = {"kueue.x-k8s.io/pod-group-name": "train"}
KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
LWS = {"leaderworkerset.sigs.k8s.io/name": "serve", "leaderworkerset.sigs.k8s.io/group-index": "3"}
JOB_SET = {"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/global-replicas": "2"}


def pod(
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    pod_group: str = "",
    priority: int = 0,
    **meta: Any,
) -> Pod:
    made = a_pod("pod", annotations=annotations or {}, labels=dict(labels or {}), **meta)
    group = PodSchedulingGroup(pod_group_name=pod_group) if pod_group else None
    return msgspec.structs.replace(
        made, spec=msgspec.structs.replace(made.spec, scheduling_group=group, priority=priority)
    )


def a_pod_group(
    *, least: int | None = 8, keys: tuple[str, ...] = (), topology: str = "", priority: int | None = None
) -> PodGroup:
    gang = None if least is None else GangSchedulingPolicy(min_count=least)
    constraints = PodGroupSchedulingConstraints(topology=[TopologyConstraint(key=key) for key in keys])
    return PodGroup(
        metadata=ObjectMeta(name="train", annotations={TOPOLOGY: topology} if topology else {}),
        spec=PodGroupSpec(
            scheduling_policy=PodGroupSchedulingPolicy(gang=gang), scheduling_constraints=constraints, priority=priority
        ),
    )


GROUP = GangKey(GangSource.POD_GROUP, "default", "train")


@pytest.mark.parametrize(
    ("member", "gang"),
    [
        (pod(), None),
        (pod(pod_group="train"), GROUP),
        (pod(KUEUE), GangKey(GangSource.KUEUE, "default", "train")),
        (pod(LWS), GangKey(GangSource.LWS, "default", "serve-3")),
        (pod(JOB_SET), GangKey(GangSource.JOB_SET, "default", "set")),
        (pod({**KUEUE, **LWS, **JOB_SET}, pod_group="train"), GROUP),
        (pod({"leaderworkerset.sigs.k8s.io/name": "serve"}), None),
    ],
)
def test_a_pod_belongs_to_what_its_first_source_says(member: Pod, gang: GangKey | None) -> None:
    assert gang_of(member) == gang


def test_a_pod_group_says_how_many_start_together_where_and_with_which_priority() -> None:
    group = a_pod_group(topology="sameNode", priority=7)
    assert terms_of(GROUP, [pod(priority=3)], group, {}) == GangTerms(size=8, topology="sameNode", priority=7)


def test_without_a_priority_of_its_own_a_group_has_the_lowest_of_its_pods_that_are_not_over() -> None:
    over = msgspec.structs.replace(pod(priority=1), status=PodStatus(phase="Failed"))
    terms = terms_of(GROUP, [pod(priority=3), pod(priority=5), over], a_pod_group(), {})
    assert isinstance(terms, GangTerms)
    assert terms.priority == 3


def test_pods_of_a_pod_group_that_is_no_gang_start_one_by_one() -> None:
    assert terms_of(GROUP, [pod()], a_pod_group(least=None), {}) is None


def test_a_pod_group_that_comes_later_is_waited_for() -> None:
    terms = terms_of(GROUP, [pod()], None, {})
    assert isinstance(terms, UnknownTerms)
    assert "PodGroup default/train does not exist" in terms.why


@pytest.mark.parametrize(
    ("members", "group", "topology"),
    [
        ([pod()], a_pod_group(keys=("rack",)), "rack"),
        ([pod(annotations={TOPOLOGY: "spread"})], a_pod_group(), "spread"),
        ([pod(annotations={TOPOLOGY: "spread"})], a_pod_group(topology="rack", keys=("zone",)), "rack"),
    ],
)
def test_the_groups_own_annotation_counts_before_those_of_its_pods(
    members: list[Pod], group: PodGroup, topology: str
) -> None:
    terms = terms_of(GROUP, members, group, {})
    assert isinstance(terms, GangTerms)
    assert terms.topology == topology


@pytest.mark.parametrize(
    ("members", "group"),
    [
        ([pod(annotations={TOPOLOGY: "rack"}), pod(annotations={TOPOLOGY: "zone"})], a_pod_group()),
        ([pod()], a_pod_group(keys=("rack", "zone"))),
    ],
)
def test_topologies_that_contradict_each_other_are_refused(members: list[Pod], group: PodGroup) -> None:
    terms = terms_of(GROUP, members, group, {})
    assert isinstance(terms, UnknownTerms)
    assert "rack, zone" in terms.why


@pytest.mark.parametrize(
    ("labels", "annotation"),
    [(KUEUE, KUEUE_COUNT), (LWS, "leaderworkerset.sigs.k8s.io/size"), (JOB_SET, "draco.dev/group-size")],
)
def test_labels_say_the_size_in_an_annotation(labels: Mapping[str, str], annotation: str) -> None:
    member = pod(labels, {annotation: "4"})
    gang = gang_of(member)
    assert gang is not None
    assert terms_of(gang, [member], None, {}) == GangTerms(size=4)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ((), "No pod of Kueue pod group default/train has the annotation kueue.x-k8s.io/pod-group-total-count"),
        (("4", "5"), "say different sizes"),
        (("many",), "write a number of pods"),
        (("0",), "write a number of pods"),
        (("٣",), "write a number of pods"),
        (("9" * 5000,), "write a number of pods"),
    ],
)
def test_a_size_that_cannot_be_read_is_said(sizes: tuple[str, ...], why: str) -> None:
    members = [pod(KUEUE, {KUEUE_COUNT: size}) for size in sizes] or [pod(KUEUE)]
    terms = terms_of(GangKey(GangSource.KUEUE, "default", "train"), members, None, {})
    assert isinstance(terms, UnknownTerms)
    assert why in terms.why
    assert len(terms.why) < 300


def test_a_job_set_is_as_large_as_all_its_jobs_once_each_has_a_pod_and_has_been_read() -> None:
    key = GangKey(GangSource.JOB_SET, "default", "set")
    first, second = (pod({**JOB_SET, "batch.kubernetes.io/job-name": name}) for name in ("leader", "workers"))
    assert "has 2 Jobs, and pods of 1 exist" in str(terms_of(key, [first], None, {"leader": 1}))
    assert "Job workers" in str(terms_of(key, [first, second], None, {"leader": 1}))
    assert terms_of(key, [first], None, {"leader": 1, "workers": 0}) == GangTerms(size=1)
    assert terms_of(key, [first, second], None, {"leader": 1, "workers": 7}) == GangTerms(size=8)


def a_class(name: str, topology: str = "") -> DeviceClass:
    made = a_device_class(name)
    annotations = {TOPOLOGY: topology} if topology else {}
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=annotations))


CLASSES = {
    each.metadata.name: each
    for each in (a_class("gpu", "sameNode"), a_class("board", "sameNode"), a_class("mig", "spread"), a_class("plain"))
}


@pytest.mark.parametrize(
    ("asked", "topology"),
    [
        ((), ""),
        (("plain", "unknown"), ""),
        (("plain", "gpu"), "sameNode"),
        (("board", "gpu", "gpu"), "sameNode"),
        (("mig",), "spread"),
    ],
)
def test_the_device_classes_that_a_group_asks_for_say_where_it_is_by_default(
    asked: tuple[str, ...], topology: str
) -> None:
    claims = [a_claim(f"claim-{number}", device_class=name) for number, name in enumerate(asked)]
    assert default_topology(GROUP, claims, CLASSES) == topology


def test_device_classes_of_different_topologies_are_refused_and_named_whichever_comes_first() -> None:
    claims = [a_claim(f"claim-{name}", device_class=name) for name in ("plain", "mig", "gpu", "board")]
    said = "PodGroup default/train asks for DeviceClasses of different topologies: board has sameNode, mig has spread. "
    for each in (claims, claims[::-1]):
        terms = default_topology(GROUP, each, CLASSES)
        assert isinstance(terms, UnknownTerms)
        assert terms.why == said + "Give all of its pods the same one in the annotation draco.dev/topology."


@pytest.mark.parametrize("source", GangSource)
def test_a_pod_that_has_succeeded_counts_except_in_a_pod_group_where_kube_scheduler_does_not_count_it(
    source: GangSource,
) -> None:
    key = GangKey(source, "default", "train")
    ended = msgspec.structs.replace(pod(), status=PodStatus(phase="Succeeded"))
    assert has_served(key, ended) is (source is not GangSource.POD_GROUP)
    assert not has_served(key, msgspec.structs.replace(pod(), status=PodStatus(phase="Failed")))
