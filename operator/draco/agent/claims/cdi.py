"""Writes and reads the CDI specs by which containers get the devices of their claims.

Owns the spec files, one per claim, with their names and content. Does not decide which devices a claim has.

A container may use a whole claim or only some requests of it; kubelet passes the CDI device names of exactly those. So each
device's edits hold what concerns that device, and the top of the spec holds what every container needs. The runtime merges
environment variables of one name by taking the last, so one variable cannot list devices correctly for every container: each
device has its own variable, `DRACO_DEVICE_GPU_0=<GPU uuid>`, and each claim, `DRACO_CLAIM_<uid>=<uid>`. CUDA sees the GPUs whose
device nodes are there.

Source: Container Device Interface specification; NVIDIA's DRA driver uses the same kind, k8s.gpu.nvidia.com/claim.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from draco.agent.claims.memory_limits import limits_mib
from draco.agent.containers.common_edits import VOID, CommonEdits, LimitImpossible, gives_cuda
from draco.agent.containers.driver_files import MPS_PIPE
from draco.agent.containers.edits import SOCKET, ContainerEdits, DeviceNode, Mount
from draco.agent.files import TEMPORARY, Files
from draco.agent.hardware import capabilities
from draco.agent.hardware.capabilities import Capabilities, CapabilityUnknown
from draco.agent.hardware.device_nodes import OPTIONAL, REQUIRED, DeviceNodeMissing, DeviceNodes
from draco.agent.record.contents import PreparedClaim, PreparedDevice
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.api.foreign import read
from draco.resources.names import ClaimUid, GpuUuid

VERSION = "0.6.0"
"""The lowest version with annotations, which specs use. containerd supports it since 1.7.13."""

CLAIM = "draco.dev/claim"
BOOT = "draco.dev/boot-id"
CHECKSUM = "draco.dev/checksum"
"""Annotations of a spec: the recorded claim, the boot in which it was recorded, and a checksum over both."""
FORMAT = "draco.dev/format"
"""Annotation: the FORMAT_VERSION of the agent that wrote the spec."""
FORMAT_VERSION = 4
"""Increase it when specs give anything that an agent of this version would not expect and would take away."""


class CdiDevice(msgspec.Struct, frozen=True, rename="camel"):
    """A device with its name in the spec."""

    name: str
    container_edits: ContainerEdits


class CdiSpec(msgspec.Struct, frozen=True, rename="camel"):
    """One spec file."""

    cdi_version: str
    kind: str
    annotations: dict[str, str]
    devices: list[CdiDevice]
    container_edits: ContainerEdits


def device_name(device: str, uid: ClaimUid, share_id: str = "") -> str:
    """A device's name in the spec of its claim; a claim may have several shares. It starts with a letter (specs before 0.5.0)."""
    return f"{device}-{uid}-{share_id}" if share_id else f"{device}-{uid}"


def device_id(driver: str, device: PreparedDevice, uid: ClaimUid) -> str:
    """A device's full name, as kubelet passes it to the runtime."""
    return f"{kind(driver)}={device_name(device.device, uid, device.share_id)}"


def kind(driver: str) -> str:
    """Vendor and class, for example k8s.gpu.nvidia.com/claim."""
    return f"k8s.{driver}/claim"


