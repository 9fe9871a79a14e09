"""Jobs, CronJobs as their templates, whose spec is passed on unchanged, and why pods of Jobs do not run."""

from typing import Any

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import Condition, ObjectStruct


class JobTemplate(ObjectStruct, frozen=True, kw_only=True):
    """The template for Jobs of a CronJob."""

    spec: dict[str, Any] = {}


class CronJobSpec(ApiStruct, frozen=True, kw_only=True):
    """Whether it is suspended, and its template."""

    suspend: bool = False
    job_template: JobTemplate = JobTemplate()


class CronJob(ObjectStruct, frozen=True, kw_only=True):
    """A template for Jobs; its schedule is inactive while it is suspended."""

    spec: CronJobSpec = CronJobSpec()


class JobStatus(ApiStruct, frozen=True, kw_only=True):
    """The condition Complete or Failed says how it ended."""

    conditions: list[Condition] = []


class JobSpec(ApiStruct, frozen=True, kw_only=True):
    """Number of pods that run in parallel (1 if unset), and that must succeed."""

    parallelism: int | None = None
    completions: int | None = None


class Job(ObjectStruct, frozen=True, kw_only=True):
    """A Job. Never write it back: the struct is incomplete."""

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
    """At most one is set; none while the container runs."""

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
