"""What is read from a manifest of any version, and what is said about one that is invalid."""

from typing import Any

import pytest

from draco.resources.api.claims import ExactDeviceRequest, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.slices import ResourceSlice
from draco.resources.written.manifests import ManifestError, UnknownKindError, decode, expand


def a_claim_manifest(*requests: dict[str, Any], version: str = "v1", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "one"},
        "spec": {"devices": {"requests": list(requests)}},
        **more,
    }


def test_a_request_of_v1beta1_is_read_as_an_exact_one() -> None:
    request = {"name": "gpu", "deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}
    claim = decode(a_claim_manifest(request, version="v1beta1"), source="f")
    assert isinstance(claim, ResourceClaim)
    assert claim.spec.devices.requests[0].exactly == ExactDeviceRequest(
        device_class_name="gpu.nvidia.com", allocation_mode="All"
    )


def test_a_device_of_v1beta1_is_read_without_its_basic_level() -> None:
    device = {
        "name": "gpu-0",
        "basic": {"attributes": {"model": {"string": "H100"}}, "capacity": {"memory": {"value": 80}}},
    }
    published = decode(
        {
            "apiVersion": "resource.k8s.io/v1beta1",
            "kind": "ResourceSlice",
            "metadata": {"name": "s"},
            "spec": {
                "driver": "d",
                "nodeName": "",
                "allNodes": True,
                "pool": {"name": "p", "resourceSliceCount": 1},
                "devices": [device],
            },
        },
        source="f",
    )
    assert isinstance(published, ResourceSlice)
    assert published.spec.node_name is None
    assert published.spec.devices[0].attributes["model"].string == "H100"
    assert published.spec.devices[0].capacity["memory"].value == "80"


def test_a_workload_is_read_as_one_pod_of_its_template() -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"template": {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}}},
    }
    pod = decode(job, source="f")
    assert isinstance(pod, Pod)
    assert str(pod.metadata.key) == "ml/train"
    assert [str(claim) for claim in pod.claims] == ["ml/one"]


def test_a_list_is_read_item_by_item() -> None:
    document = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList", "items": [{"metadata": {"name": "a"}}]}
    [(manifest, source)] = expand(document, source="f")
    assert source == "f, item 1"
    assert decode(manifest, source=source).metadata.name == "a"


def test_a_kind_that_has_no_part_in_it_is_told_apart_from_one_that_is_misspelt() -> None:
    with pytest.raises(UnknownKindError):
        decode({"apiVersion": "v1", "kind": "ConfigMap"}, source="f")
    with pytest.raises(ManifestError, match="did you mean ResourceClaim"):
        decode({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClam"}, source="f")


def test_what_does_not_fit_is_told_with_its_place() -> None:
    with pytest.raises(ManifestError) as caught:
        decode(a_claim_manifest({"name": 3}), source="pods.yaml, document 2")
    assert str(caught.value) == (
        "pods.yaml, document 2: ResourceClaim one: spec.devices.requests[0].name must be a string, not a whole number; "
        "put it in quotes."
    )


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"capacity": {"a": {"value": "1"}, "tpus": "16"}}, "capacity[tpus] must be an object"),
        ({"attributes": {"a": {"int": 1}, "b": {"string": True}}}, "attributes[b].string must be a string"),
        ({"capacity": {"a": {"value": "6 GiB"}}}, 'capacity[a].value "6 GiB" is not a quantity: write 6Gi'),
    ],
)
def test_a_key_that_people_chose_is_named_in_an_error(spec: dict[str, Any], place: str) -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "other", "capacity": {"a": {"value": "1"}}}, {"name": "d", **spec}]
    slice_spec = {"driver": "d.example.com", "nodeName": "n", "pool": pool, "devices": devices}
    manifest = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": slice_spec,
    }
    with pytest.raises(ManifestError) as told:
        decode(manifest, source="f")
    assert f"spec.devices[1].{place}" in str(told.value)


def test_a_wrong_value_of_a_workloads_pod_has_its_place_in_the_workload() -> None:
    container = {"name": "c", "resources": {"limits": {"memory": "6 GiB"}}}
    spec = {"template": {"spec": {"containers": [container]}}}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
    with pytest.raises(ManifestError) as told:
        decode(manifest, source="f")
    place = 'spec.template.spec.containers[0].resources.limits[memory] "6 GiB" is not a quantity: write 6Gi'
    assert str(told.value) == f"f: Deployment d: {place}."
