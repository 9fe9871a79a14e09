"""What the operator's token can run: exactly what an administrator's template says, on a GPU's node.

The Jobs are those that the operator creates from a template as the API server returns it. Each attempt changes one field.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from draco.kube.errors import ApiError, Forbidden, Invalid
from draco.maintenance.progress import Purpose
from draco.maintenance.working.jobs import JobTarget
from draco.maintenance.working.manifests import claim_manifest, job_manifest
from draco.resources.api.jobs import CronJob
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceToleration
from draco.resources.kinds import CLAIMS
from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES
from tests.builders import a_device_key, a_maintenance
from tests.component.chart.stolen import JOB_SPACE, OTHER, Cluster
from tests.component.chart.thefts import JOBS, a_cluster
from tests.versions import OLDEST, on

Body = dict[str, Any]
PATH = f"/apis/batch/v1/namespaces/{JOB_SPACE}/cronjobs"
DIFFERENT = "may create only Jobs that equal their template"


@pytest.fixture(scope="module", params=on(DEFAULT_KUBERNETES, OLDEST))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The oldest and the newest API server, with the chart and templates."""
    with a_cluster(request.param, tmp_path_factory.mktemp(f"jobs-{request.param}")) as made:
        yield made


def made_from(cluster: Cluster, template: str, purpose: Purpose = Purpose.VERIFICATION) -> Body:
    """The Job that the operator creates."""
    found = msgspec.convert(cluster.call("GET", f"{PATH}/{template}"), CronJob)
    target = JobTarget(a_device_key("node-0/gpu-0"), "GPU-01234567-89ab-cdef-0123-456789abcdef")
    made = job_manifest(a_maintenance(), purpose, target, found, namespace=JOB_SPACE, node=OTHER)
    body: Body = msgspec.to_builtins(made)
    return body


def pod(body: Body) -> Body:
    found: Body = body["spec"]["template"]["spec"]
    return found


def main(body: Body) -> Body:
    found: Body = pod(body)["containers"][0]
    return found


def terms(body: Body) -> list[Body]:
    required = pod(body)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found: list[Body] = required["nodeSelectorTerms"]
    return found


async def create(cluster: Cluster, body: Body) -> Body:
    """Create the Job with the operator's token and delete it."""
    async with cluster.holding("working") as operator:
        made: Body = await operator.create(JOBS, body)
        await operator.delete(JOBS, ObjectKey(JOB_SPACE, body["metadata"]["name"]), propagation="Background")
    return made


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize("template", ["plain", "rich"])
async def test_a_job_that_is_like_its_template_is_made(cluster: Cluster, template: str, purpose: Purpose) -> None:
    await create(cluster, made_from(cluster, template, purpose))


