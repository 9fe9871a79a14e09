"""`draco cluster up --existing`: attached to a cluster that somebody else runs."""

from contextlib import suppress
from pathlib import Path

import pytest
import urllib3

from draco_local.cluster import controlplane
from draco_local.cluster.controlplane import APISERVER, STORE, ControlPlane, Settings
from draco_local.cluster.errors import ProcessFailed
from draco_local.cluster.programs import binaries
from tests.component.cluster.machine import Machine, until
from tests.conftest import DIES_WITH_THE_TESTS
from tests.requests import RefusedError, call

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
OUR_CLASSES = ("gpu.nvidia.com", "mig.nvidia.com")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def node_names(plane: ControlPlane) -> set[str]:
    return {each["metadata"]["name"] for each in call(plane, "GET", "/api/v1/nodes")["items"]}


def publishers(plane: ControlPlane) -> set[str]:
    return {each["spec"].get("nodeName", "") for each in call(plane, "GET", SLICES)["items"]}


def answers(plane: ControlPlane, path: str) -> bool:
    try:
        call(plane, "GET", path)
    except (RefusedError, urllib3.exceptions.HTTPError):
        return False
    return True


def test_nodes_and_operator_join_someone_elses_cluster_and_leave_it(
    machine: Machine, control_plane: ControlPlane
) -> None:
    attached = (
        "up",
        "--name",
        "a",
        "--existing",
        str(control_plane.kubeconfig),
        "--nodes",
        "1",
        "--node-prefix",
        "joined",
    )
    call(control_plane, "POST", "/api/v1/nodes", {"metadata": {"name": "theirs"}})
    for name in OUR_CLASSES:  # left by earlier tests: `down` does not delete what existed before
        with suppress(RefusedError):
            call(control_plane, "DELETE", f"{CLASSES}/{name}")
    try:
        machine.must(*attached)
        assert {"theirs", "joined-0"} <= node_names(control_plane)
        assert "joined-0" in publishers(control_plane)
        assert machine.must("kubeconfig", "--name", "a") == control_plane.kubeconfig.read_text()

        taken = machine.draco(*attached[:2], "b", *attached[3:])
        assert taken.returncode == 1
        assert (
            "already has a node joined-0: choose other names for the simulated nodes with --node-prefix" in taken.stderr
        )

        machine.must("down", "--name", "b")
        assert "joined-0" in node_names(control_plane)  # b was refused, so it deletes nothing

        assert list(machine.runtime.iterdir())
        machine.must("down", "--name", "a")
        assert list(machine.runtime.iterdir()) == []
        assert "theirs" in node_names(control_plane)
        assert "joined-0" not in node_names(control_plane)
        for name in OUR_CLASSES:
            with pytest.raises(RefusedError, match="404"):
                call(control_plane, "GET", f"{CLASSES}/{name}")
        assert machine.mentioned() == []
    finally:
        call(control_plane, "DELETE", "/api/v1/nodes/theirs")


def test_someone_elses_device_class_stays_as_it_is(machine: Machine, api_server: ControlPlane) -> None:
    theirs = {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": "example.com/gpu"}}
    with suppress(RefusedError):  # left by other tests on this server
        call(api_server, "DELETE", f"{CLASSES}/gpu.nvidia.com")
    call(api_server, "POST", CLASSES, theirs)
    try:
        machine.must("up", "--existing", str(api_server.kubeconfig), "--nodes", "0", "--no-operator")
        machine.must("down")
        spec = call(api_server, "GET", f"{CLASSES}/gpu.nvidia.com")["spec"]
        assert spec["extendedResourceName"] == "example.com/gpu"
        with pytest.raises(RefusedError, match="404"):
            call(api_server, "GET", f"{CLASSES}/mig.nvidia.com")  # that one was Draco's
    finally:
        call(api_server, "DELETE", f"{CLASSES}/gpu.nvidia.com")


def test_a_cluster_without_dra_is_refused_with_one_sentence(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        programs=binaries.find(*STORE),
        enter=DIES_WITH_THE_TESTS,
        extra_flags={APISERVER: ["--runtime-config", "resource.k8s.io/v1=false"]},
    )
    plane = ControlPlane(tmp_path / "theirs", settings)
    try:
        # With this API switched off, Kubernetes 1.36 serves all others but never becomes ready.
        monkeypatch.setattr(controlplane, "_READY_WITHIN_S", 0.0)
        with pytest.raises(ProcessFailed):
            plane.start()
        until(lambda: answers(plane, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"))
        refused = machine.draco("up", "--existing", str(plane.kubeconfig))
        assert refused.returncode == 1
        sentence = refused.stderr.splitlines()[-1]
        assert sentence.startswith(
            f"Error: The cluster of {plane.kubeconfig} (Kubernetes 1.36.3) does not serve resource.k8s.io/v1"
        )
        definitions = call(plane, "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        assert definitions == []  # nothing was installed on an unusable cluster
        plane.processes.stop(APISERVER, grace_s=0)
        gone = machine.draco("up", "--existing", str(plane.kubeconfig))
        assert gone.returncode == 1
        assert f"cannot reach the API server at {plane.server}" in gone.stderr
        machine.must("down")
    finally:
        plane.destroy()


def test_a_kubeconfig_that_does_not_exist_is_one_sentence(machine: Machine) -> None:
    refused = machine.draco("up", "--existing", "/no/such/kubeconfig")
    assert refused.returncode == 1
    assert "/no/such/kubeconfig" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


def test_down_goes_on_when_the_cluster_is_gone(machine: Machine, tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path / "theirs", Settings(programs=binaries.find(*STORE), enter=DIES_WITH_THE_TESTS))
    try:
        plane.start()
        machine.must("up", "--existing", str(plane.kubeconfig), "--nodes", "1", "--no-operator", "--wait", "0")
        plane.processes.stop(APISERVER, grace_s=0)
        down = machine.draco("down")
        assert down.returncode == 0, down.stderr
        left = "Nodes gpu-node-0 and DeviceClasses gpu.nvidia.com, mig.nvidia.com may be left in the cluster"
        assert left in down.stderr
    finally:
        plane.destroy()
    assert machine.mentioned() == []
