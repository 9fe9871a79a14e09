"""Jobs that work on the GPUs of a request, or verify them: which are wanted, which exist, and their state.

Each physical GPU of a request has one Job per purpose, named after both, so a crash between two writes never leads to a second
Job. Owns the names and the reading of Jobs and their pods, as sentences. `manifests` writes Jobs.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from draco.maintenance.progress import FailedJob, JobsState, Purpose
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.jobs import ContainerStatus, Job, JobPod
from draco.resources.api.maintenance import DeviceMaintenance, VerificationMode
from draco.resources.api.meta import ObjectMeta, find_condition, is_true
from draco.resources.names import LABEL_MAINTENANCE, LABEL_PURPOSE, DeviceKey
from draco.resources.texts import reason_of, sentence

_STEM = 30
"""Characters of a request's name in a Job's name: pod names must be valid hostnames."""
_DIGITS = 10
_LONGEST_WORDS = 300
_ORDINARY = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Waiting reasons of a container that is about to start."""


class JobTarget(msgspec.Struct, frozen=True, order=True):
    """One physical GPU of a request, by the first of its requested devices; `uuid` is "" if unknown."""

    device: DeviceKey
    uuid: str = ""


def cron_job_of(request: DeviceMaintenance, purpose: Purpose) -> str:
    """The CronJob that the request's Jobs of this purpose are made from; "" if it asks for none."""
    if purpose is Purpose.WORK:
        return request.spec.work.from_cron_job if request.spec.work else ""
    verification = request.spec.verification
    return verification.from_cron_job if verification.mode is VerificationMode.JOB else ""


def targets_of(request: DeviceMaintenance) -> list[JobTarget]:
    """The physical GPUs of the request, once each: those of requested devices, without others of the same hardware."""
    found: dict[str, JobTarget] = {}
    for each in sorted(request.status.devices, key=lambda device: device.key):
        if not each.overlaps:
            found.setdefault(each.uuid or str(each.key), JobTarget(each.key, each.uuid))
    return sorted(found.values())


def job_name(request: DeviceMaintenance, purpose: Purpose, target: JobTarget) -> str:
    """The name of the Job, and of the claim by which it holds the GPU."""
    identity = f"{request.metadata.uid}\0{purpose}\0{target.uuid or target.device}"
    digits = hashlib.sha256(identity.encode()).hexdigest()[:_DIGITS]
    return f"{request.metadata.name[:_STEM].rstrip('.-')}-{purpose}-{digits}"


def is_own(metadata: ObjectMeta, request: DeviceMaintenance, namespace: str) -> bool:
    """Whether Draco made the object for the request. Outside its own namespace, owners and labels prove nothing."""
    return metadata.namespace == namespace and any(
        owner.kind == "DeviceMaintenance" and owner.uid == request.metadata.uid for owner in metadata.owner_references
    )


def is_own_claim(claim: ResourceClaim, request: DeviceMaintenance, namespace: str) -> bool:
    """Whether the claim is that of a Job of the request, so it does not count as in use."""
    return claim.metadata.labels.get(LABEL_MAINTENANCE) == request.metadata.uid and is_own(
        claim.metadata, request, namespace
    )


def jobs_state(
    request: DeviceMaintenance,
    purpose: Purpose,
    namespace: str,
    jobs: Iterable[Job],
    pods: Iterable[JobPod],
    *,
    targets: Sequence[JobTarget] | None = None,
    trouble: str = "",
) -> JobsState | None:
    """The state of the Jobs of this purpose; None if the request asks for none. `trouble`: why the last creation failed.

    `targets` overrides the GPUs that the request had when it began.
    """
    if not cron_job_of(request, purpose):
        return None
    there = {job.metadata.name: job for job in jobs if is_own(job.metadata, request, namespace)}
    pods_of: dict[str, list[JobPod]] = {}
    for pod in pods:
        for owner in pod.metadata.owner_references:
            if owner.kind == "Job":
                pods_of.setdefault(owner.uid, []).append(pod)
    wanted = targets_of(request) if targets is None else targets
    missing, running, succeeded = [], [], []
    failed: list[FailedJob] = []
    waits = ""
    for target in wanted:
        # A Job may have been created while the node was down and the GPU's UUID unknown.
        names = [job_name(request, purpose, each) for each in (target, JobTarget(target.device))]
        name = next((each for each in names if each in there), names[0])
        job = there.get(name)
        own = pods_of.get(job.metadata.uid, []) if job else []
        if job is None:
            missing.append(name)
        elif job.metadata.deletion_timestamp is not None:
            running.append(name)  # its pods may still run, and its name is taken
        elif is_true(job.status.conditions, "Complete"):
            succeeded.append(name)
        elif is_true(job.status.conditions, "Failed"):
            failed.append(FailedJob(name, _failure(job, own)))
        else:
            running.append(name)
            waits = waits or _waiting(job, own)
    return JobsState(
        wanted=len(wanted),
        missing=tuple(missing),
        running=tuple(running),
        succeeded=tuple(succeeded),
        failed=tuple(failed),
        trouble=trouble if missing else waits,
    )


def labels_of(request: DeviceMaintenance, purpose: Purpose) -> dict[str, str]:
    """The labels of the request's Jobs, pods and claims."""
    return {LABEL_MAINTENANCE: request.metadata.uid, LABEL_PURPOSE: str(purpose)}


def _failure(job: Job, pods: Sequence[JobPod]) -> str:
    key = job.metadata.key
    (said, *_) = [each for each in job.status.conditions if each.type == "Failed" and each.status == "True"]
    reasons = [text for pod in sorted(pods, key=_youth, reverse=True) if (text := _ended(pod) or _hindered(pod))]
    why = reasons[0] if reasons else _short(said.message)
    return (
        f"Job {key} failed ({said.reason or 'Failed'}): {sentence(why or 'no pod is left')} See `kubectl logs -n {key.namespace} "
        f"job/{key.name}`; delete the Job to try again."
    )


def _waiting(job: Job, pods: Sequence[JobPod]) -> str:
    alive = sorted((pod for pod in pods if pod.metadata.deletion_timestamp is None), key=_youth, reverse=True)
    found = next((text for pod in alive if (text := _hindered(pod))), "")
    return f"Job {job.metadata.key} does not start: {found}." if found else ""


def _youth(pod: JobPod) -> tuple[float, str]:
    made = pod.metadata.creation_timestamp
    return made.timestamp() if made else 0.0, pod.metadata.name


def _hindered(pod: JobPod) -> str:
    for each in _statuses(pod):
        if each.state.waiting is not None and each.state.waiting.reason not in _ORDINARY:
            waiting = each.state.waiting
            return f"container {each.name} waits ({waiting.reason}){_colon(waiting.message)}"
    said = find_condition(pod.status.conditions, "PodScheduled")
    if said is not None and said.status == "False":
        return f"no node takes its pod ({said.reason}){_colon(said.message)}"
    return ""


def _ended(pod: JobPod) -> str:
    for each in _statuses(pod):
        ended = each.state.terminated
        if ended is not None and ended.exit_code != 0:
            return f"container {each.name} ended with code {ended.exit_code}{_colon(ended.message)}"
    return _short(pod.status.message or pod.status.reason) if pod.status.phase == "Failed" else ""


def _statuses(pod: JobPod) -> Iterator[ContainerStatus]:
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses


def _colon(text: str) -> str:
    return f": {_short(text)}" if text else ""


def _short(text: str) -> str:
    return reason_of(text, _LONGEST_WORDS)
