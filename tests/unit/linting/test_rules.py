"""Each rule, with the smallest manifests that break it."""

from typing import Any

import pytest
import yaml

from draco.cli.lint.command import LintResult, check

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu}
spec:
  devices:
    requests:
      - name: gpu
        exactly: {deviceClassName: gpu.nvidia.com}
"""
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec:
  spec:
    devices:
      requests:
        - name: gpu
          exactly: {deviceClassName: gpu.nvidia.com}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: pod}
spec:
  resourceClaims:
    - name: gpu
      resourceClaimName: gpu
  containers:
    - name: main
      image: busybox
      resources:
        claims:
          - name: gpu
"""
RULE = """
apiVersion: resource.k8s.io/v1beta2
kind: DeviceTaintRule
metadata: {name: rule}
spec:
  deviceSelector: {driver: gpu.nvidia.com, pool: node-0, device: gpu-0}
  taint: {key: example.com/suspect, effect: NoSchedule}
"""


def checked(*texts: str, kubernetes: int = 36) -> LintResult:
    return check({"manifest.yaml": "\n---\n".join(texts)}, kubernetes=kubernetes)


def rules(*texts: str) -> set[str]:
    return {told.rule for told in checked(*texts).findings}


def corrected(*texts: str, kubernetes: int = 36) -> list[Any]:
    """The corrected manifests; lint finds nothing more in them."""
    after = checked(*texts, kubernetes=kubernetes).after["manifest.yaml"]
    assert check({"manifest.yaml": after}, kubernetes=kubernetes).findings == []
    return [document for document in yaml.safe_load_all(after) if document]


def request(text: str) -> str:
    """The claim with another request."""
    return CLAIM.replace("exactly: {deviceClassName: gpu.nvidia.com}", text)


@pytest.mark.parametrize(
    "manifests", [[CLAIM, POD], [TEMPLATE], [RULE], ["kind: Service\napiVersion: v1\n"], [""], ["# only\n"]]
)
def test_what_is_right_has_nothing_to_correct(manifests: list[str]) -> None:
    assert checked(*manifests).findings == []


@pytest.mark.parametrize(
    ("version", "severity"), [("v1alpha2", "error"), ("v1beta1", "warning"), ("v1beta2", "warning")]
)
def test_old_versions_become_v1(version: str, severity: str) -> None:
    old = CLAIM.replace("k8s.io/v1", f"k8s.io/{version}")
    [told] = checked(old).findings
    assert (told.rule, told.severity) == ("api-version", severity)
    assert corrected(old)[0]["apiVersion"] == "resource.k8s.io/v1"


def test_a_missing_group_is_added() -> None:
    assert corrected(CLAIM.replace("resource.k8s.io/v1", "v1"))[0]["apiVersion"] == "resource.k8s.io/v1"


@pytest.mark.parametrize(("release", "version"), [(35, "v1alpha3"), (36, "v1beta2"), (37, "v1")])
def test_a_taint_rule_gets_the_version_that_the_release_serves(release: int, version: str) -> None:
    [rule] = corrected(RULE.replace("v1beta2", "v1beta1"), kubernetes=release)
    assert rule["apiVersion"] == f"resource.k8s.io/{version}"


@pytest.mark.parametrize(
    ("kind", "version", "release", "severity", "said", "wanted"),
    [
        (
            "DeviceTaintRule",
            "v1beta2",
            35,
            "error",
            "is served as resource.k8s.io/v1beta2 since Kubernetes 1.36",
            "v1alpha3",
        ),
        (
            "DeviceTaintRule",
            "v1",
            36,
            "error",
            "since Kubernetes 1.37, not by 1.36: write resource.k8s.io/v1beta2",
            "v1beta2",
        ),
        ("DeviceTaintRule", "v1alpha3", 37, "warning", "is deprecated and not served by default", "v1"),
        ("ResourceClaim", "v1alpha3", 34, "error", "is not served since Kubernetes 1.34", "v1"),
        ("ResourceClaim", "v2", 37, "error", "ResourceClaim was never served as resource.k8s.io/v2", "v1"),
        ("ResourcePoolStatusRequest", "v1", 37, "error", "was never served as resource.k8s.io/v1", "v1alpha3"),
        (
            "ResourcePoolStatusRequest",
            "v1alpha3",
            35,
            "error",
            "Kubernetes 1.35 has no ResourcePoolStatusRequest, 1.36 is",
            "",
        ),
        ("ResourcePoolStatusRequest", "v1alpha3", 36, "", "", ""),
        ("DeviceTaintRule", "v1beta2", 36, "", "", ""),
    ],
)
def test_a_version_is_one_that_the_release_serves(
    kind: str, version: str, release: int, severity: str, said: str, wanted: str
) -> None:
    whole = {"DeviceTaintRule": RULE, "ResourceClaim": CLAIM}.get(
        kind, "kind: K\nmetadata: {name: a}\nspec: {driver: d}\n"
    )
    tree = {**yaml.safe_load(whole), "apiVersion": f"resource.k8s.io/{version}", "kind": kind}
    result = checked(yaml.safe_dump(tree), kubernetes=release)
    found = [each for each in result.findings if each.rule == "api-version"]
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert all(said in each.message for each in found)
    after = yaml.safe_load(result.after["manifest.yaml"])
    assert after["apiVersion"] == f"resource.k8s.io/{wanted or version}"


