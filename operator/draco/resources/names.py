"""Every name that others depend on, the types of identifiers, and what the name of a published device says of a partition.

Owns domains, prefixes, NVIDIA's names (the drop-in contract) and identifier types. A name that a manifest, a dashboard or
another program may hold stands here and nowhere else. Owns also the reading of partitions' names, for all who meet them in
allocated claims: a claim names its devices and nothing else of them, and must be understood after they are no longer published.
The agent makes these names (`agent.publish.partitions`).
"""

import hashlib
import re
from enum import StrEnum
from typing import NamedTuple, NewType

ClaimUid = NewType("ClaimUid", str)
GpuUuid = NewType("GpuUuid", str)
NodeName = NewType("NodeName", str)

DRACO_DOMAIN = "draco.dev"
FIELD_MANAGER_OPERATOR = "draco-operator"
FIELD_MANAGER_AGENT = "draco-agent"
OPERATOR_LEASE = "draco-operator"
"""The name of the Lease by which one replica of the operator leads."""

ALLOCATION_REGISTER = "draco"
"""The name of the one AllocationRegister, which says which GPUs only Draco may allocate."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_MAINTENANCE = f"{DRACO_DOMAIN}/maintenance"
"""On a DeviceTaintRule, and on a Job, its pods and its claim: the UID of the DeviceMaintenance it serves."""
LABEL_PURPOSE = f"{DRACO_DOMAIN}/purpose"
"""On a Job of a DeviceMaintenance and its pods: work or verification."""
LABEL_TEMPLATE = f"{DRACO_DOMAIN}/template"
"""On a Job of a DeviceMaintenance: the CronJob that it was made from, which the API server compares it with."""
ANNOTATION_DEVICE_CLASS = f"{DRACO_DOMAIN}/device-class"
"""On a CronJob that Jobs for verification are made from: the DeviceClass by which they claim the device."""
LABEL_EXTENDS = f"{DRACO_DOMAIN}/extends"
"""On a DeviceTaintRule: the UID of the rule whose taint it puts on what is the same hardware."""
ANNOTATION_OVERLAPS = f"{DRACO_DOMAIN}/overlaps"
"""On a DeviceTaintRule of Draco's: the device that was asked for, where the rule's own one is merely the same hardware."""
ANNOTATION_TROUBLES = f"{DRACO_DOMAIN}/troubles"
"""On the operator's lease: what troubles the leader, a sentence a line."""
ANNOTATION_EXTEND = f"{DRACO_DOMAIN}/extend"
"""On a DeviceTaintRule: "false" keeps Draco from putting its taint on the rest of the device's hardware."""
ANNOTATION_UUID = f"{DRACO_DOMAIN}/uuid"
"""On a DeviceTaintRule of a DeviceMaintenance: the GPU that its device was or was a part of when the rule was made."""
ANNOTATION_TOPOLOGY = f"{DRACO_DOMAIN}/topology"
"""On a PodGroup, on pods, or, as a default, on a DeviceClass: where claims of a group are with respect to each other."""
ANNOTATION_GROUP_SIZE = f"{DRACO_DOMAIN}/group-size"
"""On the pods of a group, where it is not a PodGroup: how many pods start together."""
SCHEDULING_GATE = f"{DRACO_DOMAIN}/allocation"
"""In `spec.schedulingGates` of a pod: kube-scheduler looks at it once Draco has allocated its claims."""
LABEL_ALLOCATOR = f"{DRACO_DOMAIN}/allocator"
"""On a DeviceClass: with ALLOCATED_BY_OPERATOR the claims of this class are Draco's to allocate."""
ALLOCATED_BY_OPERATOR = "operator"
ATTRIBUTE_ALLOCATOR = f"{DRACO_DOMAIN}/allocator"
"""Of a device that Draco allocates: ALLOCATED_BY_OPERATOR. A selector cannot see taints."""
TAINT_OPERATOR_ALLOCATED = f"{DRACO_DOMAIN}/operator-allocated"
"""On a device that Draco allocates: it keeps kube-scheduler from giving it to anybody."""
ANNOTATION_HELD = f"{DRACO_DOMAIN}/scale-down-held"
"""On a Node: the annotations by which Draco keeps autoscalers from removing it, and which it takes away again."""
ANNOTATION_LEADER_ONLY = f"{DRACO_DOMAIN}/leader-only"
"""On an Eviction: "true" has the API server refuse it from an operator that the AllocationRegister does not name as leader."""
ATTRIBUTE_NVLINK_PEERS = f"{DRACO_DOMAIN}/nvlinkPeers"
"""Of a whole GPU: those of its node that it has an NVLink to, as the numbers in their names: "1 3" is gpu-1 and gpu-3."""
ATTRIBUTE_NVLINK_GROUP = f"{DRACO_DOMAIN}/nvlinkGroup"
"""Of a whole GPU: a number that those GPUs of its node share that all have an NVLink to each other."""
LABEL_RESERVATION = f"{DRACO_DOMAIN}/reservation"
"""On a claim that a DeviceReservation made: its name. On a pod, or the template of its claim: whose devices it takes over."""
LABEL_SIMULATED = f"{DRACO_DOMAIN}/simulated"
"""On a Node: it is simulated, and no container ever runs there."""
TAINT_MAINTENANCE = f"{DRACO_DOMAIN}/maintenance"
TAINT_FOREIGN_INSTANCE = f"{DRACO_DOMAIN}/foreign-instance"
"""On devices that overlap a GPU instance which Draco did not make."""
TAINT_UNSETTLED = f"{DRACO_DOMAIN}/unsettled"
"""On all devices of a GPU whose instances are not certain, or that waits for a reset; the value says which."""
UNSETTLED_MIG_MODE = "MigMode"
"""The value of that taint where a whole GPU cannot be had because its MIG mode is on, and ends by a reset only."""
UNSETTLED_FABRIC = "FabricJoining"
"""Its value while a GPU is being registered with its NVLink fabric."""
UNSETTLED_WITHDRAWN = "Withdrawn"
"""Its value on a device that is about to be published no more."""
TAINT_DEVICE_PLUGIN = f"{DRACO_DOMAIN}/device-plugin"
"""On what a device plugin of the node gives out too."""
TAINT_FAMILIES = f"{DRACO_DOMAIN}/"
"""Before a `resources.api.health.FaultFamily`: the key of that family's taint. The value is the worst fault."""
TAINT_AGENT_LOST = f"{DRACO_DOMAIN}/agent-lost"
"""On all devices of a pool whose agent does not renew its lease any more."""
LABEL_FENCES = f"{DRACO_DOMAIN}/fences"
"""On a DeviceTaintRule that fences a pool: a digest of it, as names of nodes may be longer than a label's value."""
LABEL_REMEDIATES = f"{DRACO_DOMAIN}/remediates"
"""On a DeviceMaintenance that a HealthPolicy opened: the UID of the policy."""
ANNOTATION_FAULT = f"{DRACO_DOMAIN}/fault"
"""On such a DeviceMaintenance: the GPU's UUID and the fault, "GPU-...: Xid79"."""
ANNOTATION_OUTCOME = f"{DRACO_DOMAIN}/outcome"
"""On such a DeviceMaintenance that the operator cancelled: "failed", or "withdrawn" where nothing asked for it any more."""
AGENT_LEASE_PREFIX = "draco-agent-"
"""How the name of the Lease begins that an agent renews in Draco's namespace; `agent_lease_name` is all of it."""
LONGEST_NAME = 253
"""What the API server takes as the name of an object, a Node's among others."""
LABEL_AGENT_LEASE = f"{DRACO_DOMAIN}/agent-lease"
"""On such a Lease: the driver that the agent serves."""
FORGET_GPU = f"{DRACO_DOMAIN}/forget-gpu"
"""Annotation of a GpuNode: UUIDs, separated by commas, of GPUs that are gone for good. What they were called is free again."""
CONDITION_READY = "Ready"
"""Of a GpuNode: whether its agent does its work. Its agent says so, and the operator says where nobody knows."""
REASON_AGENT_LOST = "AgentLost"
"""Of that condition: the agent does not renew its lease. Also of the Event about it."""
CONDITION_CERTIFICATE = "CertificateFit"
"""Of a GpuNode: whether those who read its agent's metrics can accept the certificate."""
CONDITION_PARTITIONABLE = "Partitionable"
"""Of a GpuNode: whether the cluster keeps the counters that partitions made on demand are published with."""
CONDITION_COMPLETE = "Complete"
"""Of a GpuNode: everything of its GPUs is published, and none waits for a person. Its message has a line for each thing."""
CONDITION_SOLE_ALLOCATOR = "SoleAllocator"
"""Of a GpuNode: whether no device plugin gives out its GPUs, too."""
CONDITION_CLAIMS_THERE = "ClaimsThere"
"""Of a GpuNode: False while something is prepared for claims that nothing can use any more."""

