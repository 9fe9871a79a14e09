"""Serves kubelet's calls to prepare and unprepare claims.

Owns the answers: one per claim, so that an error does not affect the other claims of the call, and all within kubelet's timeout.
`claims.work` does the work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import structlog
from google.protobuf.message import Message

from draco.agent.claims.cdi import device_id
from draco.agent.claims.work import ClaimWork
from draco.agent.errors import ClaimUnread, InstanceHeld, PrepareError
from draco.agent.hardware.nvml import NvmlCall
from draco.agent.metrics import AgentMetrics
from draco.agent.plugin.api import dra_v1_pb2
from draco.agent.record.contents import PreparationState, PreparedClaim, PreparedDevice
from draco.agent.state.node import NodeState
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import retry
from draco.kube.errors import ApiError, NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from draco.resources.names import ClaimUid

M = TypeVar("M", bound=Message)

log = structlog.get_logger()

DEADLINE_S = 40.0
"""Kubelet gives a call 45 s; a later answer is lost, and its reason with it."""
HELD_PAUSES_S = (0.1, 0.4, 1.0, 2.0)
"""Pauses between attempts to unprepare a claim whose instance is in use, before kubelet gets the error."""
READ_TIMEOUT_S = 8.0
"""Timeout of one attempt to read a claim, so that kubelet gets the API server's error, not a deadline."""


