"""The chart's admission policies, as Kubernetes' own type checker sees them."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.programs import binaries
from tests.component.chart.rendering import IMAGE
from tests.requests import call

CHART = Path(__file__).parents[3] / "charts" / "draco"
POLICY = "ValidatingAdmissionPolicy"
OF_THE_OPERATOR = {f"type-checked-operator-{kind}" for kind in ("claims", "gpunodes", "nodes")}
PATH = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


OF_THE_WITHDRAWAL = {f"type-checked-withdraw-{kind}" for kind in ("pods", "nodes", "claims")}
OF_PEOPLE = {"draco-reservation-priorities"}
OTHERS = OF_THE_OPERATOR | OF_THE_WITHDRAWAL | OF_PEOPLE


def policies(*arguments: str) -> dict[str, dict[str, Any]]:
    command = [str(binaries.find("helm")["helm"]), "template", "type-checked", str(CHART), *IMAGE, *arguments]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    documents = [document for document in yaml.load_all(rendered, yaml.CSafeLoader) if document]
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == POLICY}


@pytest.mark.usefixtures("crds")
def test_every_expression_fits_the_schema_of_what_it_looks_at(control_plane: ControlPlane) -> None:
    rendered = policies(
        "--set",
        "operator.releaseIdleClaims=true,operator.runJobs=true,operator.jobTemplates={reset},operator.allocate=true",
    )
    # Checks the check: a missing field must be found, or the others were not checked either.
    wrong = rendered["type-checked-agent-claims"] | {"metadata": {"name": "type-checked-wrong"}}
    wrong["spec"] = wrong["spec"] | {"variables": [], "validations": [{"expression": "object.status.allocated == 1"}]}
    names = [*rendered, "type-checked-wrong"]
    try:
        for policy in [*rendered.values(), wrong]:
            call(control_plane, "POST", PATH, policy)
        warnings = {name: checked(control_plane, name) for name in names}
    finally:
        for name in names:
            call(control_plane, "DELETE", f"{PATH}/{name}")
    assert "undefined field 'allocated'" in str(warnings.pop("type-checked-wrong"))
    assert warnings == {name: [] for name in rendered}


def checked(plane: ControlPlane, name: str) -> list[dict[str, str]]:
    """Findings of the type checker, which is part of kube-controller-manager."""
    deadline = time.monotonic() + 30
    while True:
        policy = call(plane, "GET", f"{PATH}/{name}")
        status = policy.get("status", {})
        if status.get("observedGeneration") == policy["metadata"]["generation"]:
            warnings: list[dict[str, str]] = status.get("typeChecking", {}).get("expressionWarnings", [])
            return warnings
        assert time.monotonic() < deadline, f"{name} has not been checked"
        time.sleep(0.1)


def test_an_agent_is_held_to_its_node_unless_that_is_switched_off() -> None:
    assert set(policies()) == {
        *(f"type-checked-agent-{kind}" for kind in ("slices", "claims", "gpunodes", "gpuusages", "events", "leases")),
        *OTHERS,
    }
    assert set(policies("--set", "agent.restrictToOwnNode=false")) == OTHERS


def test_an_operator_that_may_run_jobs_is_held_to_those_of_maintenance() -> None:
    running = set(policies("--set", "operator.runJobs=true,operator.jobTemplates={reset}"))
    assert running - set(policies()) == {"type-checked-operator-jobs", "type-checked-operator-job-templates"}
