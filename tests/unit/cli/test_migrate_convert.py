"""`draco migrate convert`: the texts of manifests, with everything kept that is not converted."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from draco.cli.input.yaml_documents import documents
from draco.cli.lint.command import check
from draco.cli.migrate.command import command
from draco.cli.migrate.workloads import converted

DEPLOYMENT = """\
# The model server.
apiVersion: apps/v1
kind: Deployment
metadata:
    name: serve   # four spaces here
    namespace: team
spec:
  selector:
    matchLabels: {app: serve}
  template:
    metadata:
      labels: {app: serve}
    spec:
      nodeSelector:
        nvidia.com/gpu.product: NVIDIA-A30
      containers:
      - name: server # pinned below
        image: "registry.k8s.io/pause:3.10"
        resources:
          limits:
            cpu: "4" # cores
            nvidia.com/gpu: 1
---
apiVersion: v1
kind: Service
metadata:   {name: serve}
spec: {ports: [{port: 80}]}
"""
CONVERTED = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: serve-gpu
  namespace: team
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.nvidia.com
          selectors:
          - cel:
              expression: device.attributes["gpu.nvidia.com"].productName.replace(" ", "-") == "NVIDIA-A30"
---
# The model server.
apiVersion: apps/v1
kind: Deployment
metadata:
    name: serve   # four spaces here
    namespace: team
spec:
  selector:
    matchLabels: {app: serve}
  template:
    metadata:
      labels: {app: serve}
    spec:
      containers:
      - name: server # pinned below
        image: "registry.k8s.io/pause:3.10"
        resources:
          limits:
            cpu: "4" # cores
          claims:
          - name: gpu
      tolerations:
      - key: nvidia.com/gpu
        operator: Exists
        effect: NoSchedule
      resourceClaims:
      - name: gpu
        resourceClaimTemplateName: serve-gpu
---
apiVersion: v1
kind: Service
metadata:   {name: serve}
spec: {ports: [{port: 80}]}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train}
spec: {containers: [{name: main, image: busybox, resources: {limits: {nvidia.com/gpu: 2}}}]}
"""
ODD = """\
apiVersion: v1
kind: Pod
metadata: {name: 'yes'}
spec:
  containers:
  - {name: 'on', image: a, resources: &r {limits: {nvidia.com/gpu: 1}}}
  - {name: '1e3', image: a, resources: *r}
"""


def run(text: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["convert", "-f", "-", *arguments], input=text, catch_exceptions=False)


def read(text: str) -> list[Any]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def test_only_what_is_converted_changes_in_the_text() -> None:
    found = run(DEPLOYMENT)
    assert found.stdout == CONVERTED
    assert (found.exit_code, found.stderr) == (0, "")


def test_json_is_one_list_with_the_same_objects() -> None:
    found = json.loads(run(DEPLOYMENT, "-o", "json").stdout)
    assert (found["kind"], found["items"]) == ("List", read(CONVERTED))


def test_a_folder_is_converted_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(DEPLOYMENT)
    (tmp_path / "b.yaml").write_text(POD)
    found = CliRunner().invoke(command, ["convert", "-f", str(tmp_path)])
    assert [each["kind"] for each in read(found.stdout)] == [
        "ResourceClaimTemplate",
        "Deployment",
        "Service",
        "ResourceClaimTemplate",
        "Pod",
    ]


def test_what_stays_is_named_with_its_line() -> None:
    found = run(DEPLOYMENT.replace("nvidia.com/gpu: 1", "nvidia.com/gpu.shared: 1"))
    assert found.exit_code == 1
    assert found.stderr.startswith(
        "Not converted: standard input:22: Deployment team/serve: nvidia.com/gpu.shared is a part"
    )
    assert "nvidia.com/gpu.shared: 1" in found.stdout


def test_a_helm_template_stays_and_is_named() -> None:
    template = POD.replace("train", "{{ .Release.Name }}")
    found = run(f"{POD}---\n{template}")
    assert found.stderr == (
        "Not converted: standard input:8: this is a template, not YAML: render it first, as `helm template` does.\n"
    )
    assert found.stdout.endswith(template)
    assert [each["kind"] for each in read(found.stdout.removesuffix(template))] == ["ResourceClaimTemplate", "Pod"]


def test_what_is_no_manifest_is_named() -> None:
    assert "standard input:2: this is no manifest" in run("---\n- a\n").stderr


def test_a_text_without_gpus_stays_and_is_said_to_have_none() -> None:
    service = DEPLOYMENT.partition("---\n")[2]
    found = run(service)
    assert (found.exit_code, found.stdout) == (0, service)
    assert found.stderr == "There is nothing to convert: nothing asks for nvidia.com/gpu or nvidia.com/mig-PROFILE.\n"


def test_templates_of_a_list_are_items_of_it() -> None:
    found = run(json.dumps({"apiVersion": "v1", "kind": "List", "items": read(POD)}))
    (whole,) = read(found.stdout)
    assert [each["kind"] for each in whole["items"]] == ["Pod", "ResourceClaimTemplate"]


@pytest.mark.parametrize(
    "text",
    [POD, ODD],
)
def test_shared_and_odd_values_mean_the_same_after_it(text: str) -> None:
    found = run(text, "-o", "json")
    assert [each.value for each in documents("", run(text).stdout)] == json.loads(found.stdout)["items"]


names = st.sampled_from(["a", "on", "null", "1e3", "0x1", "gpu", "main"])
amounts = st.sampled_from([1, 2, "4"])
resources = st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.me", "cpu"])
labels = st.sampled_from(["nvidia.com/gpu.product", "nvidia.com/gpu.family", "nvidia.com/gpu.count", "zone"])
containers = st.lists(
    st.fixed_dictionaries(
        {"name": names, "image": st.just("busybox")},
        optional={"resources": st.fixed_dictionaries({"limits": st.dictionaries(resources, amounts, min_size=1)})},
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda each: str(each["name"]),
)
specs = st.fixed_dictionaries(
    {"containers": containers},
    optional={
        "nodeSelector": st.dictionaries(labels, st.sampled_from(["hopper", "8"]), min_size=1),
        "tolerations": st.just([{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        "runtimeClassName": st.just("nvidia"),
    },
)


@settings(max_examples=30)
@given(st.lists(specs, max_size=3), st.booleans())
def test_converting_twice_is_converting_once_and_leaves_no_findings(pods: list[Any], flow: bool) -> None:
    manifests = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec}
        for number, spec in enumerate(pods)
    ]
    text = "---\n".join(json.dumps(each, indent=None if flow else 2) + "\n" for each in manifests)
    once = converted({"a.yaml": text})
    assert [each.value for each in documents("", once.text)] == once.objects
    again = converted({"a.yaml": once.text})
    assert (again.text, again.changed) == (once.text, 0)
    assert not check({"a.yaml": once.text}, kubernetes=36).findings
