"""`draco maintain` when the cluster refuses: each case ends with one sentence that says the fix, and nothing half done."""

import asyncio
import io
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from draco.cli import run
from draco.cli.maintain import following
from draco.cli.maintain.cluster import change, create
from draco.cli.output import CommandError
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.api.meta import ObjectKey, micro_time
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco_local.cluster.controlplane import ControlPlane
from tests.component.cli.test_taint import apply_status
from tests.doubles.faultproxy import FaultProxy, answer, drop, watches, writes
from tests.requests import RefusedError, call

REQUESTS = "/apis/draco.dev/v1alpha1/devicemaintenances"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
def request_name(api_server: ControlPlane) -> Iterator[str]:
    """A request for a missing node."""
    name = f"swap-{uuid.uuid4().hex[:6]}"
    body = {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "DeviceMaintenance",
        "metadata": {"name": name},
        "spec": {"deviceSelector": {"nodeName": name}, "approval": "Required"},
    }
    call(api_server, "POST", REQUESTS, body)
    yield name
    call(api_server, "DELETE", f"{REQUESTS}/{name}")


@pytest.fixture
def reader(api_server: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of a user who may read everything and write nothing."""
    name = f"reader-{uuid.uuid4().hex[:6]}"
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]
    call(api_server, "POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    }
    call(api_server, "POST", f"{RBAC}/clusterrolebindings", binding)
    kubeconfig = tmp_path / "reader"
    api_server.write_kubeconfig(kubeconfig, name)
    yield kubeconfig
    for kind in ("clusterrolebindings", "clusterroles"):
        call(api_server, "DELETE", f"{RBAC}/{kind}/{name}")


def refused(*arguments: object) -> str:
    """The one sentence with which `draco maintain` ends."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as err:
        status = run(["maintain", *map(str, arguments)])
    assert status == 1, err.getvalue()
    (said,) = [line for line in err.getvalue().splitlines() if line.startswith("Error: ")]
    assert "Draco has a bug" not in said
    return said


def spec_of(plane: ControlPlane, name: str) -> Json:
    found: Json = call(plane, "GET", f"{REQUESTS}/{name}")["spec"]
    return found


def test_who_may_not_write_is_told_which_role_to_ask_for(
    api_server: ControlPlane, request_name: str, reader: Path
) -> None:
    for action in (["cancel", request_name], ["pause"]):
        said = refused(*action, "--kubeconfig", reader)
        assert "ClusterRole draco-maintainer" in said
    assert "cancelled" not in {name for name, value in spec_of(api_server, request_name).items() if value}


async def test_a_cluster_without_the_kind_is_told_how_to_get_it(through_proxy: tuple[FaultProxy, Path]) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.path.startswith("/apis/draco.dev/"), answer(404, "NotFound"), times=1000)
    said = await asyncio.to_thread(refused, "status", "--kubeconfig", kubeconfig)
    assert "does not know DeviceMaintenance: install Draco" in said


async def test_a_field_that_an_older_crd_does_not_know_is_named_and_nothing_is_made(api_server: ControlPlane) -> None:
    async with Client(await connect(api_server.kubeconfig, None)) as client:
        with pytest.raises(CommandError, match=r"does not know spec\.novelty: its CRD is of an older Draco"):
            await create(client, DEVICE_MAINTENANCES, "novel", {"deviceSelector": {"nodeName": "n"}, "novelty": True})
    with pytest.raises(RefusedError):
        call(api_server, "GET", f"{REQUESTS}/novel")


async def test_where_the_answer_is_lost_nobody_is_told_that_nothing_was_made(
    api_server: ControlPlane, through_proxy: tuple[FaultProxy, Path]
) -> None:
    proxy, kubeconfig = through_proxy
    name = f"swap-{uuid.uuid4().hex[:6]}"
    proxy.fault(writes, proxy.lose_the_answer)
    async with Client(await connect(kubeconfig, None)) as client:
        with pytest.raises(
            CommandError, match=f"whether DeviceMaintenance {name} was created is not known: look before"
        ):
            await create(client, DEVICE_MAINTENANCES, name, {"deviceSelector": {"nodeName": name}})
    call(api_server, "DELETE", f"{REQUESTS}/{name}")


