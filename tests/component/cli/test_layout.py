"""`draco layout` on a real API server: what it reads, and how it ends when it cannot."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from draco.cli.layout.command import command
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import GpuMig, InstanceUse
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_mig_instance, a_mig_node
from tests.requests import call

BOARD = BOARDS["H100-80GB"]
DRACO = "/apis/draco.dev/v1alpha1"


def draco_layout(plane: ControlPlane, *options: object) -> Result:
    arguments = [str(option) for option in options]
    return CliRunner().invoke(command, [*arguments, "--kubeconfig", str(plane.kubeconfig)], standalone_mode=False)


@pytest.fixture
def node(api_server: ControlPlane, crds: None, namespace: str) -> Iterator[str]:
    """A node with a divided GPU: a claim holds one instance, and one is promised to another claim."""
    name = f"mig-{uuid.uuid4().hex[:6]}"
    call(api_server, "POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"pool": name}}})
    has = a_mig_instance("3g.40gb@4", size=4, use=InstanceUse.CLAIM, claim=f"{namespace}/has")
    reported = a_mig_node(name, gpus=[GpuMig(capable=True, enabled=True, instances=[has])], board=BOARD)
    meta = {"apiVersion": "draco.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}}
    call(api_server, "POST", f"{DRACO}/gpunodes", meta)
    status = {**meta, "status": msgspec.to_builtins(reported.status)}
    call(api_server, "PATCH", f"{DRACO}/gpunodes/{name}/status?fieldManager=tests", status)
    promise(api_server, namespace, name)
    yield name
    call(api_server, "DELETE", f"{DRACO}/gpunodes/{name}")


def promise(plane: ControlPlane, namespace: str, node: str) -> None:
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    request = {"name": "part", "exactly": {"deviceClassName": "mig.nvidia.com"}}
    claim: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "soon", "namespace": namespace},
        "spec": {"devices": {"requests": [request]}},
    }
    call(plane, "POST", path, claim)
    device = {"request": "part", "driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0-mig-1g10gb-19-0"}
    status = {"allocation": {"devices": {"results": [device]}}}
    call(plane, "PATCH", f"{path}/soon/status?fieldManager=tests", {**claim, "status": status})


def test_the_bar_has_what_agents_report_and_what_claims_were_promised(
    api_server: ControlPlane, node: str, namespace: str
) -> None:
    result = draco_layout(api_server, "show", node)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:4] == [
        node,
        "  gpu-0  [A ] .   .   .  [B 3g.40gb     ]  Ready  no policy",
        f"         A 1g.10gb at 0  claim {namespace}/soon; not made yet",
        f"         B 3g.40gb at 4  claim {namespace}/has",
    ]


def test_a_plan_is_made_with_the_policies_of_the_cluster(api_server: ControlPlane, node: str, tmp_path: Path) -> None:
    layouts = [{"name": "halves", "instances": [{"profile": "3g.40gb", "count": 2}]}]
    selector = {"matchLabels": {"pool": node}}
    spec = {"mode": "Static", "nodeSelector": selector, "layout": "halves", "layouts": layouts}
    policy = {"apiVersion": "draco.dev/v1alpha1", "kind": "MigPolicy", "metadata": {"name": node}, "spec": spec}
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(policy), encoding="utf-8")
    result = draco_layout(api_server, "plan", "-f", path, "-o", "json")
    assert result.return_value == 0, result.output
    (gpu,) = json.loads(result.stdout)["gpus"]
    assert (gpu["outcome"], gpu["keeps"]) == ("waits", [{"profile": "3g.40gb", "start": 4}])
    assert (gpu["makes"], gpu["makesLater"]) == ([], [{"profile": "3g.40gb", "start": 0}])

    older = {**policy, "metadata": {"name": f"{node}-older"}, "spec": {"mode": "Dynamic", "nodeSelector": selector}}
    call(api_server, "POST", f"{DRACO}/migpolicies", older)
    try:
        result = draco_layout(api_server, "plan", "-f", path)
        assert result.return_value == 1, result.output
        assert f"belongs to the older policy {node}-older" in " ".join(result.stdout.split())
    finally:
        call(api_server, "DELETE", f"{DRACO}/migpolicies/{node}-older")


def test_a_plan_can_be_made_of_deleting_policies(api_server: ControlPlane, node: str) -> None:
    selector = {"matchLabels": {"pool": node}}
    for name, spec in (("a", {"mode": "Dynamic"}), ("b", {"mode": "Disabled"})):
        meta = {"apiVersion": "draco.dev/v1alpha1", "kind": "MigPolicy", "metadata": {"name": f"{node}-{name}"}}
        call(api_server, "POST", f"{DRACO}/migpolicies", {**meta, "spec": {**spec, "nodeSelector": selector}})
    try:
        result = draco_layout(api_server, "plan", "--delete", f"{node}-a", "-o", "json")
        assert result.return_value == 0, result.output
        (gpu,) = json.loads(result.stdout)["gpus"]
        assert (gpu["before"], gpu["policy"], gpu["modeChange"]) == (f"{node}-a", f"{node}-b", "off")
        both = draco_layout(api_server, "plan", "--delete", f"{node}-a", "--delete", f"{node}-b", "-o", "json")
        (gpu,) = json.loads(both.stdout)["gpus"]
        assert (gpu["before"], gpu["policy"], gpu["modeChange"]) == (f"{node}-a", "", "")
        wrong = draco_layout(api_server, "plan", "--delete", f"{node}-c")
        assert f"there is no MigPolicy {node}-c in the cluster: there are" in str(wrong.exception)
        assert f"{node}-a, {node}-b" in str(wrong.exception)
    finally:
        for name in ("a", "b"):
            call(api_server, "DELETE", f"{DRACO}/migpolicies/{node}-{name}")


def test_missing_permissions_are_one_sentence(api_server: ControlPlane, crds: None, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    api_server.write_kubeconfig(kubeconfig, "somebody")
    result = CliRunner().invoke(command, ["show", "--kubeconfig", str(kubeconfig)])
    assert "may not list gpunodes" in str(result.exception)
