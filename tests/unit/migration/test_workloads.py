"""Pods that ask the device plugin become pods with claims: each rule, and each reason to leave a pod alone."""

from copy import deepcopy
from typing import Any

import pytest

from draco.cli.lint.edits import EditRound, as_tree
from draco.linting.model import Manifest
from draco.linting.rules import lint
from draco.migration.workloads import WorkloadConversion, convert

GPU = "nvidia.com/gpu"


def container(name: str = "main", /, *, requests: Any = None, **limits: Any) -> dict[str, Any]:
    asked = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in limits.items()}
    resources = {"limits": asked} | ({"requests": requests} if requests else {})
    return {"name": name, "image": "busybox", "resources": resources}


def mig(resource: str, count: int = 1) -> dict[str, Any]:
    return {"name": "main", "image": "busybox", "resources": {"limits": {f"nvidia.com/mig-{resource}": count}}}


def a_pod(*containers: dict[str, Any], inits: Any = (), **spec: Any) -> dict[str, Any]:
    more = {"initContainers": list(inits)} if inits else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train"},
        "spec": {**more, "containers": list(containers or [container(gpu=1)]), **spec},
    }


def applied(*trees: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """The converted manifests, the templates, and the sentences about what stays."""
    found = convert([Manifest(tree=tree) for tree in trees])
    return [edited(index, tree, found) for index, tree in enumerate(trees)], made(found), said(found)


def edited(index: int, tree: dict[str, Any], found: WorkloadConversion) -> Any:
    round_ = EditRound(as_tree(deepcopy(tree)))
    assert [round_.apply(edit) for edit in found.edits.get(index, ())].count("gone") == 0
    return round_.tree


def made(found: WorkloadConversion) -> list[dict[str, Any]]:
    return [each for templates in found.templates.values() for each in templates]


def said(found: WorkloadConversion) -> list[str]:
    return [each.sentence for each in found.left]


def requests(template: dict[str, Any]) -> Any:
    return template["spec"]["spec"]["devices"]["requests"]


def selectors(*pods: dict[str, Any]) -> list[str]:
    (template, *_) = applied(*pods)[1]
    return [each["cel"]["expression"] for each in requests(template)[0]["exactly"].get("selectors", [])]


def refused(pod: dict[str, Any], *others: dict[str, Any]) -> str:
    """The reason why a pod stays as it is."""
    pods, templates, (sentence, *_) = applied(pod, *others)
    assert pods[0] == pod
    assert not templates
    return sentence


def test_a_container_asks_by_a_claim_of_its_own() -> None:
    (pod,), (template,), left = applied(a_pod(container(gpu=1)))
    assert template == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "train-gpu"},
        "spec": {
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
        },
    }
    assert pod["spec"] == {
        "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "train-gpu"}],
    }
    assert not left


def test_several_gpus_are_counted_and_other_resources_stay() -> None:
    asks = container(gpu="4", requests={GPU: 4, "cpu": "1"})
    asks["resources"]["limits"]["memory"] = "1Gi"
    (pod,), (template,), _ = applied(a_pod(asks))
    assert requests(template)[0]["exactly"] | {"deviceClassName": ""} == {
        "deviceClassName": "",
        "allocationMode": "ExactCount",
        "count": 4,
    }
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {"memory": "1Gi"},
        "requests": {"cpu": "1"},
        "claims": [{"name": "gpu"}],
    }


