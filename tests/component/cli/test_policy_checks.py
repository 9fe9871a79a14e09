"""MigPolicies in files are refused exactly if an API server refuses them."""

import uuid
from http import HTTPStatus
from typing import Any

import pytest

from draco.cli.input.mig_policy_checks import refusal
from draco.resources.api.draco import MigPolicy
from draco.resources.written.manifests import ManifestError, decode_own
from draco_local.cluster.controlplane import ControlPlane
from tests.requests import RefusedError, call

PATH = "/apis/draco.dev/v1alpha1/migpolicies"
DYNAMIC = {"mode": "Dynamic"}


def static(*instances: dict[str, Any], name: str = "one", layout: str = "one") -> dict[str, Any]:
    return {"mode": "Static", "layout": layout, "layouts": [{"name": name, "instances": list(instances)}]}


def window(**fields: Any) -> dict[str, Any]:
    return {**DYNAMIC, "reset": {"permit": "InWindows", "windows": [{"start": "22:00", "duration": "1h", **fields}]}}


def selecting(**expression: Any) -> dict[str, Any]:
    return {**DYNAMIC, "nodeSelector": {"matchExpressions": [{"key": "pool", **expression}]}}


def by_cel(cel: dict[str, Any]) -> dict[str, Any]:
    return {**DYNAMIC, "deviceSelectors": [{"cel": cel}]}


SMALL = {"profile": "1g.10gb"}


def ahead(*limits: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**DYNAMIC, "warmAhead": {"limits": list(limits or [SMALL]), **fields}}


GOOD: list[dict[str, Any]] = [
    DYNAMIC,
    {"mode": "Disabled", "exclude": ["GPU-1", "GPU-2"]},
    static({**SMALL, "count": 7}),
    static({**SMALL, "start": 0}, {**SMALL, "start": 63}),
    {**DYNAMIC, "profiles": ["1g.10gb"], "warm": [SMALL]},
    ahead({**SMALL, "count": 32}, {"profile": "2g.20gb"}),
    ahead(window="1m", leadTimeSeconds=1),
    ahead(window="24h", leadTimeSeconds=3600),
    ahead(window="1h30m"),
    {**ahead(), "profiles": ["1g.10gb"], "warm": []},
    window(days=["Sat", "Sun"]),
    window(duration="24h", start="00:00"),
    window(duration="1m"),
    selecting(operator="In", values=["a"]),
    selecting(operator="Exists"),
    by_cel({"expression": "true"}),
]
BAD: list[dict[str, Any]] = [
    {},
    {"mode": "dynamic"},
    {"mode": "Static"},
    static(),
    static({"count": 2}),
    static({**SMALL, "count": 0}),
    static({**SMALL, "count": 33}),
    static({**SMALL, "count": 2, "start": 0}),
    static({**SMALL, "start": -1}),
    static({**SMALL, "start": 64}),
    static(SMALL, name="One", layout="One"),
    static(SMALL, layout="two"),
    {**static(SMALL), "layouts": [{"name": "one", "instances": [SMALL]}] * 2},
    {**DYNAMIC, "profiles": ["1g.10gb"], "warm": [{"profile": "2g.20gb"}]},
    {**DYNAMIC, "profiles": ["1g.10gb", "1g.10gb"]},
    {**DYNAMIC, "warm": [SMALL, SMALL]},
    {**DYNAMIC, "warm": [{**SMALL, "count": 33}]},
    {**DYNAMIC, "warmAhead": {}},
    {**DYNAMIC, "warmAhead": {"limits": []}},
    {**ahead(), "mode": "Disabled"},
    {**static(SMALL), "warmAhead": {"limits": [SMALL]}},
    {**ahead(), "profiles": ["2g.20gb"]},
    {**ahead(), "warm": [SMALL]},
    ahead(SMALL, SMALL),
    ahead({**SMALL, "count": 0}),
    ahead({**SMALL, "count": 33}),
    ahead({"profile": ""}),
    ahead(window="0m"),
    ahead(window="25h"),
    ahead(window="90s"),
    ahead(window=""),
    ahead(leadTimeSeconds=0),
    ahead(leadTimeSeconds=3601),
    {**DYNAMIC, "repair": {"maxMoves": 3}},
    {**DYNAMIC, "repair": {"maxMoves": -1}},
    {**DYNAMIC, "exclude": ["gpu-0"]},
    {**DYNAMIC, "exclude": ["GPU-1", "GPU-1"]},
    {**DYNAMIC, "reset": {"permit": "InWindows"}},
    window(start="24:00"),
    window(start="9:00"),
    window(duration="25h"),
    window(duration="0m"),
    window(duration="1d"),
    window(days=["Sunday"]),
    window(days=["Sun", "Sun"]),
    selecting(operator="In"),
    selecting(operator="Exists", values=["a"]),
    selecting(operator="Gt", values=["1"]),
    by_cel({"expression": ""}),
    by_cel({}),
    by_cel({"expression": "x" * 10_241}),
    {**DYNAMIC, "layuot": "one"},
]


def server_takes(plane: ControlPlane, manifest: dict[str, Any]) -> bool:
    try:
        call(plane, "POST", f"{PATH}?dryRun=All&fieldValidation=Strict", manifest)
    except RefusedError as error:
        if error.code not in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}:
            raise
        return False
    return True


def files_take(manifest: dict[str, Any]) -> bool:
    try:
        policy = decode_own(manifest, source="file")
    except ManifestError:
        return False
    assert isinstance(policy, MigPolicy)
    return not refusal(policy, manifest)


def manifest(spec: dict[str, Any], name: str = "") -> dict[str, Any]:
    meta = {"name": name or f"policy-{uuid.uuid4().hex[:8]}"}
    return {"apiVersion": "draco.dev/v1alpha1", "kind": "MigPolicy", "metadata": meta, "spec": spec}


@pytest.mark.parametrize(("specs", "taken"), [(GOOD, True), (BAD, False)], ids=["good", "bad"])
def test_files_and_servers_agree_on_what_a_policy_may_say(
    api_server: ControlPlane, crds: None, specs: list[dict[str, Any]], taken: bool
) -> None:
    given = [manifest(spec) for spec in specs]
    assert [each["spec"] for each in given if server_takes(api_server, each) is not taken] == []
    assert [each["spec"] for each in given if files_take(each) is not taken] == []


def test_files_and_servers_agree_on_names(api_server: ControlPlane, crds: None) -> None:
    names = ["a", "a.b-c.9", "A", "-a", "a-", "a..b", "a_b", "a.", "a" * 253, "a" * 254]
    given = {name: manifest(DYNAMIC, name) for name in names}
    expected = {name: server_takes(api_server, each) for name, each in given.items()}
    assert {name: files_take(each) for name, each in given.items()} == expected
    assert sum(expected.values()) == 3