DIFFERENCES: dict[str, Callable[[Body], Any]] = {
    "another image": lambda body: main(body).update(image="registry.example/mine"),
    "another command": lambda body: main(body).update(command=["sh", "-c", "id"]),
    "arguments": lambda body: main(body).update(args=["--all"]),
    "privileges": lambda body: main(body).update(securityContext={"privileged": True, "runAsUser": 0}),
    "a capability": lambda body: main(body).update(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
    "a lifecycle": lambda body: main(body).update(lifecycle={"postStart": {"exec": {"command": ["id"]}}}),
    "environment from a Secret": lambda body: main(body).update(envFrom=[{"secretRef": {"name": "token"}}]),
    "a variable": lambda body: main(body)["env"].append({"name": "LD_PRELOAD", "value": "/x.so"}),
    "a variable of Draco's from elsewhere": lambda body: main(body)["env"][3].update(
        value=None, valueFrom={"secretKeyRef": {"name": "token", "key": "token"}}
    ),
    "a variable of Draco's that a shell reads": lambda body: main(body)["env"][3].update(value="$(id)"),
    "another node in the environment": lambda body: main(body)["env"][0].update(value="elsewhere"),
    "memory": lambda body: main(body).setdefault("resources", {}).update(limits={"memory": "1Ti"}),
    "a claim of another": lambda body: (
        main(body)["resources"]["claims"].append({"name": "other"})
        or pod(body)["resourceClaims"].append({"name": "other", "resourceClaimName": "other"})
    ),
    "the claim of another Job": lambda body: pod(body)["resourceClaims"][-1].update(resourceClaimName="other"),
    "a claim from a template": lambda body: pod(body)["resourceClaims"].__setitem__(
        -1, {"name": "draco-gpu", "resourceClaimTemplateName": "other"}
    ),
    "one more container": lambda body: pod(body)["containers"].append({"name": "more", "image": "x"}),
    "an init container": lambda body: pod(body).setdefault("initContainers", []).append({"name": "a", "image": "x"}),
    "no container of those": lambda body: pod(body).update(containers=[{"name": "other", "image": "x"}]),
    "the node's root": lambda body: (
        pod(body).setdefault("volumes", []).append({"name": "root", "hostPath": {"path": "/"}})
    ),
    "a mount": lambda body: (
        main(body).setdefault("volumeMounts", []).append({"name": "token", "mountPath": "/t"})
        or pod(body).setdefault("volumes", []).append({"name": "token", "secret": {"secretName": "token"}})
    ),
    "the host's network": lambda body: pod(body).update(hostNetwork=True),
    "the host's processes": lambda body: pod(body).update(hostPID=not pod(body).get("hostPID")),
    "another account": lambda body: pod(body).update(serviceAccountName="admin"),
    "another account by its older name": lambda body: pod(body).update(serviceAccount="admin", serviceAccountName=None),
    "a runtime class": lambda body: pod(body).update(runtimeClassName="kata"),
    "a priority class": lambda body: pod(body).update(priorityClassName="system-node-critical"),
    "a node selector": lambda body: pod(body).update(nodeSelector={"a": "b"}),
    "tolerations": lambda body: pod(body).update(tolerations=[{"operator": "Exists"}]),
    "a node's name": lambda body: pod(body).update(nodeName="elsewhere"),
    "a security context of the pod": lambda body: pod(body).update(securityContext={"runAsUser": 0}),
    "no account's token": lambda body: pod(body).update(automountServiceAccountToken=True),
    "another scheduler": lambda body: pod(body).update(schedulerName="mine"),
    "an annotation of the pods": lambda body: body["spec"]["template"]["metadata"].update(annotations={"a": "b"}),
    "a label of the pods": lambda body: body["spec"]["template"]["metadata"]["labels"].update(app="victim"),
    "a finalizer of the pods": lambda body: body["spec"]["template"]["metadata"].update(finalizers=["a.b/c"]),
    "many pods": lambda body: body["spec"].update(parallelism=100, completions=100),
    "others' pods": lambda body: body["spec"].update(
        manualSelector=True, selector={"matchLabels": dict(body["spec"]["template"]["metadata"]["labels"])}
    ),
    "an end after a day": lambda body: body["spec"].update(activeDeadlineSeconds=86_400),
    "another controller": lambda body: body["spec"].update(managedBy="example.com/mine"),
    "affinity to pods": lambda body: pod(body)["affinity"].update(
        podAffinity={
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"}
            ]
        }
    ),
    "a preference for nodes": lambda body: pod(body)["affinity"]["nodeAffinity"].update(
        preferredDuringSchedulingIgnoredDuringExecution=[
            {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
        ]
    ),
}
ON_THE_NODE: dict[str, Callable[[Body], Any]] = {
    "no node": lambda body: pod(body).pop("affinity"),
    "two nodes": lambda body: terms(body)[0]["matchFields"][-1].update(operator="NotIn"),
    "nodes by an expression": lambda body: terms(body)[0].update(
        matchExpressions=[{"key": "a", "operator": "DoesNotExist"}]
    ),
    "another alternative": lambda body: terms(body).append({"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
    "an alternative node": lambda body: terms(body).append(
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["elsewhere"]}]}
    ),
}


@pytest.mark.parametrize("template", ["plain", "rich"])
@pytest.mark.parametrize("what", DIFFERENCES)
async def test_a_job_that_differs_from_its_template_in_anything_is_refused(
    cluster: Cluster, template: str, what: str
) -> None:
    before, body = cluster.state(), made_from(cluster, template)
    alike = deepcopy(body)
    DIFFERENCES[what](body)
    assert body != alike
    with pytest.raises((Forbidden, Invalid), match=DIFFERENT):
        await create(cluster, body)
    assert cluster.state() == before


