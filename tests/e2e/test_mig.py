"""Partitions, from a claim to the instance and back: real scheduler, operator and agents; NVML is simulated."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from draco.mig.geometry import geometry
from draco.mig_policy.boards import boards_of
from draco.resources.api.draco import GpuNode
from tests.e2e import provider
from tests.e2e.conftest import EXAMPLES, draco, namespaces
from tests.e2e.kubectl import Kubectl, StillFalseError, eventually
from tests.e2e.partitions import NODE, a_claim, a_pod

Example = Callable[..., None]

NAMESPACE = "partitions"

on_demand = pytest.mark.since(35)
"""Marks tests that need partitions published before they exist: their counters are in a separate slice."""


@pytest.fixture(scope="module")
def namespace(cluster: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """One namespace for all tests of this module: deleting one takes longer than most of them."""
    cluster.run("create", "namespace", NAMESPACE)
    yield cluster.in_namespace(NAMESPACE, tmp_path_factory.mktemp("namespace"))
    cluster.run("delete", "namespace", NAMESPACE, "--wait=false")
    eventually(lambda: NAMESPACE not in namespaces(cluster), what="the namespace is gone", within_s=90)


@pytest.fixture
def kube(namespace: Kubectl) -> Iterator[Kubectl]:
    """Kubectl. The next test finds no policy, no claim and no instance of either."""
    yield namespace
    namespace.run("delete", "deployments,pods,resourceclaimtemplates", "--all", "--grace-period=0", "--force")
    namespace.run("delete", "resourceclaims", "--all", "--wait=true")
    namespace.run("delete", "migpolicies", "--all")
    eventually(lambda: at_rest(namespace), what="no GPU is divided any more")


def at_rest(kube: Kubectl) -> bool:
    nodes = kube.objects("gpunodes")
    wanted = [gpu for node in nodes for gpu in node.get("spec", {}).get("gpus", [])]
    return (
        not wanted
        and not partitions(kube)
        and not any(gpu.get("mig", {}).get("instances") for node in nodes for gpu in node["status"]["gpus"])
    )


def by_hand(*arguments: str) -> str:
    """Change GPUs by hand, without Draco."""
    done = draco("cluster", "gpu", *arguments, "--name", provider.CLUSTER)
    assert done.returncode == 0, done.stderr
    return done.stdout


def gpu(kube: Kubectl, device: str = "gpu-0", node: str = NODE) -> dict[str, Any]:
    """A GPU as its agent reports it."""
    (found,) = [each for each in kube.get("gpunode", node)["status"]["gpus"] if each["device"] == device]
    return dict(found)


def instances(kube: Kubectl, device: str = "gpu-0") -> list[tuple[str, int, str]]:
    """Profile, start and use of each instance of a GPU."""
    return sorted(
        (each["profile"], each["start"], each["use"]) for each in gpu(kube, device)["mig"].get("instances", [])
    )


def made(kube: Kubectl, *devices: str) -> list[tuple[str, str]]:
    """Profile and use of each instance of these GPUs."""
    return sorted((profile, use) for device in devices for profile, _, use in instances(kube, device))


def uuids(kube: Kubectl, device: str = "gpu-0") -> dict[tuple[str, int], str]:
    """The MIG UUID of each instance of a GPU, by profile and start."""
    return {(each["profile"], each["start"]): each["uuid"] for each in gpu(kube, device)["mig"].get("instances", [])}


def partitions(kube: Kubectl, profile: str = "") -> list[str]:
    """The node's published partitions, in the scheduler's order."""
    slices = sorted(kube.objects("resourceslices"), key=lambda each: str(each["metadata"]["name"]))
    return [
        device["name"]
        for each in slices
        if each["spec"]["pool"]["name"] == NODE
        for device in each["spec"].get("devices", [])
        if f"-mig-{profile}" in device["name"]
    ]


def policy_says(kube: Kubectl, name: str) -> str:
    return str(kube.get("migpolicy", name).get("status", {}).get("message", ""))


def parents(kube: Kubectl, claim: str) -> list[str]:
    """The GPUs of a claim's partitions."""
    return [device.partition("-mig-")[0] for _, device in kube.devices(claim)]


def ask(kube: Kubectl, *names: str, profile: str) -> None:
    """Create claims for one partition each, and pods that use them."""
    manifests = [text for name in names for text in (a_claim(name, profile), a_pod(name, name))]
    kube.run_with_input("---".join(manifests), "apply", "-f", "-")


