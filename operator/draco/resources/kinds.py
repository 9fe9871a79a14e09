"""Where each kind is served: group, version, plural, scope, and its struct. `kube.discovery` finds served versions."""

from typing import Generic, TypeVar

import msgspec

from draco.resources.api.allocation import AllocationRegister
from draco.resources.api.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate
from draco.resources.api.core import Event, Lease, Node, NodeResources, ObjectReference, Pod, PodDisruptionBudget
from draco.resources.api.draco import GpuNode, MigPolicy
from draco.resources.api.evictions import EvictionRequest
from draco.resources.api.health import HealthPolicy
from draco.resources.api.jobs import CronJob, Job, JobPod
from draco.resources.api.limits import DeviceLimit, Namespace
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceBudget
from draco.resources.api.meta import ObjectKey, ObjectMeta, OwnerReference
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.reviews import Review
from draco.resources.api.scheduling import PodGroup, PriorityClass
from draco.resources.api.sharing import SharingPolicy
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.api.usage import GpuUsage

T = TypeVar("T")


class Kind(msgspec.Struct, Generic[T], frozen=True):
    """One kind at one version, and the struct of its objects."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[T]

    @property
    def api_version(self) -> str:
        """The apiVersion of manifests: "v1" for the core group, "group/version" otherwise."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def reference(self, meta: ObjectMeta) -> ObjectReference:
        """An object of this kind, as referenced by Events."""
        return ObjectReference(
            api_version=self.api_version, kind=self.kind, name=meta.name, namespace=meta.namespace, uid=meta.uid
        )

    def owner(self, meta: ObjectMeta, *, controller: bool | None = True) -> OwnerReference:
        """An object of this kind, as an owner reference."""
        return OwnerReference(
            api_version=self.api_version, kind=self.kind, name=meta.name, uid=meta.uid, controller=controller
        )

    def path(self, key: ObjectKey | None = None, *, namespace: str = "", subresource: str = "") -> str:
        """Return the URL path of an object or, if `key` is None, of the collection (of one namespace, or of all)."""
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        namespace = key.namespace if key else namespace
        parts = [prefix]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        if key:
            parts.append(key.name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


PODS = Kind("", "v1", "pods", "Pod", True, Pod)
POD_DISRUPTION_BUDGETS = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, PodDisruptionBudget)
EVICTION_REQUESTS = Kind("lifecycle.k8s.io", "v1alpha1", "evictionrequests", "EvictionRequest", True, EvictionRequest)
JOBS = Kind("batch", "v1", "jobs", "Job", True, Job)
CRON_JOBS = Kind("batch", "v1", "cronjobs", "CronJob", True, CronJob)
JOB_PODS = Kind("", "v1", "pods", "Pod", True, JobPod)
"""Pods of Draco's own Jobs, with more of their status than the cache of all pods has."""
NODES = Kind("", "v1", "nodes", "Node", False, Node)
NODE_RESOURCES = Kind("", "v1", "nodes", "Node", False, NodeResources)
"""Nodes with their resources, which the cache of all nodes does not have."""
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", False, Namespace)
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)
EVENTS = Kind("", "v1", "events", "Event", True, Event)
CLAIMS = Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, ResourceClaim)
CLAIM_TEMPLATES = Kind(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True, ResourceClaimTemplate
)
DEVICE_CLASSES = Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, DeviceClass)
SLICES = Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, ResourceSlice)
TAINT_RULES = tuple(
    Kind("resource.k8s.io", version, "devicetaintrules", "DeviceTaintRule", False, DeviceTaintRule)
    for version in ("v1", "v1beta2", "v1alpha3")
)
"""Preferred version first."""
POD_GROUPS = tuple(
    Kind("scheduling.k8s.io", version, "podgroups", "PodGroup", True, PodGroup)
    for version in ("v1beta1", "v1alpha3", "v1alpha2")
)
"""Preferred version first; the fields read are the same in all."""
PRIORITY_CLASSES = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, PriorityClass)
GPU_NODES = Kind("draco.dev", "v1alpha1", "gpunodes", "GpuNode", False, GpuNode)
GPU_USAGES = Kind("draco.dev", "v1alpha1", "gpuusages", "GpuUsage", False, GpuUsage)
DEVICE_MAINTENANCES = Kind("draco.dev", "v1alpha1", "devicemaintenances", "DeviceMaintenance", False, DeviceMaintenance)
MIG_POLICIES = Kind("draco.dev", "v1alpha1", "migpolicies", "MigPolicy", False, MigPolicy)
MAINTENANCE_BUDGETS = Kind("draco.dev", "v1alpha1", "maintenancebudgets", "MaintenanceBudget", False, MaintenanceBudget)
HEALTH_POLICIES = Kind("draco.dev", "v1alpha1", "healthpolicies", "HealthPolicy", False, HealthPolicy)
DEVICE_LIMITS = Kind("draco.dev", "v1alpha1", "devicelimits", "DeviceLimit", False, DeviceLimit)
ALLOCATION_REGISTERS = Kind(
    "draco.dev", "v1alpha1", "allocationregisters", "AllocationRegister", False, AllocationRegister
)
DEVICE_RESERVATIONS = Kind("draco.dev", "v1alpha1", "devicereservations", "DeviceReservation", True, DeviceReservation)
SHARING_POLICIES = Kind("draco.dev", "v1alpha1", "sharingpolicies", "SharingPolicy", False, SharingPolicy)
OWN_KINDS = (
    GPU_NODES,
    GPU_USAGES,
    DEVICE_MAINTENANCES,
    MAINTENANCE_BUDGETS,
    HEALTH_POLICIES,
    MIG_POLICIES,
    DEVICE_LIMITS,
    ALLOCATION_REGISTERS,
    DEVICE_RESERVATIONS,
    SHARING_POLICIES,
)
"""The kinds of Draco's CustomResourceDefinitions."""
TOKEN_REVIEWS = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, Review)
SELF_SUBJECT_REVIEWS = Kind("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, Review)
SUBJECT_ACCESS_REVIEWS = Kind(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False, Review
)
