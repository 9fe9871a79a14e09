"""Runs the Jobs of maintenance requests in Draco's own namespace, as `maintenance.working` decides.

Owns the watch of these Jobs and their pods, and the writes: Jobs, and the claims with which verification Jobs hold a GPU. They
are made from suspended CronJobs that an administrator keeps in that namespace. Nothing else is read or written, so no tenant can
pass off a Job or a claim as Draco's.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import msgspec
import structlog

from draco.controller.maintenance.fleet import MaintenanceFleet
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import ApiObject
from draco.maintenance.progress import JobsState, Purpose
from draco.maintenance.working.claiming import (
    OfferedDevice,
    ProbedGpu,
    class_for,
    is_outdated,
    no_class,
    obstacle,
    tolerations_for,
)
from draco.maintenance.working.jobs import (
    JobTarget,
    cron_job_of,
    is_own,
    is_own_claim,
    job_name,
    jobs_state,
    targets_of,
)
from draco.maintenance.working.manifests import claim_manifest, job_manifest
from draco.resources.api.jobs import CronJob, Job, JobPod
from draco.resources.api.maintenance import OVER, DeviceMaintenance
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, CRON_JOBS, JOB_PODS, JOBS
from draco.resources.names import (
    ANNOTATION_DEVICE_CLASS,
    ATTRIBUTE_PROFILE,
    LABEL_MAINTENANCE,
    DeviceKey,
    read_partition_name,
)
from draco.resources.texts import reason_of

log = structlog.get_logger(__name__)

NOT_PERMITTED: Final = "Draco may not run Jobs: set the chart's value operator.runJobs to true, or work by hand."
_MADE_AT_ONCE = 16
_AGAIN: Final = timedelta(seconds=15)
"""How often to check what a person has to fix."""
BY_REQUEST = "request"
_OWN_CLAIMS = "own claims"


class GpuProbing:
    """What of a GPU a verification Job could claim now: its published devices, their taints and classes."""

    def __init__(self, view: ClusterView, fleet: MaintenanceFleet) -> None:
        self._view = view
        self._fleet = fleet

    def gpu(self, request: DeviceMaintenance, target: JobTarget) -> ProbedGpu:
        """The target device as published now, or its partitions if the GPU is not published whole."""
        pool = target.device.pool_key
        hardware = self._view.hardware(pool)
        names = [target.device.device]
        if names[0] not in hardware.published:
            parts = ((each, read_partition_name(each)) for each in hardware.published)
            names = sorted(each for each, part in parts if part is not None and part.parent == names[0])
        found = []
        for name in names:
            if (device := hardware.published_as(name)) is not None:
                key = DeviceKey(*pool, name)
                found.append(OfferedDevice(key, device, (*device.taints, *self._view.rule_taints(key))))
        others = {
            each.spec.taint.key for each in self._view.maintenances.store.values() if each.status.phase not in OVER
        }
        return ProbedGpu(
            devices=tuple(found),
            key=request.spec.taint.key,
            other_keys=frozenset(others),
            selects=lambda name: self._selects(name, found),
        )

    def profile(self, target: JobTarget) -> str:
        """The profile of the partition to verify; "" for a whole GPU, or if unknown."""
        device = self._view.hardware(target.device.pool_key).published_as(target.device.device)
        is_part = read_partition_name(target.device.device) is not None
        return device.text(ATTRIBUTE_PROFILE, target.device.driver) if is_part and device is not None else ""

    def _selects(self, name: str, devices: Iterable[OfferedDevice]) -> bool:
        """Whether the class contains one of the devices; unknown if its selectors fail."""
        test = self._fleet.test(name)
        return isinstance(test, str) or any(test.says(each.key.driver, each.device) is not False for each in devices)


class MaintenanceJobs:
    """The Jobs of all requests. If the operator may not run Jobs, it tells the requests that ask for one."""

    def __init__(
        self, client: Client, view: ClusterView, fleet: MaintenanceFleet, *, namespace: str, permitted: bool
    ) -> None:
        self._client = client
        self._view = view
        self._probing = GpuProbing(view, fleet)
        self._namespace = namespace
        self._permitted = permitted
        self._troubles: dict[tuple[str, Purpose], str] = {}  # by request UID
        self._wakes: list[Callable[[str], None]] = []

        def follow(kind: Any) -> Informer[Any]:
            informer: Informer[Any] = Informer(
                client, kind, namespace=namespace, label_selector=LABEL_MAINTENANCE, clock=view.clock
            )
            informer.store.add_index(BY_REQUEST, _maintenance_of)
            return informer

        self._jobs: Informer[Job] = follow(JOBS)
        self._pods: Informer[JobPod] = follow(JOB_PODS)
        view.claims.store.add_index(_OWN_CLAIMS, _maintenance_of)

    async def run(self) -> None:
        """Watch the Jobs and their pods until cancelled."""
        if self._permitted:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._jobs.run(), name="maintenance jobs")
                group.create_task(self._pods.run(), name="pods of maintenance jobs")

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with the UID of every request whose Jobs change."""
        self._wakes.append(wake)
        for informer in (self._jobs, self._pods, self._view.claims):
            informer.subscribe_keys(wake, _maintenance_of)

    def look(self, request: DeviceMaintenance, purpose: Purpose) -> JobsState | None:
        """The state of the Jobs of this purpose; None if the request asks for none."""
        if not cron_job_of(request, purpose):
            return None
        uid = request.metadata.uid
        if not self._permitted:
            return JobsState(wanted=len(targets_of(request)), trouble=NOT_PERMITTED)
        if not (self._jobs.synced.is_set() and self._pods.synced.is_set()):
            # Jobs that are not known yet must not count as missing.
            reading = f"Jobs in {self._namespace} are not read yet."
            return JobsState(wanted=len(targets_of(request)), trouble=reading, look_again=timedelta(seconds=1))
        trouble = self._troubles.get((uid, purpose), "")
        state = jobs_state(
            request,
            purpose,
            self._namespace,
            self._jobs.store.by_index(BY_REQUEST, uid),
            self._pods.store.by_index(BY_REQUEST, uid),
            targets=self._targets(request) if purpose is Purpose.VERIFICATION else None,
            trouble=trouble,
        )
        if state is not None and purpose is Purpose.VERIFICATION:
            state = self._with_claims(request, state)
        return msgspec.structs.replace(state, look_again=_AGAIN) if state and state.trouble else state

    def _with_claims(self, request: DeviceMaintenance, state: JobsState) -> JobsState:
        """Add the Jobs that wait for a claim that will not be allocated, and why one waits."""
        targets = {job_name(request, Purpose.VERIFICATION, each): each for each in self._targets(request)}
        claimless, trouble = [], ""
        for name in state.running:
            key = ObjectKey(self._namespace, name)
            claim, target = self._view.claims.store.get(key), targets.get(name)
            job = self._jobs.store.get(key)
            if target is None or job is None or job.metadata.deletion_timestamp is not None:
                continue
            if claim is None:
                claimless.append(name)
            elif claim.waits:
                gpu = self._probing.gpu(request, target)
                if is_outdated(claim, gpu, self._view.classes_by_name):
                    claimless.append(name)
                trouble = trouble or obstacle(gpu)
        return msgspec.structs.replace(state, claimless=tuple(claimless), trouble=trouble or state.trouble)

    def own_claims(self, request: DeviceMaintenance) -> frozenset[ObjectKey]:
        """The claims of the request's own Jobs."""
        # By label, not by today's GPU names: a claim may be for a board that was replaced since.
        claims = self._view.claims.store.by_index(_OWN_CLAIMS, request.metadata.uid)
        return frozenset(claim.metadata.key for claim in claims if is_own_claim(claim, request, self._namespace))

    def never_take(self, claims: Iterable[ObjectKey], devices: set[DeviceKey]) -> frozenset[ObjectKey]:
        """Claims that will never take these devices: of Jobs for other hardware, each asking for one GPU by its UUID."""
        found = set()
        for key in claims:
            claim = self._view.claims.store.get(key)
            uid = claim.metadata.labels.get(LABEL_MAINTENANCE, "") if claim else ""
            request = self._view.request(uid) if uid else None
            if claim is None or request is None or not is_own_claim(claim, request, self._namespace):
                continue
            if devices.isdisjoint(each.key for each in request.status.devices):
                found.add(key)
        return frozenset(found)

    async def make(self, request: DeviceMaintenance, purpose: Purpose, state: JobsState) -> None:
        """Create missing Jobs, a few at a time. Raises ApiError if a retry may help."""
        if not self._permitted or not state.incomplete or not await self._view.maintenances.is_current(request):
            return
        trouble = await self._make_missing(request, purpose, state)
        subject = (request.metadata.uid, purpose)
        if trouble != self._troubles.get(subject, ""):
            log.info("maintenance.jobs_wait", request=request.metadata.name, purpose=str(purpose), trouble=trouble)
            self._troubles[subject] = trouble
            for wake in self._wakes:
                wake(request.metadata.uid)

    def forget(self, uid: str) -> None:
        """Forget a request that is gone or finished."""
        for purpose in Purpose:
            self._troubles.pop((uid, purpose), None)

    async def stop(self, request: DeviceMaintenance) -> None:
        """Delete the request's Jobs, each after its pods, and their claims. Raises ApiError."""
        self.forget(request.metadata.uid)
        for job in self._jobs.store.by_index(BY_REQUEST, request.metadata.uid):
            if is_own(job.metadata, request, self._namespace) and job.metadata.deletion_timestamp is None:
                log.info("maintenance.job_stopped", job=str(job.metadata.key), request=request.metadata.name)
                await self._delete(JOBS, job.metadata.key, job.metadata.uid)
        for key in self.own_claims(request):
            if (claim := self._view.claims.store.get(key)) and claim.metadata.deletion_timestamp is None:
                await self._delete(CLAIMS, key, claim.metadata.uid)

    async def _make_missing(self, request: DeviceMaintenance, purpose: Purpose, state: JobsState) -> str:
        """Create some of the missing Jobs. Return why that is impossible, or ""."""
        template = await self._template(request, purpose)
        if isinstance(template, str):
            return template
        verifies = purpose is Purpose.VERIFICATION
        targets = self._targets(request) if verifies else targets_of(request)
        by_name = {job_name(request, purpose, target): target for target in targets}
        for name in (*state.claimless, *state.missing)[:_MADE_AT_ONCE]:
            target = by_name.get(name)  # None if its board was replaced meanwhile: the changed slice wakes us
            if target is None:
                continue
            trouble = await self._claim(request, target, template) if verifies else ""
            if not trouble and name in state.missing:
                trouble = await self._make(request, purpose, target, template)
            if trouble:
                return trouble
        return ""

    def _targets(self, request: DeviceMaintenance) -> list[JobTarget]:
        """The GPUs to verify; a replaced board counts by its name."""
        return list(map(self._as_it_is_now, targets_of(request)))

    def _as_it_is_now(self, target: JobTarget) -> JobTarget:
        hardware = self._view.hardware(target.device.pool_key)
        board = "" if hardware.of_board(target.uuid) else hardware.board(target.device.device)
        return JobTarget(target.device, board or target.uuid)

    async def _template(self, request: DeviceMaintenance, purpose: Purpose) -> CronJob | str:
        """The template, or what is wrong with it."""
        key = ObjectKey(self._namespace, cron_job_of(request, purpose))
        try:
            template = await self._client.get(CRON_JOBS, key)
        except NotFound:
            return f"CronJob {key.name}, the template of the {purpose} Jobs, does not exist in {self._namespace}: create it."
        except Forbidden as error:
            return _refused(error)
        except msgspec.ValidationError as error:
            return f"CronJob {key} cannot be read: {reason_of(str(error))}."
        if not template.spec.suspend:
            # It would also run on its own schedule, on any node and on GPUs in use.
            return f"CronJob {key} is not suspended, so it runs automatically: set its spec.suspend to true."
        return template

    async def _claim(self, request: DeviceMaintenance, target: JobTarget, template: CronJob) -> str:
        """Create the claim of a verification Job if it is missing or unusable. Return why that is impossible."""
        if not target.uuid:
            return f"{target.device} has no UUID, so no claim can ask for just it: verify it by hand (verification.mode: Person)."
        gpu = self._probing.gpu(request, target)
        if not gpu.devices:
            return f"{target.device} is not published now, so no Job can verify it; this goes on when it is."
        if why := obstacle(gpu):
            return why
        classes = self._view.classes_by_name
        asked_for = (
            template.metadata.annotations.get(ANNOTATION_DEVICE_CLASS),
            request.spec.device_selector.device_class_name,
        )
        if not (device_class := class_for(gpu, filter(None, asked_for), classes)):
            return no_class(gpu, template.metadata.name)
        body = claim_manifest(
            request,
            target,
            namespace=self._namespace,
            device_class=device_class,
            tolerations=tolerations_for(gpu),
            profile=self._probing.profile(target),
        )
        key = ObjectKey(self._namespace, body["metadata"]["name"])
        there = self._view.claims.store.get(key)
        try:
            if there is not None and there.waits and is_outdated(there, gpu, classes):
                log.info("maintenance.claim_outdated", claim=str(key), request=request.metadata.name)
                # Only at the version seen, since it may just have been allocated. A new one is created once it is gone.
                await self._delete(CLAIMS, key, there.metadata.uid, there.metadata.resource_version)
            elif there is None and await self._create(CLAIMS, body):
                log.info(
                    "maintenance.claim_made", claim=str(key), request=request.metadata.name, device_class=device_class
                )
        except (Forbidden, Invalid) as error:
            return _refused(error)
        return ""

    async def _make(self, request: DeviceMaintenance, purpose: Purpose, target: JobTarget, template: CronJob) -> str:
        """Create one Job. Return why that is impossible, or ""."""
        node = self._node_of(target)
        if not node:
            return f"{target.device} is not published, so the node for its Job is unknown."
        body = job_manifest(request, purpose, target, template, namespace=self._namespace, node=node)
        try:
            if await self._create(JOBS, body):
                log.info("maintenance.job_made", job=body["metadata"]["name"], request=request.metadata.name, node=node)
        except (Forbidden, Invalid) as error:
            return _refused(error)
        return ""

    async def _create(self, kind: Any, body: dict[str, Any]) -> bool:
        try:
            await self._client.create(kind, body)
        except AlreadyExists:
            return False  # an earlier attempt whose answer was lost, or one being deleted: the watch tells which
        return True

    async def _delete(self, kind: Any, key: ObjectKey, uid: str, version: str = "") -> None:
        with suppress(NotFound, Conflict):  # gone, replaced, or changed
            # A Job goes after its pods. A claim owns nothing.
            order = "Foreground" if kind is JOBS else ""
            await self._client.delete(kind, key, uid=uid, resource_version=version, propagation=order)

    def _node_of(self, target: JobTarget) -> str:
        published = self._view.published(target.device)
        if published and published[1]:
            return published[1]
        # A driver with its own node names its pools after nodes, even while it publishes nothing.
        return target.device.pool if ObjectKey("", target.device.pool) in self._view.nodes.store else ""


def _refused(error: Forbidden | Invalid) -> str:
    return f"The API server does not take it: {reason_of(error.message)}."


def _maintenance_of(each: ApiObject) -> list[str]:
    return [uid] if (uid := each.metadata.labels.get(LABEL_MAINTENANCE)) else []
