"""Draco as the allocator: GPUs are handed over to it and back, and pods run with claims that it allocated.

On a whole control plane with simulated nodes and real agents; kube-scheduler takes what it may.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from draco.allocation.ownership.claims import nodes_of
from draco.cli.explain.command import command as explain_command
from draco.controller.allocation.writing import writes
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import ApiStatus, Invalid, NotFound, from_status
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import ALLOCATION_REGISTERS, CLAIMS, EVENTS, GPU_NODES, MIG_POLICIES, NODES, PODS, SLICES
from draco.resources.names import gpu_name
from tests.component.allocation.lab import ALLOCATING, REGISTER, Guarded, make_claim, until_allocated
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_workers import COSTLY
from tests.component.simulator.test_nodes import make_pod, running, until_running


async def test_a_claim_is_allocated_before_its_pod_exists_and_the_pod_runs_with_it(
    guarded: Guarded,
    handed_over: Client,
    namespace: str,
    folder: Path,
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "early")
        claim = await until_allocated(handed_over, namespace, "early")
        assert {each.pool for each in claim.results} == {"sim-1"}
        await make_pod(handed_over, namespace, "pod", "early")
        await until_running(handed_over, namespace, "pod")
        pod = await handed_over.get(PODS, ObjectKey(namespace, "pod"))
        assert pod.spec.node_name == "sim-1"


async def test_a_gpu_that_is_handed_back_is_the_schedulers_again_and_its_claim_keeps_it(
    guarded: Guarded,
    handed_over: Client,
    namespace: str,
    folder: Path,
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "kept")
        before = await until_allocated(handed_over, namespace, "kept")
        await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"allocator": "Scheduler"}})

        async def handed_back() -> bool:
            slices = await handed_over.list(SLICES, field_selector="spec.nodeName=sim-1")
            register = await handed_over.get(ALLOCATION_REGISTERS, REGISTER)
            return not register.spec.pools and not any(device.taints for each in slices for device in each.spec.devices)

        await until(handed_back, what="the way back")
        for name in ("sim-0", "sim-2"):  # so that the scheduler needs sim-1
            await handed_over.patch(NODES, ObjectKey("", name), {"spec": {"unschedulable": True}})
        for number in range(7):
            request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
            meta = {"name": f"plain-{number}", "namespace": namespace}
            await handed_over.create(CLAIMS, {"metadata": meta, "spec": {"devices": {"requests": [request]}}})
            await make_pod(handed_over, namespace, f"plain-{number}", f"plain-{number}")
        await until_running(handed_over, namespace, *(f"plain-{number}" for number in range(7)))
        claims = await handed_over.list(CLAIMS, namespace=namespace)
        held = [each.device for claim in claims for each in claim.results]
        assert len(held) == len(set(held)) == 8
        (kept,) = [each for each in claims if each.metadata.name == "kept"]
        assert kept.results == before.results


async def test_a_gpunode_that_is_deleted_hands_no_gpu_back(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    """Its agent creates another with an empty spec. Meanwhile the GPUs stay Draco's and are kept from kube-scheduler."""
    key, given_back = ObjectKey("", "sim-1"), []

    async def watch() -> None:
        while True:
            slices = await handed_over.list(SLICES, field_selector="spec.nodeName=sim-1")
            register = await handed_over.get(ALLOCATION_REGISTERS, REGISTER)
            bare = [device.name for each in slices for device in each.spec.devices if not device.taints]
            if bare or not register.spec.pools:
                given_back.append((bare, register.spec))
            await asyncio.sleep(0.02)

    async def decided() -> bool:
        with contextlib.suppress(NotFound):
            return len((await handed_over.get(GPU_NODES, key)).spec.operator_allocated) == 8
        return False

    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "first")
        await until_allocated(handed_over, namespace, "first")
        watching = asyncio.create_task(watch())
        for number in range(3):
            uid = (await handed_over.get(GPU_NODES, key)).metadata.uid
            await handed_over.delete(GPU_NODES, key, uid=uid)
            await until(decided, what="a GpuNode that says which GPUs are Draco's")
            await make_claim(handed_over, namespace, f"next-{number}")
            await until_allocated(handed_over, namespace, f"next-{number}")
        watching.cancel()
        assert not given_back


