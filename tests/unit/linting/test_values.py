"""Findings about values and misplaced fields, and their corrections: only those that lose nothing."""

from typing import Any

import pytest
import yaml

from draco.cli.input.manifests import decode_all
from draco.resources.texts import slip_of
from draco.resources.written.manifests import ManifestError
from tests.unit.linting.test_rules import CLAIM, POD, RULE, TEMPLATE, checked, corrected, request, rules


@pytest.mark.parametrize("effect", ["Noschedule", "PreferNoSchedule", "NoExecutes", ""])
def test_an_effect_is_never_replaced(effect: str) -> None:
    [told] = checked(RULE.replace("NoSchedule", effect or '""')).findings
    assert (told.rule, told.corrected) == ("value", False)


@pytest.mark.parametrize(
    ("written", "is_corrected"),
    [
        ("Device: gpu-0", True),
        ("devcie: gpu-0", True),
        ("deviceName: gpu-0", False),
        ("name: gpu-0", False),
        ("uuid: GPU-1234", False),
        ("nodeName: node-0", False),
        ("productName: NVIDIA H100", False),
    ],
)
def test_a_selector_of_a_taint_rule_is_corrected_only_where_nothing_is_lost(written: str, is_corrected: bool) -> None:
    [told] = checked(RULE.replace("device: gpu-0", written)).findings
    assert (told.rule, told.corrected) == ("unknown-field", is_corrected)
    if not is_corrected:
        assert "a taint rule selects only by driver, pool (mostly the node's name) and device" in told.message


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("deviceclassname", "deviceClassName"),
        ("device_class_name", "deviceClassName"),
        ("deviceClass", "deviceClassName"),
        ("deviceClassNam", "deviceClassName"),
        ("deviecClassName", "deviceClassName"),
        ("deviceName", ""),
        ("productName", ""),
        ("className", ""),
    ],
)
def test_a_field_is_corrected_where_it_is_a_slip_and_told_where_it_may_be_another_word(
    written: str, meant: str
) -> None:
    claim = CLAIM.replace("deviceClassName", written)
    [told] = [each for each in checked(claim).findings if each.rule == "unknown-field"]
    assert told.corrected == bool(meant)
    if meant:
        assert corrected(claim)[0]["spec"]["devices"]["requests"][0]["exactly"] == {meant: "gpu.nvidia.com"}


@pytest.mark.parametrize(
    ("written", "names", "meant"),
    [
        ("gpus", ["gpu", "nic"], "gpu"),
        ("GPU", ["gpu"], "gpu"),
        ("gpu1", ["gpu", "gpu-2"], ""),  # a number makes two names different
        ("gpu-1", ["gpu-2"], ""),
        ("train-a", ["train-b"], ""),
        ("tarin", ["train"], "train"),
        ("gp", ["gpu", "gpt"], ""),
        ("partition3", ["partition1", "partition2"], ""),
        ("a", ["ab"], ""),
        ("", ["gpu"], ""),
    ],
)
def test_a_slip_is_told_from_another_word(written: str, names: list[str], meant: str) -> None:
    assert slip_of(written, names) == meant


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("memory: 10Gi", ""),
        ("memory: 1Mi", ""),
        ("memory: 1.5Gi", ""),
        ("shares: 2", ""),
        ("example.com/slots: 0.5", ""),
        ("memory: 0", "asks for 0 of memory, and gets the least that a device gives: write the amount that it needs"),
        ("memory: -1Gi", "asks for -1Gi of memory, and gets the least"),
        ("gpu.nvidia.com/memory: 10", "which is 10 bytes: write a unit, such as Gi or Mi"),
        ("memory: 1.5", "asks for 1.5 of memory, which is 2 bytes"),
        ("memory: 512Ki", "which is 524288 bytes"),
        ("shares: -1", "asks for -1 of shares, and gets the least"),
        ("shares: 1.5", "asks for 1.5 of shares, and shares are whole: Kubernetes rounds up, so write 2"),
    ],
)
def test_an_amount_that_nobody_means_is_told(asked: str, said: str) -> None:
    """The API server takes every quantity, and kube-scheduler rounds these up without a word."""
    claim = CLAIM.replace("gpu.nvidia.com}", f"gpu.nvidia.com, capacity: {{requests: {{{asked}}}}}}}")
    found = [(each.rule, each.severity, each.message) for each in checked(claim).findings]
    assert len(found) == bool(said)
    for rule, severity, message in found:
        assert (rule, severity) == ("capacity-amount", "warning")
        assert said in message


