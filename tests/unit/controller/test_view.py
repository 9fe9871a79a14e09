"""What is read from the stores: which claims wait, what a rule affects, what is counted."""

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.allocation.fleet.supply import SupplyState
from draco.controller.metrics import OperatorMetrics, register_view
from draco.controller.taints.reach import warn_of_wide_rules
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.watch.informer import Informer
from draco.maintenance.taint_rules import rule_for
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodExtendedResourceClaimStatus, PodResourceClaimStatus, PodStatus
from draco.resources.api.maintenance import MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import TAINT_RULES, Kind
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import MOMENT, a_budget, a_claim, a_device_key, a_maintenance, a_node, a_pod, a_rule, a_slice
from tests.doubles.clock import ManualClock


def a_view(clock: ManualClock | None = None, taint_rules: Kind[DeviceTaintRule] | None = TAINT_RULES[0]) -> ClusterView:
    """A view whose stores are filled by hand, without a server."""
    client = Client(Connection("http://127.0.0.1:1"))
    return ClusterView(client, taint_rules, clock=clock or ManualClock())


def test_claims_of_a_pod_are_found_by_name_by_template_and_by_extended_resource() -> None:
    status = PodStatus(
        resource_claim_statuses=[PodResourceClaimStatus(name="made", resource_claim_name="pod-made-x7")],
        extended_resource_claim_status=PodExtendedResourceClaimStatus(resource_claim_name="pod-extended"),
    )
    pod = a_pod(claims=["shared"], templates=["made", "not-made-yet"], status=status)
    assert [key.name for key in pod.claims] == ["shared", "pod-made-x7", "pod-extended"]


def test_a_claim_that_was_made_for_a_pod_is_its_before_the_pods_status_says_so() -> None:
    view = a_view()
    pod = a_pod("pod", claims=["shared"], templates=["gpu"])
    view.pods.store.put(pod)
    view.claims.store.put(a_claim("pod-gpu-x7", made_for=("pod", "gpu")))
    assert [key.name for key in view.claims_of(pod)] == ["shared", "pod-gpu-x7"]
    assert view.pods_of(ObjectKey("default", "pod-gpu-x7")) == [pod]


MADE = a_claim("pod-gpu-x7", made_for=("pod", "gpu"))


@pytest.mark.parametrize(
    ("pod", "claims"),
    [
        (a_pod("pod", claims=["gpu"]), [MADE]),
        (a_pod("pod", templates=["other"]), [MADE]),
        (a_pod("pod", templates=["gpu"]), [MADE, a_claim("pod-gpu-y8", made_for=("pod", "gpu"))]),
        (a_pod("pod", templates=["gpu"]), [a_claim("pod-gpu-x7", made_for=("pod", "gpu"), deleting=True)]),
        (a_pod("pod", templates=["gpu"]), [a_claim("pod-gpu-x7", made_for=("one-of-this-name-before", "gpu"))]),
        (a_pod("pod", templates=["gpu"]), [a_claim("pod-gpu-x7")]),
        (
            a_pod(
                "pod",
                templates=["gpu"],
                status=PodStatus(
                    resource_claim_statuses=[PodResourceClaimStatus(name="gpu", resource_claim_name="pod-gpu-z9")]
                ),
            ),
            [MADE],
        ),
        (
            a_pod(
                "pod", templates=["gpu"], status=PodStatus(resource_claim_statuses=[PodResourceClaimStatus(name="gpu")])
            ),
            [MADE],
        ),
    ],
    ids=[
        "it names a claim itself",
        "the claim is for what it does not ask for",
        "there are two, and it is not known which it will be",
        "it is being deleted",
        "it was made for another pod",
        "it was made for none",
        "the status names another",
        "the status says that it needs none",
    ],
)
def test_no_other_claim_is_a_pods(pod: Pod, claims: list[ResourceClaim]) -> None:
    view = a_view()
    view.pods.store.put(pod)
    for claim in claims:
        view.claims.store.put(claim)
    assert all(each.metadata.key not in view.claims_of(pod) for each in claims)
    assert not any(view.pods_of(each.metadata.key) for each in claims)


