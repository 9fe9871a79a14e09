"""A claim of Draco's that only a PodGroup without pods keeps is a leak; and how long the policies tolerate it."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.allocation.ownership.leaks import cause_and_fix, is_leaked, keepers, release_after
from draco.resources.api.claims import DeviceClass, ResourceClaim, ResourceClaimConsumerReference
from draco.resources.api.core import Pod, PodStatus
from draco.resources.api.draco import Allocator, MigGangs, MigPolicy
from draco.resources.api.meta import ObjectKey, ObjectMeta, OwnerReference
from draco.resources.api.scheduling import PodGroup
from tests.builders import MOMENT, a_claim, a_mig_policy, a_pod

KEY = ObjectKey("default", "train")
CLASSES = {
    "ours": DeviceClass(metadata=ObjectMeta(name="ours", labels={"draco.dev/allocator": "operator"})),
    "gpu.nvidia.com": DeviceClass(metadata=ObjectMeta(name="gpu.nvidia.com")),
}
OWNER = OwnerReference(
    api_version="scheduling.k8s.io/v1alpha2", kind="PodGroup", name="train", uid="train", controller=True
)


def a_group(uid: str = "train", **meta: Any) -> PodGroup:
    return PodGroup(metadata=ObjectMeta(name=KEY.name, namespace=KEY.namespace, uid=uid, **meta))


def kept(
    *names: str,
    by: str = "podgroups",
    group: str = "scheduling.k8s.io",
    owners: Iterable[OwnerReference] = (),
    **terms: Any,
) -> ResourceClaim:
    claim = a_claim(**{"device_class": "ours", "on": ["n1/gpu-0"]} | terms)
    reserved = [ResourceClaimConsumerReference(api_group=group, resource=by, name=name, uid=name) for name in names]
    reserved += claim.status.reserved_for
    return msgspec.structs.replace(
        claim,
        metadata=msgspec.structs.replace(claim.metadata, owner_references=list(owners)),
        status=msgspec.structs.replace(claim.status, reserved_for=reserved),
    )


def leaks(claim: ResourceClaim, *pods: Pod, group: PodGroup | None = None) -> bool:
    groups = {KEY: group or a_group()}
    return is_leaked(claim, CLASSES, groups.get, pods)


def test_what_a_group_without_a_pod_keeps_is_leaked_until_it_has_one() -> None:
    claim = kept("train")
    assert leaks(claim)
    assert leaks(claim, a_pod(status=PodStatus(phase="Succeeded")), a_pod(status=PodStatus(phase="Failed")))
    assert not leaks(claim, a_pod(status=PodStatus(phase="Failed")), a_pod(status=PodStatus(phase="Pending")))
    assert not leaks(claim, a_pod(status=PodStatus(phase="Running"), deletion_timestamp=MOMENT))


def test_what_was_allocated_for_pods_that_never_ran_is_leaked() -> None:
    assert leaks(kept(owners=[OWNER]))
    assert not leaks(kept())
    assert not leaks(kept(owners=[msgspec.structs.replace(OWNER, api_version="others.io/v1")]))


@pytest.mark.parametrize(
    "claim",
    [
        kept("train", on=[]),
        kept("train", device_class="gpu.nvidia.com"),
        kept("train", deleting=True),
        kept("train", admin_access=True),
        kept("train", reserved_for=["pod"]),
        kept("train", "another"),
        kept("train", group="others.io"),
        kept("train", by="pods", group=""),
    ],
    ids=[
        "not allocated",
        "the scheduler's",
        "going",
        "only looks",
        "a pod's too",
        "another's too",
        "others'",
        "a pod's",
    ],
)
def test_any_other_claim_is_not(claim: ResourceClaim) -> None:
    assert not leaks(claim)


def test_where_the_group_is_gone_or_another_kubernetes_takes_it_back() -> None:
    assert not leaks(kept("train"), group=a_group(uid="its successor"))
    assert not leaks(kept("train"), group=a_group(deletion_timestamp=MOMENT))


def test_several_groups_keep_one_claim() -> None:
    assert [each.key.name for each in keepers(kept("train", "another"))] == ["train", "another"]


def a_policy(after: str, allocator: Allocator = Allocator.OPERATOR) -> MigPolicy:
    return a_mig_policy(allocator=allocator, gangs=MigGangs(release_leaked_after=after))


def test_it_is_taken_back_after_the_longest_time_if_all_policies_say_one() -> None:
    assert release_after([a_policy("1h"), a_policy("30m")]) == timedelta(hours=1)
    assert release_after([]) is None
    for other in (a_policy(""), a_policy("1m", Allocator.SCHEDULER), None):
        assert release_after([a_policy("30m"), other]) is None


def test_the_one_fix_is_said_and_for_claims_by_name_the_second_step() -> None:
    made = kept("train", owners=[OWNER])
    assert cause_and_fix(KEY, [made], 10) == (
        "The PodGroup has had no pod for 10 min and keeps gpu-0 of n1, by claim claim. If no pods follow, delete it: kubectl "
        "delete podgroup -n default train."
    )
    assert cause_and_fix(KEY, [kept("train", name="shared")], 10).endswith(
        ", and what was not made from its templates, with kubectl delete resourceclaim -n default shared."
    )