NESTED = TEMPLATE.replace("ResourceClaimTemplate", "ResourceClaim")


def test_a_claim_with_a_templates_spec_becomes_what_pods_name_it() -> None:
    devices = yaml.safe_load(CLAIM)["spec"]
    assert rules(NESTED) == {"field-place"}
    [told] = checked(NESTED).findings
    assert "or write kind: ResourceClaimTemplate if pods name it in resourceClaimTemplateName" in told.message
    [alone] = corrected(NESTED)
    assert (alone["kind"], alone["spec"]) == ("ResourceClaim", devices)
    assert corrected(NESTED, POD)[0]["spec"] == devices
    by_template = POD.replace("resourceClaimName", "resourceClaimTemplateName")
    [made, _] = corrected(NESTED, by_template)
    assert (made["kind"], made["spec"]) == ("ResourceClaimTemplate", {"spec": devices})
    elsewhere = by_template.replace("{name: pod}", "{name: pod, namespace: other}")
    assert "kind: ResourceClaim\n" in checked(NESTED, elsewhere).after["manifest.yaml"]


def test_nothing_is_moved_onto_what_is_there() -> None:
    both = NESTED.replace("spec:\n  spec:", "spec:\n  devices: {requests: []}\n  spec:")
    assert both != NESTED
    assert not any(each.corrected for each in checked(both).findings if each.rule == "field-place")


SLICE = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: a}
spec:
  driver: gpu.example.com
  nodeName: node-0
  pool: {name: node-0, generation: 1, resourceSliceCount: 1}
  devices:
    - name: gpu-0
      attributes: {numa: {int: 1}}
      capacity: {memory: {value: 6Gi}}
"""


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (SLICE.replace("numa:", "numa-1:"), 'spec.devices[0].attributes[numa-1] "numa-1" cannot name an attribute'),
        (SLICE.replace("6Gi", "a lot"), 'spec.devices[0].capacity[memory].value "a lot" is not a quantity'),
        (SLICE.replace("int: 1", 'version: "8.0"'), '"8.0" is not a semantic version'),
        (SLICE.replace("nodeName: node-0", "allNodes: certainly"), "spec.allNodes must be true or false, not a string"),
        (
            SLICE.replace("  nodeName: node-0\n", "  nodeName: node-0\n  allNodes: true\n"),
            "must have exactly one of nodeName",
        ),
        (SLICE.replace("name: gpu-0", "name: GPU_0"), '"GPU_0" is not a device name'),
        (
            CLAIM.replace("nvidia.com}", "nvidia.com, tolerations: [{key: a, operator: Equals}]}"),
            "write Exists or Equal",
        ),
        (CLAIM.replace("nvidia.com}", "nvidia.com, capacity: {requests: {memory: lots}}}"), '"lots" is not a quantity'),
        (RULE.replace("example.com/suspect", '"no good"'), '"no good" is not a label key'),
    ],
)
def test_a_value_that_an_api_server_refuses_is_told_at_its_place(written: str, said: str) -> None:
    [told] = checked(written).findings
    assert (told.rule, told.corrected) == ("value", False)
    assert said in told.message
    assert rules(SLICE) == set()


@pytest.mark.parametrize(
    ("written", "meant"), [("6 Gi", "6Gi"), ("6 GiB", "6Gi"), ("40GB", "40G"), ("500 m", "500m"), ("500mb", "500M")]
)
def test_an_amount_is_corrected_where_nothing_is_lost(written: str, meant: str) -> None:
    [changed] = corrected(SLICE.replace("6Gi", written))
    assert changed["spec"]["devices"][0]["capacity"] == {"memory": {"value": meant}}
    [changed] = corrected(CLAIM.replace("nvidia.com}", f"nvidia.com, capacity: {{requests: {{rate: {written}}}}}}}"))
    assert changed["spec"]["devices"]["requests"][0]["exactly"]["capacity"] == {"requests": {"rate": meant}}


def test_a_value_of_a_workload_s_pod_is_told_where_its_template_has_it() -> None:
    written = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 3 * * *"
  jobTemplate:
    spec:
      template:
        spec:
          containers: [{name: main, image: busybox}]
          nodeSelector:
            kubernetes.io/hostname: a-name-of-a-node-that-is-far-too-long-for-a-label.eu-central-1.compute.internal
"""
    [told] = [each for each in checked(written).findings if each.rule == "value"]
    assert told.line == 12
    assert told.message.startswith("spec.jobTemplate.spec.template.spec.nodeSelector[kubernetes.io/hostname] ")