@pytest.mark.parametrize("name", ["y", "no", "on", "12", "1e3"])
def test_a_name_that_yaml_takes_for_something_else_is_told(name: str) -> None:
    assert rules(CLAIM.replace("name: gpu}", f"name: {name}}}", 1)) == {"name-form"}
    assert rules(CLAIM.replace("name: gpu}", f'name: "{name}"}}', 1)) == set()


def test_what_stood_beside_the_name_goes_under_exactly() -> None:
    [claim] = corrected(request("deviceClassName: gpu.nvidia.com\n        count: 2"))
    assert claim["spec"]["devices"]["requests"] == [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
    ]


def test_a_prioritized_list_is_not_mixed_with_a_plain_request() -> None:
    mixed = request(
        "deviceClassName: gpu.nvidia.com\n        firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com}]"
    )
    assert "exactly-missing" in rules(mixed)
    assert checked(mixed).after["manifest.yaml"] == mixed


def test_a_resource_class_becomes_a_device_class_that_names_its_driver() -> None:
    old = (
        "apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClass\nmetadata: {name: a}\ndriverName: gpu.example.com\n"
    )
    [device_class] = corrected(old)
    assert device_class == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "a"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
    }


def test_modes_of_classic_claims_are_dropped_and_parameters_are_left_to_their_author() -> None:
    old = (
        "apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClaim\nmetadata: {name: a}\n"
        "spec:\n  resourceClassName: gpu.nvidia.com\n"
        "  allocationMode: WaitForFirstConsumer\n  parametersRef: {kind: GpuParameters, name: x}\n"
    )
    told = checked(old)
    assert {each.message for each in told.findings if not each.corrected} == {
        "parametersRef belongs to classic DRA: parameters are now in spec.devices.config[].opaque"
    }
    assert yaml.safe_load(told.after["manifest.yaml"])["spec"] == {
        "parametersRef": {"kind": "GpuParameters", "name": "x"},
        "devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]},
    }


@pytest.mark.parametrize(
    "field", ["parametersRef: {kind: Parameters, name: x}", "suitableNodes: {nodeSelectorTerms: []}"]
)
def test_a_class_that_says_more_than_its_driver_is_left_to_its_author(field: str) -> None:
    """Without its node selector, the class would allow devices on all nodes."""
    old = (
        "apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceClass\nmetadata: {name: a}\n"
        f"driverName: gpu.example.com\n{field}\n"
    )
    told = checked(old)
    assert told.after == told.before
    assert any(field.partition(":")[0] in each.message for each in told.findings)


def test_kinds_that_are_gone_are_told_what_took_their_place() -> None:
    [told] = checked("apiVersion: resource.k8s.io/v1alpha2\nkind: PodSchedulingContext\nmetadata: {name: a}\n").findings
    assert (told.rule, told.corrected) == ("classic-dra", False)
    assert "remove this object" in told.message


@pytest.mark.parametrize(
    ("capacity", "rule"), [("memory: 80Gi", "capacity-value"), ("memory: {quantity: 80Gi}", "capacity-value")]
)
def test_an_amount_of_a_slice_stands_in_its_value(capacity: str, rule: str) -> None:
    old = (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: a}\nspec:\n  driver: gpu.example.com\n"
        "  nodeName: a\n  pool: {name: a, generation: 1, resourceSliceCount: 1}\n"
        f"  devices:\n  - name: gpu-0\n    attributes: {{model: A, count: 3}}\n    capacity: {{{capacity}}}\n"
    )
    assert rules(old) == {rule, "attribute-type"}
    [resource_slice] = corrected(old)
    [device] = resource_slice["spec"]["devices"]
    assert device["capacity"] == {"memory": {"value": "80Gi"}}
    assert device["attributes"] == {"model": {"string": "A"}, "count": {"int": 3}}


