"""Whether devices are good again, so that they may return to service.

Owns the verdict of each mode, and what an agent must report: each GPU as healthy, without a fault that would keep pods off.
Agents' timestamps are never compared with our own clock.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

import msgspec

from draco.maintenance import wording
from draco.maintenance.progress import JobsState
from draco.resources.api.draco import GpuNode, GpuStatus
from draco.resources.api.health import BLOCKING_FAULTS, HEALTHY
from draco.resources.api.maintenance import DeviceMaintenance, VerificationMode
from draco.resources.names import DeviceKey, PoolKey, gpu_name


class AgentVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What agents say of the devices: sentences about GPUs that are not good, and nodes whose agents are silent.

    `ending` are sentences about GPUs whose faults are not seen any more, but need more readings without them.
    """

    bad: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


class VerificationVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the devices are good. `settles`: only if it stays so for a moment, because an agent may be about to report more.

    `look_again`: it fails after this time unless something changes.
    """

    passed: bool = False
    failed: bool = False
    settles: bool = False
    reason: str = ""
    message: str = ""
    look_again: timedelta | None = None


def verdict_of(
    request: DeviceMaintenance,
    agents: AgentVerdict | None,
    work: JobsState | None,
    verification: JobsState | None,
    *,
    grace: timedelta = timedelta(0),
) -> VerificationVerdict:
    """The verdict once no Job works on the devices. For `grace`, agents may still report readings from before that."""
    if work and work.running:
        return VerificationVerdict(reason="StoppingJobs", message=wording.stopping(work.running))
    mode = request.spec.verification.mode
    if mode is VerificationMode.PERSON:
        return VerificationVerdict(passed=True)
    if mode is VerificationMode.JOB:
        return _by_jobs(verification)
    return VerificationVerdict(passed=True) if agents is None else _by_agents(agents, grace)


def _by_agents(agents: AgentVerdict, grace: timedelta) -> VerificationVerdict:
    if agents.bad and grace > timedelta(0):
        said = wording.not_read_yet(agents.bad)
        return VerificationVerdict(reason="NotReadYet", message=said, look_again=grace)
    if agents.bad:
        return VerificationVerdict(failed=True, reason="GpuUnhealthy", message=wording.not_good(agents.bad))
    if agents.silent:
        return VerificationVerdict(reason="AgentSilent", message=wording.silent(agents.silent))
    if agents.ending:
        return VerificationVerdict(reason="FaultEnding", message=wording.not_over_yet(agents.ending))
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
    silent: Collection[PoolKey] = (),
) -> AgentVerdict | None:
    """What agents say of devices, each with the UUID of its GPU at isolation and now; None if no device has an agent.

    `nodes` are the GpuNodes of pools with a Draco agent. Agents of `silent` pools report nothing reliable, or have lost their
    GpuNode.
    """
    bad: set[str] = set()
    ending: set[str] = set()
    quiet: set[str] = set()
    asked = False
    for device, before, now in devices:
        pool = device.pool_key
        node = nodes.get(pool)
        if node is None and pool not in silent:
            continue
        asked = True
        if node is None or pool in silent:
            quiet.add(device.pool)
            continue
        found = _gpus(node, device, {before, now} - {""})
        if not found:
            bad.add(wording.gpu_missing(device, now or before))
        for gpu in found:
            faults = [fault for fault in gpu.faults if fault.effect in BLOCKING_FAULTS]
            seen = [fault for fault in faults if not fault.clean_probes]
            if seen:
                bad.add(wording.gpu_faulty(gpu, device, seen[0]))
            elif faults:
                ending.add(wording.gpu_recovering(gpu, device, faults[0]))
            elif gpu.health != HEALTHY:
                bad.add(wording.gpu_unhealthy(gpu, device))
    if not asked:
        return None
    return AgentVerdict(bad=tuple(sorted(bad)), ending=tuple(sorted(ending)), silent=tuple(sorted(quiet)))


def _gpus(node: GpuNode, device: DeviceKey, uuids: set[str]) -> list[GpuStatus]:
    name = gpu_name(device.device)
    return [gpu for gpu in node.status.gpus if gpu.uuid in uuids or gpu.device == name]
