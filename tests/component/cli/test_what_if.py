"""`draco explain` and `draco simulate` on a real API server: what they read, and that they and the server agree on limits."""

import asyncio
import json
import uuid
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from draco import cli
from draco.cli.explain.command import command as explain_command
from draco.cli.input.live import read_cluster
from draco.cli.simulate.command import command as simulate_command
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.written.limits import refusal
from draco.resources.written.manifests import decode
from draco_local.cluster.controlplane import ControlPlane
from tests.doubles.faultproxy import FaultProxy, answer
from tests.requests import RefusedError, call
from tests.unit.resources.test_limits import DEVICE, POOL, many

Json = dict[str, Any]
DRIVER = "what-if.example.com"
V1 = "/apis/resource.k8s.io/v1"


@pytest.fixture
def node(api_server: ControlPlane) -> str:
    """A node with two devices and a class of its own."""
    name = f"node-{uuid.uuid4().hex[:6]}"
    created = call(api_server, "POST", "/api/v1/nodes", {"metadata": {"name": name}})
    created["spec"].pop("taints")  # not-ready, which nothing here would remove
    call(api_server, "PUT", f"/api/v1/nodes/{name}", created)
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].home == '{name}'"
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}, {"cel": {"expression": expression}}]
    call(api_server, "POST", f"{V1}/deviceclasses", {"metadata": {"name": name}, "spec": {"selectors": selectors}})
    devices = [{"name": f"gpu-{index}", "attributes": {"home": {"string": name}}} for index in range(2)]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    call(api_server, "POST", f"{V1}/resourceslices", {"metadata": {"name": name}, "spec": spec})
    return name


def a_claim(device_class: str, name: str = "one", count: int = 1) -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class, "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


@pytest.fixture
def waiting_pod(api_server: ControlPlane, node: str, namespace: str) -> str:
    """A pod that waits for a claim of seven devices."""
    call(api_server, "POST", f"{V1}/namespaces/{namespace}/resourceclaims", a_claim(node, "big", 7))
    call(api_server, "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    spec = {
        "containers": [{"name": "c", "image": "none"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "big"}],
    }
    pods = f"/api/v1/namespaces/{namespace}/pods"
    call(api_server, "POST", pods, {"metadata": {"name": "train"}, "spec": spec})
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    status = {"apiVersion": "v1", "kind": "Pod", "status": {"conditions": [condition]}}
    call(api_server, "PATCH", f"{pods}/train/status?fieldManager=tests", status)
    return "train"


def run(command: Any, plane_or_file: ControlPlane | Path, *arguments: str, stdin: Json | None = None) -> Result:
    kubeconfig = plane_or_file if isinstance(plane_or_file, Path) else plane_or_file.kubeconfig
    text = None if stdin is None else json.dumps(stdin)
    return CliRunner().invoke(command, ["--kubeconfig", str(kubeconfig), *arguments], input=text)


