"""What the status of a SharingPolicy says."""

import pytest

from draco.mig_policy.matching import MatchVerdict, PolicyMatch
from draco.resources.api.sharing import SharingMode, SharingPolicyStatus
from draco.sharing.decide import GpuForm, NodeForms, SharingState, sharing_rules
from draco.sharing.summary import counts_of, status_of
from tests.builders import MOMENT, a_sharing_policy

SELECTED = {"policy": MatchVerdict(PolicyMatch.SELECTED)}
POLICY = a_sharing_policy()


def a_form(
    device: str = "gpu-0", *, policy: str = "policy", state: SharingState = SharingState.SHARED, message: str = ""
) -> GpuForm:
    return GpuForm(uuid=f"GPU-{device}", device=device, policy=policy, state=state, message=message, verdicts=SELECTED)


def status(*nodes: NodeForms, policy: object = POLICY) -> SharingPolicyStatus:
    rules = sharing_rules(policy)  # type: ignore[arg-type]
    counts = counts_of(rules)
    for each in nodes:
        counts.add(each.node, each.gpus)
    return status_of(rules, counts, MOMENT)


def test_a_policy_says_what_a_claim_gets_that_asks_for_nothing() -> None:
    node = NodeForms(node="node-0", gpus=(a_form(),))
    assert status(node).message == "1 GPU shared. A claim that asks for no capacity gets the whole memory."
    for policy, says in (
        (a_sharing_policy(default="10Gi"), "gets 10Gi."),
        (a_sharing_policy(mode=SharingMode.COUNT, count=4), "gets 1 of 4 shares, and no memory of its own."),
        (a_sharing_policy(mode=SharingMode.UNLIMITED), "gets a share, and no memory of its own."),
    ):
        assert status(node, policy=policy).message.endswith(says)


def test_what_failed_comes_before_what_waits() -> None:
    gpus = (
        a_form("gpu-0", state=SharingState.WAITING, message="waits for claim a/b"),
        a_form("gpu-1", state=SharingState.FAILED, message="its memory is unknown"),
        a_form("gpu-2"),
    )
    found = status(NodeForms(node="node-0", gpus=gpus))
    assert (found.gpus, found.shared, found.waiting, found.failed) == (3, 1, 1, 1)
    assert found.message == "1 of 3 GPUs cannot be shared as the policy asks: gpu-1 of node-0: its memory is unknown."
    assert [each.message for each in found.nodes] == ["gpu-1: its memory is unknown; gpu-0: waits for claim a/b."]
    assert {each.type: each.status for each in found.conditions} == {
        "Valid": "True", "Applied": "False", "Conflicting": "False",
    }  # fmt: skip


def test_for_whom_a_gpu_waits_is_in_the_message() -> None:
    gpu = a_form(state=SharingState.WAITING, message="waits for claim a/b")
    assert status(NodeForms(node="node-0", gpus=(gpu,))).message == (
        "1 of 1 GPU not published as the policy asks yet: gpu-0 of node-0: waits for claim a/b."
    )


def test_older_policies_are_named() -> None:
    found = status(NodeForms(node="node-0", gpus=(a_form(policy="older"),)))
    assert found.message == "Has no GPU: 1 GPU that it selects belongs to the older policy older."
    assert [(each.policy, each.gpus) for each in found.conflicts] == [("older", 1)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (PolicyMatch.OTHER_NODE, "spec.nodeSelector selects none of 1 node with GPUs"),
        (PolicyMatch.NOT_SELECTED, "of 1 GPU on the nodes it selects, 1 not selected by spec.deviceSelectors[0]"),
    ],
)
def test_a_policy_without_gpus_says_what_excludes_them(answer: PolicyMatch, says: str) -> None:
    gpu = GpuForm(uuid="GPU-0", device="gpu-0", verdicts={"policy": MatchVerdict(answer)})
    assert status(NodeForms(node="node-0", gpus=(gpu,))).message == f"Matches nothing: {says}."
    assert status().message == "Matches nothing: no node has reported a GPU."
