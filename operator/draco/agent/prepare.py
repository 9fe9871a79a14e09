"""Preparing claims and giving them up: from an allocated claim to a recorded one with its CDI spec, and back.

Owns the order of the steps, and that no device is given to two claims. Reads no API server: a claim comes in as it was read.
All methods block on the disk; one thread calls them, one call at a time.

The order makes every crash harmless. Preparing: intent on record, spec written, claim on record as prepared; an intent found at
start is undone, since kubelet was never told. Giving up: spec removed, then the record; a claim found on record without its
spec gets it back, since kubelet will ask again.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from draco.agent.cdi import CdiFolder
from draco.agent.checkpoint import Checkpoint, ClaimState, PreparedClaim, PreparedDevice
from draco.agent.errors import PrepareError
from draco.agent.gpus import Gpu
from draco.resources.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.names import ClaimUid


def plan(claim: ResourceClaim, *, driver: str, pool: str, gpus: Mapping[str, Gpu]) -> PreparedClaim:
    """The claim as an intent: the devices of `driver` in its allocation. PrepareError says why it cannot be had.

    `gpus` are this node's, by the device names they are published under.
    """
    name = str(claim.metadata.key)
    allocation = claim.status.allocation
    if allocation is None:
        raise PrepareError(f"Claim {name} is not allocated; kubelet asks again when it is.")
    results = [result for result in allocation.devices.results if result.driver == driver]
    if not results:
        raise PrepareError(f"Claim {name} has no device of driver {driver}; another driver has to prepare it.")
    for config in allocation.devices.config:
        if config.opaque is not None and config.opaque.driver == driver:
            _check_parameters(name, config.opaque.parameters)
    return PreparedClaim(
        uid=ClaimUid(claim.metadata.uid),
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        state=ClaimState.PREPARING,
        devices=[_device(name, result, pool, gpus) for result in results],
    )


def _device(name: str, result: DeviceRequestAllocationResult, pool: str, gpus: Mapping[str, Gpu]) -> PreparedDevice:
    if result.pool != pool:
        raise PrepareError(
            f"Claim {name} was allocated {result.device} of pool {result.pool}, but this node's pool is {pool}; "
            "the pod cannot run here."
        )
    gpu = gpus.get(result.device)
    if gpu is None:
        present = ", ".join(sorted(gpus)) or "none"
        raise PrepareError(
            f"Claim {name} was allocated {result.device}, which this node does not have (it has: {present}); "
            "delete the pod so that the claim is allocated again."
        )
    return PreparedDevice(
        request=result.request.partition("/")[0],
        pool=result.pool,
        device=result.device,
        gpu=gpu.uuid,
        minor=gpu.minor,
        admin=bool(result.admin_access),
        share_id=result.share_id or "",
    )


def _check_parameters(name: str, parameters: Any) -> None:
    """Accept a GpuConfig that asks for what a GPU does anyway; refuse what would be ignored silently."""
    content = parameters if isinstance(parameters, dict) else {}
    sharing = content.get("sharing") or {}
    interval = (sharing.get("timeSlicingConfig") or {}).get("interval", "Default")
    plain = not sharing or (sharing.get("strategy") == "TimeSlicing" and interval == "Default")
    if content.get("kind") == "GpuConfig" and plain:
        return
    what = f"{content.get('kind', 'parameters without a kind')} {sharing or ''}".strip()
    raise PrepareError(
        f"Claim {name} configures its devices with {what}, which this agent does not support; remove that configuration "
        "from the claim or its DeviceClass."
    )


def conflict(claim: PreparedClaim, others: Iterable[PreparedClaim]) -> str:
    """Who already holds a device of the claim, as a sentence; "" when nobody does. Administrative access never conflicts."""
    wanted = {device.gpu: device.device for device in claim.devices if not device.admin}
    for other in others:
        if other.uid == claim.uid:
            continue
        for device in other.devices:
            if not device.admin and device.gpu in wanted:
                return (
                    f"Claim {claim} was allocated {wanted[device.gpu]}, which is still prepared for claim {other} "
                    f"(uid {other.uid}); it can be prepared when kubelet has given that one up."
                )
    return ""


class ClaimDesk:
    """The claims of one node: prepares them and gives them up."""

    def __init__(self, checkpoint: Checkpoint, cdi: CdiFolder, *, driver: str, pool: str) -> None:
        self._checkpoint = checkpoint
        self._cdi = cdi
        self._driver = driver
        self._pool = pool

    def prepare(self, claim: ResourceClaim, gpus: Mapping[str, Gpu]) -> PreparedClaim:
        """Prepare an allocated claim; a claim that is prepared already is returned as it is. Raises PrepareError."""
        known = self._checkpoint.claims.get(ClaimUid(claim.metadata.uid))
        if known is not None and known.state is ClaimState.PREPARED:
            return self._again(known, claim)
        intent = plan(claim, driver=self._driver, pool=self._pool, gpus=gpus)
        taken = conflict(intent, self._checkpoint.claims.values())
        if taken:
            raise PrepareError(taken)
        try:
            self._checkpoint.put(intent)
        except OSError as error:
            raise PrepareError(_disk(intent, "recorded", error)) from error
        return self._finish(intent)

    def _finish(self, intent: PreparedClaim) -> PreparedClaim:
        prepared = PreparedClaim(
            uid=intent.uid,
            namespace=intent.namespace,
            name=intent.name,
            state=ClaimState.PREPARED,
            devices=intent.devices,
        )
        try:
            self._cdi.write(prepared)
            self._checkpoint.put(prepared)
        except OSError as error:
            self._undo(intent.uid)
            raise PrepareError(_disk(intent, "prepared", error)) from error
        return prepared

    def _again(self, known: PreparedClaim, claim: ResourceClaim) -> PreparedClaim:
        """Kubelet asks again, after a restart or a lost answer."""
        allocation = claim.status.allocation
        results = allocation.devices.results if allocation else []
        allocated = {(one.pool, one.device) for one in results if one.driver == self._driver}
        held = {(device.pool, device.device) for device in known.devices}
        if allocated != held:
            have = ", ".join(sorted(device for _, device in held))
            raise PrepareError(
                f"Claim {known} is prepared with {have}, but that is no longer its allocation; it can be prepared again "
                "when kubelet has given it up."
            )
        if not self._cdi.is_current(known):
            try:
                self._cdi.write(known)
            except OSError as error:
                raise PrepareError(_disk(known, "prepared", error)) from error
        return known

    def _undo(self, uid: ClaimUid) -> None:
        """Leave nothing of a failed prepare. What the disk does not even let us undo is undone at the next start."""
        try:
            self._cdi.remove(uid)
            self._checkpoint.drop(uid)
        except OSError:
            return

    def unprepare(self, uid: ClaimUid) -> PreparedClaim | None:
        """Give a claim up; returns what it was, None when it was not known, which is fine. Raises PrepareError."""
        known = self._checkpoint.claims.get(uid)
        try:
            self._cdi.remove(uid)
            if known is not None:
                self._checkpoint.drop(uid)
        except OSError as error:
            raise PrepareError(
                f"Claim {known or uid} cannot be given up: {error.strerror} ({error.filename}); kubelet tries again."
            ) from error
        return known


def _disk(claim: PreparedClaim, what: str, error: OSError) -> str:
    return (
        f"Claim {claim} cannot be {what}: {error.strerror} ({error.filename}); make room or fix the folder, "
        "kubelet tries again."
    )
