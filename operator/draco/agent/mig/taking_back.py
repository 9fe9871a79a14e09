"""Returns instances to a claim that was unprepared while its own processes still ran.

Kubelet may unprepare a claim while one of its containers runs, and prepare it again. An instance in use cannot be destroyed, so
it still exists, recorded as going. Owns the decision to return it: it must be whole, and no other claim's process may run on it.
Creates and destroys nothing.
"""

import msgspec

from draco.agent.hardware.gpus import Instance
from draco.agent.hardware.nvml_instances import RunningProcesses
from draco.agent.mig.instance_manager import InstanceManager
from draco.agent.mig.inventory import MigInventory
from draco.agent.mig.ownership import Ownership
from draco.agent.mig.users import DeviceUsers
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import InstanceState, OwnedInstance, PreparationState, PreparedClaim


class InstancesBack:
    """Decides and records this for one node."""

    def __init__(
        self, record: Checkpoint, inventory: MigInventory, manager: InstanceManager, users: DeviceUsers
    ) -> None:
        self._record = record
        self._inventory = inventory
        self._manager = manager
        self._users = users

    def take(self, claim: PreparedClaim) -> bool:
        """Record the claim's surviving instances as its own again; returns whether it has all of them.

        A claim being released becomes prepared again only if it has all. Raises NvmlError, and OSError if the disk refuses.
        """
        back, has_all = [], True
        for device in claim.devices:
            own = None if device.key is None else self._record.instances.get(device.key)
            if own is None:
                has_all = has_all and device.key is None
            elif own.state is not InstanceState.MADE:
                found = self._inventory.observe(own.gpu).at(own.key)
                if found is not None and self._still_uses(claim, own, found):
                    back.append(msgspec.structs.replace(own, state=InstanceState.MADE))
                else:
                    has_all = False
        releasing = claim.state is PreparationState.RELEASING
        if releasing and not has_all:
            return False
        put = [msgspec.structs.replace(claim, state=PreparationState.PREPARED)] if releasing else []
        self._record.change(put=put, own=back)
        self._inventory.forget([own.key for own in back])
        return has_all

    def _still_uses(self, claim: PreparedClaim, own: OwnedInstance, found: Instance) -> bool:
        """Whether an outgoing instance is whole and no other claim uses it; a forgotten claim must be computing on it."""
        if found.ci is None or self._inventory.ownership_of(own, found) is not Ownership.OURS:
            return False
        running = RunningProcesses(tuple(self._manager.processes(found)))
        if self._users.earlier(claim, own.key, running, uuid=found.uuid or "") is not None:
            return False
        return bool(running.computing) or claim.state is PreparationState.RELEASING