async def test_the_operators_writes_are_no_reason_to_refuse(
    api_server: ControlPlane, request_name: str, through_proxy: tuple[FaultProxy, Path]
) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.method == "PATCH", answer(409, "Conflict"), times=2)
    async with Client(await connect(kubeconfig, None)) as client:
        await change(client, DEVICE_MAINTENANCES, ObjectKey("", request_name), {"approved": True}, 1)
    assert spec_of(api_server, request_name)["approved"] is True


async def test_a_request_that_somebody_changed_meanwhile_is_to_be_looked_at_again(
    api_server: ControlPlane, request_name: str
) -> None:
    call(api_server, "PATCH", f"{REQUESTS}/{request_name}?fieldManager=tests", _with_reason(request_name))
    async with Client(await connect(api_server.kubeconfig, None)) as client:
        with pytest.raises(CommandError, match="was changed by another client meanwhile: look at it again"):
            await change(client, DEVICE_MAINTENANCES, ObjectKey("", request_name), {"approved": True}, 1)
    assert not spec_of(api_server, request_name).get("approved")


async def test_a_conflict_that_does_not_end_is_said_after_a_few_tries(
    request_name: str, through_proxy: tuple[FaultProxy, Path]
) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.method == "PATCH", answer(409, "Conflict"), times=1000)
    assert "look at it again" in await asyncio.to_thread(refused, "cancel", request_name, "--kubeconfig", kubeconfig)


async def test_a_server_that_fails_is_one_sentence(request_name: str, through_proxy: tuple[FaultProxy, Path]) -> None:
    proxy, kubeconfig = through_proxy
    proxy.fault(lambda request: request.method == "PATCH", answer(500, "InternalError"), times=1000)
    await asyncio.to_thread(refused, "cancel", request_name, "--kubeconfig", kubeconfig)


@pytest.mark.usefixtures("unled")
def test_where_an_operator_leads_nobody_is_warned(api_server: ControlPlane, namespace: str) -> None:
    lease = {
        "metadata": {"name": "draco-operator"},
        "spec": {
            "holderIdentity": "one",
            "leaseDurationSeconds": 60,
            "renewTime": micro_time(datetime.now(UTC)),
            "acquireTime": micro_time(datetime.now(UTC)),
        },
    }
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    for warned in (True, False):
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as err:
            run(["maintain", "status", "--kubeconfig", str(api_server.kubeconfig)])
        assert ("No operator of Draco leads" in err.getvalue()) is warned
        if warned:
            call(api_server, "POST", path, lease)
    call(api_server, "DELETE", f"{path}/draco-operator")


async def test_a_server_that_is_away_for_a_while_is_waited_for(
    api_server: ControlPlane,
    request_name: str,
    through_proxy: tuple[FaultProxy, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(following, "_AGAIN_S", 0.01)
    proxy, kubeconfig = through_proxy

    async def complete(request: web.Request) -> web.StreamResponse | None:
        body = {"phase": "Completed", "observedGeneration": 1, "message": "That is all."}
        path = f"{REQUESTS}/{request_name}"
        await asyncio.to_thread(apply_status, api_server, path, "draco.dev/v1alpha1", "DeviceMaintenance", body)
        return await answer(429, "TooManyRequests")(request)

    async with Client(await connect(kubeconfig, None)) as client:
        request = await client.get(DEVICE_MAINTENANCES, ObjectKey("", request_name))
        proxy.fault(lambda request: request.path.endswith(request_name), answer(503, "ServiceUnavailable"), times=2)
        proxy.fault(watches, drop)
        proxy.fault(watches, complete)
        await following.follow(client, request, "1m")
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "Completed: That is all."
    assert said.err.count("retrying until the server answers") == 1


def _with_reason(name: str) -> Json:
    return {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "DeviceMaintenance",
        "metadata": {"name": name},
        "spec": {"reason": "another one", "deviceSelector": {"nodeName": name}},
    }
