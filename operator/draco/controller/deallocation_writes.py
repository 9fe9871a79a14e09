"""Deallocates claims: the one write for it, and the memory of claims for which the API server refused it.

Owns the handling of refusals: only the refused claim is left alone for a while, and its Event names the fix. Each write is made
on top of exactly the version seen, so that a new reservation or leader wins. Callers decide which claims, and when.
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
"""Backoff of the refused claim only: a person must fix a role, but a policy may be late, or apply to one namespace."""


class Deallocations:
    """Handles one claim at a time. A refusal is forgotten once the claim has no allocation."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view
        self._refused: Pauses[str] = Pauses(
            view.clock.monotonic, first_s=_REFUSED_S, longest_s=_REFUSED_LONGEST_S
        )  # by UID
        view.claims.subscribe(self._forget)

    def refusal(self, claim: ResourceClaim) -> str:
        """The API server's last refusal for the claim, as a sentence; "" without one."""
        found = self._refused.by_key.get(claim.metadata.uid)
        if found is None:
            return ""
        # The fix comes first: a note is short, and the server's message may be long.
        why = " ".join(found.why.split()).rstrip(".")
        return f"The API server does not let Draco release claim {claim.metadata.key}: {REMEDY} ({why})."

    def left_s(self, claim: ResourceClaim) -> float:
        """Seconds for which the claim is still left alone."""
        return self._refused.left_s(claim.metadata.uid)

    def next_s(self, since_s: float) -> float:
        """Seconds until the next refused claim may be retried, counted from `since_s`; infinite without any."""
        return self._refused.next_s(since_s)

    async def take_back(self, claim: ResourceClaim, what: Literal["allocation", "reservedFor"] = "allocation") -> bool:
        """Return whether it is done; False if the claim changed or it was refused. Raises ApiError if the outcome is unknown."""
        meta = claim.metadata
        body = {"metadata": meta.as_seen, "status": {what: None}}
        try:
            await self._client.patch(CLAIMS, meta.key, body, subresource="status")
        except (NotFound, Conflict) as error:
            log.info("claim.not_taken_back", claim=str(meta.key), error=str(error))
            return False
        except (Forbidden, Invalid) as error:
            # Since 1.36 a missing right to resourceclaims/binding also comes as Invalid.
            if not self._view.claims.store.still_has(claim):
                return False  # deleted meanwhile: the refusal would never be forgotten
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
