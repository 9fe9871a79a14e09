"""The agent machine's layer of time slices: accidents to nvidia-smi, and what must be true of time slices and compute modes.

Owns these steps and checks. `configurations` says what claims ask for.
"""

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state
from tests.adversary.agent.life import LifeOfAgent
from tests.adversary.agent.node import NUMBERS, accident, fired
from tests.adversary.agent.scheduler import Claim

NVIDIA_SMI = "nvidia-smi"
EXCLUSIVE = 3
"""NVML_COMPUTEMODE_EXCLUSIVE_PROCESS."""
FIRST_WITH_TIME_SLICES = 455
DRIVER_VERSION = "580.95.05"
OLD_DRIVER = "450.80.02"
"""It cannot set time slices."""
Shared = Mapping[str, tuple[int, int]]
"""Compute mode and time slice of each GPU."""


class TimeSlicing(LifeOfAgent):
    """Steps for nvidia-smi and the compute mode, and the checks of both."""

    def __init__(self) -> None:
        super().__init__()
        self.unsliced: set[str] = set()
        """GPUs whose time slice went with something else than a load of the driver."""
        self.by_hand: set[str] = set()
        """GPUs that somebody has made exclusive."""

    @accident(installed=st.sampled_from((False, True)))
    def nvidia_smi(self, installed: bool) -> None:
        """Somebody removes the program nvidia-smi or installs it."""
        fired[f"nvidia-smi {'installed' if installed else 'removed'}"] += 1
        faults.nvidia_smi(self.path, installed=installed)

    @accident(pick=NUMBERS)
    def exclusive_by_hand(self, pick: int) -> None:
        """Somebody makes a GPU exclusive that no claim has."""
        with state.mutate(self.path) as node:
            for gpu in node.gpus[self._gpu(pick) :][:1]:
                if gpu.uuid not in self._held() and not gpu.mig_current:
                    fired["exclusive by hand"] += 1
                    gpu.compute_mode = EXCLUSIVE
                    self.by_hand.add(gpu.uuid)

    def _held(self) -> set[str]:
        """GPUs of which claims may have something."""
        record = self.agent.agent.parts.checkpoint.claims.values() if self.agent is not None else ()
        known = {device.gpu for claim in record for device in claim.devices}
        return known | {part.gpu for claim in self.claims.values() for part in claim.parts.values()}

    def _shared(self) -> Shared:
        return {gpu["uuid"]: (gpu["compute_mode"], gpu["time_slice"]) for gpu in self._hardware()["gpus"]}

    def _slices_work(self) -> bool:
        """Whether nvidia-smi can set time slices now."""
        driver = self._hardware()["driver"]
        return bool(driver["nvidia_smi"]) and int(driver["version"].split(".")[0]) >= FIRST_WITH_TIME_SLICES

    def _without_slices(self) -> set[str]:
        """Boards whose time slices can never be set."""
        return {uuid for uuid, function, _ in self.sickness.lacks if function == NVIDIA_SMI}

    def _check_slices(self, claim: Claim) -> None:
        """A Prepare was just answered: the claim has its time slices."""
        shared = self._shared()
        for device, part in claim.parts.items():
            wanted = claim.time_slices.get(device)
            if not wanted or (self.hanging and part.gpu in self.unsliced):
                continue
            fired["prepare: time slice"] += 1
            mode, found = shared[part.gpu]
            assert found == wanted, (
                f"just answered, {claim.name} asks for time slice {wanted} on {part.gpu}, which has {found}"
            )
            assert not mode, f"just answered, {claim.name} asks for time slices on {part.gpu}, which is exclusive"
            self.unsliced.discard(part.gpu)

    def _check_left_alone(self, claim: Claim, error: str, before: Shared, *, calm: bool) -> None:
        """A claim was refused for its configuration: nothing was changed for it. `calm`: the driver answered everything."""
        if self.hanging or not (claim.must_be_refused or "time slices" in error):
            return
        fired["prepare: refused for a configuration"] += 1
        for uuid, (mode, time_slice) in self._shared().items():
            if uuid in self._held() or uuid not in before:
                continue
            assert mode == before[uuid][0], (
                f"{claim.name} was refused, and the compute mode of {uuid} is {mode}: {error}"
            )
            if claim.must_be_refused or calm:
                assert time_slice in (0, before[uuid][1]), (
                    f"{claim.name} was refused, and {uuid} has a time slice: {error}"
                )

    def _slices_rest(self) -> bool:
        """Whether the time slices must be as claims ask at the end of a long turn."""
        return self._works() and self._slices_work()

    def _laws_at_rest(self) -> list[Callable[[], None]]:
        return [*super()._laws_at_rest(), *([self.check_slices] if self._slices_rest() else [])]

    def check_slices(self) -> None:
        """At rest each GPU has the time slice that its claim asks for, and the record says which."""
        record = self._up().agent.parts.checkpoint
        asked: dict[str, int] = {}
        for claim in record.claims.values():
            for device in claim.devices:
                if claim.state == "prepared" and device.partition is None and not device.admin:
                    asked[device.gpu] = int(device.time_slice)
        told = {
            part.gpu: claim.time_slices[device]
            for claim in self.claims.values()
            if claim.told and not claim.leaving
            for device, part in claim.parts.items()
            if device in claim.time_slices
        }
        for gpu in self._hardware()["gpus"]:
            uuid, found = gpu["uuid"], gpu["time_slice"]
            if gpu["error"]:
                continue  # it takes no command before a reset or a reboot, which ends its time slice
            if uuid in self._without_slices() | self.sickness.placeless:
                assert not found or uuid in asked, f"{uuid} has time slice {found}, and nobody asks for it"
                continue
            fired["time slice at rest"] += bool(found)
            assert asked.get(uuid, 0) == told.get(uuid, asked.get(uuid, 0)), (
                f"claims ask for time slice {told[uuid]} of {uuid}, and the record says {asked.get(uuid, 0)}"
            )
            if gpu["mig_current"] or (uuid in self.unsliced and asked.get(uuid)):
                continue
            self.unsliced.discard(uuid)
            assert found == asked.get(uuid, 0), (
                f"claims ask for time slice {asked.get(uuid, 0)} of {uuid}, which has {found}"
            )
            known = record.slices.get(uuid)
            assert known is not None, f"nothing is known of the time slice of {uuid}"
            assert int(known.time_slice) == found, (
                f"{uuid} has time slice {found}, and the record says {known.time_slice}"
            )
            assert known.supported, f"time slices of {uuid} can be set, and the record says that they cannot"

    def _note_slices(self, before: Any, *, loaded: bool) -> None:
        """An accident happened. If a time slice went with something else than the driver, nobody can tell the agent."""
        slices = {gpu["uuid"]: gpu["time_slice"] for gpu in before.gpus}
        if loaded:
            self.unsliced.clear()
            return
        now = {gpu["uuid"]: gpu["time_slice"] for gpu in self._hardware()["gpus"]}
        self.unsliced |= {uuid for uuid, found in slices.items() if found and now.get(uuid) != found}
