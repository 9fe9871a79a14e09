"""`draco migrate`: manifests on standard output, the rest on standard error."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from draco.cli.migrate.command import command
from draco.cli.output import CommandError

LAYOUTS = """
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-1g.10gb:
  - devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb": 7}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(LAYOUTS)
    return path


def run(*arguments: object, given: str = "") -> Result:
    return CliRunner().invoke(command, ["mig-parted", *map(str, arguments)], input=given, catch_exceptions=False)


def policies(result: Result) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(result.stdout))


def test_all_layouts_are_printed_as_manifests(file: Path) -> None:
    found = run(file)
    assert found.exit_code == 0, found.stderr
    first, second = policies(found)
    assert first == {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "MigPolicy",
        "metadata": {"name": "all-disabled"},
        "spec": {"mode": "Disabled", "nodeSelector": {"matchLabels": {"nvidia.com/mig.config": "all-disabled"}}},
    }
    assert second["spec"]["layouts"] == [{"name": "all-1g-10gb", "instances": [{"profile": "1g.10gb", "count": 7}]}]


def test_json_is_one_list_for_kubectl(file: Path) -> None:
    found = json.loads(run(file, "--layout", "all-disabled", "-o", "json").stdout)
    assert (found["kind"], len(found["items"])) == ("List", 1)


def test_the_config_map_of_the_mig_manager_is_read(file: Path) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.yaml": LAYOUTS, "other": ""}}
    assert run("-", given=yaml.safe_dump(config_map)).stdout == run(file).stdout


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "- is empty"),
        (
            "kind: ConfigMap\ndata: {one: '', two: ''}",
            "the ConfigMap has no config.yaml; give the one that the MIG manager",
        ),
        ("kind: ConfigMap", "the ConfigMap has no config.yaml"),
        ("kind: ConfigMap\ndata: none", "the ConfigMap has no config.yaml"),
        ("kind: Pod\nversion: v1", "this is no configuration of mig-parted: object contains unknown field `kind`"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_sentence(given: str, why: str) -> None:
    with pytest.raises(CommandError) as refused:
        run("-", given=given)
    assert why in str(refused.value)


def test_what_is_not_converted_is_said_and_is_the_exit_status(file: Path) -> None:
    file.write_text(LAYOUTS + "  all-enabled:\n  - {devices: all, mig-enabled: true, mig-devices: {}}\n")
    found = run(file)
    assert found.exit_code == 1
    assert len(policies(found)) == 2
    assert found.stderr.startswith("Not converted: all-enabled: it switches MIG on without instances.")