@pytest.mark.parametrize(
    ("resource", "profile"),
    [
        ("1g.5gb", "1g.5gb"),
        ("1g.5gb.me", "1g.5gb+me"),
        ("1g.24gb.me.all", "1g.24gb+me.all"),
        ("2g.24gb-me", "2g.24gb-me"),
    ],
)
def test_a_mig_resource_becomes_its_profile(resource: str, profile: str) -> None:
    (pod,), (template,), _ = applied(a_pod(mig(resource)))
    (request,) = requests(template)
    assert request["exactly"] == {
        "deviceClassName": "mig.nvidia.com",
        "selectors": [{"cel": {"expression": f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'}}],
    }
    assert pod["spec"]["tolerations"][0]["key"] == f"nvidia.com/mig-{resource}"


def test_gpus_and_mig_devices_of_one_container_are_requests_of_one_claim() -> None:
    asks = container(gpu=1)
    asks["resources"]["limits"]["nvidia.com/mig-1g.5gb"] = 2
    _, (template,), _ = applied(a_pod(asks))
    assert [each["name"] for each in requests(template)] == ["gpu", "mig-1g-5gb"]


def test_each_of_several_containers_has_its_claim() -> None:
    (pod,), templates, _ = applied(a_pod(container("a", gpu=1), container("b"), container("c", gpu=2)))
    assert [each["metadata"]["name"] for each in templates] == ["train-a", "train-c"]
    assert [each["resources"].get("claims") for each in pod["spec"]["containers"]] == [
        [{"name": "a"}],
        None,
        [{"name": "c"}],
    ]


def test_an_init_container_shares_the_claim_of_the_container_that_takes_its_devices_over() -> None:
    (pod,), (template,), _ = applied(a_pod(container("main", gpu=2), inits=[container("warm", gpu=2)]))
    assert requests(template)[0]["exactly"]["count"] == 2
    assert pod["spec"]["initContainers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert pod["spec"]["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}


def test_an_init_container_alone_has_a_claim() -> None:
    (pod,), templates, _ = applied(a_pod(container("main"), inits=[container("warm", gpu=1)]))
    assert len(templates) == 1
    assert pod["spec"]["initContainers"][0]["resources"] == {"claims": [{"name": "gpu"}]}


def test_a_sidecar_keeps_the_devices_of_the_init_container_before_it() -> None:
    sidecar = {**container("side", gpu=1), "restartPolicy": "Always"}
    (pod,), templates, _ = applied(a_pod(container("main", gpu=1), inits=[container("warm", gpu=1), sidecar]))
    assert [each["metadata"]["name"] for each in templates] == ["train-side", "train-main"]
    assert [each["resources"]["claims"][0]["name"] for each in pod["spec"]["initContainers"]] == ["side", "side"]


def test_unlike_amounts_of_an_init_container_are_refused() -> None:
    sentence = refused(a_pod(container("main", gpu=2), inits=[container("warm", gpu=1)]))
    assert "init container warm and container main ask for unlike numbers" in sentence


def test_an_entry_and_a_template_never_take_a_name_that_is_there() -> None:
    other = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "train-gpu-2"},
        "spec": {"spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nics"}}]}}},
    }
    nics = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "nics"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "nic.example.com"'}}]},
    }
    pod = a_pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "train-gpu-2"}])
    (found, *_), (template,), _ = applied(pod, other, nics)
    assert template["metadata"]["name"] == "train-gpu-2-2"
    assert found["spec"]["resourceClaims"][1] == {"name": "gpu-2", "resourceClaimTemplateName": "train-gpu-2-2"}


def test_workloads_of_one_name_have_templates_of_their_own() -> None:
    _, templates, _ = applied(a_pod(), a_pod())
    assert [each["metadata"]["name"] for each in templates] == ["train-gpu", "train-gpu-2"]


@pytest.mark.parametrize(
    "present",
    [
        {"operator": "Exists"},
        {"key": GPU, "operator": "Exists"},
        {"key": GPU, "operator": "Exists", "effect": "NoSchedule"},
    ],
)
def test_a_toleration_that_is_there_is_enough(present: dict[str, str]) -> None:
    ((pod, *_), *_) = applied(a_pod(tolerations=[present]))
    assert pod["spec"]["tolerations"] == [present]


@pytest.mark.parametrize(
    "other", [{"key": GPU, "operator": "Exists", "effect": "NoExecute"}, {"key": GPU, "value": "present"}]
)
def test_another_toleration_is_not(other: dict[str, str]) -> None:
    ((pod, *_), *_) = applied(a_pod(tolerations=[other]))
    assert pod["spec"]["tolerations"] == [other, {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]


def test_a_node_selector_of_labels_that_devices_have_becomes_selectors_of_every_claim() -> None:
    chosen = {"nvidia.com/gpu.product": "NVIDIA-A30", "nvidia.com/gpu.present": "true", "zone": "a"}
    (pod,), templates, left = applied(a_pod(container("a", gpu=1), container("b", gpu=1), nodeSelector=chosen))
    assert pod["spec"]["nodeSelector"] == {"zone": "a"}
    expression = 'device.attributes["gpu.nvidia.com"].productName.replace(" ", "-") == "NVIDIA-A30"'
    for template in templates:
        assert requests(template)[0]["exactly"]["selectors"] == [{"cel": {"expression": expression}}]
    assert not left


def terms(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": each} for each in terms]
            }
        }
    }


