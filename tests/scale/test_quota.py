"""What ResourceQuota counts for Draco's claims: the other column of the table in docs/concepts/allocation.md."""

from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.resources.kinds import CLAIMS
from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import Guarded
from tests.component.controller.replicas import until
from tests.requests import call
from tests.scale.rows import ANY, ANY_INSTANCE, BOARD, PROFILE, ROWS, looking_on

_OF_CLASS = ".deviceclass.resource.k8s.io/devices"
_CLASSES = (ANY, ANY_INSTANCE, BOARD, PROFILE, "mig-2g.20gb.h100.draco.dev")


@pytest.mark.parametrize("row", ROWS)
async def test_what_resource_quota_counts_of_a_claim(
    control_plane: ControlPlane, guarded: Guarded, client: Client, namespace: str, row: str
) -> None:
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    call(control_plane, "PATCH", f"/api/v1/namespaces/{namespace}?fieldManager=tests&force=true", looking_on(namespace))
    hard = {f"{each}{_OF_CLASS}": "100" for each in _CLASSES}
    call(control_plane, "POST", quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})

    async def used() -> dict[str, Any]:
        status: dict[str, Any] = call(control_plane, "GET", f"{quotas}/gpus").get("status", {})
        return {name.removesuffix(_OF_CLASS): amount for name, amount in status.get("used", {}).items()}

    assert await until(used, what="the quota is counted") == dict.fromkeys(_CLASSES, "0")
    meta = {"name": "asked", "namespace": namespace}
    await client.create(CLAIMS, {"metadata": meta, "spec": {"devices": ROWS[row].devices}})
    assert await used() == dict.fromkeys(_CLASSES, "0") | ROWS[row].quota
