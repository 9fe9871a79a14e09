"""Which MigPolicies GPUs are of. Owns that lookup."""

from collections.abc import Iterable

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.mig.decisions import MigDecisions
from draco.resources.api.draco import MigPolicy
from draco.resources.names import DeviceKey


def policies_of(decisions: MigDecisions, devices: Iterable[DeviceKey]) -> list[MigPolicy | None]:
    """The policies of the GPUs, one for each; None for a GPU of none that is known."""
    by_name = {each.name: each.policy for each in decisions.rules}
    found = []
    for place in dict.fromkeys(map(GpuPlace.of, devices)):
        decision = decisions.of(place.pool)
        names = [each.policy for each in (decision.gpus if decision else ()) if each.device == place.gpu]
        found.append(by_name.get(names[0]) if names else None)
    return found