@pytest.mark.parametrize(
    ("manifest", "place"),
    [
        (CLAIM.replace("spec:\n  devices:", "devices:").replace("    requests", "  requests"), "spec"),
        (CLAIM.replace("  devices:\n    requests:", "  requests:"), "spec.devices"),
        (TEMPLATE.replace("  spec:\n    devices:", "  devices:"), "spec.spec"),
        (CLAIM.replace("metadata: {name: gpu}", "name: gpu"), "metadata"),
        (POD.replace("      resources:\n        claims:", "      claims:"), "spec.containers[0].resources"),
    ],
)
def test_a_field_in_the_wrong_place_is_moved_to_its_own(manifest: str, place: str) -> None:
    [told] = checked(manifest).findings
    assert told.rule == "field-place"
    assert told.message.endswith(f"move it into {place}")
    assert corrected(manifest)


def test_a_workloads_claims_belong_to_its_pods() -> None:
    deployment = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  resourceClaims:\n"
        "  - {name: gpu, resourceClaimTemplateName: t}\n"
        "  template: {spec: {containers: [{name: c, resources: {claims: [{name: gpu}]}}]}}\n"
    )
    [told] = checked(deployment).findings
    assert told.message == "resourceClaims is not a field of spec: move it into spec.template.spec"
    assert corrected(deployment)[0]["spec"]["template"]["spec"]["resourceClaims"]


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        (request("exactly: {deviceClass: gpu.nvidia.com}"), "deviceClass", "deviceClassName"),
        (request("exactly: {deviceclassname: gpu.nvidia.com}"), "deviceclassname", "deviceClassName"),
        (CLAIM.replace("requests:", "request:"), "request", "requests"),
        (POD.replace("resourceClaimName", "resourceClaim"), "resourceClaim", "resourceClaimName"),
    ],
)
def test_an_unknown_field_is_told_with_the_nearest_and_renamed(text: str, wrong: str, right: str) -> None:
    told = next(one for one in checked(text).findings if one.rule == "unknown-field")
    assert f"there is no field {wrong} " in told.message
    assert told.message.endswith(f"the nearest is {right}")
    assert right in str(corrected(text))


def test_a_field_that_resembles_none_is_told_with_those_there_are() -> None:
    [told] = checked(request("exactly: {deviceClassName: gpu.nvidia.com}\n        colour: red")).findings
    assert (told.rule, told.corrected) == ("unknown-field", False)


@pytest.mark.parametrize(
    ("form", "rule"),
    [
        ("exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All, count: 2}", "count-with-all"),
        ("firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com, adminAccess: true}]", "admin-access"),
    ],
)
def test_a_request_that_may_mean_either_is_left_to_its_author(form: str, rule: str) -> None:
    """Without the count it would take more; without administrative access it would use what it only means to observe."""
    told = checked(request(form))
    assert [(each.rule, each.corrected) for each in told.findings] == [(rule, False)]
    assert told.after == told.before


@pytest.mark.parametrize(
    ("form", "rule"),
    [
        ("exactly: {deviceClassName: gpu.nvidia.com, allocationMode: Exact}", "allocation-mode"),
        ('exactly: {deviceClassName: gpu.nvidia.com, count: "2"}', "count"),
        ("exactly: {deviceClassName: gpu.nvidia.com, selectors: [\"device.driver == 'a'\"]}", "field-form"),
        ("exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: \"device.driver == 'a'\"}]}", "selector-form"),
        (
            "exactly: {deviceClassName: gpu.nvidia.com, selectors: [{expression: \"device.driver == 'a'\"}]}",
            "selector-form",
        ),
        ("firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com, adminAccess: false}]", "admin-access"),
    ],
)
def test_a_request_that_can_be_put_right_is(form: str, rule: str) -> None:
    assert rule in rules(request(form)) or rule == "field-form"
    assert corrected(request(form))