@pytest.mark.parametrize("written", ["6 Gi", "6 GiB", "40g", "lots"])
def test_readers_of_files_refuse_an_amount_in_the_words_of_lint(written: str) -> None:
    text = SLICE.replace("6Gi", written)
    [told] = checked(text).findings
    with pytest.raises(ManifestError) as refused:
        decode_all([(yaml.safe_load(text), "f")], "default")
    assert str(refused.value) == f"f: ResourceSlice a: {told.message}."


def test_everything_is_told_at_once_and_nothing_twice() -> None:
    written = SLICE.replace("numa:", "numa-1:").replace("6Gi", "a lot")
    assert [each.rule for each in checked(written).findings] == ["value", "value"]
    assert rules(request("exactly: {deviceClassName: a, count: 0, allocationMode: Some}")) == {
        "count",
        "allocation-mode",
    }
    assert rules(RULE.replace("NoSchedule", "Never")) == {"value"}


def test_a_name_that_is_published_twice_is_told_where_the_values_differ() -> None:
    both = "{numa: {int: 1}, gpu.example.com/numa: {int: 2}}"
    [told] = checked(SLICE.replace("{numa: {int: 1}}", both)).findings
    assert (told.rule, told.severity, told.line) == ("published-twice", "warning", 11)
    assert "gpu-0 is published with different values of numa and gpu.example.com/numa" in told.message
    assert rules(SLICE.replace("{numa: {int: 1}}", both.replace("2", "1"))) == set()


@pytest.mark.parametrize(
    ("manifest", "wrong", "right"),
    [
        (
            request("firstAvailable: [{name: a, exactly: {deviceClassName: gpu.nvidia.com}}]"),
            "exactly is not a field of spec.devices.requests[0].firstAvailable[0]: move what is below it up one level",
            {"name": "a", "deviceClassName": "gpu.nvidia.com"},
        ),
        (
            (
                "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: a}\n"
                "spec: {spec: {extendedResourceName: example.com/gpu}}"
            ),
            "spec is not a field of spec: move what is below it up one level",
            {"extendedResourceName": "example.com/gpu"},
        ),
    ],
)
def test_a_level_too_many_is_removed(manifest: str, wrong: str, right: Any) -> None:
    [told] = checked(manifest).findings
    assert (told.rule, told.message) == ("field-place", wrong)
    spec = corrected(manifest)[0]["spec"]
    assert right in (spec, spec.get("devices", {}).get("requests", [{}])[0].get("firstAvailable", [None])[0])


def test_a_level_that_holds_anything_else_or_would_replace_something_stays() -> None:
    other = "firstAvailable: [{name: a, exactly: {deviceClassName: b, colour: red}}]"
    there = "firstAvailable: [{name: a, deviceClassName: c, exactly: {deviceClassName: b}}]"
    assert not any(each.corrected for text in (other, there) for each in checked(request(text)).findings)


def test_the_amount_of_a_counter_stands_in_its_value() -> None:
    head = "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: a}\n"
    pool = "spec: {driver: a.b, nodeName: n1, pool: {name: n1, generation: 1, resourceSliceCount: 2}, "
    manifest = f"{head}{pool}sharedCounters: [{{name: set, counters: {{memory: 40Gi, cores: 4}}}}]}}"
    assert rules(manifest) == {"field-form"}
    counters = corrected(manifest)[0]["spec"]["sharedCounters"][0]["counters"]
    assert counters == {"memory": {"value": "40Gi"}, "cores": {"value": 4}}