async def test_a_pod_that_cannot_run_where_its_claim_is_gets_devices_elsewhere(
    guarded: Guarded,
    handed_over: Client,
    namespace: str,
    folder: Path,
) -> None:
    """The claim came first, and the pod requires a node on which other devices are free."""
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"nodeSelector": None}})
        await make_claim(handed_over, namespace, "moved")
        first = nodes_of(await until_allocated(handed_over, namespace, "moved"))
        others = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": first}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [others]}}}
        await make_pod(handed_over, namespace, "pod", "moved", affinity=affinity)
        await until_running(handed_over, namespace, "pod")
        pod = await handed_over.get(PODS, ObjectKey(namespace, "pod"))
        assert pod.spec.node_name not in first
        said = {each.reason for each in await handed_over.list(EVENTS, namespace=namespace)}
        assert {"Allocated", "AllocationTakenBack"} <= said


async def test_nobody_else_allocates_what_is_dracos_and_draco_nothing_else(
    guarded: Guarded,
    handed_over: Client,
    namespace: str,
    folder: Path,
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "draco")
        await until_allocated(handed_over, namespace, "draco")
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        meta = {"name": "by-hand", "namespace": namespace}
        key = ObjectKey(namespace, "by-hand")
        await handed_over.create(CLAIMS, {"metadata": meta, "spec": {"devices": {"requests": [request]}}})

        async def allocate(client: Client, pool: str, reserved_for: Sequence[object] = ()) -> None:
            result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": pool, "device": "gpu-7"}
            status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": list(reserved_for)}
            await client.patch(CLAIMS, key, {"status": status}, subresource="status")

        with pytest.raises(
            Invalid, match=r"gpu-7 of pool sim-1 is allocated by Draco only: ask for the DeviceClass gpu.draco.dev"
        ):
            await allocate(handed_over, "sim-1")
        async with await connect(guarded.kubeconfig) as connection:
            with pytest.raises(Invalid, match="Draco allocates only GPUs that were handed over to it"):
                await allocate(Client(connection), "sim-0")
            operator = Client(connection)
            for change in (
                {"metadata": {"finalizers": ["example.com/mine"]}},
                {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection", "example.com/mine"]}},
                {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"], "labels": {"a": "b"}}},
            ):
                with pytest.raises(Invalid, match="the operator may only remove the allocation of a claim"):
                    await operator.patch(CLAIMS, key, change)
            await operator.patch(
                CLAIMS, key, {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
            )
            pod = {"resource": "pods", "name": "any", "uid": "1"}
            with pytest.raises(Invalid, match="the operator may not release claims"):
                await allocate(operator, "sim-1", reserved_for=[pod])
        await allocate(handed_over, "sim-0")
        async with await connect(guarded.kubeconfig) as connection:
            with pytest.raises(Invalid, match="Draco may remove only allocations of GPUs that were handed over to it"):
                await Client(connection).patch(CLAIMS, key, {"status": {"allocation": None}}, subresource="status")
        for toleration in (
            {"operator": "Exists"},
            {"key": "draco.dev/operator-allocated", "operator": "Exists"},
            {"key": "draco.dev/operator-allocated", "operator": "Exists", "effect": "NoSchedule"},
        ):
            exactly = {"deviceClassName": "gpu.nvidia.com", "tolerations": [toleration]}
            alternative = {"name": "one", "deviceClassName": "gpu.nvidia.com", "tolerations": [toleration]}
            plain = {"name": "none", "deviceClassName": "gpu.nvidia.com"}
            for asked in ({"exactly": exactly}, {"firstAvailable": [plain, alternative]}):
                sneaking = {"devices": {"requests": [{"name": "gpu", **asked}]}}
                with pytest.raises(Invalid, match=r"may not tolerate draco.dev/operator-allocated"):
                    await handed_over.create(CLAIMS, {"metadata": {**meta, "name": "sneaks"}, "spec": sneaking})
        maintained = {"key": "draco.dev/maintenance", "operator": "Exists"}
        harmless = {"deviceClassName": "gpu.nvidia.com", "tolerations": [maintained]}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": harmless}]}}
        await handed_over.create(CLAIMS, {"metadata": {**meta, "name": "harmless"}, "spec": spec})


async def test_where_a_policy_wants_it_claims_are_spread_over_the_nodes_and_explain_goes_by_that(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    everywhere = {"nodeSelector": None, "placement": "Spread"}
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": everywhere})
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING) as (operator, _):

        async def all_are_dracos() -> bool:
            return (
                operator.reconcilers.allocation is not None
                and len(operator.reconcilers.allocation.handover.owned) == 24
            )

        await until(all_are_dracos, what="the GPUs of all nodes")

        async def nothing_is_held() -> bool:
            return not any(each.status.allocation for each in await handed_over.list(CLAIMS))

        await until(nothing_is_held, what="the end of the claims of earlier tests, which count, too")
        at = []
        for name in ("first", "second", "third"):
            await make_claim(handed_over, namespace, name)
            at += [each.pool for each in (await until_allocated(handed_over, namespace, name)).results]
        assert sorted(at) == ["sim-0", "sim-1", "sim-2"]
        asked = ["--kubeconfig", str(guarded.kubeconfig), "-n", namespace, "claim", "third"]
        shown = await asyncio.to_thread(CliRunner().invoke, explain_command, asked)
        assert f"Now Draco would choose the same place again: gpu-0 on {at[-1]} " in shown.stdout


async def test_a_claim_whose_allocation_the_api_server_refuses_keeps_no_other_waiting(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "_REFUSED_S", 600.0)
    refusal = ApiStatus(code=403, reason="Forbidden", message="a policy for this namespace")

    async def refusing(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith(f"/{namespace}/resourceclaims/refused/status"):
            raise from_status(refusal)

    async with (
        running(handed_over, folder),
        an_operator(guarded, ALLOCATING, before_requests=refusing) as (operator, _),
    ):
        await make_claim(handed_over, namespace, "refused")

        async def told() -> str:
            return next((each for each in operator.report.troubles() if f"claim {namespace}/refused" in each), "")

        assert "a policy for this namespace" in await until(told, what="the refusal")
        await make_claim(handed_over, namespace, "other")
        await until_allocated(handed_over, namespace, "other")
        assert await told()


async def test_a_partition_is_allocated_made_and_used(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"mode": "Dynamic"}})
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        profile = {"cel": {"expression": 'device.attributes["gpu.nvidia.com"].profile == "1g.10gb"'}}
        await make_claim(handed_over, namespace, "part", device_class="mig.draco.dev", selectors=[profile])
        claim = await until_allocated(handed_over, namespace, "part")
        (device,) = claim.results
        assert (device.pool, gpu_name(device.device) != device.device) == ("sim-1", True)
        await make_pod(handed_over, namespace, "pod", "part")
        await until_running(handed_over, namespace, "pod")


async def test_a_selector_that_costs_too_much_keeps_no_other_claim_of_its_namespace_waiting(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    costly = [{"cel": {"expression": f"{COSTLY}'{number}'"}} for number in range(15)]
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "costly", selectors=costly)
        await make_claim(handed_over, namespace, "plain")
        await until_allocated(handed_over, namespace, "plain")
        assert (await handed_over.get(CLAIMS, ObjectKey(namespace, "costly"))).status.allocation is None
