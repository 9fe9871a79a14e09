"""What an allocating operator needs that runs as a process beside the cluster, not as the chart's Deployment.

Owns applying the chart's RBAC rules, admission policies and DeviceClasses, and the account by which these know the operator.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_CLASSES, Kind
from draco_local.cluster import chart
from draco_local.cluster.attach import MANAGER, SYSTEM_NAMESPACE

ACCOUNT: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:draco-operator"

_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
_KINDS: tuple[Kind[Any], ...] = (
    Kind(_RBAC, "v1", "roles", "Role", True, dict),
    Kind(_RBAC, "v1", "rolebindings", "RoleBinding", True, dict),
    Kind(_RBAC, "v1", "clusterroles", "ClusterRole", False, dict),
    Kind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, dict),
    Kind(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False, dict),
    Kind(_ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False, dict),
    Kind(_ADMISSION, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", False, dict),
    Kind(_ADMISSION, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", False, dict),
    DEVICE_CLASSES,
)
JOB_TEMPLATES: Final = ("reset-gpu", "probe-gpu", "try-gpu")
"""CronJobs from which maintenance may create Jobs: those that Draco's examples and guides name."""


async def install(
    client: Client, helm: Path, kubeconfig: Path, *, job_templates: Sequence[str] = JOB_TEMPLATES
) -> None:
    """Apply the chart's objects for the operator, except its Deployment. Raises ClusterError with helm's error."""
    switched_on = {"allocate": True, "runJobs": True, "releaseIdleClaims": True, "jobTemplates": list(job_templates)}
    values = {
        "image": {"repository": "none"},  # of the Deployment, which is not applied
        "operator": switched_on,
        "crds": {"enabled": False},
        "deviceClasses": {"enabled": False},
    }
    kinds = {each.kind: each for each in _KINDS}
    for document in chart.rendered(helm, kubeconfig, values):
        kind, meta = kinds.get(document["kind"]), document["metadata"]
        if kind is not None and meta["labels"].get("app.kubernetes.io/component") == "operator":
            key = ObjectKey(meta["namespace"] if kind.namespaced else "", meta["name"])
            await client.apply(kind, key, document, manager=MANAGER)
