"""The law of claims made for pods: one that its pod does not use has no devices."""

from typing import Any

import pytest

from tests.adversary.cluster.observer.made import ENTRY, made_in_vain
from tests.adversary.cluster.test_observer import PARTS, Document, a_claim, a_world

DRACOS = {"devices": {"requests": [{"exactly": {"deviceClassName": "gpu.draco.dev"}}]}}
THEIRS = {"devices": {"requests": [{"exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}


def a_pod(claim: str | None, *, uid: str = "p", phase: str = "Pending") -> Document:
    named = [{"name": "t0", "resourceClaimName": claim}]
    metadata = {"name": "p", "namespace": "default", "uid": uid, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, "resourceClaimStatuses": named}}


def made(*on: str, spec: Document = DRACOS, entry: str = "t0", reserved: bool = False) -> Document:
    claim: dict[str, Any] = {**a_claim(1, *on), "spec": spec}
    claim["metadata"] = {
        **claim["metadata"],
        "annotations": {ENTRY: entry},
        "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "p", "controller": True}],
    }
    if reserved:
        claim["status"] = {**claim["status"], "reservedFor": [{"name": "other"}]}
    return claim


CASES = {
    "the pod uses another": (True, a_pod("other"), made("a")),
    "the pod uses it": (False, a_pod("c1"), made("a")),
    "it has no devices": (False, a_pod("other"), made()),
    "another pod of the name": (False, a_pod("other", uid="q"), made("a")),
    "the pod has ended": (False, a_pod("other", phase="Succeeded"), made("a")),
    "the scheduler's": (False, a_pod("other"), made("a", spec=THEIRS)),
    "for what the pod has not got yet": (False, a_pod("other"), made("a", entry="t1")),
    "somebody has reserved it": (False, a_pod("other"), made("a", reserved=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_claim_that_its_pod_does_without_has_no_devices(case: str) -> None:
    wrong, pod, claim = CASES[case]
    assert bool(list(made_in_vain(a_world(PARTS, ("pod", pod), ("claim", claim))))) is wrong
