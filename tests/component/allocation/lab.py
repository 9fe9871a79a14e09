"""What tests of Draco as the allocator share: the operator's settings, how it reaches the cluster, and claims of its class."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco.resources.names import OPERATOR_LEASE, OPERATOR_REGISTER
from tests.component.chart.rendering import NAMESPACE
from tests.component.controller.replicas import settings_for_test, until

REGISTER = ObjectKey(NAMESPACE, OPERATOR_REGISTER)
CLASS = "gpu.draco.dev"
ALLOCATING = settings_for_test(
    namespace=NAMESPACE,
    lease_name=OPERATOR_LEASE,
    allocate=True,
    handover_settle_s=0.5,
    lease_duration_s=3,
    renew_deadline_s=2.0,
    retry_period_s=0.3,
)


class Guarded(msgspec.Struct):
    """How the operator reaches the control plane: as the chart's account, with its rights and within its admission policies."""

    kubeconfig: Path


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
