"""`draco reserve` on a real API server: what it writes, what it says, and how it fails."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from draco.cli import root, run
from draco.cli.output import CommandError
from draco.cli.reserve import command as reserving
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco_local.cluster.controlplane import ControlPlane
from tests.doubles.faultproxy import Action, FaultProxy, answer, drop
from tests.requests import RefusedError, call

pytestmark = pytest.mark.usefixtures("crds")

SAID = "[red]So[/b] it is :key:."
"""Must be printed literally, although it looks like rich markup."""


@pytest.fixture
def path(api_server: ControlPlane, namespace: str) -> str:
    path = f"/apis/draco.dev/v1alpha1/namespaces/{namespace}/devicereservations"
    deadline = time.monotonic() + 30
    while True:
        try:
            call(api_server, "GET", path)
        except RefusedError as error:
            if error.code != 429 or time.monotonic() > deadline:  # the storage of a new kind is being created
                raise
        else:
            return path


def reserve(plane: ControlPlane, namespace: str, *words: str) -> Result:
    options = ["--kubeconfig", str(plane.kubeconfig), "--namespace", namespace]
    return CliRunner().invoke(root, ["reserve", *words, *options])


def say(plane: ControlPlane, path: str, name: str, **conditions: str) -> None:
    """Write a status as the operator would."""
    listed = [{"type": each, "status": status, "observedGeneration": 1} for each, status in conditions.items()]
    status: dict[str, Any] = {
        "observedGeneration": 1,
        "message": SAID,
        "conditions": listed,
        "reserved": 1,
    }
    body = {"apiVersion": "draco.dev/v1alpha1", "kind": "DeviceReservation", "status": status}
    call(plane, "PATCH", f"{path}/{name}/status?fieldManager=tests", body)


def test_a_reservation_is_what_was_asked_for(api_server: ControlPlane, namespace: str, path: str) -> None:
    words = ["train", "--count", "4", "--devices", "2", "--for", "2h", "--topology", "sameNode", "--selector", "true"]
    written = reserve(api_server, namespace, *words, "-o", "yaml")
    assert call(api_server, "GET", path)["items"] == []
    done = reserve(api_server, namespace, *words)
    assert done.output.splitlines()[0] == "devicereservation/train created"
    spec = call(api_server, "GET", f"{path}/train")["spec"]
    exactly = spec["template"]["spec"]["devices"]["requests"][0]["exactly"]
    assert {name: exactly[name] for name in ("deviceClassName", "count")} == {
        "deviceClassName": "gpu.draco.dev",
        "count": 2,
    }
    assert (spec["count"], spec["duration"], spec["topology"]) == (4, "2h", "sameNode")
    assert yaml.safe_load(written.output)["spec"]["duration"] == "2h"


def test_a_dry_run_creates_nothing(api_server: ControlPlane, namespace: str, path: str) -> None:
    done = reserve(api_server, namespace, "train", "--template", "one", "--dry-run")
    assert done.output == "devicereservation/train created (server dry run)\n"
    assert call(api_server, "GET", path)["items"] == []


def test_reservations_are_listed(api_server: ControlPlane, namespace: str, path: str) -> None:
    assert "No DeviceReservation found" in reserve(api_server, namespace).output
    reserve(api_server, namespace, "seen")
    reserve(api_server, namespace, "unseen", "--count", "2")
    say(api_server, path, "seen", Ready="True")
    lines = [line.split(maxsplit=5) for line in reserve(api_server, namespace).output.splitlines()]
    assert lines == [
        ["NAME", "CLAIMS", "RESERVED", "IN", "USE", "ENDS  STATE"],
        ["seen", "1", "1", "-", "-", SAID],
        ["unseen", "2", "-", "-", "-", "No operator has seen it yet."],
    ]


@pytest.mark.usefixtures("unled")
def test_waiting_ends_when_it_is_ready(
    api_server: ControlPlane, namespace: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = reserving.create_reservation

    async def made_and_ready(*given: Any, **more: Any) -> DeviceReservation:
        made = await create(*given, **more)
        say(api_server, path, "train", Ready="True")
        return made

    monkeypatch.setattr(reserving, "create_reservation", made_and_ready)
    done = reserve(api_server, namespace, "train", "--wait", "--timeout", "0")
    assert done.stdout == f"devicereservation/train created\n{SAID}\n"
    assert "No operator of Draco leads" in done.stderr


def test_a_reservation_that_nobody_makes_ready_is_waited_for_no_longer_than_was_said(
    api_server: ControlPlane, namespace: str, path: str
) -> None:
    late = reserve(api_server, namespace, "late", "--wait", "--timeout", "1s")
    assert "late is not ready after 1s: no operator of Draco has processed it" in str(late.exception)
    again = reserve(api_server, namespace, "late")
    assert f"there is a DeviceReservation {namespace}/late already" in str(again.exception)
    assert "take another name, or delete it with" in str(again.exception)


@pytest.mark.parametrize("fault", [answer(503, "ServiceUnavailable"), answer(429, "TooManyRequests"), drop])
async def test_a_server_that_is_away_for_a_while_is_waited_for(
    api_server: ControlPlane, namespace: str, path: str, through_proxy: tuple[FaultProxy, Path], fault: Action
) -> None:
    proxy, kubeconfig = through_proxy
    async with Client(await connect(kubeconfig, None)) as client:
        made = await reserving.create_reservation(
            client, ObjectKey(namespace, "train"), {"templateName": "one"}, dry_run=False
        )
        await asyncio.to_thread(say, api_server, path, "train", Ready="True")
        proxy.fault(lambda request: request.path.endswith("/train"), fault)
        await reserving.wait_until_ready(client, made, "1m")


async def test_a_field_that_an_older_crd_does_not_know_is_named_and_nothing_is_made(
    api_server: ControlPlane, namespace: str, path: str
) -> None:
    async with Client(await connect(api_server.kubeconfig, None)) as client:
        with pytest.raises(CommandError, match=r"does not know spec\.novelty: its CRD is of an older Draco"):
            await reserving.create_reservation(
                client, ObjectKey(namespace, "novel"), {"templateName": "one", "novelty": True}, dry_run=False
            )
    assert call(api_server, "GET", path)["items"] == []


def test_a_namespace_that_is_not_there_is_said(api_server: ControlPlane) -> None:
    assert 'namespaces "nowhere" not found' in str(reserve(api_server, "nowhere", "train").exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Train"], "cannot be the name of a reservation"),
        (["--count", "2"], "a reservation needs a name"),
        (["train", "--for", "soon"], "'soon' is not a duration"),
        (["train", "--until", "2020-01-01T00:00"], "is in the past: set a later time"),
        (["train", "--until", "soon"], "'soon' is not a time"),
        (["train", "--until", "2030-01-01", "--for", "1h"], "give one of them"),
        (["train", "--template", "a", "--class", "b"], "leave --class, --selector and --devices out"),
        (["train", "--wait", "--timeout", "soon"], "'soon' is not a duration for --timeout"),
        (["train", "--timeout", "1m"], "--timeout limits --wait: add --wait, or leave it out."),
        (["train", "--wait", "--dry-run"], "there is nothing to wait for"),
        (["train", "--topology", "samenode"], "write sameNode, sameNVLinkDomain or spread"),
    ],
)
def test_what_makes_no_sense_is_said(
    api_server: ControlPlane, namespace: str, path: str, words: list[str], said: str
) -> None:
    assert said in str(reserve(api_server, namespace, *words).exception)
    assert call(api_server, "GET", path)["items"] == []


def test_a_person_sees_one_sentence(
    api_server: ControlPlane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reserve", "Train", "--kubeconfig", str(api_server.kubeconfig), "--namespace", namespace]) == 1
    assert capsys.readouterr().err.startswith(
        "Error: 'Train' cannot be the name of a reservation: use at most 63 lower-case"
    )
