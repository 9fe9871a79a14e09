"""A real API server, in strict validation, accepts what `draco migrate convert` prints."""

from typing import Any

import pytest

from draco.cli.migrate.workloads import converted
from draco_local.cluster.controlplane import ControlPlane
from tests.component.cli.test_lint import PATHS, without_namespace
from tests.requests import call
from tests.unit.cli.test_migrate_convert import DEPLOYMENT, ODD, POD


@pytest.mark.parametrize("text", [DEPLOYMENT, POD, ODD.replace("'yes'", "train").replace("'on'", "main")])
def test_converted_manifests_are_accepted(api_server: ControlPlane, text: str) -> None:
    found = converted({"a.yaml": text})
    assert not found.rests
    for manifest in found.objects:
        if manifest["kind"] in PATHS:
            path = f"{PATHS[manifest['kind']]}?dryRun=All&fieldValidation=Strict"
            created: dict[str, Any] = call(api_server, "POST", path, without_namespace(manifest))
            assert created["metadata"]["name"] == manifest["metadata"]["name"]
