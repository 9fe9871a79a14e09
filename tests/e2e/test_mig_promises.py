"""Claims that got a partition before its policy was deleted or changed, and whose pods come later, on a whole cluster."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.partitions import NODE, a_claim, a_pod, allocate, claim_name
from tests.e2e.test_mig import at_rest, gpu, instances, partitions, policy_says, waiting

pytestmark = pytest.mark.since(35)  # partitions that are published before they exist

Example = Callable[..., None]

POLICY = "by-claims"
SMALL = "gpu-0-mig-1g10gb-19-2"


@pytest.fixture
def on_demand(kube: Kubectl, example: Example) -> Iterator[Kubectl]:
    """GPUs in mode Dynamic, and a claim for a partition that no pod uses yet. Afterwards nothing of it is left."""
    example("mig-by-profile", "policy.yaml")
    eventually(lambda: partitions(kube), what="partitions are published")
    kube.run_with_input(a_claim("soon", "1g.10gb"), "apply", "-f", "-")
    allocate(kube, "soon", SMALL)
    yield kube
    kube.run("delete", "pods", "--all", "--grace-period=0", "--force")
    kube.run("delete", "resourceclaims", "--all", "--wait=true")
    kube.run("delete", "migpolicies", "--all")
    eventually(lambda: at_rest(kube), what="no GPU is divided any more")


def a_claim_of_all(uuid: str) -> str:
    """A claim for a whole GPU by its UUID."""
    attributes = "device.attributes['gpu.nvidia.com']"
    selector = json.dumps(f"{attributes}.type == 'gpu' && {attributes}.uuid == '{uuid}'")
    return f"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: all}}
spec:
  devices:
    requests:
      - {{name: part, exactly: {{deviceClassName: gpu.nvidia.com, selectors: [{{cel: {{expression: {selector}}}}}]}}}}
"""


def test_the_gpu_of_a_deleted_policy_is_not_given_away_under_a_claim_to_come(on_demand: Kubectl) -> None:
    kube = on_demand
    kube.run("delete", "migpolicy", POLICY)
    eventually(lambda: partitions(kube) == [SMALL], what="only what the claim was allocated is still offered")
    all_of_it = a_claim_of_all(gpu(kube)["uuid"])
    kube.run_with_input(f"{all_of_it}---{a_pod('greedy', 'all')}", "apply", "-f", "-")
    eventually(lambda: waiting(kube) == ["greedy"], what="the scheduler finds the GPU taken")
    told = f"The GPU keeps 1g.10gb at 2 for claim {claim_name(kube, 'soon')}."
    eventually(lambda: gpu(kube)["mig"].get("message") == told, what="the agent says for whom")

    kube.run_with_input(a_pod("late", "soon"), "apply", "-f", "-")
    kube.running("late")
    assert kube.devices("soon") == [(NODE, SMALL)]
    eventually(lambda: instances(kube) == [("1g.10gb", 2, "Claim")], what="the claim is served")
    assert kube.phase("greedy") == "Pending"

    kube.run("delete", "pod", "late")
    kube.run("delete", "resourceclaim", "soon")
    kube.running("greedy")
    assert kube.devices("all") == [(NODE, "gpu-0")]
    eventually(lambda: partitions(kube) == [], what="its place is no longer offered")


def test_a_layout_is_made_around_a_claim_to_come(on_demand: Kubectl) -> None:
    kube = on_demand
    layout = {"name": "halves", "instances": [{"profile": "3g.40gb", "count": 2}]}
    patch = json.dumps({"spec": {"mode": "Static", "layouts": [layout], "layout": "halves"}})
    kube.run("patch", "migpolicy", POLICY, "--type=merge", "-p", patch)
    eventually(lambda: instances(kube) == [("3g.40gb", 4, "Layout")], what="the free half is made")
    soon = claim_name(kube, "soon")
    eventually(
        lambda: f"3g.40gb at 0 waits for claim {soon}" in policy_says(kube, POLICY),
        what="it says whom the other waits for",
    )
    offered = [SMALL, "gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4"]
    eventually(
        lambda: sorted(each for each in partitions(kube) if each.startswith("gpu-0-")) == offered,
        what="what the policy offered before is no longer",
    )
    kube.run("delete", "resourceclaim", "soon")
    halves = [("3g.40gb", 0, "Layout"), ("3g.40gb", 4, "Layout")]
    eventually(lambda: instances(kube) == halves, what="the other half follows when the claim is gone")
    eventually(lambda: SMALL not in partitions(kube), what="its place is no longer offered")
    eventually(lambda: policy_says(kube, POLICY) == "8 GPUs set up as the policy asks.", what="the layout is applied")
