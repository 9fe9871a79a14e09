"""Whether devices are good again, so that they may return to service.

Owns the verdict for each mode, and what is asked of an agent: that it reports each GPU as healthy, without a fault that would
keep pods off. What it says is not compared with any clock of ours.
"""

from collections.abc import Iterable, Mapping

import msgspec

from draco.maintenance import wording
from draco.maintenance.progress import JobsState
from draco.resources.api.draco import GpuNode, GpuStatus
from draco.resources.api.health import HealthEffect
from draco.resources.api.maintenance import DeviceMaintenance, VerificationMode
from draco.resources.names import DeviceKey, PoolKey, read_partition_name

BLOCKING_FAULTS = frozenset({HealthEffect.NO_SCHEDULE, HealthEffect.EVICT, HealthEffect.NO_EXECUTE})
HEALTHY = "Healthy"


class AgentVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What agents say of the devices: sentences about GPUs that are not good, and nodes whose agents say nothing now."""

    bad: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


class VerificationVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the devices are good. `settles`: only once it has been so for a moment, for an agent may be about to say more."""

    passed: bool = False
    failed: bool = False
    settles: bool = False
    reason: str = ""
    message: str = ""


def verdict_of(
    request: DeviceMaintenance, agents: AgentVerdict | None, work: JobsState | None, verification: JobsState | None
) -> VerificationVerdict:
    """What is known of the devices of a request that is finished. No Job may still work on one."""
    if work and work.running:
        return VerificationVerdict(reason="StoppingJobs", message=wording.stopping(work.running))
    mode = request.spec.verification.mode
    if mode is VerificationMode.PERSON:
        return VerificationVerdict(passed=True)
    if mode is VerificationMode.JOB:
        return _by_jobs(verification)
    return VerificationVerdict(passed=True) if agents is None else _by_agents(agents)


def _by_agents(agents: AgentVerdict) -> VerificationVerdict:
    if agents.bad:
        return VerificationVerdict(failed=True, reason="GpuUnhealthy", message=wording.not_good(agents.bad))
    if agents.silent:
        return VerificationVerdict(reason="AgentSilent", message=wording.silent(agents.silent))
    return VerificationVerdict(passed=True, settles=True)


def _by_jobs(jobs: JobsState | None) -> VerificationVerdict:
    if jobs is None:
        return VerificationVerdict(reason="NoJobs", message=wording.NO_VERIFICATION)
    if jobs.failed:
        return VerificationVerdict(
            failed=True, reason="VerificationFailed", message=wording.jobs_failed("verify", jobs.failed)
        )
    if jobs.done:
        return VerificationVerdict(passed=True)
    return VerificationVerdict(reason="Verifying", message=jobs.trouble or wording.verifying(jobs))


def agents_say(
    devices: Iterable[tuple[DeviceKey, str, str]],
    nodes: Mapping[PoolKey, GpuNode],
    silent: Iterable[PoolKey] = (),
) -> AgentVerdict | None:
    """What agents say of devices, each with the UUID of its GPU when it was isolated and the one by that name now.

    `nodes` are the GpuNodes of those pools that have an agent of Draco; those of `silent` report nothing that could be relied on.
    None where no device has an agent.
    """
    bad: set[str] = set()
    quiet: set[str] = set()
    asked = False
    for device, before, now in devices:
        pool = PoolKey(device.driver, device.pool)
        node = nodes.get(pool)
        if node is None:
            continue
        asked = True
        if pool in silent:
            quiet.add(device.pool)
            continue
        found = _gpus(node, device, {before, now} - {""})
        if not found:
            bad.add(wording.gpu_missing(device, now or before))
        bad.update(said for gpu in found if (said := _what_is_bad(gpu, device)))
    return AgentVerdict(bad=tuple(sorted(bad)), silent=tuple(sorted(quiet))) if asked else None


def _gpus(node: GpuNode, device: DeviceKey, uuids: set[str]) -> list[GpuStatus]:
    part = read_partition_name(device.device)
    name = part.parent if part else device.device
    return [gpu for gpu in node.status.gpus if gpu.uuid in uuids or gpu.device == name]


def _what_is_bad(gpu: GpuStatus, device: DeviceKey) -> str:
    faults = [fault for fault in gpu.faults if fault.effect in BLOCKING_FAULTS]
    if faults:
        return wording.gpu_faulty(gpu, device, faults[0])
    return wording.gpu_unhealthy(gpu, device) if gpu.health != HEALTHY else ""
