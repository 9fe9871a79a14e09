"""A PodGroup without pods keeps its claim: Draco reports it, and deallocates the claim if the MigPolicy permits it."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from draco.allocation.ownership import leaks as rule
from draco.controller.allocation.reclaiming import leaks
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import Invalid
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, EVENTS, MIG_POLICIES, PODS
from draco_local.simulator.kubelet.pods import ANNOTATION_RUN_SECONDS
from tests.component.allocation.lab import ALLOCATING, Guarded
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import POD_GROUP, allocated_claims, make_member, make_pod_group, make_template
from tests.component.simulator.test_nodes import running, until_gone, until_running

TELLING = msgspec.structs.replace(ALLOCATING, leak_after_s=0.5)
GROUP = "train"


async def a_leak(client: Client, namespace: str) -> ResourceClaim:
    """The claim of a group whose two members shared a GPU and are gone."""
    await make_template(client, namespace, "one", gpus=1)
    await make_pod_group(client, namespace, GROUP, least=2, template="one")
    for name in ("a", "b"):
        await make_member(client, namespace, name, template="one", pod_group=GROUP)
    await until_running(client, namespace, "a", "b")
    for name in ("a", "b"):
        await client.delete(PODS, ObjectKey(namespace, name))
    await until_gone(client, namespace, "a", "b")
    (claim,) = await allocated_claims(client, namespace)
    assert [(each.resource, each.name) for each in claim.status.reserved_for] == [("podgroups", GROUP)]
    return claim


async def said(client: Client, namespace: str) -> str:
    events = await client.list(EVENTS, namespace=namespace)
    return next((each.message for each in events if each.reason == leaks.KEPT_REASON.name), "")


async def test_a_group_without_a_pod_is_said_to_keep_its_devices_and_loses_them_only_as_the_policy_permits(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "SETTLE_S", 0.5)
    monkeypatch.setattr(leaks, "_AGAIN_S", 0.2)
    monkeypatch.setattr(rule, "lasting", lambda text: timedelta(seconds=1 if text == "1m" else 0))
    async with running(all_dracos, folder), an_operator(guarded, TELLING) as (operator, _):
        claim = await a_leak(all_dracos, namespace)

        async def told() -> str:
            return await said(all_dracos, namespace)

        text = await until(told, what="the Event of the PodGroup")
        assert f"kubectl delete podgroup -n {namespace} {GROUP}" in text
        assert f"{namespace}/{GROUP}" in "\n".join(operator.report.troubles())
        status = (await all_dracos.get(CLAIMS, claim.metadata.key)).status
        assert (status.allocation, status.reserved_for) == (claim.status.allocation, claim.status.reserved_for)

        permitted = {"spec": {"gangs": {"releaseLeakedAfter": "1m"}}}
        await all_dracos.patch(MIG_POLICIES, ObjectKey("", "draco"), permitted)

        async def released() -> bool:
            return not await allocated_claims(all_dracos, namespace)

        async def withdrawn() -> bool:
            return not await told() and not operator.report.troubles()

        await until(released, what="the release")
        await until(withdrawn, what="the end of the Event")
        await all_dracos.get(POD_GROUP, ObjectKey(namespace, GROUP))  # it is there to stay
        for name in ("c", "d"):
            await make_member(all_dracos, namespace, name, template="one", pod_group=GROUP)
        await until_running(all_dracos, namespace, "c", "d")


async def test_pods_that_have_ended_are_said_to_keep_the_devices_until_they_are_deleted(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kube-controller-manager reserves the claim again while they exist."""
    monkeypatch.setattr(leaks, "SETTLE_S", 0.5)
    monkeypatch.setattr(leaks, "_AGAIN_S", 0.2)
    monkeypatch.setattr(rule, "lasting", lambda text: timedelta(milliseconds=1 if text == "1m" else 0))
    writes: list[str] = []

    async def noting(method: str, path: str) -> None:
        if method == "PATCH" and f"/{namespace}/resourceclaims/" in path and path.endswith("/status"):
            writes.append(path)

    await all_dracos.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"gangs": {"releaseLeakedAfter": "1m"}}})
    async with running(all_dracos, folder), an_operator(guarded, TELLING, before_requests=noting):
        await make_template(all_dracos, namespace, "one", gpus=1)
        await make_pod_group(all_dracos, namespace, GROUP, least=1, template="one")
        ends = {ANNOTATION_RUN_SECONDS: "0"}
        await make_member(all_dracos, namespace, "a", template="one", pod_group=GROUP, annotations=ends)

        async def told() -> bool:
            return "once the pods that have ended are deleted" in await said(all_dracos, namespace)

        async def released() -> bool:
            claims = await all_dracos.list(CLAIMS, namespace=namespace)
            return bool(claims) and not any(each.status.allocation for each in claims)

        await until(told, what="the Event of the PodGroup")
        assert len(writes) == 1, "the allocation, and no try to take it back"
        await all_dracos.delete(PODS, ObjectKey(namespace, "a"))
        await until(released, what="the release")


async def test_the_operators_account_takes_only_reservations_of_pod_groups_and_never_with_the_allocation(
    guarded: Guarded, all_dracos: Client, namespace: str, folder: Path
) -> None:
    async with running(all_dracos, folder), an_operator(guarded, ALLOCATING):
        leaked = await a_leak(all_dracos, namespace)
        await make_template(all_dracos, namespace, "own", gpus=1)
        await make_pod_group(all_dracos, namespace, "plain", least=1)
        await make_member(all_dracos, namespace, "pod", template="own", pod_group="plain")
        await until_running(all_dracos, namespace, "pod")
        (used,) = [
            each for each in await allocated_claims(all_dracos, namespace) if each.metadata.uid != leaked.metadata.uid
        ]
        async with Client(await connect(guarded.kubeconfig)) as account:
            for key, status in (
                (used.metadata.key, {"reservedFor": None}),
                (leaked.metadata.key, {"reservedFor": None, "allocation": None}),
            ):
                with pytest.raises(Invalid, match="the operator may"):
                    await account.patch(CLAIMS, key, {"status": status}, subresource="status")
            await account.patch(CLAIMS, leaked.metadata.key, {"status": {"reservedFor": None}}, subresource="status")
        assert (await all_dracos.get(CLAIMS, leaked.metadata.key)).status.allocation == leaked.status.allocation