@on_demand
def test_a_claim_by_profile_gets_an_instance_where_the_planner_wants_it(kube: Kubectl, example: Example) -> None:
    example("mig-by-profile", "policy.yaml")
    eventually(
        lambda: policy_says(kube, "by-claims") == "8 GPUs set up as the policy asks.", what="the policy is applied"
    )
    eventually(lambda: partitions(kube), what="partitions are published")
    (board,) = boards_of(msgspec.convert(kube.get("gpunode", NODE), GpuNode)).values()
    space, profile = geometry(board), board.profile("1g.10gb")
    assert profile is not None
    best = space.best(space.state_of([]), profile)
    assert best is not None
    planned = f"gpu-0-mig-1g10gb-19-{best.placement.start}"
    assert planned.removesuffix(str(best.placement.start)) + "0" != planned  # NVIDIA's order would start there
    assert partitions(kube, "1g10gb-19")[0] == planned

    example("mig-by-profile", "pod.yaml")
    kube.running("small-model")
    assert kube.devices("small-part") == [(NODE, planned)]
    (found,) = eventually(lambda: gpu(kube)["mig"].get("instances"), what="the instance is reported")
    assert (found["use"], found["claim"]) == ("Claim", f"{NAMESPACE}/small-part")
    assert found["uuid"].startswith("MIG-")
    assert found["uuid"] in by_hand("show", NODE)

    kube.run("delete", "pod", "small-model", "--grace-period=1")
    eventually(lambda: not instances(kube), what="the instance is destroyed")
    assert found["uuid"] not in by_hand("show", NODE)


@on_demand
def test_claims_that_come_all_at_once_fill_one_gpu_after_the_other(kube: Kubectl, example: Example) -> None:
    example("mig-by-profile", "policy.yaml")
    eventually(lambda: partitions(kube), what="partitions are published")
    names = [f"burst-{number}" for number in range(9)]
    ask(kube, *names, profile="1g.10gb")
    kube.running(*names)
    taken = sorted(parent for name in names for parent in parents(kube, name))
    assert taken == ["gpu-0"] * 7 + ["gpu-1"] * 2


@on_demand
def test_two_partitions_of_one_gpu_are_simulated_and_allocated_alike(kube: Kubectl, example: Example) -> None:
    example("mig-pair", "policy.yaml")
    eventually(lambda: partitions(kube), what="partitions are published")
    halves = str(EXAMPLES / "mig-pair" / "halves.yaml")
    foretold = draco("simulate", "-f", halves, "-o", "json", kubeconfig=kube.kubeconfig)
    assert foretold.returncode == 0, foretold.stderr
    example("mig-pair", "halves.yaml")
    kube.running("two-tenants")
    devices = [device for _, device in kube.devices("halves")]
    assert sorted(re.findall(r'"device": "(gpu-[0-9]-mig-[^"]+)"', foretold.stdout)) == sorted(devices)
    assert len(set(parents(kube, "halves"))) == 1
    assert len(devices) == 2


@on_demand
def test_each_replica_gets_two_sizes_from_one_gpu_and_one_pod_both_halves_of_another(
    kube: Kubectl, example: Example
) -> None:
    example("mig-pair")
    eventually(
        lambda: [pod["status"].get("phase") for pod in kube.objects("pods")] == ["Running"] * 3,
        what="both replicas and the pod on two halves run",
    )
    claims = [claim["metadata"]["name"] for claim in kube.objects("resourceclaims")]
    assert [len(set(parents(kube, claim))) for claim in claims] == [1, 1, 1]
    # The scheduler chooses which three: earlier claims may still hold devices when it looks.
    used = sorted({gpu for claim in claims for gpu in parents(kube, claim)})
    assert len(used) == 3
    wanted = [("1g.10gb", "Claim")] * 2 + [("3g.40gb", "Claim")] * 4

    def reported() -> bool:
        assert made(kube, *used) == wanted
        return True

    eventually(reported, what=f"all six instances of {', '.join(used)} and no other are reported")


@on_demand
def test_each_replica_gets_four_partitions_of_one_gpu(kube: Kubectl, example: Example) -> None:
    example("mig-four")
    eventually(
        lambda: [pod["status"].get("phase") for pod in kube.objects("pods")] == ["Running"] * 2,
        what="both replicas run",
    )
    claims = [claim["metadata"]["name"] for claim in kube.objects("resourceclaims")]
    assert [len(set(parents(kube, claim))) for claim in claims] == [1, 1]
    four = [("1g.10gb", "Claim")] * 2 + [("2g.20gb", "Claim"), ("3g.40gb", "Claim")]
    for gpu in {gpu for claim in claims for gpu in parents(kube, claim)}:
        eventually(lambda gpu=gpu: made(kube, gpu) == four, what=f"{gpu}'s instances are reported")


