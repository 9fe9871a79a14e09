"""One leader among replicas, by a coordination.k8s.io Lease.

Owns acquiring, renewing and releasing the lease. Its laws:

- A replica leads only from a successful write of the lease until `renew_deadline_s` after it sent its last successful renewal;
  then `run` raises LeadershipLost, and the process is expected to end.
- Another replica takes over only after it has seen the lease unchanged for the lease's whole duration. Each measures on its own
  monotonic clock: times written by other machines are never compared.
- The lease is renewed only while the leading body runs: when it ends, however it ends, the lease is released.
- Every request has a timeout well below the deadline, and no API error ends `run` or leaves the body running.

A lease narrows the window in which two replicas act but does not close it: a suspended and resumed process may write once more
before it looks at the clock. Writes still need preconditions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import msgspec
import structlog

from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import AlreadyExists, ApiError, Conflict, KubeError, NotFound
from draco.resources.api.core import Lease, LeaseSpec
from draco.resources.api.meta import ObjectKey, ObjectMeta, micro_time
from draco.resources.kinds import LEASES

log = structlog.get_logger()

Lead = Callable[[], Awaitable[None]]


class LeadershipLost(KubeError):
    """The lease was not renewed in time, or someone else holds it. The process must end: another may be leading."""


class LeaseTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `duration_s` must exceed `renew_deadline_s`, which must exceed `retry_s`; the first difference is the margin."""

    duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration_s > self.renew_deadline_s > self.retry_s > 0:
            raise ValueError(
                f"a lease needs duration ({self.duration_s} s) > renew deadline ({self.renew_deadline_s:g} s) "
                f"> retry ({self.retry_s:g} s) > 0"
            )


def held_spec(lease: Lease | None, holder: str, *, duration_s: int, now: datetime) -> LeaseSpec:
    """The spec with which `holder` takes or renews a lease (None: missing). Each change of holder counts as a transition."""
    old = lease.spec if lease else LeaseSpec()
    taken_over = old.holder_identity != holder
    return msgspec.structs.replace(
        old,
        holder_identity=holder,
        lease_duration_seconds=duration_s,
        acquire_time=micro_time(now) if taken_over else old.acquire_time,
        renew_time=micro_time(now),
        lease_transitions=(old.lease_transitions or 0) + (lease is not None and taken_over),
    )


class Observation:
    """What this replica has observed of another's lease, on its own clock."""

    def __init__(self) -> None:
        self._seen: LeaseSpec | None = None
        self._since = 0.0

    def free(self, spec: LeaseSpec, now: float) -> bool:
        """Whether the lease may be taken: it has no holder, or has not changed for its whole duration."""
        if spec != self._seen:
            self._seen, self._since = spec, now
        return not spec.holder_identity or now - self._since >= (spec.lease_duration_seconds or 0)


