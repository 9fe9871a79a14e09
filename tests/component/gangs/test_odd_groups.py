"""Groups that share claims, missing or unreadable PodGroups, and contradictory settings."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, POD_GROUPS, PODS
from draco.resources.names import ANNOTATION_TOPOLOGY
from tests.component.allocation.lab import ALLOCATING, CLASS, Guarded, make_claim
from tests.component.allocation.published import publishing
from tests.component.allocation.test_race import no_device_in_two_claims
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import POD_GROUP, allocated_claims, make_member, make_pod_group, make_template
from tests.component.gangs.test_groups_by_label import said, sized

NOBODYS: dict[str, Any] = {"schedulerName": "nobody"}


@pytest.fixture
async def lab(guarded: Guarded, all_dracos: Client, namespace: str) -> AsyncIterator[Client]:
    async with no_device_in_two_claims(all_dracos), publishing(all_dracos, ["sim-1", "sim-2"], 4):
        await make_template(all_dracos, namespace, "one", gpus=1)
        yield all_dracos
        for pod in await all_dracos.list(PODS, namespace=namespace):
            await all_dracos.delete(PODS, pod.metadata.key, grace_period_s=0)
        for claim in await all_dracos.list(CLAIMS, namespace=namespace):
            with contextlib.suppress(NotFound):
                await all_dracos.delete(CLAIMS, claim.metadata.key)


def of_group(name: str) -> dict[str, str]:
    return {"kueue.x-k8s.io/pod-group-name": name}


async def until_said(client: Client, namespace: str, *texts: str) -> None:
    async def look() -> bool:
        return all([await said(client, namespace, "GroupWaiting", each) for each in texts])

    await until(look, what=f"a GroupWaiting with each of {texts}")


async def until_so_many_have_devices(client: Client, namespace: str, claims: int) -> None:
    async def look() -> bool:
        return len(await allocated_claims(client, namespace)) == claims

    await until(look, what=f"devices for {claims} claims")


async def test_of_two_groups_whose_pods_name_one_claim_one_keeps_it_and_the_other_waits_with_nothing(
    guarded: Guarded, lab: Client, namespace: str
) -> None:
    """Both exist before the operator starts, so it decides about both together."""
    spec = {
        "containers": [
            {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}, {"name": "shared"}]}}
        ],
        "resourceClaims": [
            {"name": "gpu", "resourceClaimTemplateName": "one"},
            {"name": "shared", "resourceClaimName": "shared"},
        ],
        **NOBODYS,
    }
    await make_claim(lab, namespace, "shared")
    for group in ("one", "two"):
        for number in range(2):
            name = f"{group}-{number}"
            await make_member(
                lab, namespace, name, template="one", labels=of_group(group), annotations=sized(2), **spec
            )

    async def made() -> bool:
        return len(await lab.list(CLAIMS, namespace=namespace)) == 5

    await until(made, what="the claims")
    async with an_operator(guarded, ALLOCATING):
        await until_said(lab, namespace, "needs devices for 2 pods at once; now 1 of 2 gets some")
        held = {each.metadata.name[:3] for each in await allocated_claims(lab, namespace)}
        assert held in ({"one", "sha"}, {"two", "sha"})
        assert len(await allocated_claims(lab, namespace)) == 3
        assert not await said(lab, namespace, "AllocationGivenBack", "")


async def test_pods_that_name_a_pod_group_that_nobody_made_hold_nothing_and_say_so(
    guarded: Guarded, lab: Client, namespace: str
) -> None:
    """Kubernetes creates no claims for them meanwhile, but they may use named ones."""
    async with an_operator(guarded, ALLOCATING):
        for name in ("a", "b"):
            named = [{"name": "gpu", "resourceClaimName": name}]
            await make_member(
                lab, namespace, name, template="one", pod_group="nowhere", resourceClaims=named, **NOBODYS
            )
            await make_claim(lab, namespace, name)
        await until_said(lab, namespace, f"PodGroup {namespace}/nowhere does not exist")
        assert await allocated_claims(lab, namespace) == []
        await make_pod_group(lab, namespace, "nowhere", least=2)
        await until_so_many_have_devices(lab, namespace, 2)


async def test_pods_of_pod_groups_in_no_version_that_draco_knows_hold_nothing_and_say_which_it_knows(
    guarded: Guarded, lab: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To this operator, the API server seems to serve another version."""
    unknown = [kind for kind in POD_GROUPS if kind != POD_GROUP]
    monkeypatch.setattr("draco.kube.discovery.POD_GROUPS", unknown)
    await make_pod_group(lab, namespace, "train", least=2)
    async with an_operator(guarded, ALLOCATING):
        for name in ("a", "b"):
            await make_member(lab, namespace, name, template="one", pod_group="train", **NOBODYS)
        await until_said(lab, namespace, "serves none of the versions v1beta1, v1alpha3, v1alpha2")
        assert await allocated_claims(lab, namespace) == []
        await make_member(lab, namespace, "alone", template="one", **NOBODYS)
        await until_so_many_have_devices(lab, namespace, 1)