@pytest.mark.parametrize(
    ("pod", "pending"),
    [
        (a_pod(claims=["claim"]), True),
        (a_pod(claims=["claim"], node="node-0"), True),
        (a_pod(claims=["claim"], deletion_timestamp=MOMENT), False),
        (a_pod(claims=["claim"], status=PodStatus(phase="Failed")), False),
        (a_pod(claims=["other"]), False),
    ],
)
def test_only_live_pods_that_have_not_started_are_pending(pod: object, pending: bool) -> None:
    view = a_view()
    view.pods.store.put(pod)  # type: ignore[arg-type]
    assert bool(view.pending_pods(ObjectKey("default", "claim"))) is pending


def test_a_rule_that_hits_everything_is_warned_of_once() -> None:
    view = a_view()
    with capture_logs() as logs:
        warn_of_wide_rules(view)
        for rule in (a_rule("wide"), a_rule("narrow", driver=NVIDIA_DRIVER)):
            for change in view.rules.store.put(rule):
                view.rules._publish([change])
        view.rules._publish(view.rules.store.put(msgspec.structs.replace(a_rule("wide"))))
    (warning,) = logs
    assert (warning["event"], warning["rule"]) == ("taint_rule.hits_everything", "wide")


def test_rules_of_a_request_are_found_by_its_uid() -> None:
    view, request = a_view(), a_maintenance(driver=NVIDIA_DRIVER)
    rule = rule_for(request, a_device_key("node-0/gpu-0"))
    view.rules.store.put(rule)
    view.rules.store.put(a_rule("foreign", driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0"))
    assert view.rules_for(request.metadata.uid) == [rule]


def test_a_cluster_without_taint_rules_has_a_view_without_them() -> None:
    view = a_view(taint_rules=None)
    assert view.rules_for("any") == []
    assert "DeviceTaintRule" not in view.collections


def test_only_jobs_of_job_sets_are_watched_and_only_if_draco_allocates() -> None:
    assert "Job" not in a_view().collections
    client = Client(Connection("http://127.0.0.1:1"))
    jobs = ClusterView(client, None, clock=ManualClock(), allocates=True).jobs
    assert isinstance(jobs, Informer)
    assert jobs._params == {"labelSelector": "jobset.sigs.k8s.io/jobset-name"}


async def test_the_supply_is_counted_again_only_when_something_changed_and_not_too_often() -> None:
    clock = ManualClock()
    view = a_view(clock)
    view.nodes.store.put(a_node("node-0"))
    first = view.supply()
    view.slices._publish(view.slices.store.put(a_slice("node-0")))
    assert view.supply() is first, "within a second it may be a little old"
    await clock.advance(1)
    second = view.supply()
    assert second == {(NVIDIA_DRIVER, SupplyState.FREE): 2}
    await clock.advance(10)
    assert view.supply() is second, "nothing changed"


def test_claims_and_requests_are_counted_by_state() -> None:
    view, metrics = a_view(), OperatorMetrics()
    register_view(metrics, view)
    for claim in (
        a_claim("pending"),
        a_claim("allocated", on=["node-0/gpu-0"]),
        a_claim("reserved", on=["node-0/gpu-1"], reserved_for=["pod"]),
        a_claim("deleting", deleting=True),
    ):
        view.claims.store.put(claim)
    view.maintenances.store.put(a_maintenance("new"))
    view.maintenances.store.put(a_maintenance("done", phase=MaintenancePhase.COMPLETED))
    sample = metrics.registry.get_sample_value
    assert [sample("draco_claims", {"state": s}) for s in ("Pending", "Allocated", "Reserved", "Deleting")] == [1] * 4
    assert sample("draco_maintenance_requests", {"phase": "Pending"}) == 1
    assert sample("draco_maintenance_requests", {"phase": "Completed"}) == 1
    assert sample("draco_informer_objects", {"kind": "ResourceClaim"}) == 4
    assert sample("draco_informer_synced", {"kind": "Pod"}) == 0


def test_budgets_are_found_by_namespace_and_unknown_ones_are_not_told_as_they_once_were() -> None:
    view = a_view()
    for namespace, name in (("b", "one"), ("a", "two"), ("c", "three")):
        view.disruption_budgets.store.put(a_budget(name, namespace=namespace))
    assert [str(each.metadata.key) for each in view.budgets_in(["b", "a", "b"])] == ["a/two", "b/one"]
    view.disruption_budgets.forbidden = True
    assert view.budgets_in(["a"]) == []
