"""kube-controller-manager's reasons for not creating a claim, in words for users."""

import pytest

from draco.explanation.refused_creation import creation_refusal

SEEN = (
    'PodResourceClaim gpu: failed to create ResourceClaim: resourceclaims "train-gpu-x" is forbidden: exceeded quota: gpus, '
    "requested: {}, used: {}, limited: {}"
)
OF_CLASS = "gpu.example.com.deviceclass.resource.k8s.io/devices"
COUNT = "count/resourceclaims.resource.k8s.io"


QUOTA = "the claim for gpu cannot be created: ResourceQuota gpus of namespace team permits"
REMEDY = "Delete claims that are not needed, or have the quota raised."
PODS = "requests.nvidia.com/gpu"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            SEEN.format(f"{OF_CLASS}=2", f"{OF_CLASS}=1", f"{OF_CLASS}=2"),
            f"{QUOTA} 2 devices of DeviceClass gpu.example.com, other claims ask for 1, and this one for 2. {REMEDY}",
        ),
        (
            SEEN.format(f"{COUNT}=1", f"{COUNT}=3", f"{COUNT}=3"),
            f"{QUOTA} 3 ResourceClaims, and there are 3. {REMEDY}",
        ),
        (
            SEEN.format(f"{PODS}=1", f"{PODS}=4", f"{PODS}=4"),
            f"{QUOTA} 4 of {PODS}, 4 are used, and the claim takes 1. {REMEDY}",
        ),
        (
            "PodResourceClaim gpu: resource claim template missing",
            None,
        ),
        ("something else", None),
    ],
)
def test_a_refusal_is_said_with_its_quota_and_what_to_do(message: str, said: str | None) -> None:
    assert creation_refusal(message, "team") == said
