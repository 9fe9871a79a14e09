"""`draco autoscale`: templates of future nodes, and whether the nodes of a group are alike."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from draco import cli
from draco.cli.autoscale.command import command
from draco.cli.autoscale.groups import GroupsReport, check
from draco.cli.autoscale.templates import NoTemplate, annotations, of_board, of_node
from draco.mig.known_boards import BOARDS, MODELS
from draco.resources.api.core import Node
from draco.resources.api.draco import Allocator, MigMode
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import Device, DeviceAttribute, ResourceSlice
from draco.resources.api.taints import DeviceTaint
from draco_local.simulator.gpus import boards
from tests.builders import a_device, a_mig_policy, a_slice, a_static_policy

POOL = "karpenter.sh/nodepool"


def a_gpu(number: int = 0, **attributes: str) -> Device:
    made = a_device(f"gpu-{number}")
    said = {name: DeviceAttribute(string=value) for name, value in attributes.items()}
    return msgspec.structs.replace(made, attributes=made.attributes | said)


def a_member(name: str, **labels: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={POOL: "gpu"} | labels))


def told(*arguments: str, given: str = "") -> Any:
    result = CliRunner().invoke(command, ["template", *arguments], input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return yaml.safe_load(result.stdout)


def test_the_known_boards_are_named_as_the_simulated_ones() -> None:
    assert {name: (one.product_name, one.memory_mib, one.nvswitch) for name, one in MODELS.items()} == {
        name: (one.product_name, one.memory_mib, bool(one.nvlinks)) for name, one in boards.BOARDS.items()
    }
    assert {name: one.compute_capability for name, one in MODELS.items()} == {
        name: ".".join(map(str, one.compute_capability)) for name, one in boards.BOARDS.items()
    }
    assert set(BOARDS) == {name for name, one in boards.BOARDS.items() if one.mig_capable}


def test_a_board_makes_one_template_a_slice_by_instance_type() -> None:
    document = told("--board", "H100-80GB", "--count", "8", "--name", "p5.48xlarge")
    [template] = document["p5.48xlarge"]
    assert (template["driver"], template["pool"], len(template["devices"])) == ("gpu.nvidia.com", "node", 8)
    assert told("--board", "H100-80GB", "--count", "8", "-o", "json")["H100-80GB"] == [template]


def test_a_policy_divides_the_board_and_counters_have_templates_of_their_own(tmp_path: Path) -> None:
    policy = {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "MigPolicy",
        "metadata": {"name": "small"},
        "spec": {"mode": "Dynamic", "profiles": ["1g.10gb"]},
    }
    document = told("--board", "H100-80GB", "--count", "2", "--policy", "-", given=json.dumps(policy))
    counters, devices = document["H100-80GB"]
    assert [each["name"] for each in counters["sharedCounters"]] == ["gpu-0-counter-set", "gpu-1-counter-set"]
    assert "devices" not in counters
    assert {each["attributes"]["type"]["string"] for each in devices["devices"]} == {"gpu", "mig"}
    assert len(devices["devices"]) == 2 + 2 * 7


@pytest.mark.parametrize("board", ["H100-80GB", "L40S"])
def test_the_devices_of_a_board_that_is_handed_over_are_those_that_dracos_classes_select(board: str) -> None:
    """Otherwise no autoscaler would find a node for Draco's claims. The taint is left out, as all taints are."""
    policy = a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.OPERATOR)
    (template,) = of_board(board, 2, policy)
    assert [each.attributes["draco.dev/allocator"].string for each in template.devices] == ["operator"] * 2
    assert [each.taints for each in template.devices] == [[], []]
    assert "draco.dev/allocator" not in of_board(board, 1)[0].devices[0].attributes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Give either a node or a board"),
        (["node-0", "--board", "T4"], "Give either a node or a board"),
        (["node-0", "--count", "2"], "--count and --policy belong to --board"),
        (["--board", "T4"], "Give the number of GPUs of a node with --count"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(command, ["template", *arguments])
    assert (result.exit_code, says in result.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--board", "H1000", "--count", "1"], "Draco knows no board H1000; it knows A100-40GB"),
        (["--board", "T4", "--count", "1", "--policy", "POLICY"], "Board T4 cannot be divided"),
        (["--board", "A30", "--count", "1", "--policy", "POLICY"], "MigPolicy small cannot be applied to board A30"),
    ],
)
def test_what_makes_no_template_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    file = tmp_path / "policy.yaml"
    spec = {"mode": "Dynamic", "profiles": ["1g.10gb"]}
    file.write_text(
        json.dumps(
            {"apiVersion": "draco.dev/v1alpha1", "kind": "MigPolicy", "metadata": {"name": "small"}, "spec": spec}
        )
    )
    given = [str(file) if each == "POLICY" else each for each in arguments]
    assert cli.run(["autoscale", "template", *given], program="draco") == 1
    assert says in capsys.readouterr().err