NVIDIA_DRIVER = "gpu.nvidia.com"
NVIDIA_DEVICE_CLASS = "gpu.nvidia.com"
NVIDIA_MIG_DEVICE_CLASS = "mig.nvidia.com"
NVIDIA_EXTENDED_RESOURCE = "nvidia.com/gpu"
OPERATOR_DEVICE_CLASS = f"gpu.{DRACO_DOMAIN}"
OPERATOR_MIG_DEVICE_CLASS = f"mig.{DRACO_DOMAIN}"
"""The chart's DeviceClasses of what Draco allocates: whole GPUs, and partitions."""
ATTRIBUTE_UUID = "uuid"
"""Of a whole GPU."""
ATTRIBUTE_PARENT_UUID = "parentUUID"
"""Of a partition: the UUID of its GPU."""
ATTRIBUTE_PROFILE = "profile"
"""Of a partition, such as 1g.10gb."""
ATTRIBUTE_CLUSTER_UUID = "clusterUUID"
ATTRIBUTE_CLIQUE_ID = "cliqueID"
"""Of a GPU behind NVSwitches: with the same values on both, any two GPUs are linked."""
ANNOTATION_POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""On a claim that kube-controller-manager made for a pod: which of the pod's `spec.resourceClaims` it is."""
STANDARD_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
STANDARD_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
STANDARD_NUMA_NODE = "resource.kubernetes.io/numaNode"