def match(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": f"nvidia.com/{key}", "operator": operator} | ({"values": list(values)} if values else {})


def test_a_required_term_becomes_selectors_and_no_empty_term_is_left() -> None:
    pod = a_pod(affinity=terms([match("gpu.family", "In", "hopper"), match("cuda.driver.major", "Gt", "549")]))
    ((found, *_), _, left) = applied(pod)
    assert "affinity" not in found["spec"]
    assert selectors(pod) == [
        'device.attributes["gpu.nvidia.com"].architecture == "Hopper"',
        'device.attributes["gpu.nvidia.com"].driverVersion.major() > 549',
    ]
    assert not left


def test_what_is_left_of_a_term_stays() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    ((found, *_), *_) = applied(a_pod(affinity=terms([match("gpu.product", "Exists"), zone])))
    assert found["spec"]["affinity"] == terms([zone])


def test_alternative_terms_stay_and_are_said() -> None:
    affinity = terms([match("gpu.family", "In", "hopper")], [match("gpu.family", "In", "ampere")])
    ((found, *_), _, left) = applied(a_pod(affinity=affinity))
    assert found["spec"]["affinity"] == affinity
    assert len(left) == 2
    assert "are alternatives, so nvidia.com/gpu.family goes on choosing nodes" in left[0]


def test_preferences_stay_and_are_said() -> None:
    preferred = [{"weight": 1, "preference": {"matchExpressions": [match("gpu.family", "In", "hopper")]}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    ((found, *_), _, (sentence,)) = applied(a_pod(affinity=affinity))
    assert found["spec"]["affinity"] == affinity
    assert "it prefers nodes by nvidia.com/gpu.family" in sentence


def test_a_label_about_the_node_stays_and_is_said() -> None:
    ((found, *_), _, (sentence,)) = applied(a_pod(nodeSelector={"nvidia.com/gpu.count": "8"}))
    assert found["spec"]["nodeSelector"] == {"nvidia.com/gpu.count": "8"}
    assert "no attribute of a device says what nvidia.com/gpu.count says" in sentence


def test_a_label_that_admins_set_stays() -> None:
    ((found, *_), _, left) = applied(a_pod(nodeSelector={"nvidia.com/mig.config": "all-balanced"}))
    assert found["spec"]["nodeSelector"] == {"nvidia.com/mig.config": "all-balanced"}
    assert not left


def test_the_memory_of_the_gpu_is_not_that_of_a_mig_device() -> None:
    ((found, *_), _, (sentence,)) = applied(a_pod(mig("1g.5gb"), nodeSelector={"nvidia.com/gpu.memory": "40960"}))
    assert found["spec"]["nodeSelector"] == {"nvidia.com/gpu.memory": "40960"}
    assert "of which a MIG device has a part" in sentence


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"nodeName": "node-1"}, "nodeName binds its pods without kube-scheduler"),
        ({"volumes": [{"name": "mps", "hostPath": {"path": "/tmp/nvidia-mps/"}}]}, "uses the MPS daemon of its node"),
        ({"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4-SHARED"}}, "nvidia.com/gpu is a part of a GPU"),
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A30-MIG-1g.6gb"}}, "nvidia.com/gpu is a part of a GPU"),
        (
            {"resourceClaims": [{"name": "gpus", "resourceClaimName": "unknown"}]},
            "it asks both ways: gpus may claim GPUs",
        ),
    ],
)
def test_a_pod_whose_devices_claims_cannot_give_stays(spec: dict[str, Any], why: str) -> None:
    assert why in refused(a_pod(**spec))


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        (container(gpu=1, requests={GPU: 2}), "requests another amount of nvidia.com/gpu than its limit"),
        (container(requests={GPU: 1}), "requests nvidia.com/gpu without a limit"),
        (container(gpu="half"), "half is not a number of devices"),
        (container(gpu="500m"), "500m is not a number of devices"),
        (container(gpu=33), "asks for 33 devices, and a claim has at most 32"),
        (container(**{"gpu.shared": 1}), "nvidia.com/gpu.shared is a part of a GPU"),
        (container(gpu=1, gpumem=3000), "nvidia.com/gpumem is no resource of NVIDIA's device plugin"),
        (mig("1c.3g.40gb"), "a part of an instance's compute slices"),
        (mig("small"), "names no MIG profile"),
    ],
)
def test_an_amount_that_no_claim_can_ask_for_is_refused(asks: dict[str, Any], why: str) -> None:
    assert why in refused(a_pod(asks))


def test_a_pod_that_claims_gpus_already_asks_both_ways() -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "mine"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    }
    assert "it asks both ways: gpus claims GPUs" in refused(
        a_pod(resourceClaims=[{"name": "gpus", "resourceClaimName": "mine"}]), claim
    )


