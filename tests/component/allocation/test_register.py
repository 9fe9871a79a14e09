"""The register of GPUs that only Draco may allocate: enforced whenever its admission policies exist, and never lost."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.ownership.register import OwnLeadership, RegisterMissing, RegisterStore
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import ApiError, Conflict, Invalid, NotFound
from draco.resources.api.allocation import AllocationRegister, RegisteredLeader
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import ALLOCATION_REGISTERS, CLAIMS
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import (
    ALLOCATING,
    POLICIES,
    REGISTER,
    RIGHTS,
    USER,
    ChartParts,
    Guarded,
    make_claim,
    until_allocated,
)
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import running
from tests.requests import call

GPUS = [GpuPlace("gpu.nvidia.com", "node", f"gpu-{number}") for number in range(3)]
BASIC = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:basic-user"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/allocationregisters.draco.dev"


@pytest.fixture
def parts(api_server: ControlPlane, crds: None) -> Iterator[ChartParts]:
    parts = ChartParts(api_server)
    try:
        yield parts
    finally:
        parts.forget_register()
        parts.uninstall()


@pytest.fixture
async def store(api_server: ControlPlane, tmp_path: Path) -> AsyncIterator[RegisterStore]:
    """The register, accessed with the operator's account."""
    api_server.write_kubeconfig(tmp_path / "operator", USER)
    async with await connect(tmp_path / "operator") as connection:
        yield RegisterStore(Client(connection))


class Rival:
    """A client that may write claims' status and tries to allocate GPUs."""

    def __init__(self, client: Client, key: ObjectKey) -> None:
        self._client = client
        self._key = key

    async def gets(self, device: str) -> bool:
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node", "device": device}
        status = {"status": {"allocation": {"devices": {"results": [result]}}}}
        try:
            await self._client.patch(CLAIMS, self._key, status, subresource="status")
        except Invalid as error:
            if f"{device} of pool node is allocated by Draco only" not in str(error):
                raise
            return False
        await self._client.patch(CLAIMS, self._key, {"status": {"allocation": None}}, subresource="status")
        return True

    async def until_gets(self, *wanted: str) -> None:
        """Wait until it can allocate exactly these GPUs."""

        async def as_wanted() -> bool:
            return {each.gpu for each in GPUS if await self.gets(each.gpu)} == set(wanted)

        await until(as_wanted, within_s=30, what=f"the API server permits {wanted}")


@pytest.fixture
async def rival(client: Client, namespace: str) -> Rival:
    await make_claim(client, namespace, "by-hand", device_class="gpu.nvidia.com")
    return Rival(client, ObjectKey(namespace, "by-hand"))


async def test_the_register_is_followed_however_often_the_policies_were_deleted(
    parts: ChartParts, store: RegisterStore, rival: Rival
) -> None:
    """If the register were a ConfigMap, the API server would keep using what it read before the first deletion."""
    parts.install(RIGHTS)
    made = await store.make()
    for first, second in (("gpu-0", "gpu-1"), ("gpu-1", "gpu-2"), ("gpu-2", "gpu-0")):
        parts.install(POLICIES)
        made = await store.write(made, [each for each in GPUS if each.gpu == first])
        await rival.until_gets(*({"gpu-0", "gpu-1", "gpu-2"} - {first}))
        made = await store.write(made, [each for each in GPUS if each.gpu in (first, second)])
        await rival.until_gets(*({"gpu-0", "gpu-1", "gpu-2"} - {first, second}))
        parts.uninstall()
        parts.install(RIGHTS)
        await rival.until_gets("gpu-0", "gpu-1", "gpu-2")


async def test_policies_that_meet_a_register_from_before_follow_it_at_once(
    parts: ChartParts, store: RegisterStore, rival: Rival
) -> None:
    """As after a reinstallation, before the operator runs."""
    parts.install(RIGHTS)
    await store.write(await store.make(), GPUS[:1])
    parts.install(POLICIES)
    await rival.until_gets("gpu-1", "gpu-2")


async def test_without_a_register_or_its_kind_nobody_is_kept_from_anything(
    api_server: ControlPlane, parts: ChartParts, store: RegisterStore, rival: Rival
) -> None:
    """As between the chart's installation and the operator's start, or if somebody deletes the definition."""
    parts.install(RIGHTS | POLICIES)
    for _ in range(20):
        assert await rival.gets("gpu-0")
    await store.write(await store.make(), GPUS[:1])
    await rival.until_gets("gpu-1", "gpu-2")
    definition = call(api_server, "GET", CRD)
    call(api_server, "DELETE", CRD)
    await rival.until_gets("gpu-0", "gpu-1", "gpu-2")
    again = {"apiVersion": "apiextensions.k8s.io/v1", "kind": definition["kind"], "spec": definition["spec"]}
    again["metadata"] = {"name": definition["metadata"]["name"]}

    async def served() -> bool:
        call(api_server, "PATCH", f"{CRD}?fieldManager=tests&force=true", again)
        with contextlib.suppress(ApiError, RegisterMissing):  # the old definition takes a moment to disappear
            await store.make()
            return True
        return False

    await until(served, what="the kind is served again")
    await store.write(await store.read(), GPUS[1:2])
    await rival.until_gets("gpu-0", "gpu-2")