@on_demand
def test_two_partitions_of_different_gpus(kube: Kubectl, example: Example) -> None:
    example("mig-apart")
    kube.running("two-replicas")
    assert len(set(parents(kube, "apart"))) == 2
    for device in parents(kube, "apart"):
        eventually(
            lambda gpu=device: made(kube, gpu) == [("2g.20gb", "Claim")], what=f"{device}'s instance is reported"
        )


@on_demand
def test_a_morning_of_one_partition_and_an_afternoon_of_seven_without_a_hand(kube: Kubectl, example: Example) -> None:
    example("mig-day-and-night", "policy.yaml", "morning.yaml")
    kube.running("training")
    assert kube.devices("all-slices") == [(NODE, "gpu-0-mig-7g80gb-0-0")]
    example("mig-day-and-night", "afternoon.yaml")
    eventually(lambda: len(waiting(kube)) == 7, what="seven pods wait for the training to end")
    eventually(lambda: instances(kube) == [("7g.80gb", 0, "Claim")], what="the instance is reported")

    kube.run("delete", "pod", "training")
    eventually(
        lambda: [pod["status"].get("phase") for pod in kube.objects("pods")] == ["Running"] * 7,
        what="seven pods run on the same GPU",
    )
    seven = [("1g.10gb", start, "Claim") for start in range(7)]
    eventually(lambda: instances(kube) == seven, what="all seven instances are reported")


