"""Gives prepared claims the MPS daemons that they ask for, and takes them back.

Prepare makes the claim's whole GPUs exclusive, so that no program uses them past MPS, and asks the keeper (`draco.mps`) for
the daemon: one for the whole GPUs of a configuration, and one for each MIG device. Then it waits until the daemon itself answers,
with the limits of the claim. A GPU's mode is on record before it is set and until it is given back, so no crash leaves one behind
unknown. A MIG device has no mode: NVIDIA's driver supports none in MIG mode. Unprepare waits for nothing: a reconciler
(`mps_upkeep`) ends the daemon and then gives the mode back, and does the same with what a crash or a failed Prepare left. An
instance is destroyed only after its daemon has ended: `mig.instance_manager` asks `end_on`.

Owns when that happens. Runs no daemon: one must not end with the agent. Administrative access has none.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from draco.agent.errors import PrepareError
from draco.agent.hardware.compute_mode import DEFAULT, EXCLUSIVE_PROCESS, ComputeModeRefused, ComputeModes
from draco.agent.hardware.gpus import Gpu, PlacementKey
from draco.agent.hardware.programs import ProgramFailed, ProgramSilent
from draco.agent.mps.control import MpsControl
from draco.agent.mps.folder import DaemonName, MpsFolder, WantedDaemon, daemon_name, place_name
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import DeviceMps, GpuComputeMode, PreparationState, PreparedClaim, PreparedDevice
from draco.resources.names import GpuUuid

FIRST_ARCHITECTURE: Final = 7
"""Volta's compute capability: before it, clients of MPS share an address space, and there are no limits."""
_ENDING: Final = "the MPS daemon of an earlier claim has not ended"

MpsUnit: TypeAlias = GpuUuid | PlacementKey
"""What one claim, or the sharers of one device, have a daemon for: a whole GPU, or a MIG device by its placement."""