def test_a_live_node_is_told_without_what_is_only_its_own() -> None:
    taint = DeviceTaint(key="draco.dev/isolated", effect="NoSchedule")
    whole = msgspec.structs.replace(a_gpu(0, uuid="GPU-1", clusterUUID="c", cliqueID="1"), taints=[taint])
    part = msgspec.structs.replace(a_gpu(parentUUID="GPU-1"), name="gpu-0-mig-1g10gb-19-0")
    card = Device(name="nic-0", attributes={"speed": DeviceAttribute(int_=100)})
    slices = [
        a_slice("n", [whole, part], generation=2, name="new"),
        a_slice("n", ["gpu-7"], generation=1, name="old"),
        a_slice("n", [card], driver="nic.example.com"),
        a_slice("other", ["gpu-3"]),
    ]
    gpus, cards = of_node("n", slices)
    assert ([one.name for one in gpus.devices], [one.name for one in cards.devices]) == (
        ["gpu-0", "gpu-0-mig-1g10gb-19-0"],
        ["nic-0"],
    )
    assert (gpus.pool, gpus.devices[0].taints) == ("node", [])
    assert gpus.devices[0].attributes["uuid"] == gpus.devices[1].attributes["parentUUID"]
    assert gpus.devices[0].attributes.keys() == {"productName", "uuid"}


def test_a_node_that_publishes_nothing_or_not_all_makes_no_template() -> None:
    with pytest.raises(NoTemplate, match="publishes no devices"):
        of_node("n", [])
    with pytest.raises(NoTemplate, match="is incomplete"):
        of_node("n", [a_slice("n", of=2)])


def test_the_annotations_of_cluster_api_have_room_for_whole_devices_of_one_driver() -> None:
    assert annotations(of_board("A30", 4)) == {
        "capacity.cluster-autoscaler.kubernetes.io/dra-driver": "gpu.nvidia.com",
        "capacity.cluster-autoscaler.kubernetes.io/gpu-count": "4",
    }
    with pytest.raises(NoTemplate, match="for whole devices only"):
        annotations(of_board("H100-80GB", 1, a_static_policy("policy", "7x1g.10gb")))
    with pytest.raises(NoTemplate, match="for devices of one driver only"):
        annotations(of_node("n", [a_slice("n"), a_slice("n", ["nic-0"], driver="nic.example.com")]))


def report(*slices: ResourceSlice, label: str = "", **labels: str) -> GroupsReport:
    names = dict.fromkeys(one.spec.node_name or "" for one in slices)
    return check([a_member(name, **labels) for name in names], slices, label)


def test_nodes_are_alike_wherever_they_are_and_however_their_gpus_are() -> None:
    sick = msgspec.structs.replace(a_gpu(0, uuid="GPU-2"), taints=[DeviceTaint(key="x", effect="NoSchedule")])
    place = "resource.kubernetes.io/pciBusID"
    found = report(a_slice("a", [a_gpu(0, uuid="GPU-1", **{place: "0000:01:00.0"})]), a_slice("b", [sick]))
    assert (found.alike, [each.nodes for each in found.groups], found.ungrouped) == (True, [2], [])


def test_a_node_that_differs_is_named_with_how() -> None:
    odd = [a_device("gpu-0", product="NVIDIA H200"), a_device("gpu-2")]
    found = report(a_slice("a"), a_slice("b"), a_slice("c", odd), a_slice("d", of=2))
    [group] = found.groups
    assert not found.alike
    assert group.group == "karpenter.sh/nodepool=gpu, node.kubernetes.io/instance-type="
    assert (group.model, [each.node for each in group.different]) == ("a", ["c", "d"])
    assert group.different[0].how == [
        "lacks 1 device: gpu.nvidia.com/gpu-1",
        "has 1 device more: gpu.nvidia.com/gpu-2",
        "productName is NVIDIA H200 instead of NVIDIA H100 80GB HBM3 of gpu.nvidia.com/gpu-0",
    ]
    assert "is incomplete" in group.different[1].how[0]


def test_a_label_of_ones_own_makes_other_groups_and_nodes_without_devices_count_for_none() -> None:
    slices = [a_slice("a"), a_slice("b", ["gpu-0"])]
    nodes = [
        Node(metadata=ObjectMeta(name="a", labels={"pool": "one"})),
        Node(metadata=ObjectMeta(name="b", labels={"pool": "two"})),
        Node(metadata=ObjectMeta(name="c", labels={"pool": "two"})),
    ]
    assert check(nodes, slices).ungrouped == ["a", "b"]
    found = check(nodes, slices, "pool")
    assert (found.alike, [(each.group, each.nodes) for each in found.groups]) == (
        True,
        [("pool=one", 1), ("pool=two", 1)],
    )
