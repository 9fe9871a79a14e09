"""The API server refuses exactly the objects that Draco predicts."""

import pytest

from draco_local.cluster.controlplane import ControlPlane
from tests.limit_cases import REFUSED, TAKEN, Json
from tests.requests import RefusedError, call


def tried(plane: ControlPlane, item: Json) -> None:
    """Store the object as a dry run. Raises RefusedError."""
    namespace = item["metadata"].get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    plural = f"{item['kind'].lower()}{'es' if item['kind'].endswith('s') else 's'}"
    group = "api" if item["apiVersion"] == "v1" else "apis"
    call(plane, "POST", f"/{group}/{item['apiVersion']}{within}/{plural}?dryRun=All&fieldValidation=Strict", item)


@pytest.mark.parametrize("name", TAKEN)
def test_the_api_server_takes_it(api_server: ControlPlane, name: str) -> None:
    tried(api_server, TAKEN[name])


@pytest.mark.parametrize("name", REFUSED)
def test_the_api_server_refuses_it(api_server: ControlPlane, name: str) -> None:
    with pytest.raises(RefusedError, match="422"):
        tried(api_server, REFUSED[name][0])
