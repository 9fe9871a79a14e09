"""An allocation for a pod that then uses another claim is released, unless somebody may still use it."""

import msgspec
import pytest

from draco.controller.allocation.gang_reading import Gangs
from draco.controller.allocation.reclaiming.useless import UselessAllocations
from draco.resources.api.core import Pod, PodResourceClaimStatus, PodStatus
from draco.resources.api.jobs import Job, JobSpec
from draco.resources.api.meta import ObjectMeta, OwnerReference
from draco.resources.kinds import DEVICE_RESERVATIONS
from tests.builders import a_claim, a_pod
from tests.unit.controller.allocation.test_waiting_groups import GPU, World
from tests.unit.controller.watching import tell

WAITS = a_pod("pod", templates=["gpu"])


def using(claim: str | None) -> Pod:
    """The pod, once its status names its claim."""
    named = PodResourceClaimStatus(name="gpu", resource_claim_name=claim)
    return a_pod("pod", templates=["gpu"], status=PodStatus(phase="Pending", resource_claim_statuses=[named]))


class Lab:
    def __init__(self) -> None:
        self.view = World(GPU).view
        gangs = Gangs(self.view)
        self.useless = UselessAllocations(self.view, gangs, in_flight=lambda _: False, refused=lambda _: False)
        self.useless.follow()

    def found(self) -> dict[str, str]:
        return {claim.metadata.name: why for claim, why in self.useless.found()}


@pytest.mark.parametrize("other", ["pod-gpu-y8", None])
def test_what_was_made_for_a_pod_that_then_uses_another_or_none_is_given_back(other: str | None) -> None:
    lab = Lab()
    made = a_claim("pod-gpu-x7", device_class="gpu", on=["node-0/gpu-0"], made_for=("pod", "gpu"))
    tell(lab.view, WAITS, made)
    assert lab.found() == {}
    tell(lab.view, using(other))
    assert lab.found() == {"pod-gpu-x7": "pod pod, for which the claim was made, does not use it."}
    assert lab.found().keys() == {"pod-gpu-x7"}  # until it is released


def test_what_the_pod_names_what_another_pod_names_and_what_somebody_reserved_stays() -> None:
    lab = Lab()
    names = {"pod-gpu-x7": (), "named-by-another": (), "reserved": ("somebody",)}
    for name, users in names.items():
        on = [f"node-0/gpu-{name}"]
        tell(lab.view, a_claim(name, device_class="gpu", on=on, reserved_for=users, made_for=("pod", "gpu")))
    tell(lab.view, a_pod("another", claims=["named-by-another"]), using("pod-gpu-x7"))
    assert lab.found() == {}


def test_what_was_made_for_a_pod_that_is_not_there_is_for_kubernetes_to_delete() -> None:
    lab = Lab()
    tell(lab.view, a_claim("old", device_class="gpu", on=["node-0/gpu-0"], made_for=("one-before", "gpu")))
    tell(lab.view, using("pod-gpu-x7"))
    assert lab.found() == {}


def test_a_part_of_a_job_set_that_cannot_start_is_given_back_once_the_watch_has_reported_its_size() -> None:
    lab = Lab()
    labels = {"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/global-replicas": "1"}
    owner = OwnerReference(api_version="batch/v1", kind="Job", name="job", uid="job", controller=True)
    of_job = {**labels, "batch.kubernetes.io/job-name": "job"}
    pending = PodStatus(phase="Pending")
    pod = a_pod("one", claims=["one"], labels=of_job, owner_references=[owner], status=pending)
    tell(lab.view, pod, a_claim("one", device_class="gpu", on=["node-0/gpu-0"], reserved_for=()))
    assert lab.found() == {}
    meta = ObjectMeta(name="job", namespace="default", uid="job", labels=labels)
    tell(lab.view, Job(metadata=meta, spec=JobSpec(parallelism=2)))
    assert lab.found().keys() == {"one"}


OTHERS, OWN = "example.com/admission", "draco.dev/allocation"


@pytest.mark.parametrize(("gates", "useless"), [([OTHERS, OTHERS], True), ([OTHERS, OWN], False), ([], False)])
def test_what_only_pods_behind_gates_of_others_name_is_given_back(gates: list[str], useless: bool) -> None:
    lab = Lab()
    tell(lab.view, a_claim("named", device_class="gpu", on=["node-0/gpu-0"], reserved_for=()))
    for number, gate in enumerate(gates):
        tell(lab.view, a_pod(f"pod-{number}", claims=["named"], gates=[gate], status=PodStatus(phase="Pending")))
    why = "somebody's scheduling gate holds pods pod-0, pod-1 back, and others may use them meanwhile."
    assert lab.found() == ({"named": why} if useless else {})


def test_what_a_reservation_has_stays_its_own_whatever_waits_for_it() -> None:
    lab = Lab()
    made = a_claim("r-0", device_class="gpu", on=["node-0/gpu-0"], reserved_for=())
    owner = DEVICE_RESERVATIONS.owner(ObjectMeta(name="r", uid="r"))
    owned = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=[owner]))
    tell(lab.view, owned, a_pod("pod", claims=["r-0"], gates=[OTHERS], status=PodStatus(phase="Pending")))
    assert lab.found() == {}
