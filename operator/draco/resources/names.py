"""All names shared with others, identifier types, and parsing of partition names.

A name that a manifest, a dashboard or another program may contain is defined only here. Partition names are parsed here because
allocated claims contain only device names, which must be understood after the devices are no longer published. The agent makes
these names (`agent.publish.partitions`).
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, NewType, TypeVar

T = TypeVar("T")

ClaimUid = NewType("ClaimUid", str)
GpuUuid = NewType("GpuUuid", str)
NodeName = NewType("NodeName", str)

DRACO_DOMAIN = "draco.dev"
FIELD_MANAGER_OPERATOR = "draco-operator"
FIELD_MANAGER_AGENT = "draco-agent"
OPERATOR_LEASE = "draco-operator"
"""The Lease of the operator's leader election."""

ALLOCATION_REGISTER = "draco"
"""The one AllocationRegister, which lists the GPUs that only Draco may allocate."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_MAINTENANCE = f"{DRACO_DOMAIN}/maintenance"
"""On a DeviceTaintRule, and on a Job, its pods and its claim: the UID of their DeviceMaintenance."""
LABEL_PURPOSE = f"{DRACO_DOMAIN}/purpose"
"""On a Job of a DeviceMaintenance and its pods: work or verification."""
LABEL_TEMPLATE = f"{DRACO_DOMAIN}/template"
"""On a Job of a DeviceMaintenance: the CronJob it was made from, which admission compares it with."""
ANNOTATION_DEVICE_CLASS = f"{DRACO_DOMAIN}/device-class"
"""On a CronJob for verification Jobs: the DeviceClass with which they claim the device."""
LABEL_EXTENDS = f"{DRACO_DOMAIN}/extends"
"""On a DeviceTaintRule: the UID of the rule whose taint it extends to the rest of the hardware."""
ANNOTATION_OVERLAPS = f"{DRACO_DOMAIN}/overlaps"
"""On a DeviceTaintRule of Draco's: the requested device, if the rule's device only shares its hardware."""
ANNOTATION_TROUBLES = f"{DRACO_DOMAIN}/troubles"
"""On the operator's lease: the leader's problems, one sentence per line."""
ANNOTATION_EXTEND = f"{DRACO_DOMAIN}/extend"
"""On a DeviceTaintRule: "false" keeps Draco from extending its taint to the rest of the device's hardware."""
ANNOTATION_UUID = f"{DRACO_DOMAIN}/uuid"
"""On a DeviceTaintRule of a DeviceMaintenance: the GPU of its device when the rule was made."""
ANNOTATION_TOPOLOGY = f"{DRACO_DOMAIN}/topology"
"""On a PodGroup, on pods, or, as a default, on a DeviceClass: the topology of the group's claims."""
ANNOTATION_GROUP_SIZE = f"{DRACO_DOMAIN}/group-size"
"""On the pods of a group without a PodGroup: how many pods start together."""
SCHEDULING_GATE = f"{DRACO_DOMAIN}/allocation"
"""In `spec.schedulingGates` of a pod: kube-scheduler ignores the pod until Draco has allocated its claims."""
LABEL_ALLOCATOR = f"{DRACO_DOMAIN}/allocator"
"""On a DeviceClass: with ALLOCATED_BY_OPERATOR, Draco allocates the claims of this class."""
ALLOCATED_BY_OPERATOR = "operator"
ATTRIBUTE_ALLOCATOR = f"{DRACO_DOMAIN}/allocator"
"""Of a device that Draco allocates: ALLOCATED_BY_OPERATOR, because selectors cannot see taints."""
TAINT_OPERATOR_ALLOCATED = f"{DRACO_DOMAIN}/operator-allocated"
"""On a device that Draco allocates: keeps kube-scheduler from allocating it."""
ANNOTATION_HELD = f"{DRACO_DOMAIN}/scale-down-held"
"""On a Node: the annotations against autoscalers that Draco has set, and which it removes again."""
ANNOTATION_EVICT_UNUSED = f"{DRACO_DOMAIN}/evict-unused"
"""On a pod or a claim: "false" keeps its pods from being evicted because nobody uses their devices."""
ANNOTATION_LEADER_ONLY = f"{DRACO_DOMAIN}/leader-only"
"""On an Eviction: with "true" the API server refuses it unless the AllocationRegister names its operator as leader."""
ATTRIBUTE_NVLINK_PEERS = f"{DRACO_DOMAIN}/nvlinkPeers"
"""Of a whole GPU: the numbers of GPUs of its node with an NVLink to it: "1 3" means gpu-1 and gpu-3."""
ATTRIBUTE_NVLINK_GROUP = f"{DRACO_DOMAIN}/nvlinkGroup"
"""Of a whole GPU: a number shared by GPUs of its node that are all linked by NVLink."""
ATTRIBUTE_TIME_SLICING = f"{DRACO_DOMAIN}/timeSlicing"
"""Of a whole GPU: whether its time slice can be set; missing while that is unknown."""
ATTRIBUTE_MPS = f"{DRACO_DOMAIN}/mps"
"""Of a GPU and its partitions: whether claims can have MPS there; missing while that is unknown."""
ATTRIBUTE_MEMORY_LIMIT = f"{DRACO_DOMAIN}/memoryLimit"
"""Of a whole GPU: who can hold a limit on its memory, "driver" or "none"; missing while that is unknown. Of a shared device: who
holds its shares to theirs, "driver", "mps", "library" or "none"."""
LABEL_RESERVATION = f"{DRACO_DOMAIN}/reservation"
"""On a claim of a DeviceReservation: its name. On a pod, or the template of its claim: the reservation to take over from."""
LABEL_SIMULATED = f"{DRACO_DOMAIN}/simulated"
"""On a Node: it is simulated, and no container runs there."""
TAINT_MAINTENANCE = f"{DRACO_DOMAIN}/maintenance"
TAINT_FOREIGN_INSTANCE = f"{DRACO_DOMAIN}/foreign-instance"
"""On devices that overlap a GPU instance not made by Draco."""
TAINT_UNSETTLED = f"{DRACO_DOMAIN}/unsettled"
"""On all devices of a GPU whose instances are uncertain, or that waits for a reset; the value says which."""
UNSETTLED_MIG_MODE = "MigMode"
"""Value of that taint if a whole GPU cannot be used because its MIG mode is on, which only a reset ends."""
UNSETTLED_FABRIC = "FabricJoining"
"""Value of that taint while a GPU joins its NVLink fabric."""
UNSETTLED_WITHDRAWN = "Withdrawn"
"""Value of that taint on a device that is about to be unpublished."""
UNSETTLED_SHARING = "Sharing"
"""Value of that taint on a GPU in use that is to be shared otherwise when it is free."""
TAINT_DEVICE_PLUGIN = f"{DRACO_DOMAIN}/device-plugin"
"""On devices that a device plugin of the node also allocates."""
TAINT_FAMILIES = f"{DRACO_DOMAIN}/"
"""Prefix of a taint key, before a `resources.api.health.FaultFamily`. The value is the worst fault."""
TAINT_AGENT_LOST = f"{DRACO_DOMAIN}/agent-lost"
"""On all devices of a pool whose agent no longer renews its lease."""
LABEL_FENCES = f"{DRACO_DOMAIN}/fences"
"""On a DeviceTaintRule that fences a pool: its digest, because node names may be longer than label values."""
LABEL_REMEDIATES = f"{DRACO_DOMAIN}/remediates"
"""On a DeviceMaintenance that a HealthPolicy opened: the UID of the policy."""
ANNOTATION_FAULT = f"{DRACO_DOMAIN}/fault"
"""On such a DeviceMaintenance: the GPU's UUID and the fault, "GPU-...: Xid79"."""
ANNOTATION_OUTCOME = f"{DRACO_DOMAIN}/outcome"
"""On a DeviceMaintenance that the operator cancelled: "failed", or "withdrawn" if it was no longer needed."""
AGENT_LEASE_PREFIX = "draco-agent-"
"""Prefix of the name of an agent's Lease in Draco's namespace; see `agent_lease_name`."""
LONGEST_NAME = 253
"""The API server's limit for object names, including Nodes."""
LABEL_AGENT_LEASE = f"{DRACO_DOMAIN}/agent-lease"
"""On an agent's Lease: its driver."""
FORGET_GPU = f"{DRACO_DOMAIN}/forget-gpu"
"""Annotation of a GpuNode: comma-separated UUIDs of GPUs that are gone for good, so that their names can be reused."""
CONDITION_READY = "Ready"
"""Of a GpuNode: whether its agent works. Written by the agent, or by the operator if the agent is lost."""
REASON_AGENT_LOST = "AgentLost"
"""Reason of that condition, and of an Event: the agent does not renew its lease."""
CONDITION_CERTIFICATE = "CertificateFit"
"""Of a GpuNode: whether clients of its agent's metrics can accept the certificate."""
CONDITION_PARTITIONABLE = "Partitionable"
"""Of a GpuNode: whether the cluster keeps the counters of partitions made on demand."""
CONDITION_COMPLETE = "Complete"
"""Of a GpuNode: all its GPUs are published, and none waits for a person. Its message has a line per problem."""
CONDITION_SOLE_ALLOCATOR = "SoleAllocator"
"""Of a GpuNode: whether no device plugin also allocates its GPUs."""
CONDITION_UNUSED = "Unused"
"""On a device in a claim's status: no program has used it for long."""
CONDITION_MPS = "MpsReady"
CONDITION_MEMORY_EXCEEDED = "MemoryExceeded"
"""On a share in a claim's status: the claim's programs use more memory than it asked for."""
CONDITIONS_OF_USAGE = frozenset({CONDITION_UNUSED, CONDITION_MEMORY_EXCEEDED})
CONDITION_CLAIMS_THERE = "ClaimsThere"
"""Of a GpuNode: False while something is prepared for claims that no longer exist."""

