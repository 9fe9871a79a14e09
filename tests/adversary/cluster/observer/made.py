"""The law of claims made for pods: at rest, one that its pod does not use has no devices.

The pod's status names its real claim; other claims may pretend to be the pod's. Does no I/O.
"""

from collections.abc import Iterator

from tests.adversary.cluster.observer.allocators import is_for_draco
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, is_live, name, results

ENTRY = "resource.kubernetes.io/pod-claim-name"


def made_in_vain(world: World) -> Iterator[Suspicion]:
    """Allocated claims of Draco's that name an owner pod which uses other claims."""
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
