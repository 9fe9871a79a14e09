"""`draco explain` on files: which object is meant, and what is said if there is none."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from draco import cli
from draco.allocation.fleet.fleet import Fleet
from draco.cli.explain import subjects
from draco.cli.explain.command import command
from draco.cli.explain.refusals import with_refusals
from draco.explanation.explain import explain as explain_claims
from draco.explanation.model import PendingReason
from draco.resources.api.core import Pod
from draco.whatif.world import World
from tests import builders
from tests.unit.cli.test_simulate import CLUSTER, a_claim, a_class, a_pod, a_template
from tests.unit.placing.test_place import CLASS, a_fleet

Json = dict[str, Any]


@pytest.fixture
def files(tmp_path: Path) -> str:
    """Three devices, one of them held; a claim too big for them; a pod that waits for that claim and one from a template."""
    pod = a_pod("train", {"name": "a", "resourceClaimName": "one"}, {"name": "b", "resourceClaimTemplateName": "two"})
    message = "0/2 nodes are available: 2 cannot allocate all claims."
    pod["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": message}],
    }
    idle = a_pod("idle")
    elsewhere = a_claim("far")
    elsewhere["metadata"]["namespace"] = "ml"
    objects = [
        *CLUSTER,
        a_claim("held", 1, "node-0/gpu-0"),
        a_claim("one"),
        a_claim("big", 7),
        a_template("two", 2),
        pod,
        idle,
        elsewhere,
    ]
    for each in objects[len(CLUSTER) :]:
        each["metadata"].setdefault("namespace", "default")
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return str(file)


def explain(files: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["-f", files, *arguments])


def document(files: str, *arguments: str) -> Json:
    result = explain(files, *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    decoded: Json = json.loads(result.stdout)
    return decoded


@pytest.mark.parametrize("arguments", [("claim", "big"), ("claim/big",), ("resourceclaims/big",)])
def test_a_claim_is_named_as_with_kubectl(files: str, arguments: tuple[str, ...]) -> None:
    told = document(files, *arguments)
    assert (told["claims"], told["pod"], told["fits"]) == (["default/big"], "", False)


@pytest.mark.parametrize("arguments", [("pod", "train"), ("po/train",), ("claim/one",)])
def test_the_claims_of_a_waiting_pod_are_explained_together(files: str, arguments: tuple[str, ...]) -> None:
    told = document(files, *arguments)
    assert told["claims"] == ["default/one", "default/train-b"]
    assert told["pod"] == "default/train"
    assert told["scheduler"] == "0/2 nodes are available: 2 cannot allocate all claims."


def test_without_a_name_all_that_waits_is_listed(files: str) -> None:
    lines = explain(files).stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["pod default/train", "claim default/big", "claim ml/far"]
    assert [each["claims"] for each in document(files, "-n", "ml")["explanations"]] == [["ml/far"]]
    assert [line.split(":")[0] for line in explain(files, "pods").stdout.splitlines()] == ["pod default/train"]


def test_several_can_be_asked_about(files: str) -> None:
    told = document(files, "claim/big", "pod/train")
    assert [each["claims"] for each in told["explanations"]] == [["default/big"], ["default/one", "default/train-b"]]
    text = explain(files, "claim", "big", "one").stdout
    assert text.startswith("claim default/big:\n")
    assert "\n\nclaim default/one:\n" in text


def test_each_device_is_shown_where_it_is_asked_for(files: str) -> None:
    assert document(files, "claim/big")["devices"] == []
    told = document(files, "claim/big", "--devices")["devices"]
    causes = [(verdict["device"].removeprefix("gpu.example.com/"), verdict["cause"]) for verdict in told]
    assert sorted(causes) == [("node-0/gpu-0", "InUse"), ("node-0/gpu-1", "Free"), ("node-1/gpu-0", "Free")]
    assert "node-0/gpu-1" in explain(files, "claim/big", "--devices").stdout


def test_requests_and_nodes_are_shown_where_more_is_asked_for(files: str) -> None:
    short, full = explain(files, "claim/big").stdout, explain(files, "claim/big", "-v").stdout
    summary = document(files, "claim/big")["summary"]
    assert short.splitlines()[:2] == full.splitlines()[:2] == ["claim default/big:", summary]
    assert short.splitlines()[-1] == "Each request and each node with -v."
    assert "Nodes, 2 in all" in full
    assert "Nodes, " not in short
    assert "with -v" not in full
    assert len(short.splitlines()) <= 8 < len(full.splitlines())


def test_json_and_yaml_say_the_same(files: str) -> None:
    assert yaml.safe_load(explain(files, "claim/big", "-o", "yaml").stdout) == document(files, "claim/big")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["claim", "bigg"], "There is no claim bigg in the namespace default; did you mean big?"),
        (["claim/far"], "There is no claim far in the namespace default; there is one in ml (-n ml)."),
        (["pod", "nobody-knows"], "There is no pod nobody-knows in the namespace default; there is idle, train."),
        (["pod/idle"], "The pod default/idle uses no claims, so it waits for no devices."),
    ],
)
def test_what_is_not_there_is_told_with_the_nearest(
    files: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.run(["explain", "-f", files, *arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["train"], ["job/train"], ["claim", "claim/big"], ["claim/"]])
def test_what_is_neither_claim_nor_pod_is_refused(files: str, arguments: list[str]) -> None:
    result = explain(files, *arguments)
    assert result.exit_code == 2
    assert "NAME" in result.output


def test_a_pod_that_asks_for_an_extended_resource_is_explained_with_the_claim_it_would_get(tmp_path: Path) -> None:
    served = a_class()
    served["spec"]["extendedResourceName"] = "example.com/gpu"
    container = {"name": "main", "resources": {"limits": {"example.com/gpu": 3}}}
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([served, *CLUSTER[1:], a_pod("train", containers=[container])]))
    told = document(str(file), "pod", "train")
    assert (told["claims"], told["reason"]) == (["default/train-extended-resources"], "NotEnoughOnOneNode")
    result = explain(str(file), "pod", "train")
    assert "For example.com/gpu, kube-scheduler makes a claim of DeviceClass gpu" in result.stderr
    assert explain(str(file)).stdout.startswith("pod default/train: NotEnoughOnOneNode:")


@pytest.mark.parametrize("arguments", [("pod", "bound"), ("claim", "mine")])
def test_a_pod_that_names_its_node_waits_in_vain(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    bound = a_pod("bound", {"name": "a", "resourceClaimName": "mine"}, nodeName="node-0")
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, a_claim("mine"), bound]))
    assert document(str(file), *arguments)["reason"] == "BypassesScheduler"
    assert explain(str(file)).stdout.startswith("pod default/bound: BypassesScheduler:")


def test_where_nothing_waits_of_a_kind_only_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, a_claim("mine")]))
    assert explain(str(file), "pods").stdout == "No pod waits for devices in the files.\n"
    assert explain(str(file), "claims").stdout.startswith("claim default/mine: Fits:")


def test_one_pod_whose_template_is_missing_does_not_hide_the_others(tmp_path: Path) -> None:
    lost = a_pod("lost", {"name": "a", "resourceClaimTemplateName": "nowhere"})
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, lost, a_claim("mine", 7)]))
    lines = explain(str(file)).stdout.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["pod default/lost", "ClaimMissing"],
        ["claim default/mine", "NotEnoughOnOneNode"],
    ]
    assert "nowhere" in lines[0]


def test_a_claim_that_is_allocated_for_nobody_is_said_to_be(files: str) -> None:
    text = explain(files, "claim", "held").stdout
    assert "The claim is allocated (gpu.example.com/node-0/gpu-0), and no pod uses it." in text


@pytest.mark.parametrize(
    ("phase", "spec", "deleted", "fate"),
    [
        ("Succeeded", {"nodeName": "node-0"}, None, "has ended (Succeeded)"),
        ("Failed", {}, None, "has ended (Failed)"),
        ("Pending", {}, "2026-03-01T12:00:00Z", "is being deleted"),
    ],
)
def test_a_pod_whose_time_is_over_waits_for_nothing(
    tmp_path: Path, phase: str, spec: Json, deleted: str | None, fate: str
) -> None:
    pod = a_pod("done", {"name": "a", "resourceClaimName": "one"}, **spec)
    pod["metadata"] |= {"namespace": "default", "deletionTimestamp": deleted}
    pod["status"] = {"phase": phase}
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, a_claim("one"), pod]))
    result = explain(str(file), "pod", "done")
    assert str(result.exception) == f"the pod default/done {fate}, so it waits for no devices"


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_of_a_pod_that_has_its_node_it_is_not_said_what_it_waits_for(tmp_path: Path, phase: str) -> None:
    pod = a_pod("runs", {"name": "a", "resourceClaimName": "one"}, nodeName="node-0")
    pod["status"] = {"phase": phase}
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, a_claim("one", 1, "node-0/gpu-0"), pod]))
    told = document(str(file), "pod", "runs")
    assert (told["reason"], told["node"]) == ("Allocated", "node-0")
    assert told["summary"] == (
        "All claims are allocated (gpu.example.com/node-0/gpu-0), and the pod has its node, node-0. If it does not start, see "
        "its Events."
    )


@pytest.mark.parametrize("arguments", [("pod", "late"), ("claim", "one")])
def test_a_pod_that_cannot_start_with_what_its_claim_has_waits(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    pod = a_pod("late", {"name": "a", "resourceClaimName": "one"}, nodeName="node-0")
    pod["status"] = {"phase": "Pending"}
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, a_claim("one", 1, "node-0/gpu-9"), pod]))
    told = document(str(file), *arguments)
    assert (told["reason"], told["obstacles"][0]["kind"]) == ("DeviceUnusable", "NotPublished")
    assert explain(str(file)).stdout.startswith("pod default/late: DeviceUnusable: Claim default/one is allocated")
    assert len(explain(str(file)).stdout.splitlines()) == 1


def test_a_pod_that_cannot_use_its_allocated_claim_waits_and_one_that_can_does_not(tmp_path: Path) -> None:
    held = a_claim("one", 1, "node-0/gpu-0")
    only = {"key": "metadata.name", "operator": "In", "values": ["node-0"]}
    held["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [only]}]}
    there = a_pod("there", {"name": "a", "resourceClaimName": "one"})
    here = a_pod("here", {"name": "a", "resourceClaimName": "one"}, nodeSelector={"rack": "7"})
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, held, there, here]))
    [line] = explain(str(file)).stdout.splitlines()
    assert line.startswith("pod default/here: BoundElsewhere: ")


@pytest.mark.parametrize("arguments", [("claim", "one"), ()])
def test_a_claim_that_a_pod_has_used_to_its_end_waits_for_the_pod_to_go(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    dracos = a_class()
    dracos["metadata"]["labels"] = {"draco.dev/allocator": "operator"}
    done = a_pod("done", {"name": "a", "resourceClaimName": "one"}, nodeName="node-0")
    done["status"] = {"phase": "Succeeded"}
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([dracos, *CLUSTER[1:], a_claim("one"), done]))
    assert (
        "pod default/done has ended, and while it exists Kubernetes deallocates the claim. Delete the pod"
    ) in explain(str(file), *arguments).stdout
    file.write_text(yaml.safe_dump_all([*CLUSTER, a_claim("one"), done]))
    assert "has ended" not in explain(str(file), *arguments).stdout, "kube-scheduler allocates it when a pod wants it"


def test_who_waits_for_which_claim_is_found_out_once_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Pod] = []
    may_wait = subjects._may_wait

    def counted(pod: Pod) -> bool:
        asked.append(pod)
        return may_wait(pod)

    monkeypatch.setattr(subjects, "_may_wait", counted)
    pods = [builders.a_pod(f"runs-{number}") for number in range(5)]
    claims = [builders.a_claim(f"unused-{number}") for number in range(20)]
    world = World(
        fleet=Fleet.of(claims=claims), pods={pod.metadata.key: pod for pod in pods}, templates={}, wanted=[], notes=[]
    )
    assert len(subjects.pending(world, "", "")) == len(claims)
    assert len(asked) <= 2 * len(pods)


def test_why_a_claim_is_not_made_is_told_as_kube_controller_manager_says_it() -> None:
    pod = builders.a_pod("train", templates=["gpu"])
    said = 'PodResourceClaim gpu: resource claim template "gpu": resourceclaimtemplate.resource.k8s.io "gpu" not found'
    world = World(
        fleet=Fleet(),
        pods={pod.metadata.key: pod},
        templates={},
        wanted=[],
        notes=[],
        creation_failures={pod.metadata.uid: said},
    )
    subject = subjects.subject_of(world, "pod", "train", "default")
    told = with_refusals(world, subject, explain_claims(world.fleet, subject.claims, pod=subject.pod))
    assert told.reason is PendingReason.CLAIM_MISSING
    assert told.summary == (
        "The ResourceClaim for gpu has not been created yet from ResourceClaimTemplate default/gpu; kube-controller-manager "
        f"says: {said}."
    )


def test_a_limit_that_forbids_what_fits_is_told_with_what_the_namespace_holds() -> None:
    claims = [
        builders.a_claim("holds", device_class=CLASS, on=["node-0/gpu-0"]),
        builders.a_claim("elsewhere", namespace="ml", device_class=CLASS, on=["node-1/gpu-0"]),
        builders.a_claim("late", device_class=CLASS),
    ]
    world = World(
        fleet=a_fleet(*claims, nodes=3),
        pods={},
        templates={},
        wanted=[],
        notes=[],
        limits=[builders.a_limit(devices=1)],
        namespaces={"default": {}, "ml": {}},
    )
    subject = subjects.subject_of(world, "claim", "late", "default")
    told = with_refusals(world, subject, explain_claims(world.fleet, subject.claims))
    assert told.reason is PendingReason.LIMIT_REACHED
    assert told.summary.startswith("Namespace default has 1 of 1 devices (DeviceLimit limit); this claim takes 1")