def document(command: Any, plane: ControlPlane, *arguments: str, stdin: Json | None = None) -> Json:
    result = run(command, plane, "-o", "json", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    decoded: Json = json.loads(result.stdout)
    return decoded


def test_a_waiting_pod_is_explained_with_what_the_scheduler_says(
    api_server: ControlPlane, namespace: str, waiting_pod: str
) -> None:
    told = document(explain_command, api_server, "pod", waiting_pod, "-n", namespace)
    assert (told["claims"], told["pod"]) == ([f"{namespace}/big"], f"{namespace}/train")
    assert (told["fits"], told["scheduler"]) == (False, "0/1 nodes")
    assert document(explain_command, api_server, "claim/big", "-n", namespace) == told


def test_all_that_waits_is_listed_by_namespace(api_server: ControlPlane, namespace: str, waiting_pod: str) -> None:
    result = run(explain_command, api_server, "-n", namespace)
    assert result.exit_code == 0, result.output
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == [f"pod {namespace}/train"]


def test_a_claim_that_is_not_made_yet_is_what_a_pod_waits_for(api_server: ControlPlane, namespace: str) -> None:
    call(api_server, "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    entry = {"name": "gpu", "resourceClaimTemplateName": "none"}
    spec = {"containers": [{"name": "c", "image": "none"}], "resourceClaims": [entry]}
    call(api_server, "POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "early"}, "spec": spec})
    assert document(explain_command, api_server, "pod/early", "-n", namespace)["reason"] == "ClaimMissing"
    [told] = document(explain_command, api_server, "-n", namespace)["explanations"]
    assert (told["pod"], told["reason"]) == (f"{namespace}/early", "ClaimMissing")


async def test_the_release_of_the_cluster_is_known(api_server: ControlPlane) -> None:
    async with Client(await connect(api_server.kubeconfig)) as client:
        live = await read_cluster(client)
    version = call(api_server, "GET", "/version")
    assert live.kubernetes_minor == int(version["minor"])


def test_copies_count_what_is_left_in_the_cluster(api_server: ControlPlane, node: str, namespace: str) -> None:
    told = document(simulate_command, api_server, "-f", "-", "--copies", "5", stdin=a_claim(node))
    assert told["copies"] == {"asked": 5, "fit": 2, "each": {"default/one": 2}}
    assert [entry["node"] for entry in told["claims"]] == [node, node, None]
    assert told["notes"][0] == f"The cluster is {api_server.server} as it is now, with 1 object of files."


def test_what_is_allocated_in_the_cluster_is_in_use(api_server: ControlPlane, node: str, namespace: str) -> None:
    told = document(simulate_command, api_server, "-n", namespace, "-f", "-", stdin=a_claim(node))
    claims = f"{V1}/namespaces/{namespace}/resourceclaims"
    call(api_server, "POST", claims, a_claim(node))
    status = {"allocation": told["claims"][0]["allocation"]}
    manifest = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "status": status}
    stored = call(api_server, "PATCH", f"{claims}/one/status?fieldManager=tests", manifest)
    assert stored["status"]["allocation"] == told["claims"][0]["allocation"]  # as Kubernetes writes it
    again = document(simulate_command, api_server, "-n", namespace, "-f", "-", "--copies", "3", stdin=a_claim(node))
    assert again["copies"]["fit"] == 1


def test_without_files_what_waits_is_tried_and_what_a_node_held_is_placed_anew(
    api_server: ControlPlane, node: str, namespace: str, waiting_pod: str
) -> None:
    claims = f"{V1}/namespaces/{namespace}/resourceclaims"
    call(api_server, "POST", claims, a_claim(node, "held"))
    results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-1"}]
    status = {"allocation": {"devices": {"results": results}}}
    manifest = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "status": status}
    call(api_server, "PATCH", f"{claims}/held/status?fieldManager=tests", manifest)
    names = [entry["claim"] for entry in document(simulate_command, api_server)["claims"]]
    assert f"{namespace}/big" in names
    assert f"{namespace}/held" not in names
    told = document(simulate_command, api_server, "--without-node", node)
    [held] = [entry for entry in told["claims"] if entry["claim"] == f"{namespace}/held"]
    assert held["allocation"] is None
    assert held["explanation"]["fits"] is False


def test_objects_of_files_take_the_place_of_the_clusters_and_it_is_said(
    api_server: ControlPlane, node: str, namespace: str
) -> None:
    never = {"selectors": [{"cel": {"expression": "false"}}]}
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": node},
        "spec": never,
    }
    both = {"apiVersion": "v1", "kind": "List", "items": [device_class, a_claim(node)]}
    told = document(simulate_command, api_server, "-f", "-", stdin=both)
    assert told["fits"] is False
    assert any(note.startswith(f"DeviceClass {node} of standard input") for note in told["notes"])


def test_the_namespace_is_the_contexts(
    api_server: ControlPlane, namespace: str, waiting_pod: str, tmp_path: Path
) -> None:
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    result = run(explain_command, kubeconfig, "claim", "big", "-o", "json")
    assert json.loads(result.stdout)["claims"] == [f"{namespace}/big"]


def test_what_may_not_be_read_is_one_sentence(
    api_server: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(kubeconfig, "somebody")
    assert cli.run(["explain", "claim", "one", "--kubeconfig", str(kubeconfig)]) == 1
    error = capsys.readouterr().err
    assert "may not list resourceslices in the whole cluster" in error
    assert error.count("\n") == 1


async def test_pods_that_may_not_be_listed_cost_only_who_waits(
    through_proxy: tuple[FaultProxy, Path], namespace: str, waiting_pod: str
) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path == "/api/v1/pods", answer(403, "Forbidden"), times=1000)
    result = await asyncio.to_thread(run, explain_command, kubeconfig, "claim", "big", "-n", namespace)
    assert result.exit_code == 0, result.output
    assert "may not list pods in the whole cluster: which pods use or wait for a claim is not known" in result.stderr


async def test_a_cluster_without_taint_rules_is_read_all_the_same(
    through_proxy: tuple[FaultProxy, Path], namespace: str, waiting_pod: str
) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path.endswith("/devicetaintrules"), answer(404, "NotFound"), times=1000)
    result = await asyncio.to_thread(run, explain_command, kubeconfig, "claim", "big", "-n", namespace)
    assert result.exit_code == 0, result.output


def exact(**fields: Any) -> Json:
    return {"name": "gpu", "exactly": {"deviceClassName": "a", **fields}}


