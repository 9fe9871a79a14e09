"""Jobs of a request: one for each physical GPU, how they are read, and what is said about them."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.cel import compile_selector, device_view
from draco.maintenance.progress import JobsState, Purpose
from draco.maintenance.working.jobs import JobTarget, is_own_claim, job_name, jobs_state, targets_of
from draco.maintenance.working.manifests import DEFAULT_DEADLINE_S, claim_manifest, job_manifest
from draco.resources.api.jobs import CronJob, Job, JobPod
from draco.resources.api.maintenance import (
    DeviceMaintenance,
    MaintenanceVerification,
    MaintenanceWork,
    VerificationMode,
)
from draco.resources.api.meta import ObjectMeta, OwnerReference
from draco.resources.api.slices import DeviceAttribute
from draco.resources.api.taints import DeviceToleration
from draco.resources.names import LABEL_MAINTENANCE
from tests.builders import MOMENT, a_claim, a_device, a_device_key, a_maintenance, a_uid

NAMESPACE = "draco-system"
WHOLE = a_device_key("node-0/gpu-0")


def asks(*devices: str, uuids: tuple[str, ...] = (), overlaps: tuple[str, ...] = ()) -> DeviceMaintenance:
    """A request with a work Job and a verification Job."""
    request = a_maintenance(devices=devices or ("node-0/gpu-0",), driver="gpu.nvidia.com")
    found = [
        msgspec.structs.replace(each, uuid=uuid, overlaps=over)
        for each, uuid, over in zip(
            request.status.devices,
            uuids or [f"GPU-{index}" for index in range(len(request.status.devices))],
            overlaps or [""] * len(request.status.devices),
            strict=True,
        )
    ]
    spec = msgspec.structs.replace(
        request.spec,
        work=MaintenanceWork(from_cron_job="reset"),
        verification=MaintenanceVerification(mode=VerificationMode.JOB, from_cron_job="probe"),
    )
    return msgspec.structs.replace(request, spec=spec, status=msgspec.structs.replace(request.status, devices=found))


def owner(request: DeviceMaintenance) -> OwnerReference:
    meta = request.metadata
    return OwnerReference(api_version="draco.dev/v1alpha1", kind="DeviceMaintenance", name=meta.name, uid=meta.uid)


def a_job(
    request: DeviceMaintenance, condition: str = "", *, namespace: str = NAMESPACE, reason: str = "", **meta: Any
) -> Job:
    name = job_name(request, Purpose.WORK, targets_of(request)[0])
    conditions = [{"type": condition, "status": "True", "reason": reason, "message": "too bad"}] if condition else []
    metadata = ObjectMeta(
        name=name,
        namespace=namespace,
        uid=a_uid("job", name),
        owner_references=meta.pop("owner_references", [owner(request)]),
        **meta,
    )
    return Job(metadata=metadata, status=msgspec.convert({"conditions": conditions}, type=type(Job().status)))


def a_job_pod(job: Job, **status: Any) -> JobPod:
    reference = OwnerReference(api_version="batch/v1", kind="Job", name=job.metadata.name, uid=job.metadata.uid)
    pod = msgspec.convert({"status": status}, JobPod)
    return msgspec.structs.replace(
        pod, metadata=ObjectMeta(name="pod", namespace=NAMESPACE, owner_references=[reference])
    )


def state(request: DeviceMaintenance, *jobs: Job, pods: tuple[JobPod, ...] = (), trouble: str = "") -> JobsState:
    found = jobs_state(request, Purpose.WORK, NAMESPACE, jobs, pods, trouble=trouble)
    assert found is not None
    return found


def test_each_physical_gpu_is_one_target_whatever_was_asked_for_of_it() -> None:
    request = asks(
        "node-0/gpu-0",
        "node-0/gpu-0-mig-1g10gb-19-0",
        "node-0/gpu-0-mig-1g10gb-19-1",
        "node-1/gpu-0",
        "node-2/gpu-0",
        uuids=("GPU-a", "GPU-a", "GPU-a", "GPU-b", ""),
        overlaps=("gpu.nvidia.com/node-0/gpu-0-mig-1g10gb-19-0", "", "", "", ""),
    )
    partition = a_device_key("node-0/gpu-0-mig-1g10gb-19-0")
    assert targets_of(request) == [
        JobTarget(partition, "GPU-a"),
        JobTarget(a_device_key("node-1/gpu-0"), "GPU-b"),
        JobTarget(a_device_key("node-2/gpu-0"), ""),
    ]


def test_a_name_follows_from_request_purpose_and_gpu_and_is_short_enough_for_its_pods() -> None:
    request = asks()
    long = msgspec.structs.replace(request, metadata=msgspec.structs.replace(request.metadata, name="a." * 120))
    (target,) = targets_of(request)
    assert job_name(request, Purpose.WORK, target) == job_name(request, Purpose.WORK, target)
    names = {
        job_name(each, purpose, gpu)
        for each in (request, msgspec.structs.replace(request, metadata=ObjectMeta(name="other", uid="other")))
        for purpose in Purpose
        for gpu in (target, JobTarget(WHOLE, "GPU-other"))
    }
    assert len(names) == 8
    assert all(len(job_name(long, purpose, target)) <= 63 - len("-abcde") for purpose in Purpose)


def test_a_job_that_was_made_before_the_gpu_was_known_is_its_job() -> None:
    """Its node was down. Two Jobs must not work on one GPU at the same time."""
    before, known = asks(uuids=("",)), asks(uuids=("GPU-a",))
    made = a_job(before)
    assert state(known, made).running == (made.metadata.name,)
    assert state(known, a_job(before, "Complete")).done
    assert state(known).missing == (job_name(known, Purpose.WORK, JobTarget(WHOLE, "GPU-a")),)


def test_without_a_cron_job_no_job_is_wanted() -> None:
    request = a_maintenance(devices=["node-0/gpu-0"])
    assert all(jobs_state(request, purpose, NAMESPACE, [], []) is None for purpose in Purpose)


def test_what_is_not_there_is_missing_and_what_ended_well_is_done() -> None:
    request = asks()
    assert state(request).missing == (job_name(request, Purpose.WORK, targets_of(request)[0]),)
    assert state(request, a_job(request)).running
    assert state(request, a_job(request, "Complete")).done
    assert not state(request, a_job(request, "SuccessCriteriaMet")).done


@pytest.mark.parametrize("fake", ["another namespace", "another owner", "no owner"])
def test_a_job_of_that_name_that_draco_did_not_make_does_not_count(fake: str) -> None:
    request = asks()
    owners = {"another owner": [msgspec.structs.replace(owner(request), uid="x")], "no owner": []}
    job = a_job(
        request,
        "Complete",
        namespace="tenant" if fake == "another namespace" else NAMESPACE,
        owner_references=owners.get(fake, [owner(request)]),
    )
    assert not state(request, job).done


def test_a_job_that_is_being_deleted_is_at_work_until_it_is_gone() -> None:
    request = asks()
    job = a_job(request, "Failed", deletion_timestamp=MOMENT)
    assert (state(request, job).running, state(request, job).missing) == ((job.metadata.name,), ())


def test_a_failed_job_says_what_its_container_said_and_how_to_try_again() -> None:
    request = asks()
    job = a_job(request, "Failed", reason="BackoffLimitExceeded")
    ended = {"name": "probe", "state": {"terminated": {"exitCode": 3, "message": "ECC\x1b[31m errors\nfound"}}}
    (failed,) = state(request, job, pods=(a_job_pod(job, phase="Failed", containerStatuses=[ended]),)).failed
    assert "(BackoffLimitExceeded): container probe ended with code 3: ECC\\u001b[31m errors found." in failed.reason
    assert "delete the Job to try again" in failed.reason
    assert len(failed.reason) < 420
    (alone,) = state(request, job).failed
    assert "too bad" in alone.reason


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (
            {
                "containerStatuses": [
                    {"name": "p", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
                ]
            },
            "container p waits (ImagePullBackOff): no",
        ),
        (
            {"initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "CreateContainerConfigError"}}}]},
            "container i waits (CreateContainerConfigError)",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1"}]},
            "no node takes its pod (Unschedulable): 0/1",
        ),
        ({"containerStatuses": [{"name": "p", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
    ],
)
def test_a_job_whose_pod_does_not_start_says_why(status: dict[str, Any], text: str) -> None:
    request = asks()
    job = a_job(request)
    found = state(request, job, pods=(a_job_pod(job, phase="Pending", **status),)).trouble
    assert found == (f"Job {job.metadata.key} does not start: {text}." if text else "")


def test_trouble_is_said_only_as_long_as_a_job_is_missing() -> None:
    request = asks()
    assert state(request, trouble="There is no CronJob.").trouble == "There is no CronJob."
    assert state(request, a_job(request), trouble="There is no CronJob.").trouble == ""


def a_template(**spec: Any) -> CronJob:
    pod = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "x", "env": [{"name": "DRACO_NODE", "value": "?"}, {"name": "A"}]}],
        "initContainers": [{"name": "first", "image": "x"}],
    }
    return msgspec.convert(
        {
            "metadata": {"name": "probe"},
            "spec": {
                "suspend": True,
                "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {"spec": pod}, **spec}},
            },
        },
        CronJob,
    )


def made(purpose: Purpose = Purpose.WORK, template: CronJob | None = None) -> dict[str, Any]:
    request = asks()
    body = job_manifest(
        request, purpose, targets_of(request)[0], template or a_template(), namespace=NAMESPACE, node="node-0"
    )
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
    return found


def test_a_job_is_pinned_to_the_node_and_told_which_gpu_is_meant() -> None:
    pod = made()["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]
    for container in (*pod["containers"], *pod["initContainers"]):
        told = {each["name"]: each.get("value") for each in container["env"]}
        assert (
            told.items()
            >= {
                "DRACO_NODE": "node-0",
                "DRACO_DRIVER": "gpu.nvidia.com",
                "DRACO_DEVICE": "gpu-0",
                "DRACO_GPU_UUID": "GPU-0",
            }.items()
        )
        assert len(told) == len(container["env"])
    assert "resourceClaims" not in pod


def test_each_alternative_of_the_templates_affinity_is_pinned() -> None:
    template = a_template()
    wanted = {"nodeSelectorTerms": [{"matchExpressions": [{"key": zone, "operator": "Exists"}]} for zone in "ab"]}
    template.spec.job_template.spec["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": wanted}
    }
    affinity = made(template=template)["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["node-0"], ["node-0"]]
    assert [term["matchExpressions"][0]["key"] for term in terms] == ["a", "b"]


def test_a_job_ends_though_its_image_never_comes_and_is_not_made_again_because_it_ended() -> None:
    assert made()["spec"]["activeDeadlineSeconds"] == DEFAULT_DEADLINE_S
    body = made(template=a_template(activeDeadlineSeconds=60, ttlSecondsAfterFinished=5, suspend=True))
    assert body["spec"]["activeDeadlineSeconds"] == 60
    assert not {"ttlSecondsAfterFinished", "suspend"} & body["spec"].keys()


def test_a_job_belongs_to_its_request() -> None:
    body, request = made(), asks()
    assert body["metadata"]["ownerReferences"][0]["uid"] == request.metadata.uid
    for metadata in (body["metadata"], body["spec"]["template"]["metadata"]):
        assert metadata["labels"][LABEL_MAINTENANCE] == request.metadata.uid
    assert body["metadata"]["labels"]["a"] == "b"


def test_a_job_for_verification_holds_the_gpu_in_each_container() -> None:
    body = made(Purpose.VERIFICATION)
    pod = body["spec"]["template"]["spec"]
    (claim,) = pod["resourceClaims"]
    assert claim["resourceClaimName"] == body["metadata"]["name"]
    assert all(each["resources"]["claims"] == [{"name": claim["name"]}] for each in pod["containers"])


def a_claim_of(target: JobTarget, *, profile: str = "") -> dict[str, Any]:
    tolerations = [DeviceToleration(key="a", operator="Exists", effect="NoExecute")]
    return claim_manifest(
        asks(), target, namespace=NAMESPACE, device_class="gpus", tolerations=tolerations, profile=profile
    )


def test_its_claim_has_no_other_choice() -> None:
    body = a_claim_of(targets_of(asks())[0])
    (asked,) = body["spec"]["devices"]["requests"]
    selector = compile_selector(asked["exactly"]["selectors"][0]["cel"]["expression"])

    def fits(driver: str = "gpu.nvidia.com", **attributes: str) -> bool:
        device = a_device("gpu-0")
        found = {name: DeviceAttribute(string=value) for name, value in attributes.items()}
        return selector.matches(device_view(driver, msgspec.structs.replace(device, attributes=found)))

    assert fits(uuid="GPU-0")
    assert fits(parentUUID="GPU-0")
    assert not fits(uuid="GPU-1")
    assert not fits()
    assert not fits("gpu.example.com", uuid="GPU-0")
    assert asked["exactly"]["deviceClassName"] == "gpus"
    assert asked["exactly"]["tolerations"] == [{"key": "a", "operator": "Exists", "effect": "NoExecute"}]


def test_the_claim_for_a_partition_takes_none_of_another_profile() -> None:
    body = a_claim_of(JobTarget(a_device_key("node-0/gpu-0-mig-1g10gb-19-0"), "GPU-0"), profile="1g.10gb")
    (asked,) = body["spec"]["devices"]["requests"]
    selector = compile_selector(asked["exactly"]["selectors"][0]["cel"]["expression"])
    for profile, fits in {"1g.10gb": True, "2g.20gb": False, "": False}.items():
        attributes = {"parentUUID": DeviceAttribute(string="GPU-0"), "profile": DeviceAttribute(string=profile)}
        device = msgspec.structs.replace(a_device(), attributes=attributes)
        assert selector.matches(device_view("gpu.nvidia.com", device)) is fits


@pytest.mark.parametrize("fake", ["", "another namespace", "another owner", "no label"])
def test_only_a_claim_that_draco_made_does_not_count_as_in_use(fake: str) -> None:
    request = asks()
    claim = a_claim("any", namespace="tenant" if fake == "another namespace" else NAMESPACE, on=["node-0/gpu-0"])
    owned = owner(request) if fake != "another owner" else msgspec.structs.replace(owner(request), uid="x")
    metadata = msgspec.structs.replace(
        claim.metadata,
        owner_references=[owned],
        labels={} if fake == "no label" else {LABEL_MAINTENANCE: request.metadata.uid},
    )
    assert is_own_claim(msgspec.structs.replace(claim, metadata=metadata), request, NAMESPACE) is (not fake)


def test_quotes_in_a_uuid_do_not_leave_the_expression() -> None:
    target = JobTarget(WHOLE, 'x" || true || "')
    body = a_claim_of(target)
    expression = body["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"]
    assert json.dumps(target.uuid) in expression
    assert not compile_selector(expression).matches(device_view("gpu.nvidia.com", a_device()))


def test_of_several_pods_the_latest_is_quoted() -> None:
    request = asks()
    job = a_job(request, "Failed", reason="BackoffLimitExceeded")
    pods = []
    for number in range(3):
        ended = {"name": "probe", "state": {"terminated": {"exitCode": number + 1}}}
        pod = a_job_pod(job, phase="Failed", containerStatuses=[ended])
        made_at = MOMENT + timedelta(minutes=number)
        pods.append(
            msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, creation_timestamp=made_at))
        )
    (failed,) = state(request, job, pods=tuple(pods)).failed
    assert "ended with code 3" in failed.reason