class MpsDaemons:
    """The MPS daemons that the claims of one node have. `load` identifies the load of the driver.

    Its methods block. Those that set a mode run in the driver's thread, with the GPU taken; `aside` runs a program meanwhile.
    """

    def __init__(
        self,
        record: Checkpoint,
        folder: MpsFolder,
        control: MpsControl,
        modes: ComputeModes,
        *,
        load: Callable[[], str],
        aside: Callable[[Callable[[], str]], str] = lambda work: work(),
    ) -> None:
        self._record = record
        self._folder = folder
        self._control = control
        self._modes = modes
        self._load = load
        self._aside = aside
        self._answered: set[DeviceMps] = set()

    # Prepare

    def give(self, claim: PreparedClaim) -> None:
        """Make the claim's GPUs exclusive and ask for its daemons; other devices lose theirs. Raises PrepareError.

        The claim has the UUIDs of its instances.
        """
        for device in _own(claim):
            try:
                if device.mps is None:
                    self.take_back(unit_of(device))
                elif device.partition is None:
                    self._claim_gpu(device.gpu, DaemonName(device.mps.daemon))
                elif not device.partition.uuid:
                    raise PrepareError(
                        f"Claim {claim} cannot be prepared: the driver tells no UUID of {device.device}, which its daemon needs; "
                        "install NVIDIA's driver 470 or newer."
                    )
            except ComputeModeRefused as error:
                raise PrepareError(
                    f"Claim {claim} cannot be prepared: {device.device}: {error} Kubelet tries again."
                ) from error
        for name, wanted in _daemons(claim).items():
            before = self._folder.wanted(name)
            if before is not None and not wanted.is_like(before):  # it would answer as if it were this claim's
                self._folder.forget(name)
                if why := self._aside(partial(self._ended, name)):
                    raise PrepareError(f"Claim {claim} cannot be prepared now: {why}. Kubelet tries again.")
        self._want(claim)

    def look(self, claim: PreparedClaim) -> str:
        """Why the claim's containers cannot start yet, as a sentence; "" if they can. Asks the daemons, in any thread."""
        for device in _own(claim):
            if device.mps is None and self._lingers(unit_of(device)):
                return f"{device.device}: {_ENDING}."
        for name, wanted in _daemons(claim).items():
            if why := self._control.lacking(self._folder.pipe(name), wanted):
                said = self._folder.state(name).problem
                keeper = (
                    ""
                    if self._folder.is_kept()
                    else " No `draco mps` runs on this node: set mps.enabled in the chart's values."
                )
                return f"its MPS daemon is not ready, because {said or why}.{keeper}"
        self._answered.update(device.mps for device in _own(claim) if device.mps is not None)
        return ""

    def look_aside(self, claim: PreparedClaim) -> str:
        """The same in the driver's thread, which lets go of NVML meanwhile."""
        return self._aside(lambda: self.look(claim))

    def given(self, claim: PreparedClaim) -> None:
        """Check, without hardware and daemons, that `look` found nothing lacking. Raises PrepareError."""
        for device in _own(claim):
            if device.mps is None and device.gpu in self._record.modes:
                raise PrepareError(
                    f"Claim {claim} cannot be prepared now: {device.device} is still exclusive, since {_ENDING}. "
                    "Kubelet tries again."
                )
            if device.mps is not None and device.mps not in self._answered:
                raise PrepareError(
                    f"Claim {claim} cannot be prepared now: the MPS daemon of {device.device} does not answer. "
                    "Kubelet tries again."
                )

    def concerns(self, claim: PreparedClaim) -> bool:
        """Whether the claim needs a daemon, or one of its GPUs is not rid of the last one."""
        return any(
            device.mps is not None
            or (device.gpu in self._record.modes if device.key is None else self._folder.has(name_of(device.key)))
            for device in _own(claim)
        )

    def place(self, units: Sequence[MpsUnit]) -> tuple[DaemonName, str]:
        """The name and folder of the daemon of these whole GPUs, or of this MIG device."""
        name = name_of(*units)
        return name, str(self._folder.path(name))

    def drop(self, claim: PreparedClaim) -> None:
        """Ask for the MIG devices of a claim that was not prepared that their daemons end, unless a sharer has them."""
        for device in _own(claim):
            if device.key is not None and device.mps is not None and self.user(device.key) is None:
                self._folder.forget(DaemonName(device.mps.daemon))

    def end_on(self, key: PlacementKey) -> str | None:
        """End the daemon of an instance that is to be destroyed: why it has not ended; "" if it has, None if there was none."""
        name = name_of(key)
        if not self._folder.has(name):
            return None
        self._folder.forget(name)
        return f"its MPS daemon ({name}), which has not ended" if self._aside(lambda: self._ended(name)) else ""

    # Upkeep

    def are_kept(self) -> bool:
        """Whether this node has a keeper, and a driver with MPS."""
        return self._folder.is_kept() and not self._control.missing()

    def units(self) -> set[MpsUnit]:
        """The MIG devices for which a daemon is wanted or used: by claims, or left behind by one that is not on record."""
        claims = self._record.claims.values()
        of_claims = {
            each.key for claim in claims for each in _own(claim) if each.mps is not None and each.key is not None
        }
        wanted = (self._folder.wanted(name) for name in self._folder.names())
        return {
            *of_claims,
            *(key for each in wanted if each is not None and (key := _read_place(each.place)) is not None),
        }

    def protocol(self) -> int:
        """The newest protocol that the installed control program knows; 0 if it does not say."""
        try:
            return self._control.newest_protocol()
        except ProgramFailed:
            return 0

    def user(self, unit: MpsUnit) -> PreparedClaim | None:
        """The prepared claim that has MPS on a GPU or an instance."""
        return self._claim(unit, PreparationState.PREPARED)

    def is_awaited(self, unit: MpsUnit) -> bool:
        """Whether a claim is being prepared that is to have MPS on an instance."""
        return not isinstance(unit, str) and self._claim(unit, PreparationState.PREPARING) is not None

    def is_settled(self, unit: MpsUnit) -> bool:
        """Whether a GPU has the mode and an instance the daemon that its claim needs, or none of ours."""
        if (claim := self.user(unit)) is None:
            return not self._remains(unit) and (not isinstance(unit, str) or unit not in self._record.modes)
        names = _daemons(claim)
        wanted = all(daemon.is_like(self._folder.wanted(name)) for name, daemon in names.items())
        if not isinstance(unit, str):
            return wanted
        mode = self._record.modes.get(unit)
        return wanted and mode is not None and mode.load == self._load()

    def restore(self, claim: PreparedClaim) -> None:
        """Give a prepared claim again what a reboot, or a load of the driver, took. Raises ComputeModeRefused."""
        for device in _own(claim):
            if device.mps is not None and device.partition is None:
                self._claim_gpu(device.gpu, DaemonName(device.mps.daemon))
        self._want(claim)

    def take_back(self, unit: MpsUnit) -> str:
        """End the daemon of a GPU, whose mode is given back, or of an instance. Why that is not done yet; "" if it is.

        Raises ComputeModeRefused.
        """
        if not isinstance(unit, str):
            return _ENDING if self.end_on(unit) else ""
        mode = self._record.modes.get(unit)
        if mode is None and not self._remains(unit):
            return ""
        name = DaemonName(mode.daemon) if mode is not None else name_of(unit)
        self._folder.forget(name)
        if why := self._aside(lambda: self._ended(name)):
            return why
        if mode is None:
            mode = GpuComputeMode(gpu=unit, daemon=name, load=self._load())  # the record was lost
        if mode.load in ("", self._load()) and self._modes.read(unit) == EXCLUSIVE_PROCESS:
            self._modes.set(unit, mode.before)
        self._record.change(modes=[msgspec.structs.replace(mode, ours=False)])
        self._answered = {each for each in self._answered if each.daemon != name}
        return ""

    def unused(self) -> list[GpuUuid]:
        """GPUs, perhaps gone, whose daemon is asked for though no claim uses it."""
        asked = ((gpu, DaemonName(mode.daemon)) for gpu, mode in self._record.modes.items())
        return [gpu for gpu, name in asked if self.user(gpu) is None and self._folder.wanted(name) is not None]

    def end_unused(self, unit: MpsUnit) -> None:
        """End the daemon of a GPU that is gone and that no claim has; a mode is taken back if the GPU returns."""
        mode = self._record.modes.get(unit) if isinstance(unit, str) else None
        name = name_of(unit) if mode is None else DaemonName(mode.daemon)
        if self.user(unit) is None and self._folder.wanted(name) is not None:
            self._folder.forget(name)

    def problem(self, claim: PreparedClaim, unit: MpsUnit) -> str:
        """What is wrong with a prepared claim's daemon on a device, as the end of a sentence; "" for nothing. Asks it."""
        own = {DaemonName(each.mps.daemon) for each in _own(claim) if each.mps is not None and unit_of(each) == unit}
        for name, wanted in _daemons(claim).items():
            if name not in own:
                continue
            if said := self._folder.state(name).problem:
                return said
            if why := self._control.lacking(self._folder.pipe(name), wanted):
                return why
        return ""

    def _claim(self, unit: MpsUnit, state: PreparationState) -> PreparedClaim | None:
        return next(
            (
                claim
                for claim in self._record.claims.values()
                if claim.state is state and any(each.mps is not None and unit_of(each) == unit for each in _own(claim))
            ),
            None,
        )

    def _remains(self, unit: MpsUnit) -> bool:
        """Whether a daemon is asked for that no record knows: the record was lost."""
        return self._folder.wanted(name_of(unit)) is not None

    def _lingers(self, unit: MpsUnit) -> bool:
        """Whether the daemon of an earlier claim has not ended."""
        if isinstance(unit, str):
            return unit in self._record.modes
        name = name_of(unit)
        return self._folder.has(name) and bool(self._ended(name))

    def _ended(self, name: DaemonName) -> str:
        pipe = self._folder.pipe(name)
        try:
            self._control.quit(pipe)
        except ProgramSilent:
            return _ENDING
        except ProgramFailed:
            return ""  # there is none
        try:
            self._control.servers(pipe)
        except ProgramSilent:
            return _ENDING
        except ProgramFailed:
            return ""
        return _ENDING

    def _claim_gpu(self, gpu: GpuUuid, daemon: DaemonName) -> None:
        """Make a GPU exclusive, on record before and after. Raises ComputeModeRefused."""
        load, known = self._load(), self._record.modes.get(gpu)
        if known is not None and known.load == load and known.daemon == daemon:
            return
        if known is None or known.load not in ("", load):
            before = self._modes.read(gpu)
            if before == EXCLUSIVE_PROCESS and self._folder.wanted(daemon) is not None:
                before = DEFAULT  # it is ours: the record was lost
            known = GpuComputeMode(gpu=gpu, daemon=daemon, before=before)
        known = msgspec.structs.replace(known, daemon=daemon, load="")
        self._record.change(modes=[known])
        self._modes.set(gpu, EXCLUSIVE_PROCESS)
        self._record.change(modes=[msgspec.structs.replace(known, load=load)])

    def _want(self, claim: PreparedClaim) -> None:
        for name, wanted in _daemons(claim).items():
            if not all(wanted.devices):
                continue  # the UUID of a MIG device whose record was rebuilt is not known before it is read
            before = self._folder.wanted(name)
            if before is not None and before.devices != wanted.devices:
                # The instance was made again; the old daemon, with the right limits, would be taken for the new one.
                self._stop(name)
            self._folder.want(name, wanted)

    def _stop(self, name: DaemonName) -> None:
        self._aside(lambda: self._ended(name))