class LeaderElection:
    """A candidate. `identity` must be unique among all processes that ever ask for this lease, including restarts.

    `notes` returns the lease's annotations at each renewal; an empty one is removed.
    """

    def __init__(
        self,
        client: Client,
        key: ObjectKey,
        *,
        identity: str,
        clock: Clock,
        terms: LeaseTerms | None = None,
        notes: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.identity = identity
        self.leading = False
        self.holder = ""
        """The holder when the lease was last read."""
        self._client = client
        self._key = key
        self._clock = clock
        self._terms = terms or LeaseTerms()
        self._notes = notes
        self._request_timeout_s = self._terms.renew_deadline_s / 3
        self._observation = Observation()
        self._lease: Lease | None = None
        self._renewed = 0.0
        self._log = log.bind(lease=str(key), identity=identity)

    @property
    def since_renewal_s(self) -> float:
        """Seconds since the last successful renewal was sent; meaningful while leading."""
        return self._clock.monotonic() - self._renewed

    async def run(self, lead: Lead) -> None:
        """Wait for the lease, run `lead()` while holding it, and release it when `lead` has ended.

        Returns or raises what `lead` does. Raises LeadershipLost if the lease is lost; `lead` is then cancelled and has the rest
        of the lease to end. If `run` is cancelled, `lead` is cancelled and may take its time: the lease is renewed until it has
        ended.
        """
        await self._acquire()
        self.leading = True
        self._log.info("election.leading", transitions=self._held().spec.lease_transitions)
        body = asyncio.ensure_future(lead())
        keeper = asyncio.create_task(self._keep())
        try:
            await asyncio.wait({body, keeper}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                await self._end(body, keeper)
            finally:
                self.leading = False
                body.cancel()
                keeper.cancel()
        if keeper.done() and not keeper.cancelled():
            keeper.result()
        await body

    async def _end(self, body: "asyncio.Future[None]", keeper: "asyncio.Task[None]") -> None:
        """Stop the body, stop renewing, and release the lease if it is still ours."""
        if not body.done():
            body.cancel()
            await asyncio.wait({body, keeper}, return_when=asyncio.FIRST_COMPLETED)
        if body.done() and not keeper.done():
            keeper.cancel()
            await asyncio.wait({keeper})
            await self._release()
            return
        self._log.error("election.lost", error=str(keeper.exception()) if not keeper.cancelled() else "cancelled")
        if not body.done():
            # Until the lease expires nobody else leads. After that the process must end, whatever the body does.
            remaining_s = max(0.0, self._terms.duration_s - self.since_renewal_s)
            await asyncio.wait({body}, timeout=remaining_s)
            if not body.done():
                self._log.error("election.body_did_not_end", after_s=remaining_s)

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._try_to_acquire():
                    return
            except ApiError as error:
                self._log.warning("election.no_answer", error=str(error))
            # Jitter, so that waiting replicas do not all ask at the same moment.
            await self._clock.sleep(self._terms.retry_s * (1 + 0.2 * self._clock.jitter()))

    async def _try_to_acquire(self) -> bool:
        lease = await self._read()
        if lease is not None:
            self.holder = lease.spec.holder_identity or ""
            ours = self.holder == self.identity  # a write of ours whose answer was lost
            if not ours and not self._observation.free(lease.spec, self._clock.monotonic()):
                return False
        try:
            await self._write(lease)
        except (Conflict, AlreadyExists):
            return False  # another was faster
        return True

    async def _keep(self) -> None:
        """Renew until cancelled. Raises LeadershipLost."""
        while True:
            await self._clock.sleep(min(self._terms.retry_s, max(0.0, self._remaining_s())))
            remaining_s = self._remaining_s()
            if remaining_s <= 0:
                raise LeadershipLost(
                    f"could not renew the lease {self._key} for {self._terms.renew_deadline_s:g} s: "
                    "the process ends, because another replica may lead soon"
                )
            try:
                async with asyncio.timeout(remaining_s):
                    await self._renew()
            except ApiError as error:
                self._log.warning("election.renewal_failed", error=str(error), remaining_s=round(remaining_s, 1))
            except TimeoutError:
                self._log.warning("election.renewal_failed", error="no answer in time", remaining_s=0)

    async def _renew(self) -> None:
        try:
            await self._write(self._held())
        except (Conflict, NotFound, AlreadyExists):
            # Somebody changed it: an annotation, our own write whose answer was lost, a deletion, or a new holder.
            lease = await self._read()
            if lease is not None and lease.spec.holder_identity != self.identity:
                self.holder = lease.spec.holder_identity or ""
                raise LeadershipLost(
                    f"{self.holder or 'nobody'} holds the lease {self._key} now: the process ends"
                ) from None
            await self._write(lease)

    async def _release(self) -> None:
        """Release the lease for the next replica. If this fails, it takes over when the lease expires."""
        try:
            try:
                await self._clear(self._held())
            except Conflict:
                # An annotation, or our own renewal that was in flight when the body ended.
                lease = await self._read()
                if lease is None or lease.spec.holder_identity != self.identity:
                    return
                await self._clear(lease)
        except ApiError as error:
            self._log.warning("election.release_failed", error=str(error))
        else:
            self._log.info("election.released")

    async def _clear(self, lease: Lease) -> None:
        spec = msgspec.structs.replace(
            lease.spec, holder_identity=None, lease_duration_seconds=1, renew_time=micro_time(self._clock.now())
        )
        await self._replace(msgspec.structs.replace(lease, spec=spec))

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._key, timeout_s=self._request_timeout_s)
        except NotFound:
            return None

    async def _write(self, lease: Lease | None) -> None:
        """Write the lease as ours if it is still as in `lease` (None: missing)."""
        sent = self._clock.monotonic()
        spec = held_spec(lease, self.identity, duration_s=self._terms.duration_s, now=self._clock.now())
        metadata = lease.metadata if lease else ObjectMeta(name=self._key.name, namespace=self._key.namespace)
        notes = {name: text for name, text in {**metadata.annotations, **self._notes()}.items() if text}
        ours = Lease(metadata=msgspec.structs.replace(metadata, annotations=notes), spec=spec)
        if lease is None:
            self._lease = await self._client.create(LEASES, ours, timeout_s=self._request_timeout_s)
        else:
            self._lease = await self._replace(ours)
        # Counted from before the request: the others count from when they saw it, which is later.
        self._renewed = sent
        self.holder = self.identity

    async def _replace(self, lease: Lease) -> Lease:
        """Replace the lease; its resourceVersion makes the server refuse if anything has changed."""
        return await self._client.replace(LEASES, self._key, lease, timeout_s=self._request_timeout_s)

    def _remaining_s(self) -> float:
        return self._terms.renew_deadline_s - self.since_renewal_s

    def _held(self) -> Lease:
        if self._lease is None:
            raise RuntimeError("the lease is used before it was taken")
        return self._lease