LABEL_KARPENTERS = "karpenter.sh/nodepool"
"""Of the nodes that Karpenter added: the pool for which it did."""


class Autoscaler(StrEnum):
    """Programs that add nodes for pods."""

    KARPENTER = "Karpenter"
    CLUSTER_AUTOSCALER = "Cluster Autoscaler"


class PoolKey(NamedTuple):
    """A pool is named by its driver and its own name: two drivers commonly use the node's name for theirs."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceKey(NamedTuple):
    """A device's full name."""

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
    """The name of a partition, taken apart. `parent` is the name of its whole GPU."""

    parent: str
    profile_id: int
    start: int


_DIGITS = 16
"""Of a digest in a name."""
_PARTITION = re.compile(r"(gpu-[0-9]+)-mig-[a-z0-9.+-]+-([0-9]+)-([0-9]+)")


def agent_lease_name(node: str) -> str:
    """The name of the Lease of a node's agent: the node's after the prefix, and where that is too long, its digest at the end.

    The admission policy of leases (charts/draco) knows both forms.
    """
    name = f"{AGENT_LEASE_PREFIX}{node}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:_DIGITS]
    return f"{name[: LONGEST_NAME - _DIGITS - 1].rstrip('.-')}-{digest}"


def gpu_name(device: str) -> str:
    """The name of the whole GPU that a device is, or is a part of: gpu-0 of gpu-0-mig-1g10gb-19-4."""
    part = read_partition_name(device)
    return part.parent if part else device


def read_partition_name(device: str) -> PartitionName | None:
    """Read what a device's name says of a partition: gpu-0-mig-1g10gb-19-4. None for a whole GPU, or any other name.

    The profile is named by NVML's id; its text is for people and differs between drivers.
    """
    found = _PARTITION.fullmatch(device)
    return PartitionName(found[1], int(found[2]), int(found[3])) if found else None