def suits(gpu: Gpu) -> bool | None:
    """Whether a GPU can have MPS where a keeper runs; None if unknown."""
    return None if gpu.compute_major is None else gpu.compute_major >= FIRST_ARCHITECTURE


def unit_of(device: PreparedDevice) -> MpsUnit:
    """What a device's daemon is for."""
    return device.gpu if device.key is None else device.key


def name_of(*units: MpsUnit) -> DaemonName:
    """The name of the daemon of some whole GPUs, or of an instance. An instance that is made again keeps it."""
    return daemon_name([each if isinstance(each, str) else place_name(*each) for each in units])


def _read_place(place: str) -> PlacementKey | None:
    """The placement that a wish names; None for whole GPUs."""
    gpu, _, rest = place.partition("/")
    profile, _, start = rest.partition("/")
    return PlacementKey(GpuUuid(gpu), int(profile), int(start)) if profile.isdecimal() and start.isdecimal() else None


def _daemons(claim: PreparedClaim) -> dict[DaemonName, WantedDaemon]:
    """The daemons that a claim needs. The whole GPUs of one configuration share one."""
    found: dict[DaemonName, list[PreparedDevice]] = {}
    for device in _own(claim):
        if device.mps is not None:
            found.setdefault(DaemonName(device.mps.daemon), []).append(device)
    return {name: _wanted(claim, devices) for name, devices in found.items()}


def _wanted(claim: PreparedClaim, devices: list[PreparedDevice]) -> WantedDaemon:
    devices = list({unit_of(each): each for each in sorted(devices, key=lambda each: each.gpu)}.values())
    places = [each.mps for each in devices if each.mps is not None]
    key = devices[0].key
    return WantedDaemon(
        claim=str(claim),
        devices=[each.gpu if each.partition is None else each.partition.uuid for each in devices],
        percentage=places[0].percentage,
        limits_mib=[each.limit_mib for each in places] if any(each.limit_mib for each in places) else [],
        multi_user=places[0].multi_user,
        place="" if key is None else place_name(*key),
    )


def _own(claim: PreparedClaim) -> Iterator[PreparedDevice]:
    """The devices that a claim may have MPS on. Administrative access changes nothing."""
    return (each for each in claim.devices if not each.admin)