@pytest.mark.parametrize(
    ("form", "rule"),
    [
        ("exactly: {}", "value"),
        ("firstAvailable: []", "value"),
        ("exactly: {deviceClassName: gpu.nvidia.com, count: 0}", "count"),
        ("exactly: {deviceClassName: gpu.nvidia.com, count: 33}", "count"),
        ("exactly: {deviceClassName: gpu.nvidia.com, allocationMode: xyz}", "allocation-mode"),
        ("exactly: {deviceClassName: a}\n        firstAvailable: [{name: a, deviceClassName: a}]", "value"),
        ("exactly: {deviceClassName: a}\n      - name: gpu\n        exactly: {deviceClassName: a}", "value"),
    ],
)
def test_a_request_that_only_its_author_can_put_right_is_told(form: str, rule: str) -> None:
    assert rules(request(form)) == {rule}
    assert not any(told.corrected for told in checked(request(form)).findings)


def test_constraints_name_requests_and_attributes_in_full() -> None:
    constrained = CLAIM + "    constraints:\n      - requests: [gpus]\n        matchAttribute: parentUUID\n"
    assert rules(constrained) == {"request-unknown", "constraint-domain"}
    [claim] = corrected(constrained)
    assert claim["spec"]["devices"]["constraints"] == [
        {"requests": ["gpu"], "matchAttribute": "gpu.nvidia.com/parentUUID"}
    ]


@pytest.mark.parametrize(
    ("attribute", "meant"),
    [
        ("numaNode", "resource.kubernetes.io/numaNode"),
        ("gpu.nvidia.com/pcieRoot", "resource.kubernetes.io/pcieRoot"),
        ("mig.nvidia.com/parentUUID", "gpu.nvidia.com/parentUUID"),
        ("gpu.nvidia.com/parentUuid", "gpu.nvidia.com/parentUUID"),
        ("other.example/rack", "other.example/rack"),
    ],
)
def test_the_attribute_of_a_constraint_is_the_one_that_is_published(attribute: str, meant: str) -> None:
    [claim] = corrected(CLAIM + f"    constraints:\n      - distinctAttribute: {attribute}\n")
    assert claim["spec"]["devices"]["constraints"][0]["distinctAttribute"] == meant