def test_a_runtime_class_stays_and_is_said() -> None:
    ((found, *_), _, (sentence,)) = applied(a_pod(runtimeClassName="nvidia"))
    assert found["spec"]["runtimeClassName"] == "nvidia"
    assert sentence.startswith("runtimeClassName nvidia stays.")


def test_a_container_that_sees_all_gpus_without_asking_is_said() -> None:
    watcher = {**container("dcgm"), "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    assert "container dcgm sees all GPUs of its node" in refused(a_pod(watcher))
    assert not applied(a_pod({**watcher, "resources": {"claims": [{"name": "gpus"}]}}))[2]


def test_a_quota_of_the_resource_is_said_with_the_quota_of_devices() -> None:
    hard = {"requests.nvidia.com/gpu": 8, "requests.nvidia.com/mig-1g.5gb": "4", "cpu": 1}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    _, _, (gpus, instances) = applied(quota)
    assert "add `gpu.nvidia.com.deviceclass.resource.k8s.io/devices: 8`" in gpus
    assert "add `mig.nvidia.com.deviceclass.resource.k8s.io/devices: 4` for all profiles together" in instances


def test_a_field_from_which_a_controller_makes_pods_is_said() -> None:
    model = {"resources": {"limits": {GPU: 1}, "requests": {"cpu": 1}}}
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "llm"},
        "spec": {"predictor": {"model": model}},
    }
    assert "spec.predictor.model.resources.limits is no part of a pod" in refused(service)


def test_an_amount_of_zero_asks_for_nothing() -> None:
    pod = a_pod(container(gpu=0))
    service = {"kind": "InferenceService", "spec": {"model": {"resources": {"limits": {GPU: "0"}}}}}
    found, templates, left = applied(pod, service)
    assert found == [pod, service]
    assert not [*templates, *left]


@pytest.mark.parametrize("odd", [None, "text", 7, ["text", None], {"text": None}])
@pytest.mark.parametrize(
    "field",
    ["nodeSelector", "affinity", "tolerations", "resourceClaims", "volumes", "initContainers", "runtimeClassName"],
)
def test_fields_of_another_shape_stop_nothing(field: str, odd: Any) -> None:
    _, templates, _ = applied(a_pod(**{field: odd}))
    assert len(templates) == 1


TEMPLATE: dict[str, Any] = {"spec": {"containers": [container(gpu=1)]}}


@pytest.mark.parametrize(
    ("kind", "spec", "names"),
    [
        *(
            (kind, {"template": TEMPLATE}, ["train-gpu"])
            for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
        ),
        ("Job", {"template": TEMPLATE}, ["train-gpu"]),
        ("CronJob", {"jobTemplate": {"spec": {"template": TEMPLATE}}}, ["train-gpu"]),
        (
            "PyTorchJob",
            {
                "pytorchReplicaSpecs": {
                    "Master": {"template": TEMPLATE},
                    "Worker": {"replicas": 3, "template": TEMPLATE},
                }
            },
            ["train-master-gpu", "train-worker-gpu"],
        ),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {"name": each, "template": {"spec": {"template": TEMPLATE}}} for each in ("lead", "work")
                ]
            },
            ["train-lead-gpu", "train-work-gpu"],
        ),
        (
            "RayCluster",
            {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [{"groupName": "big", "template": TEMPLATE}]},
            ["train-headgroupspec-gpu", "train-big-gpu"],
        ),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"template": TEMPLATE}}}, ["train-gpu"]),
    ],
)
def test_the_pods_of_every_workload_are_converted(kind: str, spec: dict[str, Any], names: list[str]) -> None:
    workload = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "train", "namespace": "team"}, "spec": spec}
    (found,), templates, left = applied(workload)
    assert [each["metadata"] for each in templates] == [{"name": name, "namespace": "team"} for name in names]
    assert GPU not in str(found).replace(f"'key': '{GPU}'", "")
    assert not left


def test_what_is_converted_has_no_findings_and_is_not_converted_again() -> None:
    labels = {"gpu.memory": "81559", "cuda.driver.major": "580", "gpu.compute.minor": "0"}
    chosen = {f"nvidia.com/{label}": value for label, value in labels.items()}
    pods, templates, _ = applied(a_pod(container("a", gpu=2), container("b", gpu=1), nodeSelector=chosen))
    plain = [Manifest(tree=_plain(each)) for each in (*templates, *pods)]
    assert not lint(plain, kubernetes=36)
    again = convert(plain)
    assert not any(again.edits.values())
    assert not again.left


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
