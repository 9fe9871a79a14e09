"""Shared by tests of Draco's allocator: parts of the chart, the operator's settings and account, and claims of its class."""

import contextlib
import functools
import time
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import ALLOCATION_REGISTERS, CLAIMS, EVENTS, LEASES
from draco.resources.names import ALLOCATION_REGISTER, OPERATOR_LEASE
from draco_local.cluster.controlplane import ControlPlane
from tests.component.chart.rendering import NAMESPACE, render
from tests.component.controller.replicas import settings_for_test, until
from tests.requests import ONLY_METADATA, RefusedError, call

REGISTER = ObjectKey("", ALLOCATION_REGISTER)
CLASS = "gpu.draco.dev"
_MUTATING = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
ALLOCATE = ("--set", "operator.allocate=true", "--api-versions", _MUTATING)
"""Helm's options."""
USER = f"system:serviceaccount:{NAMESPACE}:draco-operator"
AS_OPERATOR = {"Impersonate-User": USER, "Content-Type": "application/merge-patch+json"}
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
RIGHTS = {
    "Role": f"{_RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{NAMESPACE}/rolebindings",
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
}
POLICIES = {
    "ValidatingAdmissionPolicy": f"{_ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_ADMISSION}/validatingadmissionpolicybindings",
}
PROTECTION = {
    "MutatingAdmissionPolicy": f"{_ADMISSION}/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": f"{_ADMISSION}/mutatingadmissionpolicybindings",
}
CLASSES = {"DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses"}
ALLOCATING = settings_for_test(
    namespace=NAMESPACE,
    lease_name=OPERATOR_LEASE,
    allocate=True,
    handover_settle_s=0.5,
    lease_duration_s=60,
    renew_deadline_s=40.0,
)
"""All operators of these tests have one identity, so the successor of a dead one does not wait for the lease to expire. The
lease is long, so that none loses it on a busy machine."""


class Guarded(msgspec.Struct):
    """The operator's access to the control plane: the chart's account, with its roles and admission policies."""

    kubeconfig: Path


class ChartParts:
    """The chart's objects for an operator that allocates: roles, admission policies and DeviceClasses."""

    def __init__(self, plane: ControlPlane, options: tuple[str, ...] = ALLOCATE) -> None:
        self._plane = plane
        self._options = options
        self._made: dict[str, str] = {}

    def install(self, paths: dict[str, str] = RIGHTS | POLICIES | PROTECTION | CLASSES) -> None:
        """Create the objects of these kinds, served at these paths, unless they exist unchanged."""
        served = self._versions(paths.values())
        self._make_namespace(NAMESPACE)
        for document in _documents(self._options):
            name, kind = document["metadata"]["name"], document["kind"]
            if kind in paths and "agent" not in name and not name.endswith(".nvidia.com"):
                path = f"{self._place(paths[kind], document['metadata'].get('namespace', NAMESPACE))}/{name}"
                if path not in self._made or served.get(path) != self._made[path]:
                    made = call(self._plane, "PATCH", f"{path}?fieldManager=tests&force=true", document)
                    self._made[path] = _version(made["metadata"])

    def _place(self, path: str, namespace: str) -> str:
        """Path of an object in another namespace than the operator's. Creates the namespace if it is missing."""
        if namespace == NAMESPACE:
            return path
        self._make_namespace(namespace)
        return path.replace(f"/namespaces/{NAMESPACE}/", f"/namespaces/{namespace}/")

    def _make_namespace(self, name: str) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        call(self._plane, "PATCH", f"/api/v1/namespaces/{name}?fieldManager=tests", namespace)

    def _versions(self, paths: Iterable[str]) -> dict[str, str]:
        if not self._made:
            return {}
        return {
            f"{path}/{each['metadata']['name']}": _version(each["metadata"])
            for path in paths
            for each in call(self._plane, "GET", path, accept=ONLY_METADATA)["items"] or []
        }

    def uninstall(self) -> None:
        """Delete the created objects that still exist."""
        while self._made:
            with contextlib.suppress(RefusedError):
                call(self._plane, "DELETE", self._made.popitem()[0])

    def forget_register(self) -> None:
        """Delete the register once the operator has emptied it: a policy forbids deleting one that lists GPUs."""
        path = ALLOCATION_REGISTERS.path(REGISTER)
        deadline = time.monotonic() + 10
        while True:
            try:
                call(self._plane, "DELETE", path)
            except RefusedError as error:
                if error.code == HTTPStatus.NOT_FOUND:
                    return
                if time.monotonic() > deadline:
                    raise
                with contextlib.suppress(RefusedError):
                    call(self._plane, "PATCH", path, {"spec": {"pools": None}}, headers=AS_OPERATOR)
                time.sleep(0.01)


@functools.cache
def _documents(options: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    return tuple(render(*options))


def _version(meta: dict[str, Any]) -> str:
    """A version of an object that changes with any edit, except of the status if it has a generation."""
    return f"{meta['uid']} {meta.get('generation') or meta['resourceVersion']}"


async def make_claim(
    client: Client, namespace: str, name: str, *, device_class: str = CLASS, selectors: Sequence[object] = ()
) -> ResourceClaim:
    exactly = {"deviceClassName": device_class, "selectors": list(selectors)}
    meta, spec = {"name": name, "namespace": namespace}, {"requests": [{"name": "gpu", "exactly": exactly}]}
    return await client.create(CLAIMS, {"metadata": meta, "spec": {"devices": spec}})


async def until_allocated(client: Client, namespace: str, name: str) -> ResourceClaim:
    async def look() -> ResourceClaim | None:
        claim = await client.get(CLAIMS, ObjectKey(namespace, name))
        return claim if claim.status.allocation else None

    return await until(look, what=f"the allocation of {name}")


async def end_lease(client: Client) -> None:
    """Delete the lease of a dead operator, as if it had expired."""
    with contextlib.suppress(NotFound):
        await client.delete(LEASES, ObjectKey(NAMESPACE, OPERATOR_LEASE))


async def events_of(client: Client, namespace: str, name: str, reason: str = "") -> list[str]:
    """Notes of the Events about objects of this name; of all reasons unless one is given."""
    found = await client.list(EVENTS, namespace=namespace, field_selector=f"reason={reason}" if reason else "")
    return [each.message for each in found if each.involved_object and each.involved_object.name == name]