class DraService:
    """Methods of the DRAPlugin service.

    Each claim that was prepared or given up is told to the state. `hanging` says which call of NVML does not return. Calls wait
    until `opened` is set: before that the node's record is another agent's.
    """

    def __init__(
        self,
        client: Client,
        state: NodeState,
        work: ClaimWork,
        *,
        driver: str,
        opened: asyncio.Event,
        hanging: Callable[[], NvmlCall | None] = lambda: None,
        metrics: AgentMetrics,
        clock: Clock,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._client = client
        self._state = state
        self._work = work
        self._driver = driver
        self._opened = opened
        self._hanging = hanging
        self._metrics = metrics
        self._clock = clock
        self._deadline_s = deadline_s
        self.calls = 0
        """Calls without an answer yet."""

    def behaviours(self) -> Mapping[str, Callable[[Any, Any], Any]]:
        """The service's methods."""

        async def answers(request: Any, answer: Callable[[Any], Awaitable[M]]) -> dict[str, M]:
            self.calls += 1
            try:
                said = await asyncio.gather(*map(answer, request.claims))
            finally:
                self.calls -= 1
            return {claim.uid: each for claim, each in zip(request.claims, said, strict=True)}

        async def prepare(request: Any, _context: Any) -> Message:
            return dra_v1_pb2.NodePrepareResourcesResponse(claims=await answers(request, self._prepare))

        async def unprepare(request: Any, _context: Any) -> Message:
            return dra_v1_pb2.NodeUnprepareResourcesResponse(claims=await answers(request, self._unprepare))

        return {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare}

    async def _prepare(self, claim: Any) -> dra_v1_pb2.NodePrepareResourceResponse:
        name = f"{claim.namespace}/{claim.name}"
        started = self._clock.monotonic()
        devices: list[dra_v1_pb2.Device] = []

        async def prepare() -> None:
            if hindrance := self._state.facts.gives_way_to:
                raise PrepareError(f"Claim {name} cannot be prepared: {hindrance}")
            allocated = await self._allocated(ObjectKey(claim.namespace, claim.name), ClaimUid(claim.uid))
            prepared = await self._work.prepare(allocated)
            devices.extend(self._device(prepared.uid, device) for device in prepared.devices)
            log.info("claim.prepared", claim=name, uid=claim.uid, devices=[one.device for one in prepared.devices])
            self._state.claim_changed(prepared)

        if error := await self._error(prepare, claim, "prepared"):
            log.warning("claim.not_prepared", claim=name, uid=claim.uid, error=error)
            self._report_again(claim)
        self._metrics.prepared(self._clock.monotonic() - started, failed=bool(error))
        return dra_v1_pb2.NodePrepareResourceResponse(devices=devices, error=error)

    async def _error(self, work: Callable[[], Awaitable[None]], claim: Any, done: str) -> str:
        """Do the work in time, once the node's record is ours. Returns why it was not `done`, "" if it was."""
        name = f"{claim.namespace}/{claim.name}"
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._opened.wait()
                await work()
        except PrepareError as refusal:
            return str(refusal)
        except TimeoutError:
            if (call := self._hanging()) is not None:
                return f"Claim {name} was not {done} within {self._deadline_s:g} s: {call} does not answer. Kubelet tries again."
            return f"Claim {name} was not {done} within {self._deadline_s:g} s; kubelet tries again."
        except Exception as fault:  # the outermost edge: a defect must not fail the other claims of the call
            log.exception("claim.fault", claim=name, uid=claim.uid)
            return f"Claim {name} was not {done} because of a bug in the agent ({fault!r}); see the agent's log."
        return ""

    def _device(self, uid: ClaimUid, device: PreparedDevice) -> dra_v1_pb2.Device:
        return dra_v1_pb2.Device(
            request_names=[device.request],
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=[device_id(self._driver, device, uid)],
            share_id=device.share_id or None,
        )

    async def _allocated(self, key: ObjectKey, uid: ClaimUid) -> ResourceClaim:
        """The claim from the API server; a claim that is prepared already from the record, if the server fails.

        A node without a connection keeps its pods: their containers restart with the same devices.
        """
        on_record = self._work.on_record(uid)
        if on_record is None:
            return await self._read(key, uid, attempts=4)
        try:
            return await self._read(key, uid, attempts=1)
        except ClaimUnread as error:
            log.warning("claim.as_on_record", claim=str(key), uid=uid, error=str(error))
            return on_record

    async def _read(self, key: ObjectKey, uid: ClaimUid, *, attempts: int) -> ResourceClaim:
        try:
            claim = await retry(
                lambda: self._client.get(CLAIMS, key, timeout_s=READ_TIMEOUT_S),
                clock=self._clock,
                attempts=attempts,
                cap_s=2.0,
                longest_wait_s=5.0,
            )
        except NotFound:
            raise PrepareError(f"Claim {key} does not exist any more, so there is nothing to prepare.") from None
        except ApiError as error:
            raise ClaimUnread(f"Claim {key} could not be read from the API server: {error}") from error
        if claim.metadata.uid != uid:
            raise PrepareError(
                f"Claim {key} was replaced: kubelet asks for uid {uid}, the API server has uid {claim.metadata.uid}."
            )
        return claim

    async def _unprepare(self, claim: Any) -> dra_v1_pb2.NodeUnprepareResourceResponse:
        name = f"{claim.namespace}/{claim.name}"

        async def unprepare() -> None:
            if await self._give_up(ClaimUid(claim.uid)) is not None:
                log.info("claim.unprepared", claim=name, uid=claim.uid)
            else:
                self._report_again(claim)

        if error := await self._error(unprepare, claim, "unprepared"):
            log.warning("claim.not_unprepared", claim=name, uid=claim.uid, error=error)
        self._metrics.unprepared(failed=bool(error))
        return dra_v1_pb2.NodeUnprepareResourceResponse(error=error)

    def _report_again(self, claim: Any) -> None:
        """Have the status of a claim without a record looked at: an agent may have ended between its release and the report."""
        uid, released = ClaimUid(claim.uid), PreparationState.RELEASING
        self._state.claim_changed(
            PreparedClaim(uid=uid, namespace=claim.namespace, name=claim.name, state=released, devices=[])
        )

    async def _give_up(self, uid: ClaimUid) -> PreparedClaim | None:
        """Unprepare a claim. Wait a little for a process that still uses an instance: often it is about to end."""
        said = ""
        for pause_s in HELD_PAUSES_S:
            try:
                return await self._work.unprepare(uid)
            except InstanceHeld as error:
                if str(error) != said:
                    log.info("claim.instance_held", uid=uid, error=str(error), again_in_s=pause_s)
                said = str(error)
            await self._clock.sleep(pause_s)
        return await self._work.unprepare(uid)