@pytest.mark.parametrize("template", ["plain", "rich"])
@pytest.mark.parametrize("what", ON_THE_NODE)
async def test_a_job_is_for_one_node_and_for_none_that_its_template_excludes(
    cluster: Cluster, template: str, what: str
) -> None:
    body = made_from(cluster, template)
    ON_THE_NODE[what](body)
    with pytest.raises((Forbidden, Invalid), match=f"must be for one node|{DIFFERENT}"):
        await create(cluster, body)


def field_of(body: Body, holder: str) -> Body:
    found: Body = {"pod": pod, "container": main, "job": lambda each: each["spec"]}[holder](body)
    return found


NEEDED = {"containers", "restartPolicy", "name", "image", "template", "affinity", "resourceClaims", "env", "resources"}


async def test_a_job_that_lacks_anything_of_its_template_is_refused(cluster: Cluster) -> None:
    rich = made_from(cluster, "rich")
    holders = ("pod", "container", "job")
    names = [(holder, key) for holder in holders for key in field_of(rich, holder) if key not in NEEDED]
    assert len(names) > 20
    for holder, key in names:
        body = made_from(cluster, "rich")
        value = field_of(body, holder).pop(key)
        if key in {"volumes", "volumeMounts"}:
            pod(body).pop("volumes", None)
            for each in (*pod(body)["containers"], *pod(body)["initContainers"]):
                each.pop("volumeMounts", None)
        with suppress(Forbidden, Invalid):
            made = await create(cluster, body)
            # It is created only if the API server's defaults equal what the template says.
            assert field_of(made, holder)[key] == value, f"{holder}.{key} may be left out"


@pytest.mark.parametrize("template", ["", "elsewhere", "missing"])
async def test_a_job_of_no_template_of_one_that_is_not_listed_and_of_one_that_is_not_there_is_refused(
    cluster: Cluster, template: str
) -> None:
    body = made_from(cluster, "plain")
    body["metadata"]["labels"]["draco.dev/template"] = template
    with pytest.raises(ApiError, match=r"operator\.jobTemplates|no params found"):
        await create(cluster, body)


async def test_a_job_by_the_name_of_another_template_is_compared_with_that(cluster: Cluster) -> None:
    body = made_from(cluster, "rich")
    body["metadata"]["labels"]["draco.dev/template"] = "plain"
    with pytest.raises((Forbidden, Invalid), match=DIFFERENT):
        await create(cluster, body)


async def test_the_claim_of_a_job_is_for_one_device_and_looks_at_none(cluster: Cluster) -> None:
    target = JobTarget(a_device_key("node-0/gpu-0"), "GPU-0")
    tolerations = [DeviceToleration(key="draco.dev/maintenance", operator="Exists")]
    body: Body = msgspec.to_builtins(
        claim_manifest(
            a_maintenance(), target, namespace=JOB_SPACE, device_class="gpu.nvidia.com", tolerations=tolerations
        )
    )
    (asked,) = body["spec"]["devices"]["requests"]
    async with cluster.holding("working") as operator:
        await operator.create(CLAIMS, body)
        await operator.delete(CLAIMS, ObjectKey(JOB_SPACE, body["metadata"]["name"]))
        asking: list[Body] = [{"count": 8}, {"allocationMode": "All"}]
        for change in asking:
            other = deepcopy(body)
            other["spec"]["devices"]["requests"][0]["exactly"].update(change)
            with pytest.raises((Forbidden, Invalid), match="may only remove the allocation"):
                await operator.create(CLAIMS, other)
        asking = [
            {"requests": [asked, {**asked, "name": "more"}]},
            {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}]},
        ]
        for change in asking:
            other = deepcopy(body)
            other["spec"]["devices"].update(change)
            with pytest.raises((Forbidden, Invalid), match="may only remove the allocation"):
                await operator.create(CLAIMS, other)
