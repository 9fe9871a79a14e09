"""`draco top` and `draco waste` on a real API server: from what an agent reported to the screen."""

import io
import json
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from draco.cli import run
from draco_local.cluster.controlplane import ControlPlane
from tests.requests import call

USAGES = "/apis/draco.dev/v1alpha1/gpuusages"
H100 = "NVIDIA H100 80GB HBM3"
Json = dict[str, Any]

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
def node(api_server: ControlPlane) -> Iterator[str]:
    """A node of which one GPU is used, and was held for ten hours today."""
    name = f"used-{uuid.uuid4().hex[:6]}"
    now = datetime.now(UTC)
    head = {"apiVersion": "draco.dev/v1alpha1", "kind": "GpuUsage", "metadata": {"name": name}}
    call(api_server, "POST", USAGES, head)
    device = {"uuid": f"GPU-{name}", "device": "gpu-0", "productName": H100, "memoryTotalBytes": 80 << 30}
    user = {"uuid": f"GPU-{name}", "namespace": name, "claim": "train", "pod": "train-0", "processes": 1}
    figures = {"memoryUsedBytes": 20 << 30, "utilizationPercent": 50}
    held = {"day": f"{now:%Y-%m-%d}", "namespace": name, "resource": H100, "heldSeconds": 36000, "usedSeconds": 9000}
    status = {
        "time": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "devices": [{**device, **figures}],
        "users": [{**user, **figures}],
        "held": [held],
    }
    call(api_server, "PATCH", f"{USAGES}/{name}/status?fieldManager=tests", {**head, "status": status})
    yield name
    call(api_server, "DELETE", f"{USAGES}/{name}")


def draco(plane: ControlPlane, *arguments: str) -> tuple[int, str, str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = run([*arguments, "--kubeconfig", str(plane.kubeconfig)])
    return status, out.getvalue(), err.getvalue()


def test_top_prints_one_row_for_each_claim(api_server: ControlPlane, node: str) -> None:
    status, out, _ = draco(api_server, "top", "--once", "--node", node)
    head, row = (line.split() for line in out.splitlines())
    assert (status, head[:2]) == (0, ["NAMESPACE", "CLAIM"])
    assert row == [node, "train", "train-0", node, "gpu-0", "1", "50%", "20.0Gi", "80.0Gi", "25%", "-"]


def test_top_of_nobody_says_so(api_server: ControlPlane, node: str) -> None:
    assert draco(api_server, "top", "-n", "nobody", "--node", node) == (
        0,
        "Nothing to show: no agent reports usage of these devices.\n",
        "",
    )


def test_waste_prints_hours_and_costs(api_server: ControlPlane, node: str, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nprices: {NVIDIA H100*: 2.0}\n")
    _, plain, _ = draco(api_server, "waste", "-n", node)
    assert plain.splitlines()[1].split() == [node, *H100.split(), "10.0h", "2.5h", "7.5h", "75%"]
    status, priced, said = draco(api_server, "waste", "-n", node, "--prices", str(prices))
    assert (status, said) == (0, "")
    assert [line.split()[-2:] for line in priced.splitlines()] == [
        ["UNUSED", "(EUR)"],
        ["20.00", "15.00"],
        ["20.00", "15.00"],
    ]


def test_waste_has_forms_for_programs(api_server: ControlPlane, node: str) -> None:
    rows = json.loads(draco(api_server, "waste", "-n", node, "-o", "json")[1])["rows"]
    assert [(row["resource"], row["unusedHours"], row["heldCost"]) for row in rows] == [(H100, 7.5, None)]
    assert f",{node},{H100},10.0,2.5,7.5,,,USD\n" in draco(api_server, "waste", "-n", node, "-o", "csv")[1]
    [answer] = json.loads(draco(api_server, "waste", "-n", node, "-o", "opencost")[1])
    assert answer["costs"][0]["usage_quantity"] == 10.0


def test_a_price_list_that_is_none_is_refused_with_an_example(api_server: ControlPlane, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices: {H100: -1}\n")
    status, _, said = draco(api_server, "waste", "--prices", str(prices))
    assert status == 1
    assert said.startswith(f"Error: {prices} is no price list: Expected `float` >= 0")


def test_a_resource_without_a_price_is_named(api_server: ControlPlane, node: str, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices: {NVIDIA L4: 1}\n")
    assert draco(api_server, "waste", "-n", node, "--prices", str(prices))[2] == (
        f"The price list has no price for {H100}.\n"
    )