async def test_the_operator_alone_writes_the_register_and_nobody_deletes_it_while_it_lists_a_gpu(
    parts: ChartParts, store: RegisterStore, client: Client
) -> None:
    parts.install()
    made = await store.write(await store.make(), GPUS[:1])

    async def refused() -> bool:
        try:
            await client.patch(ALLOCATION_REGISTERS, REGISTER, {"spec": {"pools": {}}})
        except Invalid as error:
            return "only Draco's operator may write the AllocationRegister" in str(error)
        return False

    await until(refused, what="the API server goes by the policy")
    made = await store.write(await store.read(), GPUS[:1])
    with pytest.raises(Invalid, match=r"first set spec.allocator of their MigPolicies to Scheduler"):
        await client.delete(ALLOCATION_REGISTERS, REGISTER)
    await store.write(made, [])
    assert (await client.get(ALLOCATION_REGISTERS, REGISTER)).status.gpus == 0
    await client.delete(ALLOCATION_REGISTERS, REGISTER)


async def test_of_two_writers_that_saw_the_same_register_one_is_refused(
    parts: ChartParts, store: RegisterStore
) -> None:
    parts.install(RIGHTS)
    seen = await store.make()
    assert await store.make() == seen
    written = await store.write(seen, GPUS)
    with pytest.raises(Conflict):
        await store.write(seen, [])
    assert await store.read() == written
    assert written.places == frozenset(GPUS)


async def test_the_register_names_nobody_where_the_operator_may_not_ask_which_pod_it_is(
    api_server: ControlPlane, parts: ChartParts, store: RegisterStore, tmp_path: Path
) -> None:
    """Somebody removed the right that Kubernetes grants all users. With a wrong name the operator would lock itself out."""
    parts.install(RIGHTS)
    named = await store.write(await store.make(), GPUS, RegisteredLeader(identity="before", pod_uid="uid"))
    assert named.leader == RegisteredLeader(identity="before", pod_uid="uid")
    binding = call(api_server, "GET", BASIC)
    again = {"metadata": {"name": "system:basic-user"}, **{key: binding[key] for key in ("roleRef", "subjects")}}
    call(api_server, "DELETE", BASIC)
    try:
        async with await connect(tmp_path / "operator") as connection:

            async def entry() -> RegisteredLeader | None:
                return await OwnLeadership(Client(connection), ObjectKey("", ""), "operator").entry()

            async def unknown() -> bool:
                return await entry() is None

            await until(unknown, within_s=30, what="the API server goes by the deletion")
            assert (await store.write(named, GPUS, await entry())).leader is None
    finally:
        call(api_server, "POST", BASIC.rpartition("/")[0], again)
    async with await connect(tmp_path / "operator") as connection:
        own = OwnLeadership(Client(connection), ObjectKey("", ""), "operator")

        async def known() -> bool:
            return await own.entry() == RegisteredLeader(identity="operator")

        await until(known, within_s=30, what="the API server goes by the binding")


async def test_gpus_of_a_register_that_is_deleted_are_handed_over_from_the_beginning(
    control_plane: ControlPlane, guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    """Others could allocate them meanwhile, so Draco allocates none until they are registered and it has seen all claims."""

    async def lists_gpus() -> AllocationRegister | None:
        with contextlib.suppress(NotFound):
            register = await handed_over.get(ALLOCATION_REGISTERS, REGISTER)
            return register if register.status.gpus else None
        return None

    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "before")
        await until_allocated(handed_over, namespace, "before")
        first = await until(lists_gpus, what="the register")
        for path in POLICIES.values():
            call(control_plane, "DELETE", f"{path}/draco-operator-register")

        async def deleted() -> bool:
            with contextlib.suppress(Invalid):
                await handed_over.delete(ALLOCATION_REGISTERS, REGISTER, uid=first.metadata.uid)
                return True
            return False

        await until(deleted, what="the deletion of the register")

        async def made_again() -> bool:
            with contextlib.suppress(NotFound):
                return (await handed_over.get(ALLOCATION_REGISTERS, REGISTER)).metadata.uid != first.metadata.uid
            return False

        await until(made_again, what="the next register")
        await make_claim(handed_over, namespace, "after")
        second = await until(lists_gpus, what="the next register with GPUs")
        claim = await until_allocated(handed_over, namespace, "after")
        # Both are revisions of the same store.
        assert int(second.metadata.resource_version) < int(claim.metadata.resource_version)
        assert second.spec == first.spec
