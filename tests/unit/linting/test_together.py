"""Mistakes that only show in several objects together, or in several requests of one."""

import pytest

from tests.unit.linting.test_rules import CLAIM, POD, checked, request, rules

CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: {name}}}
spec:
  selectors: [{{cel: {{expression: device.driver == "{driver}"}}}}]
  extendedResourceName: {resource}
"""


def test_two_classes_for_one_extended_resource_are_told_which_counts() -> None:
    two = [CLASS.format(name=name, driver="gpu.example.com", resource="example.com/gpu") for name in ("a", "b")]
    [told] = checked(*two).findings
    assert (told.rule, told.severity) == ("extended-resource-twice", "warning")
    assert told.message.startswith(
        "DeviceClasses a, b stand for example.com/gpu: of several, Kubernetes takes the newest"
    )
    assert rules(two[0], CLASS.format(name="b", driver="gpu.example.com", resource="example.com/tpu")) == set()
    assert rules(two[0], two[0]) == set(), "one class that is in two files is no second one"


@pytest.mark.parametrize(
    ("resources", "asked", "twice"),
    [
        ("limits: {nvidia.com/gpu: 1}", "gpu.nvidia.com", True),
        ("requests: {nvidia.com/mig-1g.10gb: 1}", "mig.nvidia.com", True),
        ("limits: {example.com/gpu: 1}", "big", True),
        ("limits: {deviceclass.resource.kubernetes.io/gpu.nvidia.com: 1}", "gpu.nvidia.com", True),
        ("limits: {nvidia.com/gpu: 1}", "big", False),
        ("limits: {example.com/nic: 1, memory: 1Gi}", "gpu.nvidia.com", False),
    ],
)
def test_a_container_that_asks_for_its_device_twice_is_told(resources: str, asked: str, twice: bool) -> None:
    big = CLASS.format(name="big", driver="gpu.example.com", resource="example.com/gpu")
    claim, pod = (
        text.replace(before, after)
        for text, before, after in (
            (CLAIM, "gpu.nvidia.com", asked),
            (POD, "        claims:", f"        {resources}\n        claims:"),
        )
    )
    told = [each for each in checked(claim, pod, big).findings if each.rule == "device-asked-twice"]
    assert [each.severity for each in told] == ["warning"] * twice


def test_a_container_beside_one_that_has_a_claim_may_ask_for_a_device_of_its_own() -> None:
    other = "    - name: other\n      image: busybox\n      resources: {limits: {nvidia.com/gpu: 1}}\n"
    assert rules(CLAIM, POD + other) == set()


@pytest.mark.parametrize("labels", ["{}", '{resource.kubernetes.io/admin-access: "false"}'])
def test_administrative_access_needs_the_label_of_its_namespace(labels: str) -> None:
    namespace = f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: default, labels: {labels}}}\n"
    asks = request("exactly: {deviceClassName: gpu.nvidia.com, adminAccess: true}")
    told = checked(namespace, asks)
    [refused] = told.findings
    assert (refused.rule, refused.corrected) == ("admin-access", False), "nobody else gives the permission"
    assert refused.message == (
        "namespace default does not permit adminAccess: its administrator labels it resource.kubernetes.io/admin-access=true"
    )
    permitted = namespace.replace(labels, '{resource.kubernetes.io/admin-access: "true"}')
    assert rules(permitted, asks) == set()
    assert rules(asks) == set(), "the namespace is not known"


def test_requests_that_together_want_more_than_a_claim_can_have_are_told() -> None:
    two = "".join(
        f"      - name: {name}\n        exactly: {{deviceClassName: gpu.nvidia.com, count: 20}}\n" for name in "ab"
    )
    claim = CLAIM[: CLAIM.index("      - name: gpu")] + two
    [told] = checked(claim).findings
    assert (told.rule, told.message) == (
        "count",
        "the requests want 40 devices, and a claim gets no more than 32: use several claims",
    )
    assert rules(claim.replace("count: 20", "count: 16")) == set()


def test_a_pool_that_two_nodes_publish_is_told() -> None:
    published = (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {{name: {node}}}\nspec:\n  driver: gpu.example.com\n"
        "  nodeName: {node}\n  pool: {{name: {pool}, generation: 1, resourceSliceCount: 1}}\n  devices: [{{name: gpu-0}}]\n"
    )
    both = [published.format(node=node, pool="all") for node in ("node-1", "node-2")]
    [told] = checked(*both).findings
    assert (told.rule, told.severity) == ("pool-of-nodes", "warning")
    assert told.message.startswith("nodes node-1, node-2 publish one pool all of gpu.example.com")
    assert rules(*(published.format(node=node, pool=node) for node in ("node-1", "node-2"))) == set()
