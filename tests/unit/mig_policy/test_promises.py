"""What is kept for claims on GPUs whose wanted state has changed."""

from typing import Any

import msgspec
import pytest

from draco.mig.known_boards import BOARDS
from draco.mig_policy.decide import SeenNode, decide
from draco.mig_policy.matching import oldest_first, rules_of
from draco.mig_policy.promises import promises
from draco.resources.api.draco import GpuMig, GpuNode, MigMode, MigPolicy, PromisedDevice, WantedGpu
from draco.resources.api.meta import Condition
from tests.builders import a_gpu_uuid, a_mig_node, a_mig_policy, a_static_policy

H100 = BOARDS["H100-80GB"]
FIRST = a_gpu_uuid("node-0", 0)
ON = GpuMig(capable=True, enabled=True)
SMALL = "gpu-0-mig-1g10gb-19-2"
PROMISED = PromisedDevice(device=SMALL, uuid=FIRST, claim="default/soon")
WHOLE = PromisedDevice(device="gpu-0", uuid=FIRST, claim="default/soon")


def a_node_of(mig: GpuMig | None = ON, *, architecture: str = "Hopper", **fields: Any) -> GpuNode:
    node = a_mig_node(gpus=[mig], board=H100, **fields)
    gpus = [msgspec.structs.replace(each, architecture=architecture) for each in node.status.gpus]
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=gpus))


def kept(node: GpuNode, *policies: MigPolicy, device: str = SMALL) -> list[PromisedDevice]:
    """The promised devices of a node with one allocated device."""
    decision = decide(SeenNode(gpu_node=node), [rules_of(each) for each in oldest_first(policies)], {})
    return promises(node, decision.wanted, {device: "default/soon"})


def promising(node: GpuNode, *devices: PromisedDevice) -> GpuNode:
    return msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, promised=list(devices)))


@pytest.mark.parametrize(
    "policy",
    [
        a_mig_policy(),
        a_mig_policy(profiles=["1g.10gb"]),
        a_static_policy("static", "3g.40gb@4", "1g.10gb@2"),
    ],
    ids=["any profile", "its profile", "a layout that has it"],
)
def test_what_is_offered_anyway_is_not_told(policy: MigPolicy) -> None:
    assert kept(a_node_of(), policy) == []


@pytest.mark.parametrize(
    "policies",
    [
        [],
        [a_mig_policy(mode=MigMode.DISABLED)],
        [a_mig_policy(profiles=["3g.40gb"])],
        [a_static_policy("static", "3g.40gb@0")],
        [a_static_policy("static", "1g.10gb@3")],
    ],
    ids=["no policy", "Disabled", "another profile", "another layout", "another start"],
)
def test_what_a_claim_was_allocated_is_kept_whatever_is_wanted_now(policies: list[MigPolicy]) -> None:
    assert kept(a_node_of(), *policies) == [PROMISED]


def test_a_gpu_that_was_allocated_whole_is_kept_where_only_parts_are_offered() -> None:
    assert kept(a_node_of(), a_static_policy("static", "3g.40gb@0"), device="gpu-0") == [WHOLE]
    for policies in ([], [a_mig_policy()], [a_mig_policy(mode=MigMode.DISABLED)]):
        assert kept(a_node_of(), *policies, device="gpu-0") == []


def test_before_hopper_a_gpu_is_offered_whole_or_in_parts() -> None:
    off, on = a_node_of(GpuMig(capable=True), architecture="Ampere"), a_node_of(architecture="Ampere")
    assert kept(on, a_mig_policy()) == []
    assert kept(off, a_mig_policy()) == [PROMISED]
    # The mode may change at the next reset, long after this decision.
    assert kept(off, a_mig_policy(), device="gpu-0") == [WHOLE]
    assert kept(off, device="gpu-0") == []


def test_a_promise_outlives_the_device_and_a_restart_and_ends_with_the_allocation() -> None:
    node = promising(a_node_of(), PROMISED)
    assert kept(node) == [PROMISED]
    assert promises(node, [], {}) == []
    other = "gpu-0-mig-3g40gb-9-4"
    assert promises(node, [], {other: "default/other"}) == [
        PromisedDevice(device=other, uuid=FIRST, claim="default/other")
    ]


def test_what_its_agent_does_not_report_now_stays_promised_as_long_as_it_is_allocated() -> None:
    silent = [Condition(type="Readable", status="False", reason="NoDriver")]
    for node in (
        a_node_of(None),
        a_mig_node(gpus=[], conditions=silent),
        a_mig_node(gpus=[GpuMig(capable=True, enabled=True, board="")]),
    ):
        assert kept(promising(node, PROMISED)) == [PROMISED]
        assert promises(promising(node, PROMISED), [], {"gpu-1": "default/other"}) == []
    assert kept(a_mig_node(gpus=[], conditions=silent)) == [], "of which board it is, nobody knows"


@pytest.mark.parametrize("mig", [None, GpuMig(capable=True, enabled=True, board="")], ids=["partitions", "board"])
def test_a_part_of_a_gpu_is_promised_while_its_agent_does_not_report_its(mig: GpuMig | None) -> None:
    """The agent may have been away, and no policy selects the GPU: nothing else would keep the claim's device published."""
    node = a_mig_node(gpus=[mig])
    assert kept(node) == [PROMISED]
    assert kept(node, device="gpu-0") == []
    wanted = WantedGpu(uuid=FIRST, policy="pool", mode=MigMode.DYNAMIC)
    by_policy = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, gpus=[wanted]))
    assert promises(by_policy, [wanted], {SMALL: "default/soon"}) == [], "it stays offered as it is"
    other = msgspec.structs.replace(wanted, mode=MigMode.STATIC)
    assert promises(by_policy, [other], {SMALL: "default/soon"}) == [PROMISED]


@pytest.mark.parametrize("device", ["gpu-0-mig-9g90gb-99-0", "gpu-0-mig-1g10gb-19-7", "gpu-7-mig-1g10gb-19-2", "nic-0"])
def test_what_no_agent_serves_is_promised_to_nobody(device: str) -> None:
    assert kept(a_node_of(), device=device) == []


def test_one_gpu_of_a_policy_does_not_offer_for_another() -> None:
    wanted = [WantedGpu(uuid=a_gpu_uuid("node-0", 1), policy="p", mode=MigMode.DYNAMIC)]
    node = a_mig_node(gpus=[ON, ON], board=H100)
    both = {SMALL: "default/soon", "gpu-1-mig-1g10gb-19-2": "default/there"}
    assert promises(node, wanted, both) == [PROMISED]
