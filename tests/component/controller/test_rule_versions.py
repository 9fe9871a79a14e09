"""The versions of DeviceTaintRule on other API servers: maintenance and `draco taint` work with each.

All other tests use v1beta2. Tests of whole clusters cover a cluster without the kind.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
from click.testing import CliRunner

from draco.cli import root
from draco.kube.connect.client import Client
from draco.kube.discovery import discover
from draco.linting.rules.versions import VERSIONS
from draco.maintenance.taint_rules import maintenance_uid
from draco.resources.api.maintenance import MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS
from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.programs.versions import parse
from tests.component.controller.replicas import an_api_server_of, an_operator
from tests.component.controller.test_maintenance import Lab
from tests.requests import call
from tests.versions import OTHERS, on

pytestmark = pytest.mark.usefixtures("crds")

SERVED = {"1.37.2": "v1", "1.35.4": "v1alpha3", "1.34.4": "v1alpha3"}


@pytest.fixture(scope="module", params=on(*OTHERS))
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with an_api_server_of(request.param, tmp_path_factory.mktemp(f"rules-{request.param}") / "state") as plane:
        yield plane


@pytest.fixture
def served(other: ControlPlane) -> ControlPlane:
    """The server of `client`, `namespace` and `crds`."""
    return other


@pytest.fixture
async def lab(client: Client, namespace: str, served: ControlPlane) -> AsyncIterator[Lab]:
    rules = (await discover(client)).taint_rules
    assert rules is not None
    assert rules.version == SERVED[served.settings.kubernetes]
    made = Lab(client, namespace, rules=rules)
    await made.publish()
    yield made
    await made.clean()


async def test_a_device_is_isolated_with_a_rule_of_the_version_that_is_served_and_given_back(
    served: ControlPlane, lab: Lab
) -> None:
    busy = await lab.hold("train", "gpu-3")
    async with an_operator(served):
        key = await lab.request(device="gpu-3")
        request = await lab.phase(key, MaintenancePhase.ISOLATED)
        (rule,) = await lab.rules()
        selector = rule.spec.device_selector
        assert selector is not None
        assert (selector.driver, selector.device, rule.spec.taint.effect) == (lab.driver, "gpu-3", "NoSchedule")
        assert maintenance_uid(rule) == request.metadata.uid
        await lab.let_go(busy)
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.finish(key)
        await lab.phase(key, MaintenancePhase.COMPLETED)
        await lab.no_rules()


async def test_taints_are_added_listed_changed_and_removed_by_hand(served: ControlPlane, lab: Lab) -> None:
    device = f"{lab.pool}/gpu-0"

    async def taint(action: str, *arguments: str) -> str:
        words = ["taint", action, "--kubeconfig", str(served.kubeconfig), *arguments]
        done = await asyncio.to_thread(CliRunner().invoke, root, words)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    assert " created\n" in await taint("add", device, "example.com/broken=fan:NoSchedule")
    assert "example.com/broken=fan:NoSchedule" in await taint("list")
    assert " configured\n" in await taint("add", "--overwrite", device, "example.com/broken:NoExecute")
    (rule,) = await lab.rules()
    assert (rule.spec.taint.key, rule.spec.taint.effect) == ("example.com/broken", "NoExecute")
    await taint("remove", device, "example.com/broken")
    assert await lab.rules() == []


async def test_whether_no_execute_deletes_pods_with_extended_resources_goes_by_the_version(
    served: ControlPlane, lab: Lab
) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "any"}}
    key = ObjectKey(lab.namespace, "made")
    spec = {"devices": {"requests": [request]}}
    await lab.client.create(CLAIMS, {"metadata": {"name": key.name, "namespace": key.namespace}, "spec": spec})
    meta = {"name": "classic", "namespace": lab.namespace}
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = await lab.client.create(PODS, {"metadata": meta, "spec": {"nodeName": "any", "containers": [container]}})
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "gpu"}
    of_pod = {"extendedResourceClaimStatus": {"resourceClaimName": key.name, "requestMappings": [mapping]}}
    await lab.client.patch(PODS, pod.metadata.key, {"status": of_pod}, subresource="status")
    result = {"request": "gpu", "driver": lab.driver, "pool": lab.pool, "device": "gpu-1"}
    user = {"resource": "pods", "name": "classic", "uid": pod.metadata.uid}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    await lab.client.patch(CLAIMS, key, {"status": status}, subresource="status")
    words = ["taint", "preview", "--kubeconfig", str(served.kubeconfig), f"{lab.pool}/gpu-1", "example.com/x:NoExecute"]
    done = await asyncio.to_thread(CliRunner().invoke, root, [*words, "-o", "json"])
    assert done.exit_code == 0, (done.output, done.exception)
    (view,) = json.loads(done.stdout)["taintRules"]
    deletes = SERVED[served.settings.kubernetes] == "v1"
    assert view["evicted"] == ([f"{lab.namespace}/classic"] if deletes else [])
    assert ("overlooks 1 pod" in view["message"]) is not deletes


def test_lint_knows_what_a_release_serves(other: ControlPlane) -> None:
    """Versions that are off by default are on here only if something needs them."""
    lint_knows_what_is_served(other)


def test_lint_knows_what_the_usual_release_serves(api_server: ControlPlane) -> None:
    lint_knows_what_is_served(api_server)


def lint_knows_what_is_served(plane: ControlPlane) -> None:
    minor = parse(plane.settings.kubernetes)[1]
    group = call(plane, "GET", "/apis/resource.k8s.io")
    found = {
        (resource["kind"], each["version"])
        for each in group["versions"]
        for resource in call(plane, "GET", f"/apis/{each['groupVersion']}")["resources"]
        if "/" not in resource["name"]
    }
    known = {(kind, name) for kind, names in VERSIONS.items() for name, served in names.items() if served.by(minor)}
    assert found <= known
    assert {each for each in known if each[1] == "v1"} <= found
    on = {each["version"] for each in group["versions"]}
    assert {each for each in known if each[1] in on} == found
