"""`draco simulate` on files: what is tried, in which order, where it is placed, and what is said about it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from draco import cli
from draco.allocation.fleet.fleet import Fleet
from draco.cli.simulate.command import command
from draco.cli.simulate.report import lines
from draco.resources.api.core import Pod
from draco.whatif.trials import TrialResult, TrialRun, trials_of_cluster
from draco.whatif.world import World, without
from tests import builders

Json = dict[str, Any]
DRIVER = "gpu.example.com"
V1 = "resource.k8s.io/v1"


def a_class(name: str = "gpu") -> Json:
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    return {"apiVersion": V1, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}


def a_slice(node: str, *devices: str) -> Json:
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": name} for name in devices],
    }
    return {"apiVersion": V1, "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def a_spec(count: int = 1, **more: Any) -> Json:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count, **more}}]}}


def a_claim(name: str, count: int = 1, *holds: str) -> Json:
    claim: Json = {"apiVersion": V1, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": a_spec(count)}
    if holds:
        results = []
        for held in holds:
            pool, device = held.split("/")
            results.append({"request": "gpu", "driver": DRIVER, "pool": pool, "device": device})
        claim["status"] = {"allocation": {"devices": {"results": results}}}
    return claim


def a_template(name: str, count: int = 1) -> Json:
    return {
        "apiVersion": V1,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": a_spec(count)},
    }


def a_pod(name: str, *claims: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"resourceClaims": list(claims), **spec},
    }


def a_node(name: str, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"name": name}}, "spec": spec}


CLUSTER = [a_class(), a_slice("node-0", "gpu-0", "gpu-1"), a_slice("node-1", "gpu-0")]


def simulate(tmp_path: Path, objects: list[Json], *options: str) -> Result:
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return CliRunner().invoke(command, ["-f", str(file), *options])


def document(tmp_path: Path, objects: list[Json], *options: str) -> Json:
    result = simulate(tmp_path, objects, "-o", "json", *options)
    assert result.exit_code == 0, result.output
    decoded: Json = json.loads(result.stdout)
    return decoded


def placed(told: Json) -> list[tuple[str, list[str] | None]]:
    """Each claim with its devices."""
    return [
        (
            entry["claim"],
            None
            if entry["allocation"] is None
            else [f"{each['pool']}/{each['device']}" for each in entry["allocation"]["devices"]["results"]],
        )
        for entry in told["claims"]
    ]


def test_claims_are_tried_in_file_order_beside_what_is_in_use(tmp_path: Path) -> None:
    objects = [*CLUSTER, a_claim("late", 2), a_claim("held", 1, "node-0/gpu-0"), a_claim("first")]
    assert placed(document(tmp_path, objects)) == [
        ("default/late", None),
        ("default/first", ["node-0/gpu-1"]),
    ]


def test_an_allocation_is_written_as_kubernetes_writes_it(tmp_path: Path) -> None:
    claim = a_claim("one")
    claim["spec"] = a_spec(tolerations=[{"key": "a", "value": "b"}])
    [entry] = document(tmp_path, [*CLUSTER, claim])["claims"]
    assert entry["allocation"] == {
        "devices": {
            "results": [
                {
                    "request": "gpu",
                    "driver": DRIVER,
                    "pool": "node-0",
                    "device": "gpu-0",
                    "tolerations": [{"key": "a", "operator": "Equal", "value": "b"}],
                }
            ]
        },
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]},
            ]
        },
    }
    assert (entry["node"], entry["error"], entry["explanation"]) == ("node-0", None, None)


def test_a_claim_that_does_not_fit_has_its_explanation(tmp_path: Path) -> None:
    told = document(tmp_path, [*CLUSTER, a_claim("big", 3)])
    [entry] = told["claims"]
    assert told["fits"] is False
    assert entry["allocation"] is None
    assert entry["explanation"]["fits"] is False
    assert entry["explanation"]["claims"] == ["default/big"]


def test_a_claim_that_fits_and_that_the_agent_refuses_to_prepare_is_told_so(tmp_path: Path) -> None:
    asks = a_claim("shares")
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "Mps"}}
    asks["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    objects: list[Json] = json.loads(json.dumps([*CLUSTER, asks]).replace(DRIVER, "gpu.nvidia.com"))
    text = simulate(tmp_path, objects).stdout
    assert "default/shares: fits on node-0\n" in text
    assert (
        "  default/shares cannot start there: the claim's configuration for request gpu cannot be carried out" in text
    )
    [entry] = document(tmp_path, objects)["claims"]
    assert [each["kind"] for each in entry["obstacles"]] == ["ConfigurationRefused"]


@pytest.mark.parametrize("copies", ["1", "4"])
def test_five_lines_say_why_something_does_not_fit_and_all_is_said_where_it_is_asked_for(
    tmp_path: Path, copies: str
) -> None:
    short, full = (
        simulate(tmp_path, [*CLUSTER, a_claim("big", 3)], "--copies", copies, *options) for options in ([], ["-v"])
    )
    assert short.exit_code == full.exit_code == 0
    assert short.stdout.endswith("\n\nEach request and each node with -v.\n")
    assert "with -v" not in full.stdout
    assert "Nodes, 2 in all" in full.stdout
    assert "Nodes, " not in short.stdout


def test_a_selector_that_fails_on_one_device_fails_the_claim_although_another_would_do(tmp_path: Path) -> None:
    claim = a_claim("one")
    expression = f"device.attributes['{DRIVER}'].model == 'A'"
    claim["spec"] = a_spec(selectors=[{"cel": {"expression": expression}}])
    good = a_slice("node-0", "gpu-0")
    good["spec"]["devices"][0]["attributes"] = {"model": {"string": "A"}}
    [entry] = document(tmp_path, [a_class(), good, a_slice("node-1", "gpu-0"), claim])["claims"]
    assert entry["allocation"] is None
    assert "no such key: model" in entry["error"]
    assert document(tmp_path, [a_class(), good, claim])["fits"] is True


def test_the_claims_of_a_pod_are_allocated_together_on_one_node(tmp_path: Path) -> None:
    pod = a_pod(
        "train",
        {"name": "a", "resourceClaimName": "one"},
        {"name": "b", "resourceClaimTemplateName": "two"},
    )
    told = document(tmp_path, [*CLUSTER, a_claim("one"), a_template("two"), pod])
    assert placed(told) == [("default/one", ["node-0/gpu-0"]), ("default/train-b", ["node-0/gpu-1"])]
    assert {entry["pod"] for entry in told["claims"]} == {"default/train"}


def test_a_workload_stands_for_as_many_pods_as_it_wants(tmp_path: Path) -> None:
    pod = a_pod("train", {"name": "a", "resourceClaimTemplateName": "one"})
    job: Json = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"parallelism": 4, "template": {"spec": pod["spec"]}},
    }
    told = document(tmp_path, [*CLUSTER, a_template("one"), job])
    assert [entry["pod"] for entry in told["claims"]] == [f"default/train-{number}" for number in range(1, 5)]
    assert [entry["node"] for entry in told["claims"]] == ["node-0", "node-0", "node-1", None]
    job["spec"]["parallelism"] = 10**9
    assert "asks for 1000000000 pods" in str(simulate(tmp_path, [*CLUSTER, a_template("one"), job]).exception)


def test_a_template_that_no_pod_uses_stands_for_one_claim(tmp_path: Path) -> None:
    assert placed(document(tmp_path, [*CLUSTER, a_template("two", 2)])) == [
        ("default/two", ["node-0/gpu-0", "node-0/gpu-1"])
    ]


def test_a_claim_that_two_pods_share_is_allocated_once(tmp_path: Path) -> None:
    pods = [a_pod(name, {"name": "a", "resourceClaimName": "one"}) for name in ("p", "q")]
    told = document(tmp_path, [*CLUSTER, a_claim("one"), *pods])
    assert placed(told) == [("default/one", ["node-0/gpu-0"]), ("default/one", ["node-0/gpu-0"])]
    assert [entry["node"] for entry in told["claims"]] == ["node-0", "node-0"]


def test_a_pod_goes_only_where_its_own_rules_let_it(tmp_path: Path) -> None:
    nodes = [a_node("node-0", taints=[{"key": "k", "effect": "NoSchedule"}]), a_node("node-1")]
    claims = ({"name": "a", "resourceClaimTemplateName": "one"},)
    pods = [
        a_pod("plain", *claims),
        a_pod("tolerant", *claims, tolerations=[{"operator": "Exists"}], nodeSelector={"name": "node-0"}),
    ]
    told = document(tmp_path, [*CLUSTER, *nodes, a_template("one"), *pods])
    assert [entry["node"] for entry in told["claims"]] == ["node-1", "node-0"]


def test_a_claim_of_no_pod_does_not_go_to_a_cordoned_node(tmp_path: Path) -> None:
    told = document(tmp_path, [*CLUSTER, a_node("node-0", unschedulable=True), a_claim("one")])
    assert told["claims"][0]["node"] == "node-1"


def test_copies_count_how_many_more_fit(tmp_path: Path) -> None:
    told = document(tmp_path, [*CLUSTER, a_claim("one")], "--copies", "10")
    assert told["copies"] == {"asked": 10, "fit": 3, "each": {"default/one": 3}}
    assert [entry["copy"] for entry in told["claims"]] == [1, 2, 3, 4]
    text = simulate(tmp_path, [*CLUSTER, a_claim("one")], "--copies", "10").stdout
    assert "default/one: 3 of 10 copies fit\n  node-0: 2\n  node-1: 1\n  Copy 4 does not fit:\n" in text


def test_what_was_just_placed_is_not_told_to_be_idle(tmp_path: Path) -> None:
    pod = a_pod("p", {"name": "a", "resourceClaimTemplateName": "three"})
    told = document(tmp_path, [*CLUSTER, a_template("three", 2), pod, a_claim("one"), a_claim("two")])
    [entry] = [each for each in told["claims"] if each["claim"] == "default/two"]
    holders = [holder for cause in entry["explanation"]["requests"][0]["causes"] for holder in cause["holders"]]
    assert sorted((holder["claim"], holder["idle"]) for holder in holders) == [
        ("default/one", False),
        ("default/p-a", False),
    ]
    assert "not used by any pod" not in str(entry["explanation"]["nearest"])


def test_one_node_alone_can_be_asked_about(tmp_path: Path) -> None:
    told = document(tmp_path, [*CLUSTER, a_claim("one"), a_claim("two", 2)], "--node", "node-1")
    assert placed(told) == [("default/one", ["node-1/gpu-0"]), ("default/two", None)]
    assert told["claims"][1]["explanation"]["devicesTotal"] == 1


def test_a_node_can_be_taken_away(tmp_path: Path) -> None:
    told = document(tmp_path, [*CLUSTER, a_claim("one")], "--without-node", "node-0")
    assert placed(told) == [("default/one", ["node-1/gpu-0"])]


@pytest.mark.parametrize(
    "taint",
    [
        "example.com/suspect=yes:NoSchedule@gpu.example.com/node-0/*",
        "suspect:NoExecute@pool=node-0",
        "suspect:NoExecute@driver=gpu.example.com,pool=node-0,device=gpu-0",
    ],
)
def test_devices_can_be_tainted(tmp_path: Path, taint: str) -> None:
    told = document(tmp_path, [*CLUSTER, a_claim("one")], "--with-taint", taint)
    assert placed(told) != [("default/one", ["node-0/gpu-0"])]


@pytest.mark.parametrize(
    ("taint", "said"),
    [
        ("suspect", "is not a taint: write KEY[=VALUE]:EFFECT"),
        ("suspect:NoSchedul", "is not an effect of a device taint: write one of"),
        (":NoSchedule", "is not a taint"),
        ("a b:NoSchedule", "is not a label key"),
        ("a=b c:NoSchedule", "is not a label value"),
        ("a:NoSchedule@node-0", "names no devices; write DRIVER/POOL/DEVICE"),
        ("a:NoSchedule@node=node-0", "'node' selects no devices; use driver, pool, device"),
    ],
)
def test_a_taint_that_is_none_is_told(tmp_path: Path, taint: str, said: str) -> None:
    result = simulate(tmp_path, [*CLUSTER, a_claim("one")], "--with-taint", taint)
    assert result.exit_code == 2
    assert said in result.output


def test_what_the_devices_are_is_said(tmp_path: Path) -> None:
    notes = document(tmp_path, [*CLUSTER, a_claim("one")], "--with-taint", "a:None@pool=nowhere")["notes"]
    assert notes == [
        "Devices and nodes are those of the files, not of a cluster; --cluster puts them on top of a live one.",
        "The taint a:None is put on 0 devices.",
    ]


@pytest.mark.parametrize(("effect", "notes"), [("NoSchedule", 2), ("None", 1)])
def test_a_rule_without_selector_is_noted_as_kube_scheduler_takes_it_for_a_rule_for_all(
    tmp_path: Path, effect: str, notes: int
) -> None:
    taint = {"key": "example.com/hold", "effect": effect}
    rule = {
        "apiVersion": f"{V1}beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "hold"},
        "spec": {"taint": taint},
    }
    told = document(tmp_path, [*CLUSTER, rule, a_claim("one")])
    assert len(told["notes"]) == notes
    assert ("kubernetes#141620" in told["notes"][-1]) == (notes == 2)


def test_a_gpu_and_its_partition_that_kubernetes_allocates_together_are_noted(tmp_path: Path) -> None:
    published = a_slice("node-0", "gpu-0", "gpu-0-mig-0")
    whole, part = published["spec"]["devices"]
    whole["attributes"] = {"uuid": {"string": "GPU-0"}}
    part["attributes"] = {"parentUUID": {"string": "GPU-0"}}
    told = document(tmp_path, [a_class(), published, a_claim("both", 2)])
    assert told["fits"]
    assert f"1 GPU ({DRIVER}/node-0/gpu-0) and their partitions consume no common counters" in told["notes"][-1]


def test_a_change_that_a_problem_spells_out_is_not_told_again(tmp_path: Path) -> None:
    published = a_slice("node-0", "gpu-0")
    published["spec"]["devices"][0]["attributes"] = {"profile": {"string": "1g.10gb"}}
    expression = f"device.attributes['{DRIVER}'].profile == '1g.5gb'"
    claim = a_claim("one")
    claim["spec"] = a_spec(selectors=[{"cel": {"expression": expression}}])
    told = simulate(tmp_path, [a_class(), published, claim]).output
    assert told.count('profile == "1g.10gb"') == 1
    assert "Or:" not in told


def test_a_pod_whose_claim_is_nowhere_is_told_so(tmp_path: Path) -> None:
    pod = a_pod("p", {"name": "a", "resourceClaimName": "won"})
    [entry] = document(tmp_path, [*CLUSTER, pod, a_claim("one", 1, "node-0/gpu-0")])["claims"]
    assert entry["error"] == "the claim default/won that the pod uses does not exist; did you mean one?"


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    objects = [*CLUSTER, a_claim("one"), a_claim("big", 3)]
    written = simulate(tmp_path, objects, "-o", "yaml").stdout
    assert yaml.safe_load(written) == document(tmp_path, objects)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--no-cluster"], 2, "give files with -f"),
        (["--scenarios", "-", "--copies", "2"], 2, "--scenarios cannot be combined with --copies"),
        (["--copies", "0"], 2, "--copies"),
    ],
)
def test_command_lines_that_make_no_sense_are_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    assert cli.run(["simulate", *arguments]) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("nodes", "said"), [(21, "  1 more node: 1"), (22, "  2 more nodes: 2")])
def test_nodes_beyond_the_first_are_counted_together(nodes: int, said: str) -> None:
    attempts = [TrialResult(name="one", copy=each, node=f"node-{each}") for each in range(nodes)]
    assert list(lines(TrialRun(attempts=attempts, copies=nodes, fitting=nodes), [], verbose=False))[-1] == said


def test_an_object_that_stands_twice_is_told_with_both_places(tmp_path: Path) -> None:
    result = simulate(tmp_path, [*CLUSTER, a_class()])
    assert result.exit_code == 1
    assert "document 4 (line 39): DeviceClass gpu is also in" in str(result.exception)


def test_a_node_that_is_not_there_is_told_with_the_nearest(tmp_path: Path) -> None:
    result = simulate(tmp_path, [*CLUSTER, a_claim("one")], "--without-node", "node-7")
    assert str(result.exception) == 'there is no node "node-7" in the files; did you mean node-1?'


def test_the_how_to_shows_what_is_printed(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "what-if.md").read_text(encoding="utf-8")
    file = tmp_path / "cluster.yaml"
    file.write_text(text.split("```yaml\n")[1].split("```")[0])
    shown = [block.split("```")[0] for block in text.split("```console\n$ draco simulate -f cluster.yaml")[1:]]
    assert len(shown) == 2
    for block in shown:
        options, _, output = block.partition("\n")
        result = CliRunner().invoke(command, ["-f", str(file), *options.split()])
        assert result.stdout.startswith(output.removesuffix("…\n"))


def an_asking_pod(name: str, count: int = 1) -> Json:
    container = {"name": "main", "resources": {"limits": {"example.com/gpu": count}}}
    return a_pod(name, containers=[container])


def test_a_pod_that_asks_for_an_extended_resource_gets_the_claim_of_the_scheduler(tmp_path: Path) -> None:
    served = a_class()
    served["spec"]["extendedResourceName"] = "example.com/gpu"
    objects = [served, *CLUSTER[1:], an_asking_pod("train", 2), an_asking_pod("more")]
    told = document(tmp_path, objects)
    assert placed(told) == [
        ("default/train-extended-resources", ["node-0/gpu-0", "node-0/gpu-1"]),
        ("default/more-extended-resources", ["node-1/gpu-0"]),
    ]
    said = [note for note in told["notes"] if "example.com/gpu" in note]
    assert said == [
        (
            "For example.com/gpu, kube-scheduler makes a claim of DeviceClass gpu, whose requests are numbered like the pod's "
            "containers, init containers first."
        )
    ]
    assert document(tmp_path, objects, "--copies", "3")["copies"]["each"] == {"default/train": 1, "default/more": 1}


def test_a_pod_that_names_its_node_is_not_placed_and_told_why(tmp_path: Path) -> None:
    objects = [*CLUSTER, a_template("one"), a_pod("train", {"name": "a", "resourceClaimTemplateName": "one"})]
    bound = a_pod("bound", {"name": "a", "resourceClaimTemplateName": "one"}, nodeName="node-0")
    text = simulate(tmp_path, [*objects, bound]).stdout
    assert "default/train: fits on node-0" in text
    assert "default/bound: bypasses the scheduler" in text
    assert text.count("spec.nodeName: node-0") == 1


def test_files_without_objects_are_told_so_and_no_cluster_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing yet\n")
    assert cli.run(["simulate", "-f", str(file)]) == 1
    assert capsys.readouterr().err.startswith("Error: The files hold no objects:")


def test_a_node_that_files_do_not_name_is_told_with_the_nearest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, a_claim("one")]))
    assert cli.run(["simulate", "-f", str(file), "--node", "nod-1"]) == 1
    assert 'There is no node "nod-1" in the files; did you mean node-1?' in capsys.readouterr().err


def test_what_was_tried_before_is_not_said_to_be_a_pod(tmp_path: Path) -> None:
    text = simulate(tmp_path, [*CLUSTER, a_claim("two", 2), a_claim("more", 2)]).stdout
    assert "claim default/two" in text
    assert "pod" not in text


def test_fields_of_a_claim_that_do_not_exist_are_told(tmp_path: Path) -> None:
    claim = a_claim("one")
    claim["spec"]["devices"]["requests"][0]["exactly"]["cout"] = 2
    result = simulate(tmp_path, [*CLUSTER, claim])
    assert result.exit_code == 0
    assert "there is no field cout of spec.devices.requests[0].exactly: the nearest is count." in result.stderr
    assert not simulate(tmp_path, [*CLUSTER, a_claim("one"), a_claim("held", 1, "node-0/gpu-0")]).stderr


def test_a_taint_on_a_gpu_is_put_on_its_partitions_as_draco_would(tmp_path: Path) -> None:
    partitions = [f"gpu-0-mig-1g10gb-19-{start}" for start in range(7)]
    objects = [a_class(), a_slice("node-0", "gpu-0", *partitions), a_claim("one")]
    told = document(tmp_path, objects, "--with-taint", f"suspect:NoSchedule@{DRIVER}/node-0/gpu-0")
    assert placed(told) == [("default/one", None)]
    assert "The taint suspect:NoSchedule is put on 1 device, and on 7 more that are the same hardware." in told["notes"]
    assert "with-taint suspect:NoSchedule" in str(told["claims"][0]["explanation"])
    assert "draco-extension-" not in str(told)
    of_a_part = document(tmp_path, objects, "--with-taint", f"suspect:NoSchedule@{DRIVER}/node-0/{partitions[0]}")
    assert placed(of_a_part) == [("default/one", [f"node-0/{partitions[1]}"])]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_asks_for_nothing(tmp_path: Path, phase: str) -> None:
    done = a_pod("done", {"name": "a", "resourceClaimTemplateName": "two"}, nodeName="node-0")
    done["status"] = {"phase": phase, "resourceClaimStatuses": [{"name": "a", "resourceClaimName": "done-a-x7k2p"}]}
    done["spec"]["resourceClaims"].append({"name": "b", "resourceClaimName": "left"})
    new = a_pod("new", {"name": "a", "resourceClaimName": "one"})
    told = document(tmp_path, [*CLUSTER, a_template("two", 2), a_claim("left"), done, new, a_claim("one")])
    assert [(entry["pod"], entry["claim"]) for entry in told["claims"]] == [("default/new", "default/one")]


@pytest.mark.parametrize(
    "over", [{"status": {"phase": "Succeeded"}}, {"metadata": {"deletionTimestamp": "2026-03-01T12:00:00Z"}}]
)
def test_without_a_node_only_the_pods_that_go_on_have_to_be_placed_again(over: Json) -> None:
    fleet = Fleet.of(
        slices=[builders.a_slice("node-0"), builders.a_slice("node-1")],
        nodes=[builders.a_node("node-0"), builders.a_node("node-1")],
        classes=[builders.a_device_class()],
        claims=[
            builders.a_claim("shared", on=["node-0/gpu-0"], reserved_for=["done", "runs"]),
            builders.a_claim("left", on=["node-0/gpu-1"], reserved_for=["done"]),
        ],
    )
    done = builders.a_pod("done", claims=["shared", "left"], templates=["own"], node="node-0")
    plain = msgspec.to_builtins(done)
    done = msgspec.convert({name: value | over.get(name, {}) for name, value in plain.items()}, Pod)
    runs = builders.a_pod("runs", claims=["shared"], node="node-0")
    pods = {pod.metadata.key: pod for pod in (done, runs)}
    made = World(fleet=fleet, pods=pods, templates={}, wanted=[], notes=[])
    trials = trials_of_cluster(made, without(made, ["node-0"]))
    tried = [(trial.pod and trial.pod.metadata.name, [each.metadata.name for each in trial.claims]) for trial in trials]
    assert tried == [("runs", ["shared"])]


def test_a_claim_of_dracos_is_tried_on_the_devices_that_only_draco_gives_out(tmp_path: Path) -> None:
    ours, published = a_class("ours"), a_slice("node-0", "gpu-0", "gpu-1", "gpu-2")
    ours["metadata"]["labels"] = {"draco.dev/allocator": "operator"}
    for device in published["spec"]["devices"][:2]:
        device["attributes"] = {"draco.dev/allocator": {"string": "operator"}}
        device["taints"] = [{"key": "draco.dev/operator-allocated", "effect": "NoSchedule"}]
    claim = a_claim("one")
    claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "ours"
    told = document(tmp_path, [ours, published, claim], "--copies", "5")
    assert told["copies"]["fit"] == 2
    assert placed(told)[0] == ("default/one", ["node-0/gpu-0"])
    assert "tolerations" not in told["claims"][0]["allocation"]["devices"]["results"][0]
    assert told["notes"][-1].startswith("Claims that Draco allocates are tried on the first devices that fit.")


@pytest.mark.parametrize(
    ("kind", "spec", "fix"),
    [
        ("ResourceClaimTemplate", a_spec(), "devices is not a field of spec: move it into spec.spec"),
        (
            "ResourceClaim",
            {"spec": a_spec()},
            "spec is not a field of a ResourceClaim's spec: move what is below it into",
        ),
        ("DeviceClass", {"spec": {"selectors": []}}, "spec is not a field of spec: move what is below it up one level"),
    ],
)
def test_what_would_be_read_as_if_it_were_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, spec: Json, fix: str
) -> None:
    file = tmp_path / "objects.yaml"
    misplaced = {"apiVersion": V1, "kind": kind, "metadata": {"name": "one"}, "spec": spec}
    file.write_text(yaml.safe_dump_all([*CLUSTER, misplaced]))
    assert cli.run(["simulate", "-f", str(file)]) == 1
    assert fix in capsys.readouterr().err


def test_a_claim_that_asks_for_nothing_is_said_to(tmp_path: Path) -> None:
    claim = {**a_claim("one"), "spec": {}}
    assert "default/one: no devices, because it asks for none" in simulate(tmp_path, [*CLUSTER, claim]).stdout


def test_a_claim_that_was_tried_before_is_to_be_left_out(tmp_path: Path) -> None:
    text = simulate(tmp_path, [*CLUSTER, a_claim("two", 2), a_claim("more", 2)]).stdout
    assert "leave out claim default/two, which was tried before (on node node-0)" in text
