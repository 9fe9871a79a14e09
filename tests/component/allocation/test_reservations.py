"""Reservations end to end: Draco allocates their claims, kube-scheduler and kubelets run pods with them."""

from pathlib import Path
from typing import Any

import yaml

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS, DEVICE_RESERVATIONS, PODS
from draco.resources.names import LABEL_RESERVATION
from draco_local.simulator.kubelet.pods import ANNOTATION_RUN_SECONDS
from tests.component.allocation.lab import ALLOCATING, CLASS, Guarded, make_claim, until_allocated
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import make_pod, running, until_gone, until_running

EXAMPLE = Path(__file__).parents[3] / "manifests" / "examples" / "reserve-two-gpus"


def example(name: str, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((EXAMPLE / name).read_text(), yaml.CSafeLoader)
    return found | {"metadata": found["metadata"] | {"namespace": namespace}}


async def reserve(client: Client, namespace: str, name: str, **spec: Any) -> ObjectKey:
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
    spec["template"] = {"spec": {"devices": {"requests": [request]}}}
    await client.create(DEVICE_RESERVATIONS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
    return ObjectKey(namespace, name)


async def until_reserved(client: Client, key: ObjectKey, number: int) -> DeviceReservation:
    async def look() -> DeviceReservation | None:
        found = await client.get(DEVICE_RESERVATIONS, key)
        return found if found.status.reserved == number else None

    return await until(look, what=f"{number} reserved")


async def test_a_pod_runs_with_a_reserved_claim_by_its_name(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        key = await reserve(handed_over, namespace, "train", count=3)
        await until_reserved(handed_over, key, 3)
        await make_pod(handed_over, namespace, "pod", "train-2")
        await until_running(handed_over, namespace, "pod")
        pod = await handed_over.get(PODS, ObjectKey(namespace, "pod"))
        assert pod.spec.node_name == "sim-1"

        async def in_use() -> bool:
            return (await handed_over.get(DEVICE_RESERVATIONS, key)).status.in_use == 1

        await until(in_use, what="1 in use")
        await handed_over.delete(DEVICE_RESERVATIONS, key)

        async def left() -> bool:
            claims = await handed_over.list(CLAIMS, namespace=namespace)
            return [each.metadata.name for each in claims] == ["train-2"]

        await until(left, what="the end of the claims that no pod uses")
        assert (await handed_over.get(PODS, ObjectKey(namespace, "pod"))).status.phase == "Running"
        await handed_over.delete(PODS, ObjectKey(namespace, "pod"))
        await until_gone(handed_over, namespace, "pod")

        async def none_left() -> bool:
            return not await handed_over.list(CLAIMS, namespace=namespace)

        await until(none_left, what="the end of the last claim")


async def test_a_reservation_that_is_not_whole_gets_no_device(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "train-1", device_class="gpu.nvidia.com")
        key = await reserve(handed_over, namespace, "train", count=2)

        async def is_made() -> bool:
            claims = await handed_over.list(CLAIMS, namespace=namespace)
            return "train-0" in {each.metadata.name for each in claims}

        await until(is_made, what="the first claim")
        await make_claim(handed_over, namespace, "after")  # it is allocated later than an earlier claim would be
        await until_allocated(handed_over, namespace, "after")
        assert (await handed_over.get(CLAIMS, ObjectKey(namespace, "train-0"))).status.allocation is None
        await handed_over.delete(CLAIMS, ObjectKey(namespace, "train-1"))
        await until_reserved(handed_over, key, 2)


async def test_the_example_reserves_two_gpus_and_a_pod_runs_on_one(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await handed_over.create(DEVICE_RESERVATIONS, example("reservation.yaml", namespace))
        await until_reserved(handed_over, ObjectKey(namespace, "evening"), 2)
        await handed_over.create(PODS, example("pod.yaml", namespace))
        await until_running(handed_over, namespace, "training")


async def make_templated_pod(client: Client, namespace: str, name: str, reservation: str) -> None:
    """A pod with a claim of its own, made from a template, that takes over from the reservation."""
    spec = {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        "terminationGracePeriodSeconds": 1,
    }
    meta = {"name": name, "namespace": namespace, "labels": {LABEL_RESERVATION: reservation}}
    await client.create(PODS, {"metadata": meta, "spec": spec})


async def test_a_pod_with_the_label_takes_over_a_reserved_gpu_and_gives_it_back(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    """All eight GPUs are Draco's and in use: the pod can only get one from the reservation."""
    template = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]}}}
    meta = {"name": "one-gpu", "namespace": namespace}
    await handed_over.create(CLAIM_TEMPLATES, {"metadata": meta, "spec": template})
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        key = await reserve(handed_over, namespace, "train", count=2)
        await until_reserved(handed_over, key, 2)
        for number in range(6):
            await make_claim(handed_over, namespace, f"other-{number}")
            await until_allocated(handed_over, namespace, f"other-{number}")
        await make_claim(handed_over, namespace, "waits-for-long")
        first = (await handed_over.get(CLAIMS, ObjectKey(namespace, "train-0"))).results
        await make_templated_pod(handed_over, namespace, "pod", "train")
        await until_running(handed_over, namespace, "pod")
        (its_own,) = [
            each
            for each in await handed_over.list(CLAIMS, namespace=namespace)
            if each.metadata.name.startswith("pod-gpu-")
        ]
        assert its_own.results == first

        async def in_use(number: int) -> bool:
            status = (await handed_over.get(DEVICE_RESERVATIONS, key)).status
            names = {each.metadata.name for each in await handed_over.list(CLAIMS, namespace=namespace)}
            return status.in_use == number and status.reserved == 2 and ("train-0" in names) is not bool(number)

        await until(lambda: in_use(1), what="one of two in use")
        assert (await handed_over.get(CLAIMS, ObjectKey(namespace, "waits-for-long"))).status.allocation is None
        await handed_over.delete(CLAIMS, ObjectKey(namespace, "waits-for-long"))
        await handed_over.delete(PODS, ObjectKey(namespace, "pod"))
        await until(lambda: in_use(0), what="both are reserved again")


async def test_a_claim_that_a_pod_has_used_to_its_end_waits_until_that_pod_is_deleted(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    """While an ended pod names the claim, kube-controller-manager would deallocate it again and again."""
    writes: list[str] = []

    async def noting(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith(f"/{namespace}/resourceclaims/train-0/status"):
            writes.append(path)

    async with running(handed_over, folder), an_operator(guarded, ALLOCATING, before_requests=noting):
        key = await reserve(handed_over, namespace, "train", count=2)
        await until_reserved(handed_over, key, 2)
        await make_pod(handed_over, namespace, "pod", "train-0", annotations={ANNOTATION_RUN_SECONDS: "0"})

        async def says_why() -> bool:
            return "delete the pod" in (await handed_over.get(DEVICE_RESERVATIONS, key)).status.message

        await until(says_why, what="why the claim has no devices")
        assert len(writes) == 1, "allocated when it was made, and not again"
        await handed_over.delete(PODS, ObjectKey(namespace, "pod"))
        await until_reserved(handed_over, key, 2)
