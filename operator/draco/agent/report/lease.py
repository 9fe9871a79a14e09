"""The Lease by which the operator sees that this node's agent is alive.

The agent renews it four times in its duration while it reads the GPUs, has published them and serves kubelet. Otherwise it stops,
and the operator keeps new claims off the node's GPUs (`health.fencing`) until the next renewal. The Lease belongs to the Node.
Owns the writes to it. Never releases it: the next agent continues with it, and a node without an agent must be fenced. Each
renewal is one write without a read, so a thousand agents with leases of 20 s make some 230 small writes a second, spread by
jitter. Its times are for people: the operator never compares them with its own clock.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog

from draco.agent.state.changes import LeaseRenewed
from draco.agent.state.node import NodeState
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import asked_to_wait_s
from draco.kube.election import held_spec
from draco.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from draco.resources.api.core import Lease, LeaseSpec
from draco.resources.api.meta import ObjectKey, ObjectMeta, OwnerReference
from draco.resources.kinds import LEASES, NODES
from draco.resources.names import DRACO_DOMAIN, LABEL_AGENT_LEASE, LABEL_MANAGED_BY, agent_lease_name

log = structlog.get_logger()

POLL_S: Final = 0.25
"""How often a silent agent checks whether it can continue. This costs no request."""
RENEWALS: Final = 4
"""Renewals per duration of the lease: three may fail."""


class AgentLease:
    """One node's lease. `hindrance` returns why the agent cannot work, as a sentence; "" if it can."""

    def __init__(
        self,
        client: Client,
        state: NodeState,
        *,
        node: str,
        namespace: str,
        holder: str,
        driver: str,
        duration_s: int,
        hindrance: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._client = client
        self._state = state
        self._node = node
        self._key = ObjectKey(namespace, agent_lease_name(node))
        self._holder = holder
        self._labels: Mapping[str, str] = {LABEL_AGENT_LEASE: driver, LABEL_MANAGED_BY: DRACO_DOMAIN}
        self._duration_s = duration_s
        self._hindrance = hindrance
        self._clock = clock
        self._lease: Lease | None = None
        self._silent = False
        self._hindered_since: float | None = None
        self._failed = ""
        self._log = log.bind(node=node, lease=str(self._key))

    async def run(self) -> None:
        """Renew until cancelled. No answer of the API server ends it."""
        pause_s = self._duration_s / RENEWALS
        while True:
            if hindrance := self._hindrance():
                self._say_silent(hindrance)
                await self._clock.sleep(min(POLL_S, pause_s))
                continue
            self._say_silent("")
            wait_s = pause_s * (0.75 + self._clock.jitter() / 4)
            try:
                await self.renew()
            except ApiError as error:
                self._say_failed(str(error))
                wait_s = max(wait_s / 2, asked_to_wait_s(error) or 0.0)
            else:
                self._say_failed("")
                self._state.tell(LeaseRenewed())
            await self._clock.sleep(wait_s)

    async def renew(self) -> None:
        """Write the lease once. Raises ApiError."""
        try:
            await self._write(self._lease)
        except (Conflict, NotFound, AlreadyExists):
            # Changed or deleted by somebody, or our own write whose answer was lost. A lease with another holder is ours too:
            # only one agent serves the node.
            self._lease = await self._read()
            await self._write(self._lease)

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._key, timeout_s=self._timeout_s)
        except NotFound:
            return None

    async def _write(self, known: Lease | None) -> None:
        spec = held_spec(known, self._holder, duration_s=self._duration_s, now=self._clock.now())
        if known is None:
            await self._create(spec)
            return
        labels = {**known.metadata.labels, **self._labels}
        metadata = msgspec.structs.replace(known.metadata, labels=labels)
        wanted = Lease(metadata=metadata, spec=spec)
        self._lease = await self._client.replace(LEASES, self._key, wanted, timeout_s=self._timeout_s)

    async def _create(self, spec: LeaseSpec) -> None:
        node = await self._client.get(NODES, ObjectKey("", self._node), timeout_s=self._timeout_s)
        owner = OwnerReference(api_version="v1", kind="Node", name=self._node, uid=node.metadata.uid)
        metadata = ObjectMeta(
            name=self._key.name,
            namespace=self._key.namespace,
            labels=dict(self._labels),
            owner_references=[owner],
        )
        made = Lease(metadata=metadata, spec=spec)
        self._lease = await self._client.create(LEASES, made, timeout_s=self._timeout_s)

    @property
    def _timeout_s(self) -> float:
        return self._duration_s / RENEWALS

    def _say_silent(self, hindrance: str) -> None:
        """Log why nothing is renewed: immediately if the lease was held, else after one duration."""
        now = self._clock.monotonic()
        if not hindrance:
            if self._silent:
                self._log.info("lease.renewing")
            self._silent, self._hindered_since = False, None
            return
        if self._hindered_since is None:
            self._hindered_since = now
        if not self._silent and (self._lease or now - self._hindered_since > self._duration_s):
            self._log.warning("lease.withheld", why=hindrance)
            self._silent = True

    def _say_failed(self, error: str) -> None:
        if error and not self._failed:
            self._log.warning("lease.not_renewed", error=error)
        elif self._failed and not error:
            self._log.info("lease.renewed")
        self._failed = error
