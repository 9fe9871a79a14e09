"""A real API server, in strict validation, accepts what `draco lint` has corrected."""

from typing import Any

import pytest
import yaml

from draco.cli.lint.command import check
from draco_local.cluster.controlplane import ControlPlane
from tests.requests import call
from tests.unit.linting.test_articles import CORRECTED, text_of

PATHS = {
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "Pod": "/api/v1/namespaces/default/pods",
}


@pytest.mark.parametrize("article", CORRECTED)
def test_a_corrected_article_is_accepted(api_server: ControlPlane, article: str) -> None:
    corrected = check({article: text_of(article)}, kubernetes=36).after[article]
    for manifest in yaml.safe_load_all(corrected):
        if manifest is not None:
            created = call(
                api_server,
                "POST",
                f"{PATHS[manifest['kind']]}?dryRun=All&fieldValidation=Strict",
                without_namespace(manifest),
            )
            assert created["metadata"]["name"] == manifest["metadata"]["name"]


def without_namespace(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest without its namespace."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "namespace"}
    return {**manifest, "metadata": metadata}
