"""Gives prepared claims the MPS daemons that they ask for, and takes them back.

Prepare makes the claim's GPUs exclusive, so that no program uses them past MPS, and asks the node's keeper (`draco.mps`) for the
daemon. Then it waits until the daemon itself answers, with the limits of the claim. A GPU's mode is on record before it is set
and until it is given back, so no crash leaves one behind unknown. Unprepare waits for nothing: a reconciler (`mps_upkeep`) ends
the daemon and then gives the mode back, and does the same with what a crash or a failed Prepare left.

Owns when that happens. Runs no daemon: one must not end with the agent. MIG devices and administrative access have none.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from draco.agent.errors import PrepareError
from draco.agent.hardware.compute_mode import DEFAULT, EXCLUSIVE_PROCESS, ComputeModeRefused, ComputeModes
from draco.agent.hardware.gpus import Gpu
from draco.agent.hardware.programs import ProgramFailed, ProgramSilent
from draco.agent.mps.control import MpsControl
from draco.agent.mps.folder import DaemonName, MpsFolder, WantedDaemon, daemon_name
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import DeviceMps, GpuComputeMode, PreparationState, PreparedClaim, PreparedDevice
from draco.resources.names import GpuUuid

FIRST_ARCHITECTURE: Final = 7
"""Volta's compute capability: before it, clients of MPS share an address space, and there are no limits."""
_ENDING: Final = "the MPS daemon of an earlier claim has not ended"


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
        """Make the claim's GPUs exclusive and ask for its daemons; other GPUs lose theirs. Raises PrepareError."""
        for device in _whole(claim):
            try:
                if device.mps is None:
                    self.take_back(device.gpu)
                else:
                    self._claim_gpu(device.gpu, DaemonName(device.mps.daemon))
            except ComputeModeRefused as error:
                raise PrepareError(
                    f"Claim {claim} cannot be prepared: {device.device}: {error} Kubelet tries again."
                ) from error
        self._want(claim)

    def look(self, claim: PreparedClaim) -> str:
        """Why the claim's containers cannot start yet, as a sentence; "" if they can. Asks the daemons, in any thread."""
        for device in _whole(claim):
            if device.mps is None and device.gpu in self._record.modes:
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
        self._answered.update(device.mps for device in _whole(claim) if device.mps is not None)
        return ""

    def given(self, claim: PreparedClaim) -> None:
        """Check, without hardware and daemons, that `look` found nothing lacking. Raises PrepareError."""
        for device in _whole(claim):
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
        return any(device.mps is not None or device.gpu in self._record.modes for device in _whole(claim))

    def place(self, devices: Sequence[str]) -> tuple[DaemonName, str]:
        """The name and folder of the daemon of these devices."""
        name = daemon_name(devices)
        return name, str(self._folder.path(name))

    # Upkeep

    def are_kept(self) -> bool:
        """Whether this node has a keeper, and a driver with MPS."""
        return self._folder.is_kept() and not self._control.missing()

    def user(self, gpu: GpuUuid) -> PreparedClaim | None:
        """The prepared claim that has MPS on a GPU."""
        return next(
            (
                claim
                for claim in self._record.claims.values()
                if claim.state is PreparationState.PREPARED
                and any(each.gpu == gpu and each.mps is not None for each in _whole(claim))
            ),
            None,
        )

    def is_settled(self, gpu: GpuUuid) -> bool:
        """Whether a GPU has the mode that its claim needs, or none of ours."""
        mode = self._record.modes.get(gpu)
        if (claim := self.user(gpu)) is None:
            return mode is None and not self._remains(gpu)
        names = _daemons(claim)
        wanted = all(daemon.is_like(self._folder.wanted(name)) for name, daemon in names.items())
        return wanted and mode is not None and mode.load == self._load()

    def restore(self, claim: PreparedClaim) -> None:
        """Give a prepared claim again what a reboot, or a load of the driver, took. Raises ComputeModeRefused."""
        for device in _whole(claim):
            if device.mps is not None:
                self._claim_gpu(device.gpu, DaemonName(device.mps.daemon))
        self._want(claim)

    def take_back(self, gpu: GpuUuid) -> str:
        """End the daemon of a GPU and give its mode back. Why that is not done yet; "" if it is. Raises ComputeModeRefused."""
        mode = self._record.modes.get(gpu)
        if mode is None and not self._remains(gpu):
            return ""
        name = DaemonName(mode.daemon) if mode is not None else daemon_name([gpu])
        self._folder.forget(name)
        if why := self._aside(lambda: self._ended(name)):
            return why
        if mode is None:
            mode = GpuComputeMode(gpu=gpu, daemon=name, load=self._load())  # the record was lost
        if mode.load in ("", self._load()) and self._modes.read(gpu) == EXCLUSIVE_PROCESS:
            self._modes.set(gpu, mode.before)
        self._record.change(modes=[msgspec.structs.replace(mode, ours=False)])
        self._answered = {each for each in self._answered if each.daemon != name}
        return ""

    def problem(self, claim: PreparedClaim) -> str:
        """What is wrong with the daemons of a prepared claim, as the end of a sentence; "" for nothing. Asks them."""
        for name, wanted in _daemons(claim).items():
            if said := self._folder.state(name).problem:
                return said
            if why := self._control.lacking(self._folder.pipe(name), wanted):
                return why
        return ""

    def _remains(self, gpu: GpuUuid) -> bool:
        """Whether a daemon is asked for that no record knows: the record was lost."""
        return self._folder.wanted(daemon_name([gpu])) is not None

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
            self._folder.want(name, wanted)


def suits(gpu: Gpu) -> bool | None:
    """Whether a GPU can have MPS where a keeper runs; None if unknown."""
    return None if gpu.compute_major is None else gpu.compute_major >= FIRST_ARCHITECTURE


def _daemons(claim: PreparedClaim) -> dict[DaemonName, WantedDaemon]:
    """The daemons that a claim needs. The devices of one configuration share one."""
    found: dict[DaemonName, list[PreparedDevice]] = {}
    for device in _whole(claim):
        if device.mps is not None:
            found.setdefault(DaemonName(device.mps.daemon), []).append(device)
    return {name: _wanted(claim, devices) for name, devices in found.items()}


def _wanted(claim: PreparedClaim, devices: list[PreparedDevice]) -> WantedDaemon:
    devices = list({each.gpu: each for each in sorted(devices, key=lambda each: each.gpu)}.values())
    places = [each.mps for each in devices if each.mps is not None]
    return WantedDaemon(
        claim=str(claim),
        devices=[each.gpu for each in devices],
        percentage=places[0].percentage,
        limits_mib=[each.limit_mib for each in places] if any(each.limit_mib for each in places) else [],
        multi_user=places[0].multi_user,
    )


def _whole(claim: PreparedClaim) -> Iterator[PreparedDevice]:
    """The whole GPUs that a claim has. Administrative access changes nothing."""
    return (each for each in claim.devices if each.partition is None and not each.admin)
