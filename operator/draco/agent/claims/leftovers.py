"""Unprepares claims that kubelet will never unprepare itself.

Owns the decision to give up a claim by ourselves. It is rare: kubelet records every claim whose Prepare succeeded, survives its
own restarts and reboots with that record, and asks to give each one up; until then its pod stays Terminating. Only when kubelet's
record was lost (its folder wiped, ours kept) would a claim hold its device for ever. So a claim is given up by us only if it is
gone from the API server (or its name is another claim's by now) or was deallocated (it has no allocation any more, or one of
other devices), has been so for `patience_s` without a break, and kubelet's own record, which must be there and readable, does
not name its uid. Where that record cannot be read, nothing is given up. A claim that was deallocated and that kubelet does name
is reported once: something keeps kubelet from giving it up.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog

from draco.agent.record.checkpoint import PreparedClaim
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, NotFound
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco.resources.names import ClaimUid

log = structlog.get_logger()

KUBELET_RECORD = "dra_manager_state"
"""Below kubelet's folder. JSON whose shape differs between releases; it contains the uid of every claim."""


class Leftovers:
    """Looks for such claims every `interval_s`. `give_up` is called with each."""

    def __init__(
        self,
        client: Client,
        *,
        driver: str,
        claims: Callable[[], Mapping[ClaimUid, PreparedClaim]],
        kubelet_record: Path,
        give_up: Callable[[PreparedClaim], Awaitable[None]],
        clock: Clock,
        interval_s: float = 300.0,
        patience_s: float = 600.0,
    ) -> None:
        self._client = client
        self._driver = driver
        self._claims = claims
        self._kubelet_record = kubelet_record
        self._give_up = give_up
        self._clock = clock
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._gone_since: dict[ClaimUid, float] = {}
        self._reported: set[ClaimUid] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._clock.sleep(self._interval_s)
            try:
                await self.look()
            except ApiError as error:
                self._gone_since.clear()  # not without a break
                log.info("leftovers.not_checked", error=str(error))

    async def look(self) -> None:
        """One look at every claim on record."""
        claims = self._claims()
        self._gone_since = {uid: since for uid, since in self._gone_since.items() if uid in claims}
        self._reported &= claims.keys()
        for uid, claim in claims.items():
            why = await self._why_not_ours(claim)
            if not why:
                self._gone_since.pop(uid, None)
                self._reported.discard(uid)
                continue
            since = self._gone_since.setdefault(uid, self._clock.monotonic())
            if self._clock.monotonic() - since < self._patience_s:
                continue
            if denies(self._kubelet_record, uid):
                log.warning("claim.left_behind", claim=str(claim), uid=uid, why=why)
                await self._give_up(claim)
            elif uid not in self._reported:
                self._reported.add(uid)
                log.warning("claim.not_given_up_by_kubelet", claim=str(claim), uid=uid, why=why)

    async def _why_not_ours(self, claim: PreparedClaim) -> str:
        """Why nothing can use the claim here any more; "" while something can."""
        try:
            found = await self._client.get(CLAIMS, ObjectKey(claim.namespace, claim.name))
        except NotFound:
            return "gone"
        if found.metadata.uid != claim.uid:
            return "gone"
        allocated = {(one.pool, one.device) for one in found.results if one.driver == self._driver}
        return "" if allocated & {(one.pool, one.device) for one in claim.devices} else "deallocated"


def denies(kubelet_record: Path, uid: ClaimUid) -> bool:
    """Whether kubelet's record can be read and does not name a claim."""
    try:
        return uid not in kubelet_record.read_text()
    except (OSError, UnicodeDecodeError):
        return False
