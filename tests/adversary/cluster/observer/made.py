"""The law of claims that are made for pods: at rest, one that its pod does without has no devices.

Kubernetes says in the pod's status which claim is the pod's; others may say that they are. Does no I/O.
"""

from collections.abc import Iterator

from tests.adversary.cluster.observer.allocators import is_for_draco
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, is_live, name, results

ENTRY = "resource.kubernetes.io/pod-claim-name"


def made_in_vain(world: World) -> Iterator[Suspicion]:
    """Claims of Draco's that have devices, though the pod that they say they are for uses others."""
    for uid, claim in world.claims.items():
        pod = world.pods.get(_maker(claim))
        entry = (claim["metadata"].get("annotations") or {}).get(ENTRY)
        if pod is None or not is_live(pod) or not is_for_draco(claim) or not results(claim):
            continue
        used = {
            each["name"]: each.get("resourceClaimName") for each in pod["status"].get("resourceClaimStatuses") or []
        }
        is_another = entry in used and used[entry] != claim["metadata"]["name"]
        if is_another and not claim["status"].get("reservedFor"):
            yield Suspicion(
                "made in vain", uid, f"claim {name(claim)} has devices, and pod {name(pod)} uses {used[entry]}"
            )


def _maker(claim: Object) -> str:
    owners = claim["metadata"].get("ownerReferences") or []
    return next((each["uid"] for each in owners if each.get("controller") and each["kind"] == "Pod"), "")
