"""Finds claims on record that nothing can use any more, and unprepares them if kubelet does not.

When a pod is deleted by force, its claim is deleted or deallocated while kubelet still ends the containers; kubelet usually
unprepares the claim later. Until then its devices cannot be prepared for others. Owns the decision to unprepare such a claim
ourselves: when two checks `confirm_s` apart find it gone from the API server (or replaced by another of its name) or with none of
its devices allocated, and no process of it runs on the node. Kubelet's own record does not count, since it may be lost or belong
to a stopped kubelet; a later Unprepare of an unknown claim succeeds. All claims are checked at start and every INTERVAL_S, and a
claim that blocks another immediately.

Owns also the warning for the opposite: kubelet unprepared a claim whose processes run and which is still reserved for a pod.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from draco.agent.claims.work import ClaimWork
from draco.agent.errors import PrepareError
from draco.agent.mig.holders import sentence
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.agent.state.facts import Leftover
from draco.agent.state.node import NodeState
from draco.kube.clock import Clock, wait_for
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco.resources.names import ClaimUid

log = structlog.get_logger()

INTERVAL_S: Final = 30.0
CONFIRM_S: Final = 10.0


class LeftoverClaims:
    """Checks claims and unprepares leftovers through `work`. `tell` makes an Event."""

    def __init__(
        self,
        client: Client,
        state: NodeState,
        record: Checkpoint,
        work: ClaimWork,
        *,
        driver: str,
        tell: Callable[[str, str, str], None],
        clock: Clock,
        confirm_s: float = CONFIRM_S,
    ) -> None:
        self._client = client
        self._state = state
        self._record = record
        self._work = work
        self._driver = driver
        self._tell = tell
        self._clock = clock
        self._confirm_s = confirm_s
        self._since_s: dict[ClaimUid, float] = {}
        self._wanted: set[ClaimUid] = set()
        self._given_up: list[PreparedClaim] = []
        self._woken = asyncio.Event()

    def in_the_way(self, uid: ClaimUid) -> None:
        """Check a claim soon: it has a device that another claim needs."""
        self._wanted.add(uid)
        self._woken.set()

    def claim_settled(self, claim: PreparedClaim) -> None:
        """After Unprepare, check whether processes of the claim still run."""
        if claim.uid not in self._record.claims:
            self._given_up.append(claim)
            self._woken.set()

    async def run(self) -> None:
        """Check until cancelled."""
        due_s = self._clock.monotonic()
        while True:
            self._woken.clear()
            await self._look_at_given_up()
            if self._clock.monotonic() >= due_s:
                due_s = self._clock.monotonic() + INTERVAL_S
                await self.look(self._record.claims)
            else:
                await self.look({*self._wanted, *self._since_s})
            self._wanted.clear()
            pause_s = due_s - self._clock.monotonic()
            if self._since_s:
                pause_s = min(pause_s, self._confirm_s)
            await wait_for(self._woken, self._clock, max(0.0, pause_s))

    async def look(self, uids: Iterable[ClaimUid]) -> None:
        """Check these claims once."""
        claims, before = self._record.claims, self._state.facts.leftovers
        self._since_s = {uid: since for uid, since in self._since_s.items() if uid in claims}
        found = {uid: one for uid, one in before.items() if uid in claims}
        for uid in list(uids):
            claim = self._record.claims.get(uid)
            if claim is None or claim.state is PreparationState.PREPARING:
                continue
            try:
                why = await self._why_not_ours(claim)
            except ApiError as error:
                self._since_s.pop(uid, None)  # the two checks must not have an error between them
                log.info("leftovers.not_checked", claim=str(claim), error=str(error))
                continue
            found.pop(uid, None)
            if not why:
                self._since_s.pop(uid, None)
            elif self._clock.monotonic() - self._since_s.setdefault(uid, self._clock.monotonic()) >= self._confirm_s:
                found[uid] = await self._try(claim, why)
        gone = {uid: one for uid, one in found.items() if uid in self._record.claims}
        if gone != before:
            self._state.learn(leftovers=gone)

    async def _try(self, claim: PreparedClaim, why: str) -> Leftover:
        """Unprepare a claim if no process of it runs; log and report its state once."""
        processes = await self._work.running(claim)
        if processes is None:
            hindrance = "NVML does not answer, so the users of its devices are unknown"
        else:
            hindrance = f"its devices are in use by {sentence(processes)}" if processes else ""
        leftover = Leftover(claim, why, hindrance)
        if self._state.facts.leftovers.get(claim.uid) != leftover:
            log.warning("claim.left_behind", claim=str(claim), uid=claim.uid, why=why, hindrance=hindrance)
            self._tell("ClaimGone", "GiveUp", str(leftover))
        if not hindrance:
            await self._give_up(claim)
        return leftover

    async def _give_up(self, claim: PreparedClaim) -> None:
        try:
            await self._work.unprepare(claim.uid)
        except PrepareError as error:
            log.warning("claim.not_unprepared", claim=str(claim), uid=claim.uid, error=str(error))

    async def _look_at_given_up(self) -> None:
        while self._given_up:
            claim = self._given_up.pop(0)
            known = self._record.claims.get(claim.uid)
            if known is not None and known.state is PreparationState.PREPARED:
                continue  # prepared again
            processes = await self._work.running(claim)
            if not processes:
                continue
            try:
                found = await self._read(claim)
            except ApiError:
                continue
            pods = [one.name for one in found.status.reserved_for if one.is_pod] if found is not None else []
            if pods and self._still_allocated(claim, found):
                log.warning(
                    "claim.given_up_in_use",
                    claim=str(claim),
                    uid=claim.uid,
                    reserved_for=pods,
                    processes=sentence(processes),
                )

    async def _why_not_ours(self, claim: PreparedClaim) -> str:
        """Why nothing can use the claim here any more; "" while something can."""
        found = await self._read(claim)
        if found is None:
            return "gone"
        return "" if self._still_allocated(claim, found) else "deallocated"

    async def _read(self, claim: PreparedClaim) -> ResourceClaim | None:
        """The claim from the API server; None if it is gone or another one has its name."""
        try:
            found = await self._client.get(CLAIMS, ObjectKey(claim.namespace, claim.name))
        except NotFound:
            return None
        return found if found.metadata.uid == claim.uid else None

    def _still_allocated(self, claim: PreparedClaim, found: ResourceClaim | None) -> bool:
        allocated = {(one.pool, one.device) for one in found.results if one.driver == self._driver} if found else set()
        return bool(allocated & {(one.pool, one.device) for one in claim.devices})