def waiting(kube: Kubectl) -> list[str]:
    """Pods for which the scheduler has found no devices."""
    return [
        pod["metadata"]["name"]
        for pod in kube.objects("pods")
        if any(each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions", []))
    ]


def test_a_layout_is_changed_around_whoever_is_at_work(kube: Kubectl, example: Example) -> None:
    example("mig-static-layout", "policy.yaml")
    eventually(
        lambda: instances(kube) == [("3g.40gb", 0, "Layout"), ("3g.40gb", 4, "Layout")],
        what="both halves are there before anybody asks for them",
    )
    eventually(
        lambda: policy_says(kube, "chosen-layout") == "1 GPU set up as the policy asks.", what="the policy is applied"
    )
    before = uuids(kube)
    example("mig-static-layout", "pod.yaml")
    kube.running("steady")
    (device,) = [device for _, device in kube.devices("half")]
    assert device == "gpu-0-mig-3g40gb-9-4"
    eventually(lambda: ("3g.40gb", 4, "Claim") in instances(kube), what="the instance is reported as the claim's")
    assert uuids(kube) == before  # it got the existing instance

    lay_out(kube, "half-and-small")
    small = [("1g.10gb", start, "Layout") for start in range(4)]
    eventually(lambda: instances(kube) == [*small, ("3g.40gb", 4, "Claim")], what="the idle half is divided")
    eventually(
        lambda: policy_says(kube, "chosen-layout") == "1 GPU set up as the policy asks.", what="the layout is applied"
    )
    assert uuids(kube)["3g.40gb", 4] == before["3g.40gb", 4]

    lay_out(kube, "sevenths")
    said = eventually(
        lambda: f"waits for claim {NAMESPACE}/half" in policy_says(kube, "chosen-layout"),
        what="it says whom it waits for",
    )
    assert said
    assert instances(kube) == [*small, ("3g.40gb", 4, "Claim")]
    assert kube.phase("steady") == "Running"
    smalls = {place: uuid for place, uuid in uuids(kube).items() if place[0] == "1g.10gb"}

    kube.run("delete", "pod", "steady", "--grace-period=1")
    eventually(
        lambda: instances(kube) == [("1g.10gb", start, "Layout") for start in range(7)],
        what="the rest follows when the half is free",
    )
    assert smalls.items() <= uuids(kube).items()  # the matching ones were not recreated


def lay_out(kube: Kubectl, layout: str) -> None:
    patch = json.dumps({"spec": {"layout": layout}})
    kube.run("patch", "migpolicy", "chosen-layout", "--type=merge", "-p", patch)


@on_demand
def test_deleting_policies_does_what_their_plan_foretells(kube: Kubectl, example: Example) -> None:
    example("mig-static-layout")
    kube.running("steady")
    heir = f"""
apiVersion: draco.dev/v1alpha1
kind: MigPolicy
metadata: {{name: heir}}
spec:
  mode: Dynamic
  nodeSelector: {{matchLabels: {{kubernetes.io/hostname: {NODE}}}}}
  warm: [{{profile: 1g.10gb, count: 1}}]
"""
    kube.run_with_input(heir, "apply", "-f", "-")
    eventually(
        lambda: policy_says(kube, "heir").startswith("7 GPUs set up as the policy asks."),
        what="the younger policy is applied",
    )
    for name, next_one, gpus in (("chosen-layout", "heir", 1), ("heir", "", 8)):
        foretold = foreseen(kube, name)
        assert [owner for owner, _ in foretold.values()] == [next_one] * gpus
        kube.run("delete", "migpolicy", name)
        try:
            eventually(lambda there=foretold: standing(kube, there) == there, what=f"it is as foretold without {name}")
        except StillFalseError as error:
            raise AssertionError(f"foretold was {foretold}, but it is {standing(kube, foretold)}") from error
    eventually(lambda: partitions(kube) == ["gpu-0-mig-3g40gb-9-4"], what="only what the claim has is offered in parts")
    assert kube.phase("steady") == "Running"


IsolationState = tuple[str, list[tuple[str, int]]]


def foreseen(kube: Kubectl, policy: str) -> dict[str, IsolationState]:
    """The preview of deleting a policy: for each affected GPU, its new policy and its instances."""
    said = draco("layout", "plan", "--delete", policy, "-o", "json", kubeconfig=kube.kubeconfig)
    assert said.returncode == 0, said.stderr
    plan = json.loads(said.stdout)
    assert [(each["name"], each["deleted"]) for each in plan["policies"]] == [(policy, True)]
    assert not any(each["waits"] or each["makesLater"] for each in plan["gpus"])
    return {
        each["device"]: (
            each["policy"],
            sorted((one["profile"], one["start"]) for one in each["keeps"] + each["makes"]),
        )
        for each in plan["gpus"]
    }


def standing(kube: Kubectl, devices: Iterable[str]) -> dict[str, IsolationState]:
    """The actual state, as the operator wrote it and the agent reports it."""
    node = kube.get("gpunode", NODE)
    owners = {each["uuid"]: each["policy"] for each in node.get("spec", {}).get("gpus", [])}
    return {
        each["device"]: (
            owners.get(each["uuid"], ""),
            sorted((one["profile"], one["start"]) for one in each["mig"].get("instances", [])),
        )
        for each in node["status"]["gpus"]
        if each["device"] in devices
    }


@pytest.fixture
def foreign(kube: Kubectl) -> Iterator[str]:
    """Half of the first GPU, made by hand; its MIG UUID."""
    by_hand("mig", NODE, "0", "on")
    said = by_hand("create", NODE, "0", "3g.40gb", "--start", "4")
    number, uuid = re.findall(r"GPU instance (\d+) at unit 4: (MIG-\S+)\.", said)[0]
    yield uuid
    kube.run("delete", "pods", "--all", "--grace-period=0", "--force")
    by_hand("destroy", NODE, "0", number)


@on_demand
def test_an_instance_made_by_hand_is_kept_reported_and_avoided(kube: Kubectl, foreign: str, example: Example) -> None:
    example("mig-day-and-night", "policy.yaml")
    eventually(lambda: instances(kube) == [("3g.40gb", 4, "Foreign")], what="the instance is reported as foreign")
    eventually(lambda: partitions(kube), what="partitions are published")
    ask(kube, "left", "right", profile="3g.40gb")
    eventually(lambda: len(waiting(kube)) == 1, what="one of them waits")
    (late,) = waiting(kube)
    (early,) = {"left", "right"} - {late}
    kube.running(early)
    assert kube.devices(early) == [(NODE, "gpu-0-mig-3g40gb-9-0")]
    eventually(lambda: kube.notes(late), what="an Event says why it waits")
    kube.run("delete", "pod", early)
    kube.running(late)  # at the same placement
    assert uuids(kube)["3g.40gb", 4] == foreign
    events = kube.objects("events.events.k8s.io", namespace="default")
    assert [event["note"] for event in events if event["reason"] == "ForeignInstance"]


@on_demand
def test_an_instance_that_is_made_halfway_is_undone_and_made_again(kube: Kubectl, example: Example) -> None:
    example("mig-day-and-night", "policy.yaml")
    eventually(lambda: partitions(kube), what="partitions are published")
    by_hand("fail", NODE, "nvmlGpuInstanceCreateComputeInstance", "UNKNOWN", "--times", "1")
    ask(kube, "unlucky", profile="2g.20gb")
    kube.running("unlucky")
    eventually(lambda: made(kube, "gpu-0") == [("2g.20gb", "Claim")], what="the instance is reported")
    eventually(lambda: gpu(kube)["mig"]["state"] == "Ready", what="the GPU has no step left on record")