NVIDIA_DRIVER = "gpu.nvidia.com"
NVIDIA_DEVICE_CLASS = "gpu.nvidia.com"
NVIDIA_MIG_DEVICE_CLASS = "mig.nvidia.com"
NVIDIA_EXTENDED_RESOURCE = "nvidia.com/gpu"
OPERATOR_DEVICE_CLASS = f"gpu.{DRACO_DOMAIN}"
OPERATOR_MIG_DEVICE_CLASS = f"mig.{DRACO_DOMAIN}"
"""The chart's DeviceClasses for Draco's allocation: whole GPUs, and partitions."""
ATTRIBUTE_UUID = "uuid"
"""Of a whole GPU."""
ATTRIBUTE_PARENT_UUID = "parentUUID"
"""Of a partition: the UUID of its GPU."""
ATTRIBUTE_PROFILE = "profile"
"""Of a partition, such as 1g.10gb."""
MIG_PROFILE = re.compile(r"(?P<slices>\d+)g\.(?P<gb>\d+)gb(?P<sign>.*)")
"""The name of a profile: its slices, its memory, and signs of its engines such as +me."""
ATTRIBUTE_CLUSTER_UUID = "clusterUUID"
ATTRIBUTE_CLIQUE_ID = "cliqueID"
"""Of a GPU behind NVSwitches: two GPUs with equal values are linked."""
ANNOTATION_MIRROR = "kubernetes.io/config.mirror"
"""Marks the mirror of a static pod. Deleting it stops nothing: kubelet recreates it."""
ANNOTATION_POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""On a claim that kube-controller-manager made for a pod: its entry in `spec.resourceClaims`."""
LABEL_HOSTNAME = "kubernetes.io/hostname"
"""Often the node's name, but neither always nor for a name with more than 63 characters."""
STANDARD_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
STANDARD_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
STANDARD_NUMA_NODE = "resource.kubernetes.io/numaNode"