def test_a_container_claim_without_its_pod_entry_gets_one() -> None:
    without = POD.replace("  resourceClaims:\n    - name: gpu\n      resourceClaimName: gpu\n", "")
    assert rules(CLAIM, without) == {"container-claim"}
    _, pod = corrected(CLAIM, without)
    assert pod["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "gpu"}]
    _, pod = corrected(TEMPLATE, without)
    assert pod["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    assert [told.corrected for told in checked(without).findings] == [False]


def test_a_pod_entry_that_no_container_uses_is_given_to_the_only_one() -> None:
    unused = POD.replace("      resources:\n        claims:\n          - name: gpu\n", "")
    [told] = checked(CLAIM, unused).findings
    assert (told.rule, told.severity) == ("claim-unused", "warning")
    assert corrected(CLAIM, unused)[1]["spec"]["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}


def test_a_request_that_the_claim_does_not_have_is_told() -> None:
    pod = POD.replace("          - name: gpu\n", "          - name: gpu\n            request: gpus\n")
    [told] = checked(CLAIM, pod).findings
    assert told.message == "gpu has no request gpus: it has gpu"
    assert corrected(CLAIM, pod)[1]["spec"]["containers"][0]["resources"]["claims"][0]["request"] == "gpu"


@pytest.mark.parametrize("entry", ["", "\n      resourceClaimName: gpu\n      resourceClaimTemplateName: gpu"])
def test_a_pod_entry_names_a_claim_or_a_template(entry: str) -> None:
    assert rules(POD.replace("\n      resourceClaimName: gpu", entry)) == {"claim-or-template"}


def test_a_template_named_as_a_claim_is_named_as_what_it_is() -> None:
    assert rules(TEMPLATE, POD) == {"claim-or-template"}
    assert corrected(TEMPLATE, POD)[1]["spec"]["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": "gpu"}
    ]


def test_a_claim_of_another_namespace_is_out_of_reach() -> None:
    assert rules(CLAIM.replace("{name: gpu}", "{name: gpu, namespace: other}"), POD) == {"claim-namespace"}


def test_a_misspelt_claim_is_told_with_the_nearest() -> None:
    claim, pod = CLAIM.replace("{name: gpu}", "{name: big-gpu}"), POD.replace("ClaimName: gpu", "ClaimName: bigg-gpu")
    assert rules(claim, pod) == {"claim-unknown"}
    [told] = checked(claim, pod).findings
    assert told.message == "there is no bigg-gpu among these manifests; the nearest is big-gpu"
    assert not told.corrected, "it may be in the cluster"


def test_the_source_of_alpha_versions_is_taken_away() -> None:
    old = POD.replace("      resourceClaimName: gpu", "      source: {resourceClaimName: gpu}")
    assert rules(old) == {"claim-source"}
    assert corrected(old)[0]["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "gpu"}]


def two_pods(note: str = "", *, name: str = "gpu") -> list[str]:
    template = TEMPLATE.replace("name: gpu}", f"name: {name}}}")
    pod = POD.replace("resourceClaimName: gpu", f"resourceClaimTemplateName: {name}")
    return [template + note, pod, pod.replace("{name: pod}", "{name: other}")]


@pytest.mark.parametrize("pods", [two_pods(name="shared-gpu"), two_pods("# both pods use the same GPU\n")])
def test_a_template_that_is_meant_to_be_shared_becomes_a_claim(pods: list[str]) -> None:
    assert rules(*pods) == {"template-shared"}
    claim, *users = corrected(*pods)
    assert claim["kind"] == "ResourceClaim"
    assert "devices" in claim["spec"]
    assert all("resourceClaimName" in user["spec"]["resourceClaims"][0] for user in users)


def test_a_template_for_several_pods_is_right_where_nothing_is_said_of_sharing() -> None:
    assert rules(*two_pods()) == set()


def test_replicas_that_name_one_claim_are_questioned_unless_they_share_it_knowingly() -> None:
    deployment = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  replicas: 3\n  template: {spec: "
        "{resourceClaims: [{name: gpu, resourceClaimName: gpu}], containers: [{name: c, resources: {claims: [{name: gpu}]}}]}}\n"
    )
    [told] = checked(CLAIM, deployment).findings
    assert told.rule == "claim-of-replicas"
    assert "all 3 replicas" in told.message
    assert "share its one device" in told.message
    assert rules(CLAIM, "# the replicas share it\n" + deployment) == set()


def test_the_pods_of_a_cron_job_that_run_in_parallel_are_replicas_too() -> None:
    pod = "{resourceClaims: [{name: gpu, resourceClaimName: gpu}], containers: [{name: c, resources: {claims: [{name: gpu}]}}]}"
    cron_job = (
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\nspec:\n  jobTemplate:\n    spec:\n      parallelism: 3\n"
        f"      template: {{spec: {pod}}}\n"
    )
    assert rules(CLAIM, cron_job) == {"claim-of-replicas"}
    assert rules(CLAIM, cron_job.replace("parallelism: 3", "parallelism: 1")) == set()


def test_the_selector_of_a_taint_rule_is_exact() -> None:
    by_class = RULE.replace("device: gpu-0}", "device: gpu-0, deviceClassName: gpu.nvidia.com}")
    assert rules(by_class) == {"taint-rule-selector"}
    assert not checked(by_class).findings[0].corrected, "without it the rule would select more"
    empty = RULE.replace("{driver: gpu.nvidia.com, pool: node-0, device: gpu-0}", "{}")
    assert rules(empty) == {"taint-rule-everything"}


HEALTH_POLICY = """
apiVersion: draco.dev/v1alpha1
kind: HealthPolicy
metadata: {name: a}
spec:
  deviceSelectors: [{cel: {expression: 'device.driver == "gpu.nvidia.com"'}}]
  rules: [{name: one, condition: fault.xid == 79, effect: Record}]
"""


def test_conditions_and_selectors_of_a_health_policy_are_checked_as_the_operator_does() -> None:
    assert rules(HEALTH_POLICY) == set()
    [told] = checked(HEALTH_POLICY.replace("fault.xid", "fault.xidd")).findings
    assert told.rule == "health-condition"
    assert told.message == "the condition is invalid: at 1:6: undefined field 'xidd' (did you mean xid?)"
    assert rules(HEALTH_POLICY.replace("79", '"79"')) == {"health-condition"}
    assert rules(HEALTH_POLICY.replace("device.driver", "device.drver")) == {"health-selector"}
    assert rules(HEALTH_POLICY.replace("draco.dev", "example.com").replace("xid", "xidd")) == set()


def test_a_class_asks_for_its_driver_first() -> None:
    device_class = (
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: a}\nspec: {selectors: [{cel: {expression: "
        '\'device.attributes["gpu.nvidia.com"].type == "gpu"\'}}]}\n'
    )
    assert rules(device_class) == {"class-without-driver"}
    [changed] = corrected(device_class)
    assert changed["spec"]["selectors"][0]["cel"]["expression"] == (
        'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'
    )


def selecting(expression: str) -> str:
    return request(
        f"exactly: {{deviceClassName: gpu.nvidia.com, selectors: [{{cel: {{expression: '{expression}'}}}}]}}"
    )


@pytest.mark.parametrize(
    ("expression", "rule", "words"),
    [
        ("nosuch == 1", "selector-compiles", "undeclared reference to 'nosuch'"),
        ("1 +", "selector-compiles", "Syntax error"),
        ("x" * 11_000, "selector-compiles", "too long"),
        ("device.driver.endsWith(1)", "selector-compiles", "no matching overload"),
        ("[1,2,3,4,5,6,7,8,9].all(a," * 7 + "true" + ")" * 7, "selector-cost", "no more than 1,000,000"),
    ],
)
def test_a_selector_that_kubernetes_refuses_is_told_in_its_words(expression: str, rule: str, words: str) -> None:
    [told] = checked(selecting(expression)).findings
    assert told.rule == rule
    assert words in told.message


def test_a_selector_that_an_older_release_refuses_is_a_warning() -> None:
    [told] = checked(selecting("[3, 1].sort() == [1, 3]"), kubernetes=34).findings
    assert (told.rule, told.severity) == ("selector-version", "warning")
    assert checked(selecting("[3, 1].sort() == [1, 3]"), kubernetes=36).findings == []


def test_a_list_of_manifests_is_checked_item_by_item() -> None:
    items = "".join(
        "  - " + text.strip().replace("\n", "\n    ") + "\n" for text in (request("deviceClassName: a"), POD)
    )
    [told] = checked(f"apiVersion: v1\nkind: List\nitems:\n{items}").findings
    assert (told.rule, told.line) == ("exactly-missing", 11)
    [listed] = corrected(f"apiVersion: v1\nkind: List\nitems:\n{items}")
    assert listed["items"][0]["spec"]["devices"]["requests"][0]["exactly"] == {"deviceClassName": "a"}


def a_class(*expressions: str, label: bool = True) -> str:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    meta = {"name": "own", "labels": {"draco.dev/allocator": "operator"} if label else {"team": "a"}}
    return yaml.safe_dump(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": meta,
            "spec": {"selectors": selectors},
        }
    )


OF_NVIDIA = 'device.driver == "gpu.nvidia.com"'
DRACOS = 'device.attributes["draco.dev"].?allocator.orValue("") == "operator"'
HOPPER = f'{OF_NVIDIA} && device.attributes["gpu.nvidia.com"].architecture == "Hopper"'


@pytest.mark.parametrize(
    ("expressions", "label", "rule"),
    [
        ((OF_NVIDIA, DRACOS), True, None),
        ((OF_NVIDIA,), False, None),
        ((HOPPER,), False, None),
        ((f"{HOPPER} && {DRACOS}",), True, None),
        ((f'{OF_NVIDIA} && "draco.dev" in device.attributes',), True, None),
        ((HOPPER,), True, "class-of-both-allocators"),
        # It names the attribute, but also selects other devices.
        ((f"{OF_NVIDIA} && ({DRACOS} || {HOPPER})",), True, "class-of-both-allocators"),
        ((f"{HOPPER} && {DRACOS}",), False, "class-of-no-allocator"),
        ((OF_NVIDIA, DRACOS), False, "class-of-no-allocator"),
        # Nothing is known about a device that no known board publishes.
        ((f'{OF_NVIDIA} && device.attributes["gpu.nvidia.com"].productName == "No GPU"',), True, None),
    ],
)
def test_a_class_leaves_it_certain_who_allocates_its_claims(
    expressions: tuple[str, ...], label: bool, rule: str | None
) -> None:
    assert rules(a_class(*expressions, label=label)) == ({rule} if rule else set())


def test_a_class_that_nobody_allocates_gets_the_label() -> None:
    result = checked(a_class(f"{HOPPER} && {DRACOS}", label=False))
    (corrected,) = yaml.safe_load_all(result.after["manifest.yaml"])
    assert corrected["metadata"]["labels"] == {"team": "a", "draco.dev/allocator": "operator"}