@pytest.mark.parametrize(
    ("resources", "wrong"),
    [
        ("{limits: {memory: 6 GiB}}", 'limits[memory] "6 GiB" is not a quantity: write 6Gi'),
        (
            "{limits: {nvidia.com/gpu: 0.5}}",
            "limits[nvidia.com/gpu] is 0.5: an extended resource is counted in whole numbers",
        ),
        ("{requests: {nvidia.com/gpu: 1}}", "requests[nvidia.com/gpu] must equal the limit of this extended resource"),
        (
            "{limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 2}}",
            "requests[nvidia.com/gpu] must equal the limit",
        ),
        ("{limits: {nvidia.com/gpu: 1, cpu: 0.5}, requests: {nvidia.com/gpu: '1', memory: 1Gi}}", ""),
    ],
)
def test_amounts_of_containers_are_checked_where_they_are_written(resources: str, wrong: str) -> None:
    pod = f"spec: {{containers: [{{name: c, image: i, resources: {resources}}}]}}"
    alone = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\n{pod}"
    within = f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec: {{template: {{{pod}}}}}"
    for manifest, place in ((alone, ""), (within, "spec.template.")):
        found = checked(manifest).findings
        assert len(found) == bool(wrong)
        assert all(each.message.startswith(f"{place}spec.containers[0].resources.{wrong}") for each in found)


def test_fields_of_older_versions_are_not_offered() -> None:
    [told] = checked(CLAIM.replace("  devices:", "  colour: red\n  devices:")).findings
    assert told.message == "there is no field colour of spec: there are devices"
    [told] = checked(POD.replace("resourceClaimName: gpu", "claim: gpu")).findings
    assert told.message.endswith("there are name, resourceClaimName, resourceClaimTemplateName")


@pytest.mark.parametrize("field", ["adminAccess: true", "count: 2", "tolerations: []"])
def test_a_field_of_a_request_beside_the_requests_is_told_its_place(field: str) -> None:
    told = checked(CLAIM.replace("spec:\n", f"spec:\n  {field}\n")).findings[0]
    assert (told.rule, told.corrected) == ("field-place", False)
    assert told.message.endswith("it belongs to spec.devices.requests[].exactly")


@pytest.mark.parametrize("field", ["spec: {devices: {}}", "deviceClassName: gpu.nvidia.com", "devices: {requests: []}"])
def test_a_claim_inside_of_a_pod_becomes_a_template(field: str) -> None:
    [told] = checked(POD.replace("resourceClaimName: gpu", field)).findings
    assert "a pod cannot contain a claim; write a ResourceClaimTemplate" in told.message


def test_a_list_of_one_in_place_of_a_mapping_becomes_it_with_its_comments() -> None:
    wrong = RULE.replace("taint: {key", "taints:\n  # for repair\n  - {key")
    assert corrected(wrong)[0] == yaml.safe_load(RULE)
    assert "# for repair" in checked(wrong).after["manifest.yaml"]


@pytest.mark.parametrize(
    ("manifest", "advice"),
    [
        (request("exactly: [{deviceClassName: a}, {deviceClassName: b}]"), "list them in firstAvailable if one"),
        (
            RULE.replace("taint: {", "taint: [{key: a, effect: None}, {").replace("NoSchedule}", "NoSchedule}]"),
            "a rule for each",
        ),
    ],
)
def test_a_list_of_several_in_place_of_a_mapping_is_not_guessed(manifest: str, advice: str) -> None:
    [told] = checked(manifest).findings
    assert (told.rule, told.corrected) == ("field-form", False)
    assert advice in told.message