REFUSED: tuple[tuple[str, Json], ...] = (
    ("resourceslices", {"devices": many(129)}),
    ("resourceslices", {"devices": [{**each, "taints": [{"key": "a", "effect": "None"}]} for each in many(65)]}),
    ("resourceslices", {"devices": [DEVICE, DEVICE]}),
    ("resourceslices", {"allNodes": True}),
    ("resourceslices", {"pool": POOL | {"resourceSliceCount": 0}}),
    ("resourceslices", {"devices": [DEVICE], "sharedCounters": [{"name": "a", "counters": {"a": {"value": "1"}}}]}),
    ("resourceslices", {"devices": [{"name": "GPU 0"}]}),
    ("resourceslices", {"devices": [DEVICE | {"attributes": {f"a{number}": {"int": 1} for number in range(33)}}]}),
    ("resourceslices", {"devices": [DEVICE | {"attributes": {"a": {}}}]}),
    ("resourceslices", {"devices": [DEVICE | {"attributes": {"a": {"int": 1, "string": "b"}}}]}),
    ("resourceslices", {"devices": [DEVICE | {"attributes": {"a": {"version": "1.2"}}}]}),
    ("resourceslices", {"devices": [DEVICE | {"attributes": {"a": {"string": "x" * 65}}}]}),
    ("resourceslices", {"devices": [DEVICE | {"nodeName": "n"}]}),
    ("resourceslices", {"devices": [DEVICE | {"taints": [{"key": "no good", "effect": "None"}]}]}),
    ("resourceslices", {"devices": [DEVICE | {"taints": [{"key": "example.com/", "effect": "None"}]}]}),
    ("resourceslices", {"devices": [DEVICE | {"taints": [{"key": "a", "value": "-", "effect": "None"}]}]}),
    ("resourceslices", {"devices": [DEVICE | {"bindingConditions": [f"c{number}" for number in range(5)]}]}),
    ("resourceclaims", {"name": "gpu"}),
    ("resourceclaims", {"name": "gpu", "exactly": {"deviceClassName": "a", "allocationMode": "Some"}}),
    ("resourceclaims", {"name": "gpu", "exactly": {"deviceClassName": "a", "count": -1}}),
    ("resourceclaims", {"name": "gpu", "exactly": {"deviceClassName": "a", "selectors": [{}]}}),
    ("resourceclaims", exact(tolerations=[{"operator": "In", "key": "a"}])),
    ("resourceclaims", exact(tolerations=[{"operator": "Exists", "value": "a"}])),
    ("resourceclaims", exact(tolerations=[{"operator": "Exists", "effect": "Never"}])),
    ("resourceclaims", exact(selectors=[{"cel": {"expression": "true"}}] * 33)),
    ("resourceclaims", exact(selectors=[{"cel": {"expression": f"{'true && ' * 1500}true"}}])),
    ("resourceclaims", exact(deviceClassName="")),
    ("resourceclaims", {"name": "gpu", "firstAvailable": [{**each, "deviceClassName": "a"} for each in many(9)]}),
)
TAKEN: tuple[tuple[str, Json], ...] = (
    ("resourceslices", {"devices": many(128)}),
    ("resourceslices", {"devices": [DEVICE | {"attributes": {"a": {"version": "1.2.3"}}}]}),
    ("resourceslices", {"devices": [DEVICE | {"taints": [{"key": "a.b/C_d.e", "value": "F-1", "effect": "None"}]}]}),
    ("resourceclaims", exact(tolerations=[{"operator": "Exists"}] * 20)),
    ("resourceclaims", exact(tolerations=[{"value": "b"}])),
    ("resourceclaims", {"name": "gpu", "exactly": {"deviceClassName": "a", "tolerations": [{"operator": "Exists"}]}}),
)


def stored(plane: ControlPlane, plural: str, part: Json) -> tuple[bool, str]:
    """Whether the API server accepts an object, and what Draco says of it."""
    if plural == "resourceslices":
        kind, path = "ResourceSlice", f"{V1}/resourceslices"
        spec: Json = {"driver": "d.example.com", "pool": POOL, "nodeName": "node-0", **part}
    else:
        kind, path = "ResourceClaim", f"{V1}/namespaces/default/resourceclaims"
        spec = {"devices": {"requests": [part]}}
    manifest = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "limits"}, "spec": spec}
    said = refusal(decode(manifest, source="f"))
    try:
        call(plane, "POST", f"{path}?dryRun=All", manifest)
    except RefusedError as error:
        return error.code != HTTPStatus.UNPROCESSABLE_ENTITY, said
    return True, said


def test_what_we_refuse_the_api_server_refuses(api_server: ControlPlane) -> None:
    for plural, part in REFUSED:
        taken, said = stored(api_server, plural, part)
        assert not taken, said
        assert said


def test_what_the_api_server_takes_we_take(api_server: ControlPlane) -> None:
    assert [stored(api_server, plural, part) for plural, part in TAKEN] == [(True, "")] * len(TAKEN)
