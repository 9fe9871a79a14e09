"""Pods inside of other kinds, such as JobSets, and virtual machines: their claims are checked like those of a Pod."""

from typing import Any

import pytest
import yaml

from tests.unit.linting.test_rules import CLAIM, TEMPLATE, checked, corrected

SPEC: dict[str, Any] = {
    "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu", "request": "gpu"}]}}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
}
VM: dict[str, Any] = {
    "domain": {"devices": {"gpus": [{"name": "a", "claimName": "gpu", "requestName": "gpu"}]}},
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
}


def jobset(spec: Any) -> str:
    jobs = [{"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 4, "template": {"spec": spec}}}}]
    return manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs})


def ray(spec: Any) -> str:
    return manifest("ray.io/v1", "RayCluster", {"headGroupSpec": {"template": {"spec": spec}}})


def vm(spec: Any) -> str:
    return manifest("kubevirt.io/v1", "VirtualMachine", {"template": {"spec": spec}})


def vmi(spec: Any) -> str:
    return manifest("kubevirt.io/v1", "VirtualMachineInstance", spec)


def manifest(version: str, kind: str, spec: Any) -> str:
    return yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec})


def changed(spec: Any, old: str, new: str) -> Any:
    return yaml.safe_load(yaml.safe_dump(spec).replace(old, new))


@pytest.mark.parametrize("written", [jobset(SPEC), ray(SPEC), vm(VM), vmi(VM)])
def test_right_claims_have_nothing_to_correct(written: str) -> None:
    assert checked(written, TEMPLATE).findings == []


@pytest.mark.parametrize(("kind", "spec"), [(jobset, SPEC), (ray, SPEC), (vm, VM), (vmi, VM)])
def test_a_template_named_as_a_claim_is_corrected(kind: Any, spec: Any) -> None:
    wrong = kind(changed(spec, "resourceClaimTemplateName", "resourceClaimName"))
    assert corrected(wrong, TEMPLATE)[0] == yaml.safe_load(kind(spec))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (jobset(changed(SPEC, "request: gpu", "request: gpus")), jobset(SPEC)),
        (vm(changed(VM, "requestName: gpu", "requestName: gpus")), vm(VM)),
    ],
)
def test_a_request_with_a_slip_is_corrected(wrong: str, right: str) -> None:
    assert corrected(wrong, TEMPLATE)[0] == yaml.safe_load(right)


def test_a_misspelt_field_is_found() -> None:
    wrong = jobset(changed(SPEC, "resourceClaimTemplateName", "resourceClaimTemplate"))
    assert corrected(wrong, TEMPLATE)[0] == yaml.safe_load(jobset(SPEC))


def test_a_claim_that_no_device_of_a_virtual_machine_takes_is_told() -> None:
    [told] = checked(vmi({**VM, "domain": {"devices": {"disks": []}}}), TEMPLATE).findings
    assert told.message.startswith("no device of the virtual machine has claimName: gpu")


def test_no_entry_is_added_beside_one_that_nobody_uses() -> None:
    """It would be one more device."""
    told = checked(
        jobset(changed(SPEC, "- name: gpu\n  resourceClaim", "- name: card\n  resourceClaim")), TEMPLATE
    ).findings
    assert {each.rule for each in told if not each.corrected} == {"container-claim", "claim-unused"}
    assert any(each.message == "gpu is not an entry of the pod's resourceClaims: there is card" for each in told)


def test_a_request_that_is_a_mapping_is_told_to_be_a_name() -> None:
    wrong = changed(SPEC, "request: gpu", "request: {driver: gpu.nvidia.com, partition: 4GB}")
    [told] = checked(jobset(wrong), TEMPLATE).findings
    assert told.message.startswith("request is the name of one request")


def test_other_kinds_without_pods_are_left_alone() -> None:
    group = {"podGroupTemplates": [{"name": "w", "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}]}
    assert checked(manifest("scheduling.k8s.io/v1beta1", "Workload", group), CLAIM).findings == []