@pytest.mark.parametrize(
    ("spec", "rules_told"),
    [
        ("selector: {driver: gpu.nvidia.com, pool: node-0, device: gpu-0}", ["unknown-field"]),
        ("deviceSelector: {driverName: gpu.nvidia.com, pool: node-0, device: gpu-0}", ["unknown-field"]),
    ],
)
def test_the_selector_of_a_rule_under_a_near_name_is_corrected(spec: str, rules_told: list[str]) -> None:
    wrong = RULE.replace("deviceSelector: {driver: gpu.nvidia.com, pool: node-0, device: gpu-0}", spec)
    assert [told.rule for told in checked(wrong).findings] == rules_told
    assert corrected(wrong)[0] == yaml.safe_load(RULE)


def test_a_selector_of_unknown_fields_alone_is_not_called_empty() -> None:
    [told] = checked(RULE.replace("driver: gpu.nvidia.com, pool: node-0, device: gpu-0", "uuid: GPU-1234")).findings
    assert told.rule == "unknown-field"


@pytest.mark.parametrize(("effect", "is_kept_off"), [("NoSchedule", True), ("NoExecute", True), ("None", False)])
def test_a_rule_without_selector_is_told_what_kube_scheduler_makes_of_it(effect: str, is_kept_off: bool) -> None:
    rule = "\n".join(line for line in RULE.splitlines() if "deviceSelector" not in line).replace("NoSchedule", effect)
    [told] = checked(rule).findings
    assert "so it taints no device" in told.message
    assert ("kubernetes#141620" in told.message) == is_kept_off


def test_a_rule_of_1_34_has_its_taint_checked_too_and_its_expression_quoted_for_a_shell() -> None:
    old = RULE.replace("effect", "value: a b, effect").replace(
        "device: gpu-0}", "selectors: [{cel: {expression: \"device.attributes['gpu.nvidia.com'].uuid == 'GPU-1'\"}}]}"
    )
    told = {each.rule: each.message for each in checked(old).findings}
    assert told.keys() == {"value", "taint-rule-selector"}
    assert 'eval \'device.attributes["gpu.nvidia.com"].uuid == "GPU-1"\'`' in told["taint-rule-selector"]


def test_alternatives_get_names_that_differ() -> None:
    several = request(
        "firstAvailable: [{deviceClassName: a}, {name: choice-1, deviceClassName: b}, {deviceClassName: c}]"
    )
    [claim] = corrected(several)
    names = [each["name"] for each in claim["spec"]["devices"]["requests"][0]["firstAvailable"]]
    assert names == ["choice-0", "choice-1", "choice-2"]


def test_a_class_named_like_an_extended_resource_is_told_so() -> None:
    [told] = checked(request("exactly: {deviceClassName: nvidia.com/gpu}")).findings
    assert "is an extended resource, not a DeviceClass" in told.message


@pytest.mark.parametrize(
    ("label", "advice"),
    [
        ('resource.k8s.io/admin-access: "true"', "; resource.k8s.io/admin-access has no effect"),
        (
            "resource.kubernetes.io/admin-access: true",
            'write resource.kubernetes.io/admin-access: "true" with the quotes',
        ),
    ],
)
def test_a_namespace_with_a_label_that_permits_nothing_is_told_the_right_one(label: str, advice: str) -> None:
    namespace = f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: default, labels: {{{label}}}}}\n"
    [told] = checked(namespace, request("exactly: {deviceClassName: gpu.nvidia.com, adminAccess: true}")).findings
    assert told.rule == "admin-access"
    assert told.message.endswith(advice)


def test_what_only_its_author_can_correct_in_a_selector_is_not_said_again_by_the_compiler() -> None:
    claim = request(
        'exactly: {deviceClassName: a, selectors: [{cel: {expression: \'device.attributes["m"] == "x"\'}}]}'
    )
    [told] = checked(claim).findings
    assert told.rule == "attribute-domain"