def spec(
    claim: PreparedClaim,
    driver: str,
    node: Capabilities,
    common: ContainerEdits,
    *,
    limiting: Callable[[GpuUuid, int], ContainerEdits] = lambda *_: ContainerEdits(),
    preloading: Callable[[str, int], ContainerEdits] = lambda *_: ContainerEdits(),
    boot_id: str = "",
) -> CdiSpec:
    """A claim's spec, from its record and the node's common edits.

    Its annotations repeat the record, in case that is lost. A device that the claim got twice (administrative access) appears
    once. `limiting` gives the edits for a GPU's memory limit that the driver holds, `preloading` those for a library's. Creates
    missing device nodes. Raises DeviceNodeMissing, CapabilityUnknown or what those raise.
    """
    devices = {device_name(device.device, claim.uid, device.share_id): device for device in claim.devices}
    limits = {gpu: limiting(gpu, mib) for gpu, mib in limits_mib(claim).items()}
    libraries = {device.gpu: limit.library for device in claim.devices if (limit := device.limit) is not None}
    for gpu, mib in limits_mib(claim, MemoryLimitBy.LIBRARY).items():
        limits[gpu] = preloading(libraries[gpu], mib)
    for gpu, mib in limits_mib(claim, MemoryLimitBy.MPS).items():
        limits[gpu] = ContainerEdits(env=[f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={mib}M"])  # the only GPU that it sees
    return CdiSpec(
        cdi_version=VERSION,
        kind=kind(driver),
        annotations=_annotations(claim, boot_id),
        devices=[
            CdiDevice(name, _device_edits(device, node, limits.get(device.gpu))) for name, device in devices.items()
        ],
        container_edits=msgspec.structs.replace(
            common,
            env=[*common.env, f"{claim_variable(claim.uid)}={claim.uid}"],
            device_nodes=_device_nodes(node.nodes.shared(), node.nodes),
        ),
    )


def _device_edits(device: PreparedDevice, node: Capabilities, limit: ContainerEdits | None) -> ContainerEdits:
    """A partition also gets its instance's nodes; without the nodes of other instances a container sees no more of the GPU."""
    part = device.partition
    opening = [capabilities.path(number) for number in device.capabilities]
    for path in opening:
        node.ensure(path)
    mps = _mps_edits(device)
    return ContainerEdits(
        env=[
            f"{variable(device.device)}={device.gpu if part is None else part.uuid}",
            *mps.env,
            *(limit.env if limit else []),
        ],
        hooks=limit.hooks if limit else [],
        device_nodes=_device_nodes([node.nodes.gpu(device.minor), *opening], node.nodes),
        mounts=[*mps.mounts, *(limit.mounts if limit else [])],
    )


def _mps_edits(device: PreparedDevice) -> ContainerEdits:
    """The way to the device's MPS daemon. Its shared memory replaces the container's, as with NVIDIA's driver."""
    if device.mps is None:
        return ContainerEdits()
    folders = {f"{device.mps.folder}/pipe": MPS_PIPE, f"{device.mps.folder}/shm": "/dev/shm"}  # noqa: S108 - in containers
    mounts = [Mount(source, target, SOCKET) for source, target in folders.items()]
    return ContainerEdits(env=[f"CUDA_MPS_PIPE_DIRECTORY={MPS_PIPE}"], mounts=mounts)


def _device_nodes(paths: Iterable[str], nodes: DeviceNodes) -> list[DeviceNode]:
    where = {path: str(nodes.on_host(path)) for path in paths}
    return [DeviceNode(path, "" if on_host == path else on_host) for path, on_host in where.items()]


def _annotations(claim: PreparedClaim, boot_id: str) -> dict[str, str]:
    text = msgspec.json.encode(claim).decode()
    return {CLAIM: text, BOOT: boot_id, CHECKSUM: _checksum(text, boot_id), FORMAT: str(FORMAT_VERSION)}


def _checksum(claim: str, boot_id: str) -> str:
    return hashlib.sha256(f"{boot_id} {claim}".encode()).hexdigest()


class SpecAnnotations(NamedTuple):
    """The claim for which a spec was written, and the boot in which it was."""

    claim: PreparedClaim
    boot_id: str


def annotated(content: bytes) -> SpecAnnotations | None:
    """A spec's annotations; None without them, or if they are damaged."""
    try:
        notes = read(_annotated, content).annotations
        text, boot_id = notes.get(CLAIM, ""), notes.get(BOOT, "")
        if notes.get(CHECKSUM) != _checksum(text, boot_id):
            return None
        return SpecAnnotations(read(_claim, text.encode()), boot_id)
    except (msgspec.DecodeError, UnicodeError):
        return None


class _Annotated(msgspec.Struct):
    annotations: dict[str, str] = {}


_annotated = msgspec.json.Decoder(_Annotated)
_claim = msgspec.json.Decoder(PreparedClaim)


def variable(device: str) -> str:
    """The environment variable with the UUID of a container's device: DRACO_DEVICE_GPU_0 for gpu-0."""
    return "DRACO_DEVICE_" + re.sub(r"[^A-Z0-9]", "_", device.upper())


def claim_variable(uid: ClaimUid) -> str:
    """The environment variable by which a container's claims are known."""
    return "DRACO_CLAIM_" + re.sub(r"[^A-Z0-9]", "_", uid.upper())


class CdiFolder:
    """The spec files of one driver in the runtime's folder. Other files are never touched."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        *,
        driver: str,
        node: Capabilities,
        common: CommonEdits | None = None,
        boot_id: str = "",
    ) -> None:
        self.common = common or CommonEdits(None, hook_folder=folder)
        self._folder = folder
        self._files = files
        self._driver = driver
        self.node = node
        self._boot_id = boot_id
        self._prefix = f"draco-{driver}-"

    def path(self, uid: ClaimUid) -> Path:
        """The spec file of a claim."""
        return self._folder / f"{self._prefix}{uid}.json"

    def write(self, claim: PreparedClaim) -> None:
        """Write the claim's spec. Raises OSError if the disk refuses, and what `spec` raises; then there is no spec."""
        self._files.write_volatile(self.path(claim.uid), _encoded(self._spec(claim)))

    def is_current(self, claim: PreparedClaim) -> bool:
        """Whether the claim's spec exists and is right.

        Common edits may differ from today's while their files exist: after an upgrade or downgrade, restarted containers keep
        what the pod started with, and new edits are for new claims. While no working driver can be given, a spec keeps missing
        files, so that the runtime names them in its error.
        """
        return self._says(claim, complete=not self.common.lacking())

    def opens_its_devices(self, claim: PreparedClaim) -> bool:
        """Whether the claim's spec exists and opens exactly its devices; the driver's files may be missing."""
        return self._says(claim, complete=False)

    def _says(self, claim: PreparedClaim, *, complete: bool) -> bool:
        try:
            found = self._files.read(self.path(claim.uid))
            wanted = self._spec(claim)
        except (OSError, CapabilityUnknown, DeviceNodeMissing, LimitImpossible):
            return False
        return found == _encoded(wanted) or self._good_still(found, wanted, complete=complete)

    def _good_still(self, content: bytes, wanted: CdiSpec, *, complete: bool) -> bool:
        """Whether an existing spec differs from the wanted one only where it may."""
        try:
            found = msgspec.json.decode(content, type=CdiSpec)
        except (msgspec.DecodeError, UnicodeError):
            return False
        edits = found.container_edits
        if VOID not in edits.env:
            return False
        if complete:
            if not self.common.all_there(edits):
                return False
            if gives_cuda(wanted.container_edits) and not gives_cuda(edits):
                return False  # written before there was a driver
        if _is_newer(found):
            return annotated(content) == annotated(_encoded(wanted)) and _gives(found, wanted)
        whole = content == _encoded(found)  # otherwise it has something that we never wrote
        as_wanted = msgspec.structs.replace(
            found,
            annotations=found.annotations,
            container_edits=msgspec.structs.replace(wanted.container_edits, device_nodes=edits.device_nodes),
        )
        return whole and as_wanted == wanted

    def remove(self, uid: ClaimUid) -> None:
        """Remove the claim's spec, if it has one."""
        self._files.remove(self.path(uid))

    def uids(self) -> list[ClaimUid]:
        """The claims that have a spec."""
        return [ClaimUid(name[len(self._prefix) : -len(".json")]) for name in self._own() if name.endswith(".json")]

    def claims(self) -> list[PreparedClaim]:
        """The claims in the annotations of undamaged specs of this boot."""
        return [one.claim for one in self._annotated() if one.boot_id == self._boot_id]

    def claims_before_boot(self) -> list[PreparedClaim]:
        """The same from specs of another boot, which may be out of date."""
        return [one.claim for one in self._annotated() if one.boot_id != self._boot_id]

    def _annotated(self) -> list[SpecAnnotations]:
        found = []
        for uid in self.uids():
            with suppress(OSError):
                one = annotated(self._files.read(self.path(uid)))
                if one is not None and one.claim.uid == uid:
                    found.append(one)
        return found

    def texts(self) -> list[str]:
        """The content of all specs, from which a lost record is rebuilt."""
        found = []
        for name in self._own():
            with suppress(OSError):
                found.append(self._files.read(self._folder / name).decode(errors="replace"))
        return found

    def sweep(self, keep: Iterable[ClaimUid]) -> list[ClaimUid]:
        """Remove specs of claims not in `keep`, and half-written files; returns the claims whose specs were removed."""
        kept = {uid: self.path(uid).name for uid in keep}
        removed = [uid for uid in self.uids() if uid not in kept]
        for name in {*self._own()} - {*kept.values()}:
            self._files.remove(self._folder / name)
        return removed

    def _own(self) -> list[str]:
        endings = (".json", f".json{TEMPORARY}")
        return [
            name for name in self._files.names(self._folder) if name.startswith(self._prefix) and name.endswith(endings)
        ]

    def _spec(self, claim: PreparedClaim) -> CdiSpec:
        common = self.common
        return spec(
            claim,
            self._driver,
            self.node,
            common.current(),
            limiting=common.limiting,
            preloading=common.preloading,
            boot_id=self._boot_id,
        )


def _encoded(one: CdiSpec) -> bytes:
    return msgspec.json.format(msgspec.json.encode(one), indent=1)


def _is_newer(spec: CdiSpec) -> bool:
    with suppress(ValueError):
        return int(spec.annotations.get(FORMAT, "0")) > FORMAT_VERSION
    return False


def _gives(spec: CdiSpec, wanted: CdiSpec) -> bool:
    """Whether a spec gives at least the wanted devices, each with all of its nodes.

    Of the nodes that GPUs share, it must have the required ones that exist, and none that is missing.
    """
    given = {each.name: each.container_edits for each in spec.devices}
    named = {each.path for each in spec.container_edits.device_nodes}
    there = {each.path for each in wanted.container_edits.device_nodes}
    if not (there & {*REQUIRED} <= named and named & {*REQUIRED, *OPTIONAL} <= there):
        return False
    return spec.kind == wanted.kind and all(
        (edits := given.get(each.name)) is not None
        and set(edits.env) >= set(each.container_edits.env)
        and all(node in edits.device_nodes for node in each.container_edits.device_nodes)
        and all(mount in edits.mounts for mount in each.container_edits.mounts)
        for each in wanted.devices
    )
