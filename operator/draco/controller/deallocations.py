"""Takes back what claims hold: the one write for it, and which claims the API server refused it for.

Owns what becomes of a refusal: that claim alone is left alone for a while, and is told with the remedy. Each write is made on top
of just the version that was seen: a pod that reserves the claim now, or a newer leader, must win. Which claims, and when, is the
caller's.
"""

from typing import Literal

import structlog

from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.retry import Pauses
from draco.kube.errors import Conflict, Forbidden, Invalid, NotFound
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim
from draco.resources.kinds import CLAIMS

log = structlog.get_logger(__name__)

REMEDY = (
    "set the chart's value operator.releaseIdleClaims to true, or operator.allocate for GPUs that Draco allocates, which gives "
    "the operator patch on resourceclaims/status and resourceclaims/binding"
)
_REFUSED_S, _REFUSED_LONGEST_S = 5.0, 300.0
"""How long a claim is left alone after the API server refused the write, longer each time: a role is mended by a person, but a
policy may only be late. What is refused for one claim, such as by a policy for its namespace, says nothing of others."""


class Deallocations:
    """One claim at a time. What was refused is forgotten once the claim has no allocation any more."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view
        self._refused: Pauses[str] = Pauses(view.clock, first_s=_REFUSED_S, longest_s=_REFUSED_LONGEST_S)  # by UID
        view.claims.subscribe(self._forget)

    def refusal(self, claim: ResourceClaim) -> str:
        """What the API server said when it refused it for the claim last, as a sentence; "" if it did not."""
        found = self._refused.by_key.get(claim.metadata.uid)
        if found is None:
            return ""
        # What to do comes first: a note has only so much room, and the server's words may be long.
        why = " ".join(found.why.split()).rstrip(".")
        return f"The API server does not let Draco release claim {claim.metadata.key}: {REMEDY} ({why})."

    def left_s(self, claim: ResourceClaim) -> float:
        """For how many more seconds the claim is left alone."""
        return self._refused.left_s(claim.metadata.uid)

    def next_s(self, since_s: float) -> float:
        """In how many seconds the next claim may be tried again that might not at `since_s`; infinite where none was refused."""
        return self._refused.next_s(since_s)

    async def take_back(self, claim: ResourceClaim, what: Literal["allocation", "reservedFor"] = "allocation") -> bool:
        """Returns whether it is done; if not, the claim has changed, or it was refused. Raises ApiError where that is open."""
        meta = claim.metadata
        body = {"metadata": meta.as_seen, "status": {what: None}}
        try:
            await self._client.patch(CLAIMS, meta.key, body, subresource="status")
        except (NotFound, Conflict) as error:
            log.info("claim.not_taken_back", claim=str(meta.key), error=str(error))
            return False
        except (Forbidden, Invalid) as error:
            # Since 1.36 a missing right to resourceclaims/binding comes as Invalid too.
            if not self._view.claims.store.still_has(claim):
                return False  # deleted meanwhile: nobody would ever forget the refusal
            again_s = self._refused.begin(meta.uid, str(error))
            log.warning(
                "claim.not_taken_back", claim=str(meta.key), error=str(error), remedy=REMEDY, again_in_s=again_s
            )
            return False
        self._refused.forget(meta.uid)
        return True

    def _forget(self, change: Change[ResourceClaim]) -> None:
        if change.before is not None and (change.after is None or change.after.status.allocation is None):
            self._refused.forget(change.before.metadata.uid)