def test_the_driver_of_an_unknown_class_is_that_of_the_claims_configuration() -> None:
    expression = 'device.capacity["memory"] >= quantity("32Gi")'
    claim = request(f"exactly: {{deviceClassName: a, selectors: [{{cel: {{expression: '{expression}'}}}}]}}")
    config = "    config: [{opaque: {driver: gpu.example.com, parameters: {}}}]\n"
    [fixed] = corrected(claim + config)
    selector = fixed["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]
    assert selector["cel"]["expression"] == (
        'device.capacity["gpu.example.com"].memory.compareTo(quantity("32Gi")) >= 0'
    )


@pytest.mark.parametrize(
    "written", ['device.attributes["gpu.nvidia.com"].parentUUID', "device.attributes['gpu.nvidia.com'].parentUuid"]
)
def test_an_expression_in_a_constraint_becomes_the_name_that_it_reads(written: str) -> None:
    claim = CLAIM + f"    constraints: [{{matchAttribute: {written!r}}}]\n"
    assert corrected(claim)[0]["spec"]["devices"]["constraints"] == [{"matchAttribute": "gpu.nvidia.com/parentUUID"}]


def test_an_amount_beside_the_requests_of_a_capacity_is_moved_into_them() -> None:
    [claim] = corrected(request("exactly: {deviceClassName: gpu.nvidia.com, capacity: {memory: 6Gi}}"))
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] == {"requests": {"memory": "6Gi"}}


def test_claim_templates_inside_of_a_workload_are_told_to_be_objects() -> None:
    workload = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec: {resourceClaimTemplates: [], template: {}}\n"
    [told] = checked(workload).findings
    assert "write each as a ResourceClaimTemplate of its own" in told.message


def test_a_driver_of_a_class_is_told_to_be_in_a_selector() -> None:
    [told] = checked(
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: a}\nspec: {driver: gpu.example.com}\n"
    ).findings
    assert "a class compares the driver in a selector" in told.message


def test_how_long_a_taint_is_tolerated_is_told_to_be_in_a_toleration() -> None:
    [told] = checked(RULE.replace("effect", "tolerationSeconds: 60, effect")).findings
    assert "is in a toleration of its request" in told.message


@pytest.mark.parametrize(
    ("claims", "is_refused"),
    [
        ("[{name: gpu}, {name: gpu}]", True),
        ("[{name: gpu}, {name: gpu, request: gpu}]", True),
        ("[{name: gpu, request: gpu}, {name: gpu}]", True),
        ("[{name: gpu, request: gpu}, {name: gpu, request: gpu}]", True),
        ("[{name: gpu, request: gpu}, {name: gpu, request: b}]", False),
    ],
)
def test_an_entry_that_a_container_takes_twice_is_told(claims: str, is_refused: bool) -> None:
    pod = POD.replace("\n          - name: gpu\n", f" {claims}\n")
    assert ("container-claim" in rules(pod)) == is_refused


DIVIDED = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: a}
spec:
  driver: gpu.nvidia.com
  nodeName: node-0
  pool: {name: node-0, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {uuid: {string: GPU-0}}}
  - {name: gpu-1, attributes: {uuid: {string: GPU-1}}}
  - {name: mig-0, attributes: {uuid: {string: MIG-0}, parentUUID: {string: GPU-0}}}
"""
SHARED = "consumesCounters: [{counterSet: gpu-0, counters: {memory: {value: 1}}}]"


def test_a_gpu_beside_its_partitions_without_common_counters_is_told() -> None:
    [told] = checked(DIVIDED).findings
    assert (told.rule, told.severity) == ("whole-and-divided", "warning")
    assert told.message.startswith("gpu-0 and its partitions mig-0 consume no common counters")
    counted = DIVIDED.replace("{name: gpu-0,", f"{{name: gpu-0, {SHARED},").replace(
        "{name: mig-0,", f"{{name: mig-0, {SHARED},"
    )
    assert checked(counted).findings == []


def test_the_configuration_of_the_mig_manager_is_told_to_become_a_policy() -> None:
    [told] = checked("version: v1\nmig-configs: {all-1g.10gb: [{devices: all}]}\n").findings
    assert "`draco migrate mig-parted` writes its layouts as MigPolicies" in told.message


def test_a_policy_that_cannot_be_read_is_told_with_its_place() -> None:
    policy = "apiVersion: draco.dev/v1alpha1\nkind: MigPolicy\nmetadata: {name: a}\nspec: {mode: static}\n"
    [told] = checked(policy).findings
    assert (told.rule, told.line) == ("value", 4)
    assert "it must be Disabled, Static or Dynamic" in told.message
    assert checked(policy.replace("static", "Dynamic")).findings == []