async def test_members_that_want_different_topologies_hold_nothing_until_they_agree(
    guarded: Guarded, lab: Client, namespace: str
) -> None:
    async with an_operator(guarded, ALLOCATING):
        for name, topology in (("a", "sameNode"), ("b", "spread")):
            await make_member(
                lab, namespace, name, template="one", labels=of_group("odd"), annotations=sized(2, topology), **NOBODYS
            )
        await until_said(
            lab,
            namespace,
            f"Kueue pod group {namespace}/odd is to be in several topologies at once: sameNode, spread. "
            f"Give all of its pods the same one in the annotation {ANNOTATION_TOPOLOGY}.",
        )
        assert await allocated_claims(lab, namespace) == []
        await lab.patch(PODS, ObjectKey(namespace, "a"), {"metadata": {"annotations": sized(2, "spread")}})
        await until_so_many_have_devices(lab, namespace, 2)


async def test_a_group_whose_device_classes_differ_in_topology_holds_nothing_until_its_pods_say_one(
    guarded: Guarded, lab: Client, namespace: str
) -> None:
    board = await lab.get(DEVICE_CLASSES, ObjectKey("", CLASS))
    named = {f"{namespace}-a": "sameNode", f"{namespace}-b": "spread"}
    for name, topology in named.items():
        meta = {"name": name, "labels": board.metadata.labels, "annotations": {ANNOTATION_TOPOLOGY: topology}}
        await lab.create(DEVICE_CLASSES, {"metadata": meta, "spec": msgspec.to_builtins(board.spec)})
        await make_template(lab, namespace, name[-1], gpus=1, device_class=name)
    try:
        async with an_operator(guarded, ALLOCATING):
            for name in ("a", "b"):
                await make_member(
                    lab, namespace, name, template=name, labels=of_group("odd"), annotations=sized(2), **NOBODYS
                )
            await until_said(
                lab,
                namespace,
                f"asks for DeviceClasses of different topologies: {namespace}-a has sameNode, {namespace}-b has spread.",
                f"Give all of its pods the same one in the annotation {ANNOTATION_TOPOLOGY}.",
            )
            assert await allocated_claims(lab, namespace) == []
            await lab.patch(PODS, ObjectKey(namespace, "a"), {"metadata": {"annotations": sized(2, "spread")}})
            await until_so_many_have_devices(lab, namespace, 2)
    finally:
        for name in named:
            await lab.delete(DEVICE_CLASSES, ObjectKey("", name))


async def test_a_selector_that_matches_nothing_keeps_the_whole_group_without_devices_and_is_named(
    guarded: Guarded, lab: Client, namespace: str
) -> None:
    nothing = [{"cel": {"expression": 'device.attributes["gpu.nvidia.com"].type == "none"'}}]
    await make_template(lab, namespace, "never", gpus=1, selectors=nothing)
    async with an_operator(guarded, ALLOCATING):
        for name, template in (("a", "one"), ("b", "never")):
            await make_member(
                lab, namespace, name, template=template, labels=of_group("odd"), annotations=sized(2), **NOBODYS
            )
        await until_said(lab, namespace, f"Kueue pod group {namespace}/odd needs devices for 2 pods at once")

        async def told() -> bool:
            return await said(lab, namespace, "ClaimPending", "type")

        await until(told, what="which selector it is")
        assert await allocated_claims(lab, namespace) == []
