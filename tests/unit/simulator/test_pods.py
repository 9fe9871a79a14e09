from datetime import timedelta
from ipaddress import ip_address, ip_network

import msgspec
import pytest

from draco.resources.api.core import PodExtendedResourceClaimStatus, PodResourceClaimStatus, PodStatus
from draco.resources.api.meta import ObjectKey, OwnerReference
from draco_local.simulator.kubelet import pods
from draco_local.simulator.kubelet.pods import ClaimUse, PodBlocked
from tests.builders import MOMENT, a_claim, a_pod, a_uid


def test_claims_are_found_by_name_by_template_and_for_extended_resources() -> None:
    status = PodStatus(
        resource_claim_statuses=[PodResourceClaimStatus(name="made", resource_claim_name="pod-made-x7k2p")],
        extended_resource_claim_status=PodExtendedResourceClaimStatus(resource_claim_name="pod-extended-9qf4z"),
    )
    pod = a_pod(claims=["named"], templates=["made"], status=status)
    assert pods.claim_uses(pod) == [
        ClaimUse(ObjectKey("default", "named"), generated=False),
        ClaimUse(ObjectKey("default", "pod-made-x7k2p"), generated=True),
        ClaimUse(ObjectKey("default", "pod-extended-9qf4z"), generated=True),
    ]


def test_a_template_whose_claim_is_not_made_yet_blocks_the_pod() -> None:
    with pytest.raises(PodBlocked, match='entry "made" has not been made yet'):
        pods.claim_uses(a_pod(templates=["made"]))


def test_a_template_that_needs_no_claim_for_this_pod_is_passed_over() -> None:
    status = PodStatus(resource_claim_statuses=[PodResourceClaimStatus(name="made")])
    assert pods.claim_uses(a_pod(templates=["made"], status=status)) == []


def test_a_claim_must_be_allocated_and_reserved_for_the_pod() -> None:
    pod = a_pod("train")
    with pytest.raises(PodBlocked, match="is not allocated"):
        pods.check_usable(a_claim(), pod, generated=False)
    with pytest.raises(PodBlocked, match="is not reserved for pod default/train"):
        pods.check_usable(a_claim(on=["node-0/gpu-0"], reserved_for=["other"]), pod, generated=False)
    pods.check_usable(a_claim(on=["node-0/gpu-0"], reserved_for=["other", "train"]), pod, generated=False)


def test_a_claim_made_for_a_pod_must_be_owned_by_it() -> None:
    pod = a_pod("train")
    claim = a_claim(on=["node-0/gpu-0"], reserved_for=["train"])
    with pytest.raises(PodBlocked, match="was not made for pod default/train"):
        pods.check_usable(claim, pod, generated=True)
    owner = OwnerReference(api_version="v1", kind="Pod", name="train", uid=a_uid("pod", "default", "train"))
    owned = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, owner_references=[owner]))
    pods.check_usable(owned, pod, generated=True)


def test_every_driver_of_an_allocation_is_asked_once() -> None:
    claim = a_claim(on=["node-0/gpu-1", "node-0/gpu-0", "nic.example.com/node-0/nic-0"])
    assert pods.drivers_of(claim) == ["gpu.nvidia.com", "nic.example.com"]


@pytest.mark.parametrize(
    ("wish", "seconds"),
    [("5", 5.0), ("0.5", 0.5), ("0", 0.0), ("-1", None), ("soon", None), ("nan", None), ("inf", None)],
)
def test_only_a_time_that_makes_sense_ends_a_pod(wish: str, seconds: float | None) -> None:
    assert pods.run_seconds(a_pod(annotations={"draco.dev/run-seconds": wish})) == seconds


def test_a_pod_without_a_wish_runs_until_it_is_deleted() -> None:
    assert pods.run_seconds(a_pod()) is None


def test_a_finished_pod_says_how_long_it_ran() -> None:
    status = pods.finished_status(a_pod(), started_at=MOMENT, at=MOMENT + timedelta(seconds=90))
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (status["phase"], ended["startedAt"], ended["finishedAt"]) == (
        "Succeeded",
        "2026-03-01T12:00:00Z",
        "2026-03-01T12:01:30Z",
    )


def test_addresses_are_stable_and_on_nobodys_network() -> None:
    names = [f"name-{index}" for index in range(200)]
    assert [pods.pod_ip(name) for name in names] == [pods.pod_ip(name) for name in names]
    assert all(ip_address(pods.pod_ip(name)).is_reserved for name in names)
    assert all(ip_address(pods.node_ip(name)).is_loopback for name in names)
    machines_own = ip_network("127.0.0.0/16")  # where name servers and other local services listen
    assert not any(ip_address(pods.node_ip(name)) in machines_own for name in names)
    assert len({pods.node_ip(name) for name in names}) == len(names)