LABEL_KARPENTERS = "karpenter.sh/nodepool"
"""Of nodes that Karpenter added: its NodePool."""


class Autoscaler(StrEnum):
    """Programs that add nodes for pods."""

    KARPENTER = "Karpenter"
    CLUSTER_AUTOSCALER = "Cluster Autoscaler"


class PoolKey(NamedTuple):
    """A driver and the name of its pool: several drivers commonly name their pools after the node."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceKey(NamedTuple):
    """Driver, pool and name of a device."""

    driver: str
    pool: str
    device: str

    @property
    def pool_key(self) -> PoolKey:
        """The pool that it is in."""
        return PoolKey(self.driver, self.pool)

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class PartitionName(NamedTuple):
    """A parsed partition name. `parent` is the name of the whole GPU."""

    parent: str
    profile_id: int
    start: int


_DIGITS = 16
"""Length of a digest in a name."""
_PARTITION = re.compile(r"(gpu-[0-9]+)-mig-[a-z0-9.+-]+-([0-9]+)-([0-9]+)")


def agent_lease_name(node: str) -> str:
    """The Lease of a node's agent. A long name ends in a digest; the chart's admission policy knows both forms."""
    name = f"{AGENT_LEASE_PREFIX}{node}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:_DIGITS]
    return f"{name[: LONGEST_NAME - _DIGITS - 1].rstrip('.-')}-{digest}"


def of_driver(named: Mapping[str, T], name: str, driver: str) -> T | None:
    """What has a name of the driver, written with the driver's domain or without; None if there is none."""
    return named.get(name) or named.get(f"{driver}/{name}")


def gpu_name(device: str) -> str:
    """The whole GPU of a device or partition: gpu-0 for gpu-0-mig-1g10gb-19-4."""
    part = read_partition_name(device)
    return part.parent if part else device


def read_partition_name(device: str) -> PartitionName | None:
    """Parse a partition's name, such as gpu-0-mig-1g10gb-19-4, by its profile id (19) and start; None for any other name."""
    found = _PARTITION.fullmatch(device)
    return PartitionName(found[1], int(found[2]), int(found[3])) if found else None


EXTENDED_BY_CLASS = "deviceclass.resource.kubernetes.io/"
"""Prefix of the implicit extended resource that every DeviceClass has."""


def is_extended_resource(name: str) -> bool:
    """Whether a container's resource is an extended one, which is counted in whole numbers."""
    is_native = "/" not in name or "kubernetes.io/" in name or name.startswith("requests.")
    return name.startswith(EXTENDED_BY_CLASS) or not is_native


def closest_profile(profile: str, there: Iterable[str]) -> str:
    """The MIG profile among the names that is most like another; "" if there is none.

    Its slices count first and its memory last, because boards that are divided alike differ in memory.
    """
    wanted = MIG_PROFILE.fullmatch(profile)
    if wanted is None:
        return ""

    def distance(found: re.Match[str]) -> tuple[int, bool, int]:
        slices, memory = (abs(int(found[part]) - int(wanted[part])) for part in ("slices", "gb"))
        return slices, found["sign"] != wanted["sign"], memory

    best = min(filter(None, map(MIG_PROFILE.fullmatch, there)), key=distance, default=None)
    return best[0] if best is not None else ""
