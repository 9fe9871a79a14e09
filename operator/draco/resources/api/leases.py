"""Leases: who holds something, and until when.

Owns the struct (coordination.k8s.io/v1), complete, so that it can be written back whole.
"""

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectMeta


class LeaseSpec(ApiStruct, frozen=True, kw_only=True):
    """Times are MicroTime texts (see `meta.micro_time`); no holder means free."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(ApiStruct, frozen=True, kw_only=True):
    """A lease."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()
