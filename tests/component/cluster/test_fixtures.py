"""The fixtures that all component tests stand on."""

from draco_local.cluster.controlplane import ControlPlane
from tests.requests import call


def test_the_api_server_serves_dra(api_server: ControlPlane) -> None:
    names = {each["name"] for each in call(api_server, "GET", "/apis/resource.k8s.io/v1")["resources"]}
    assert {"deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"} <= names


def test_device_taint_rules_are_served_and_stored(api_server: ControlPlane) -> None:
    rule = {
        "metadata": {"name": "stored"},
        "spec": {"deviceSelector": {"driver": "gpu.nvidia.com"}, "taint": {"key": "a.b/c", "effect": "NoSchedule"}},
    }
    path = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    created = call(api_server, "POST", path, rule)
    call(api_server, "DELETE", f"{path}/stored")
    assert created["spec"]["taint"]["effect"] == "NoSchedule"


def test_a_pod_can_be_created_where_nobody_makes_service_accounts(api_server: ControlPlane, namespace: str) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    assert call(api_server, "POST", f"/api/v1/namespaces/{namespace}/pods", pod)["status"]["phase"] == "Pending"
