"""Jobs of a DeviceMaintenance on a real API server; tests act as kube-controller-manager."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from draco.controller.settings import OperatorSettings
from draco.kube.connect.client import Client
from draco.kube.events.events import CLUSTER_EVENTS_NAMESPACE
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import (
    CLAIMS,
    CRON_JOBS,
    DEVICE_CLASSES,
    DEVICE_MAINTENANCES,
    EVENTS,
    JOB_PODS,
    JOBS,
    SLICES,
    Kind,
)
from draco.resources.names import (
    ANNOTATION_DEVICE_CLASS,
    ATTRIBUTE_ALLOCATOR,
    LABEL_ALLOCATOR,
    TAINT_OPERATOR_ALLOCATED,
)
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_slice
from tests.component.controller.replicas import an_operator, settings_for_test, until
from tests.component.controller.test_maintenance import Lab, as_json, name_of

pytestmark = pytest.mark.usefixtures("crds")

RAW_JOBS: Kind[Any] = Kind("batch", "v1", "jobs", "Job", True, dict)


class JobLab(Lab):
    """A lab in Draco's namespace."""

    @property
    def operator(self) -> OperatorSettings:
        return settings_for_test(namespace=self.namespace, job_namespace=self.namespace, run_jobs=True)

    async def template(self, name: str = "reset", *, suspend: bool = True, device_class: str = "") -> None:
        pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
        spec = {"schedule": "0 0 31 2 *", "suspend": suspend, "jobTemplate": {"spec": {"template": {"spec": pod}}}}
        annotations = {ANNOTATION_DEVICE_CLASS: device_class} if device_class else {}
        manifest = {"metadata": {"annotations": annotations}, "spec": spec}
        await self.client.apply(CRON_JOBS, ObjectKey(self.namespace, name), manifest, manager="tests")

    async def work(self, device: str | None = "gpu-3", **spec: Any) -> ObjectKey:
        key = ObjectKey("", f"reset-{self.pool}")
        selector = {"driver": self.driver, "pool": self.pool, **({"device": device} if device else {})}
        body = {
            "deviceSelector": selector,
            "work": {"fromCronJob": "reset"},
            "verification": {"mode": "Person"},
            **spec,
        }
        await self.client.create(DEVICE_MAINTENANCES, {"metadata": {"name": key.name}, "spec": body})
        self.requests.append(key.name)
        return key

    async def publish_with_uuids(self, *, handed_over: bool = False) -> None:
        """Publish devices with UUIDs, by which a probe can claim a single one."""
        generation = 3 if handed_over else 2
        names = [f"gpu-{i}" for i in range(8)]
        pool = as_json(a_slice(self.pool, names, driver=self.driver, generation=generation).spec)
        for device in pool["devices"]:
            device["attributes"] = {"uuid": {"string": f"GPU-{self.pool}-{device['name']}"}}
            if handed_over:
                device["attributes"][ATTRIBUTE_ALLOCATOR] = {"string": "operator"}
                device["taints"] = [{"key": TAINT_OPERATOR_ALLOCATED, "effect": "NoSchedule"}]
        await self.client.patch(SLICES, ObjectKey("", self.pool), {"spec": pool})

    async def device_class(self, *, operators: bool = False) -> str:
        """A class with the devices, whose claims kube-scheduler or Draco allocates."""
        name = f"{'theirs' if operators else 'plain'}-{self.pool}"
        labels = {LABEL_ALLOCATOR: "operator"} if operators else {}
        cel = {"expression": f"device.driver == '{self.driver}'"}
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"selectors": [{"cel": cel}]}}
        await self.client.create(DEVICE_CLASSES, body)
        return name

    async def never_starts(self, job: dict[str, Any]) -> None:
        """The Job's pod, as kubelet reports it while its image cannot be pulled."""
        await self.pod(job, {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "none"'}})

    async def pod(self, job: dict[str, Any], state: dict[str, Any], *, phase: str = "Pending") -> None:
        """The Job's pod, as kubelet reports it, its container in this state."""
        template, meta = job["spec"]["template"], job["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
        pod = ObjectKey(self.namespace, "probe-1")
        metadata = {**template["metadata"], "name": pod.name, "namespace": pod.namespace, "ownerReferences": [owner]}
        await self.client.create(JOB_PODS, {"metadata": metadata, "spec": template["spec"]})
        container = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        status = {"phase": phase, "containerStatuses": [container]}
        await self.client.patch(JOB_PODS, pod, {"status": status}, subresource="status")

    async def jobs(self, number: int = 1) -> list[dict[str, Any]]:
        async def look() -> list[dict[str, Any]] | None:
            found = await self.client.list(RAW_JOBS, namespace=self.namespace)
            return found if len(found) == number else None

        return await until(look, what=f"{number} Jobs")

    async def end(self, job: dict[str, Any], condition: str, reason: str = "") -> None:
        """End a Job as the Job controller does."""
        key, now = ObjectKey(self.namespace, job["metadata"]["name"]), "2026-03-01T12:00:00Z"
        before = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[condition]
        conditions = [
            {"type": type_, "status": "True", "reason": reason, "message": "too bad", "lastTransitionTime": now}
            for type_ in (before, condition)
        ]
        status: dict[str, Any] = {"startTime": now, "conditions": conditions}
        if condition == "Complete":
            status |= {"completionTime": now, "succeeded": 1}
        await self.client.patch(JOBS, key, {"status": status}, subresource="status")

    async def says(self, key: ObjectKey, text: str) -> DeviceMaintenance:
        async def look() -> DeviceMaintenance | None:
            found = await self.client.get(DEVICE_MAINTENANCES, key)
            return found if text in found.status.message else None

        try:
            return await until(look, what=f"{key} says {text}", within_s=30)
        except AssertionError as error:
            found = await self.client.get(DEVICE_MAINTENANCES, key)
            raise AssertionError(f"it says {found.status.phase}: {found.status.message}") from error

    async def warned(self, key: ObjectKey) -> None:
        """Wait until an Event says that it failed."""

        async def look() -> bool:
            events = await self.client.list(EVENTS, namespace=CLUSTER_EVENTS_NAMESPACE)
            return (key.name, "Failed", "Warning") in {(name_of(each), each.reason, each.type) for each in events}

        await until(look, what=f"a warning about {key}")


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[JobLab]:
    made = JobLab(client, namespace)
    await made.publish()
    yield made
    await made.clean()


async def test_a_job_for_each_gpu_ends_the_work(served: ControlPlane, lab: JobLab) -> None:
    await lab.template()
    async with an_operator(served, lab.operator):
        key = await lab.work(device=None, allowMostOfClass=True)
        jobs = await lab.jobs(8)
        for job in jobs:
            assert (await lab.client.get(DEVICE_MAINTENANCES, key)).status.phase is MaintenancePhase.IN_MAINTENANCE
            await lab.end(job, "Complete")
        await lab.phase(key, MaintenancePhase.COMPLETED)


async def test_a_failed_job_keeps_the_gpu_and_deleting_it_tries_again(served: ControlPlane, lab: JobLab) -> None:
    await lab.template()
    async with an_operator(served, lab.operator):
        key = await lab.work()
        (first,) = await lab.jobs()
        await lab.end(first, "Failed", "BackoffLimitExceeded")
        await lab.phase(key, MaintenancePhase.FAILED)
        await lab.says(key, "(BackoffLimitExceeded): too bad.")
        await lab.warned(key)
        assert len(await lab.rules()) == 1
        await lab.client.delete(JOBS, ObjectKey(lab.namespace, first["metadata"]["name"]), propagation="Background")

        async def another() -> dict[str, Any] | None:
            (found,) = await lab.jobs()
            return found if found["metadata"]["uid"] != first["metadata"]["uid"] else None

        second = await until(another, what="another Job")
        assert second["metadata"]["name"] == first["metadata"]["name"]
        await lab.end(second, "Complete")
        await lab.phase(key, MaintenancePhase.COMPLETED)


async def test_a_reset_that_is_refused_says_who_has_the_gpu_and_the_next_one_may_succeed(
    served: ControlPlane, lab: JobLab
) -> None:
    """The message is that of the examples' Job for a GPU that no claim holds but a daemon has open."""
    await lab.template()
    said = "held by nvidia-persistenced (812), and nvidia-smi says: GPU 00000000:41:00.0 is currently in use by another client."
    async with an_operator(served, lab.operator):
        key = await lab.work()
        (refused,) = await lab.jobs()
        await lab.pod(refused, {"terminated": {"exitCode": 255, "message": f"{said}\n"}}, phase="Failed")
        await lab.end(refused, "Failed", "BackoffLimitExceeded")
        await lab.phase(key, MaintenancePhase.FAILED)
        failed = await lab.says(key, f"container main ended with code 255: {said}")
        assert failed.status.in_use == 0, "no claim"
        assert len(await lab.rules()) == 1, "it stays isolated"
        await lab.client.delete(JOB_PODS, ObjectKey(lab.namespace, "probe-1"), grace_period_s=0)
        await lab.client.delete(JOBS, ObjectKey(lab.namespace, refused["metadata"]["name"]), propagation="Background")

        async def again() -> dict[str, Any] | None:
            found = await lab.client.list(RAW_JOBS, namespace=lab.namespace)
            return next((each for each in found if each["metadata"]["uid"] != refused["metadata"]["uid"]), None)

        await lab.end(await until(again, what="the next try"), "Complete")
        await lab.phase(key, MaintenancePhase.COMPLETED)
        assert await lab.rules() == []


@pytest.mark.parametrize("writes", range(1, 6))
async def test_an_operator_that_dies_after_any_write_makes_each_job_once(
    served: ControlPlane, lab: JobLab, writes: int
) -> None:
    await lab.template()
    key = await lab.work()
    async with an_operator(served, lab.operator, dies_after_writes=writes) as (_, task):

        async def over() -> bool:
            return task.done() or bool(await lab.client.list(JOBS, namespace=lab.namespace))

        await until(over, what="its death, or a Job")
    async with an_operator(served, lab.operator):
        (job,) = await lab.jobs()
        await lab.end(job, "Complete")
        await lab.phase(key, MaintenancePhase.COMPLETED)
    assert [each["metadata"]["uid"] for each in await lab.jobs()] == [job["metadata"]["uid"]]


async def test_an_image_that_never_comes_is_said(served: ControlPlane, lab: JobLab) -> None:
    await lab.template()
    async with an_operator(served, lab.operator):
        key = await lab.work()
        (job,) = await lab.jobs()
        await lab.never_starts(job)
        await lab.says(key, "container main waits (ImagePullBackOff)")
        assert job["spec"]["activeDeadlineSeconds"] == 1800


async def test_a_probe_that_never_starts_is_said_keeps_the_gpu_and_holds_up_no_cancelling(
    served: ControlPlane, lab: JobLab
) -> None:
    await lab.template(device_class=await lab.device_class())
    await lab.publish_with_uuids()
    async with an_operator(served, lab.operator):
        key = await lab.work(work=None, verification={"mode": "Job", "fromCronJob": "reset"})
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.finish(key)
        (job,) = await lab.jobs()
        await lab.never_starts(job)
        waits = await lab.says(key, "container main waits (ImagePullBackOff)")
        assert waits.status.phase is MaintenancePhase.VERIFYING
        verified = next(each for each in waits.status.conditions if each.type == "Verified")
        assert (verified.status, verified.reason, verified.message) == ("False", "Verifying", waits.status.message)
        await lab.end(job, "Failed", "DeadlineExceeded")
        failed = await lab.phase(key, MaintenancePhase.FAILED)
        assert ("Failed", "VerificationFailed") in {(each.type, each.reason) for each in failed.status.conditions}
        assert len(await lab.rules()) == 1
        await lab.client.patch(DEVICE_MAINTENANCES, key, {"spec": {"cancelled": True}})
        await lab.phase(key, MaintenancePhase.CANCELLED)
        assert await lab.rules() == []


async def test_a_probe_whose_gpu_is_handed_over_to_draco_meanwhile_asks_by_a_class_of_dracos(
    served: ControlPlane, lab: JobLab
) -> None:
    plain, operators = await lab.device_class(), await lab.device_class(operators=True)
    await lab.template(device_class=plain)
    await lab.publish_with_uuids()

    async def asks_by(name: str) -> bool:
        found = await lab.client.list(CLAIMS, namespace=lab.namespace)
        requests = [each.spec.devices.requests[0].exactly for each in found if each.waits]
        return [each.device_class_name for each in requests if each is not None] == [name]

    async with an_operator(served, lab.operator):
        key = await lab.work(work=None, verification={"mode": "Job", "fromCronJob": "reset"})
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.finish(key)
        (job,) = await lab.jobs()
        await until(lambda: asks_by(plain), what="a claim by the class of its CronJob")
        await lab.publish_with_uuids(handed_over=True)
        await until(lambda: asks_by(operators), what="a claim by a class of Draco's")
        assert [each["metadata"]["uid"] for each in await lab.jobs()] == [job["metadata"]["uid"]]
        await lab.end(job, "Complete")
        await lab.phase(key, MaintenancePhase.COMPLETED)


async def test_what_the_administrator_has_to_put_right_is_said_and_then_goes_on(
    served: ControlPlane, lab: JobLab
) -> None:
    async with an_operator(served, lab.operator):
        key = await lab.work()
        await lab.says(key, f"CronJob reset, the template of the work Jobs, does not exist in {lab.namespace}")
        await lab.template(suspend=False)
        await lab.says(key, "is not suspended")
        assert await lab.client.list(JOBS, namespace=lab.namespace) == []
        await lab.template()
        await lab.jobs()


async def test_an_operator_that_may_not_run_jobs_says_how_to_permit_it(served: ControlPlane, lab: JobLab) -> None:
    await lab.template()
    async with an_operator(served, settings_for_test(namespace=lab.namespace)):
        key = await lab.work()
        await lab.says(key, "operator.runJobs to true")
    assert await lab.client.list(JOBS, namespace=lab.namespace) == []


async def test_a_device_without_a_uuid_cannot_be_claimed_by_a_probe_and_that_is_said(
    served: ControlPlane, lab: JobLab
) -> None:
    await lab.template()
    async with an_operator(served, lab.operator):
        key = await lab.work(work=None, verification={"mode": "Job", "fromCronJob": "reset"})
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.finish(key)
        await lab.says(key, "has no UUID")
    assert await lab.client.list(CLAIMS, namespace=lab.namespace) == []


async def test_cancelling_stops_the_jobs_and_gives_the_gpu_back_after_them(served: ControlPlane, lab: JobLab) -> None:
    await lab.template()
    async with an_operator(served, lab.operator):
        key = await lab.work()
        (job,) = await lab.jobs()
        name = ObjectKey(lab.namespace, job["metadata"]["name"])
        await lab.client.patch(DEVICE_MAINTENANCES, key, {"spec": {"cancelled": True}})

        async def is_ending() -> bool:
            return (await lab.client.get(JOBS, name)).metadata.deletion_timestamp is not None

        await until(is_ending, what="the Job is stopped")
        assert len(await lab.rules()) == 1, "its pods may still be at work"
        await lab.client.patch(JOBS, name, {"metadata": {"finalizers": None}})
        await lab.phase(key, MaintenancePhase.CANCELLED)
        assert await lab.rules() == []
