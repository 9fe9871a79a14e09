"""Which policies let Draco evict pods for pods of a higher priority. Owns that reading of policies."""

from collections.abc import Iterable

from draco.resources.api.draco import Allocator, MigPolicy, PreemptionPermit


def preempting_policies(policies: Iterable[MigPolicy]) -> frozenset[str]:
    """Their names. Where kube-scheduler allocates, Draco evicts nobody."""
    return frozenset(
        each.metadata.name
        for each in policies
        if each.spec.allocator is Allocator.OPERATOR and each.spec.preemption is PreemptionPermit.LOWER_PRIORITY
    )
