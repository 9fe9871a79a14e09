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


def run(*arguments: object, given: str = "", what: str = "mig-parted") -> Result:
    return CliRunner().invoke(command, [what, *map(str, arguments)], input=given, catch_exceptions=False)


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
        ("", "- is empty: give a configuration, or a ConfigMap that has one"),
        (
            "kind: ConfigMap\ndata: {one: 'a: 1', two: 'b: 1'}",
            "the ConfigMap has no config.yaml; give the one that the MIG manager",
        ),
        ("kind: ConfigMap", "the ConfigMap has no data; give the one that the tool reads"),
        ("kind: ConfigMap\ndata: none", "the ConfigMap has no data"),
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


def test_each_configuration_of_the_device_plugin_in_a_config_map_becomes_a_policy() -> None:
    sliced = "{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}}"
    config_map = {"kind": "ConfigMap", "data": {"any": sliced, "t4": sliced, "none": "version: v1"}}
    found = run("-", given=yaml.safe_dump(config_map), what="sharing")
    assert found.exit_code == 0, found.stderr
    assert [each["metadata"]["name"] for each in policies(found)] == ["any", "t4"]
    assert policies(found)[0]["spec"] == {
        "mode": "Count",
        "count": 4,
        "nodeSelector": {"matchLabels": {"nvidia.com/device-plugin.config": "any"}},
    }


def test_a_configuration_that_shares_nothing_is_refused() -> None:
    with pytest.raises(CommandError, match=r"- shares nothing: it has neither sharing\.timeSlicing nor sharing\.mps\."):
        run("-", given="version: v1", what="sharing")


def test_the_place_in_a_config_map_is_named() -> None:
    with pytest.raises(CommandError, match=r"^standard input, document 1 \(line 1\), t4: its version is 'v9'"):
        run("-", given="kind: ConfigMap\ndata: {t4: 'version: v9'}", what="sharing")
