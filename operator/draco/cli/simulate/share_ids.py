"""Identifiers for shares of devices that are only imagined.

Owns their form: UUIDs as Kubernetes' are, but counted instead of drawn, so that a simulation says the same each time.
"""

from collections.abc import Iterator
from itertools import count
from uuid import UUID

_FIRST = UUID("00000000-0000-4000-8000-000000000000").int


def share_ids() -> Iterator[str]:
    """Identifiers one after another, the same in every run."""
    return (str(UUID(int=_FIRST + number)) for number in count(1))
