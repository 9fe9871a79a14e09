"""Jobs, the CronJobs that are their templates, and what pods of Jobs say of why they do not run.

Owns the structs: batch/v1, and of core/v1 what is read of a Job's pods alone. The spec of a template is passed on as it is.
"""

from typing import Any

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import Condition, ObjectStruct


class JobTemplate(ObjectStruct, frozen=True, kw_only=True):
    """What a CronJob makes Jobs from."""

    spec: dict[str, Any] = {}


class CronJobSpec(ApiStruct, frozen=True, kw_only=True):
    """Whether it makes Jobs automatically, and from what."""

    suspend: bool = False
    job_template: JobTemplate = JobTemplate()


class CronJob(ObjectStruct, frozen=True, kw_only=True):
    """A template of Jobs, with a schedule that does not count while it is suspended."""

    spec: CronJobSpec = CronJobSpec()


class JobStatus(ApiStruct, frozen=True, kw_only=True):
    """How it ended: the condition Complete or Failed."""

    conditions: list[Condition] = []


class JobSpec(ApiStruct, frozen=True, kw_only=True):
    """How many pods run at once; 1 if it does not say."""

    parallelism: int | None = None


class Job(ObjectStruct, frozen=True, kw_only=True):
    """A Job. Never written back: the struct has not all of it."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class ContainerWaiting(ApiStruct, frozen=True, kw_only=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerTerminated(ApiStruct, frozen=True, kw_only=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(ApiStruct, frozen=True, kw_only=True):
    """One of them is set; neither while it runs."""

    waiting: ContainerWaiting | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(ApiStruct, frozen=True, kw_only=True):
    """A container and its state."""

    name: str
    state: ContainerState = ContainerState()


class JobPodStatus(ApiStruct, frozen=True, kw_only=True):
    """Why a pod does not run, or how it ended."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = []
    init_container_statuses: list[ContainerStatus] = []
    container_statuses: list[ContainerStatus] = []


class JobPod(ObjectStruct, frozen=True, kw_only=True):
    """A pod of one of Draco's Jobs."""

    status: JobPodStatus = JobPodStatus()
