"""The agent machine's fourth layer: accidents to hardware, manual changes, and outages of what the agent depends on.

Owns these steps. Their own effects are never held against the agent.
"""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from draco.resources.kinds import GPU_NODES
from draco_local.simulator.accidents import by_hand, faults, hotplug
from draco_local.simulator.gpus import state, sysfs
from draco_local.simulator.gpus.boards import BOARDS
from draco_local.simulator.gpus.state import StateError
from tests.adversary.agent import observer
from tests.adversary.agent.decisions import HEALTH, KEYS
from tests.adversary.agent.failing import CODES, FAILING, LACKS, REFUSALS
from tests.adversary.agent.handing_over import HandingOver
from tests.adversary.agent.life import REST_S
from tests.adversary.agent.node import NUMBERS, SHARED_NODES, accident, fired
from tests.adversary.agent.slicing import DRIVER_VERSION, NVIDIA_SMI, OLD_DRIVER
from tests.adversary.agent.surroundings import DRIVER, NODE

PROFILES = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")
XIDS = (79, 95, 119, 48, 31, 64, 74)
"""Some affect a whole GPU, some only a process."""
SPREADING = (79, 95, 119)
"""They affect the whole GPU even if they are reported for one instance."""
HARDWARE = (
    "reload driver",
    "old driver",
    "other driver",
    "lose",
    "reset",
    "remove",
    "unreadable",
    "stop failing",
    "ask for reset",
)


class Accidents(HandingOver):
    """Steps for hardware, people, the disk, the API server and other plugins."""

    # Hardware

    def _happens(self, what: str, event: Callable[[], Any], *, moves: bool, disturbs: bool = True) -> bool:
        """Apply `event` and excuse the agent for its effects. Returns whether it happened.

        `moves`: minor numbers and instances may have changed. `disturbs`: the agent may have lost its NVML event session.
        """
        before = observer.look(self.folder)
        try:
            event()
        except StateError:  # hardware refuses, for example while a process holds it
            if observer.look(self.folder).gpus == before.gpus:
                return False
        fired[what] += 1
        if disturbs:
            self.sickness.disturbed()
        seen = observer.look(self.folder)
        loaded = any(seen.hardware[what] != before.hardware[what] for what in ("driver", "boot"))
        self._note_slices(before, loaded=loaded)
        self.foreign &= seen.serials()
        # An instance that lost its compute instance is useless: the agent may destroy it.
        self.alive &= frozenset(instance["serial"] for _, instance in seen.instances() if instance["compute"])
        self.left |= {_place(*each) for each in before.instances() if each[1]["serial"] not in seen.serials()}
        self._bare_ones(seen)
        self.current = self.current and not moves
        return True

    def _bare_ones(self, seen: observer.Seen) -> None:
        """A foreign instance without a compute instance, at the ID and placement of one that is gone, may count as Draco's.

        NVML cannot tell the two apart, so nothing is demanded about it.
        """
        bare = {one["serial"] for gpu, one in seen.instances() if not one["compute"] and _place(gpu, one) in self.left}
        self.unclaimed |= self.foreign & bare
        self.foreign -= bare

    @accident(
        order=st.permutations((0, 1, 2)), keep_specs=st.booleans(), capabilities=st.sampled_from((None, None, 5, 700))
    )
    def reboot(self, order: list[int], keep_specs: bool, capabilities: int | None) -> None:
        """The node boots: minor numbers are assigned in any order. CDI specs survive if their folder is on a disk."""
        self._bury_all()
        there = sum(gpu.error != 15 for gpu in state.load(self.path).gpus)
        minors = [number for number in order if number < there]
        self._happens(
            "reboot", partial(faults.reboot, self.path, minors=minors, first_capability=capabilities), moves=True
        )
        self.left = frozenset()  # no instance survives a boot
        self._mps_boots()
        self._make_nodes()
        self.sickness.rebooted()
        self.rivals.all_go(cleanly=False)
        sysfs.build(self.folder / "sys", state.load(self.path))
        if not keep_specs:
            shutil.rmtree(self.folder / "cdi")
            (self.folder / "cdi").mkdir()
        self._others()
        if self.damaged:
            self._forgotten()

    @accident(pick=NUMBERS, back=st.booleans())
    def device_nodes(self, pick: int, back: bool) -> None:
        """A device node vanishes, or somebody creates all of them. The kernel lists none, so the agent cannot create any."""
        if back:
            fired["device nodes made"] += 1
            self._make_nodes()
            return
        given = sorted({node.removeprefix("/dev/") for one in observer.look(self.folder).given for node in one.nodes})
        names = [*given, *SHARED_NODES[:3], "nvidia0", "nvidia1"]
        fired["device node vanished"] += 1
        (self.folder / "root" / "dev" / names[pick % len(names)]).unlink(missing_ok=True)
        self.current = False

    @accident(
        pick=NUMBERS,
        what=st.sampled_from(HARDWARE),
    )
    def hardware(self, pick: int, what: str) -> None:
        """A GPU fails, or somebody resets or removes it or reloads the driver."""
        gpu = self._gpu(pick)
        uuid = self._uuid(gpu)
        match what:
            case "reload driver" | "old driver" | "other driver":
                other = DRIVER_VERSION if self._limits_work() else "615"
                same = None if self._slices_work() else DRIVER_VERSION
                version = {"old driver": OLD_DRIVER, "other driver": other}.get(what, same)
                if self._happens(what, lambda: faults.reload_driver(self.path, version=version), moves=True):
                    self.sickness.reset()
                    sysfs.build(self.folder / "sys", state.load(self.path))
            case "lose":
                if self._happens(what, lambda: faults.lose(self.path, gpu), moves=False):
                    self.sickness.xid(uuid, 79)
            case "reset":
                if self._happens(what, lambda: faults.reset(self.path, gpu), moves=True):
                    self.sickness.reset(uuid)
            case "remove":
                self._happens(what, lambda: hotplug.remove(self.path, gpu), moves=True)
            case "ask for reset":
                self._happens(what, lambda: faults.recovery_action(self.path, gpu, 1), moves=False, disturbs=False)
            case "unreadable":
                self._happens(what, lambda: faults.make_unreadable(self.path, gpu), moves=False)
            case _:
                self._happens(what, self._stop_failing, moves=False)

    @accident(pick=NUMBERS, state=st.sampled_from(("joining", "joined", "failed")), seen=st.booleans())
    def fabric(self, pick: int, state: faults.FabricState, seen: bool = False) -> None:
        """The fabric manager starts or finishes registering a GPU, or fails to."""
        gpu = self._gpu(pick)
        if self._uuid(gpu):
            event = partial(faults.fabric, self.path, gpu, state)
            self._happens(f"fabric {state}", event, moves=False, disturbs=False)
            self._time_passes(seen)

    @precondition(lambda self: not self.hanging)
    @accident(pick=NUMBERS, lacks=LACKS)
    def older_driver(self, pick: int, lacks: tuple[str, str]) -> None:
        """A driver is loaded that does not support an NVML call for one board."""
        gpu = self._gpu(pick)
        if self._uuid(gpu) and self._happens("older driver", lambda: faults.reload_driver(self.path), moves=True):
            self.sickness.reset()
            sysfs.build(self.folder / "sys", state.load(self.path))
            if self._uuid(gpu):
                self._lack(gpu, *lacks)

    @accident(
        pick=NUMBERS, code=st.sampled_from(XIDS), of_part=st.booleans(), seen=st.sampled_from((True, True, False))
    )
    def xid(self, pick: int, code: int, of_part: bool = False, seen: bool = False) -> None:
        """The driver reports an XID of a GPU, or of one instance if the XID affects the whole GPU anyway.

        `seen`: the agent gets time to hear it and to react.
        """
        self._time_passes(seen)
        gpu = self._gpu(pick)
        if self.hanging or not state.load(self.path).gpus:
            return
        parts = [instance.id for instance in state.load(self.path).gpus[gpu].instances]
        scope = {"gi": parts[pick % len(parts)], "ci": 0} if of_part and parts and code in SPREADING else {}
        event = {
            64: partial(faults.remap, self.path, gpu, failed=True),
            74: partial(faults.nvlink, self.path, gpu, pick % 18, down=True, replay=1),
        }.get(code, partial(faults.xid, self.path, gpu, code, **scope))
        if self._happens(f"xid {code}", event, moves=False, disturbs=False):
            self.sickness.xid(self._uuid(gpu), code)
            fired["xid: heard"] += bool(self.sickness.told)
            self._time_passes(seen)

    def _time_passes(self, passes: bool) -> None:
        if passes and self.agent is not None:
            self.turn(REST_S)

    def _uuid(self, gpu: int) -> str:
        gpus = state.load(self.path).gpus
        return gpus[gpu].uuid if gpu < len(gpus) else ""

    @accident(pick=NUMBERS, same=st.booleans())
    def bring_back(self, pick: int, same: bool) -> None:
        """A person reseats or replaces a removed or dead board."""
        node = state.load(self.path)
        out = [gpu.uuid for gpu in [*node.missing, *node.gpus] if gpu in node.missing or gpu.error]
        if out:
            change = hotplug.reseat if same else hotplug.replace
            what = "reseat" if same else "replace"
            board = out[pick % len(out)]
            if self._happens(what, lambda: change(self.path, board), moves=True):
                self.sickness.repaired(board)

    @accident(
        pick=NUMBERS,
        profile=st.sampled_from(PROFILES),
        start=st.sampled_from((None, 0, 2, 3, 4, 6)),
        compute=st.sampled_from(("whole", "whole", "none")),
    )
    def make_by_hand(self, pick: int, profile: str, start: int | None, compute: Literal["whole", "none"]) -> None:
        """Somebody else creates an instance."""
        if self.hanging:  # theirs would hang, too
            return
        self._make(self._gpu(pick), profile, start, compute)

    @accident(pick=NUMBERS)
    def replace_by_hand(self, pick: int) -> None:
        """Somebody destroys a claim's instance and creates their own with the same profile and placement."""
        if self.hanging:
            return
        found = [each for each in observer.look(self.folder).instances() if each[1]["serial"] in self.alive]
        if not found:
            return
        gpu, instance = found[pick % len(found)]
        destroy = partial(by_hand.destroy_instance, self.path, gpu["uuid"], instance["id"])
        if self._happens("destroy by hand", destroy, moves=True, disturbs=False):
            fired["replace by hand"] += 1
            self._make(gpu["uuid"], _profile(gpu["board"], instance["profile_id"]), instance["start"], "whole")

    def _make(self, gpu: int | str, profile: str, start: int | None, compute: Literal["whole", "none"]) -> None:
        before = observer.look(self.folder).serials()
        make = partial(by_hand.create_instance, self.path, gpu, profile, start=start, compute=compute)
        self._happens(f"make by hand{'' if compute == 'whole' else ', bare'}", make, moves=False, disturbs=False)
        seen = observer.look(self.folder)
        self.foreign |= seen.serials() - before
        self._bare_ones(seen)

    @accident(pick=NUMBERS, mode=st.sampled_from((None, None, 0, 1)))
    def undo_by_hand(self, pick: int, mode: int | None) -> None:
        """Somebody destroys any instance, or switches MIG mode."""
        if self.hanging:
            return
        if mode is not None:
            self._happens(
                "mode by hand", lambda: by_hand.set_mode(self.path, self._gpu(pick), mode), moves=False, disturbs=False
            )
            return
        found = [(gpu["uuid"], instance["id"]) for gpu, instance in observer.look(self.folder).instances()]
        if found:
            uuid, number = found[pick % len(found)]
            self._happens("destroy by hand", lambda: by_hand.destroy_instance(self.path, uuid, number), moves=True)

    @accident(
        function=st.sampled_from(FAILING),
        code=st.sampled_from(CODES),
        pick=st.none() | NUMBERS,
        effect=st.sampled_from(("none", "done")),
        times=st.integers(1, 3),
    )
    def fail(self, function: str, code: str, pick: int | None, effect: Literal["none", "done"], times: int) -> None:
        """NVML calls fail."""
        gpu = None if pick is None else self._gpu(pick)
        if code in REFUSALS and (effect == "done" or function == NVIDIA_SMI):  # nvidia-smi means "never" by one
            code = "UNKNOWN"
        error = faults.ERRORS[code]
        event = partial(faults.fail, self.path, function, error, gpu=gpu, times=times, effect=effect)
        self._happens("fail", event, moves=False)

    # The rest of the world

    @accident(
        what=st.sampled_from(
            ("disk fills", "API goes", "disk has room", "API comes back", "all is well", "all is well")
        )
    )
    def world(self, what: str) -> None:
        """The disk fills or gets room, the API server goes or comes back, or everything is repaired."""
        fired[what] += 1
        match what:
            case "disk fills":
                self.disk.free = 0
            case "disk has room":
                self.disk.free = None
            case "API goes":
                self.source.gone = True
                self.reachable = False
            case "API comes back":
                self.source.gone = False
            case _:
                self._all_is_well()

    # What an operator says

    @accident(pick=NUMBERS, key=st.sampled_from(KEYS), seen=st.booleans())
    def decide(self, pick: int, key: str, seen: bool = False) -> None:
        """An operator adds a taint to a GPU or removes it."""
        boards = self._boards()
        uuid = boards[pick % len(boards)]
        self.decisions.now[uuid] = self.decisions.now.get(uuid, set()) ^ {key}
        if key == HEALTH:
            self.sickness.judged.add(uuid)
        self._decide()
        self._time_passes(seen)

    @accident(
        what=st.sampled_from(("deleted", "deleted", "empty", "unreadable", "readable", "decided")), seen=st.booleans()
    )
    def gpu_node(self, what: str, seen: bool = False) -> None:
        """The GpuNode is deleted or emptied, its agent loses or regains access to it, or the operator writes its decisions."""
        fired[f"GpuNode {what}"] += 1
        match what:
            case "deleted":
                self._told()  # a watch delivers an object before its deletion
                self.source.drop(GPU_NODES, NODE)
            case "empty":
                if self.source.gpu_node is not None:
                    self.source.decide({})
            case "unreadable" | "readable":
                self.source.mute = what == "unreadable"
            case _:
                self._decide()
        self._told()
        self._time_passes(seen)

    @precondition(lambda self: self.agent is None)
    @accident()
    def lose_decisions(self) -> None:
        """The agent loses its record of the GpuNode's spec. The slices still show only hand-overs and maintenance."""
        fired["lost what was wanted"] += 1
        (self.folder / "agent" / "wanted.json").unlink(missing_ok=True)
        self.decisions.lost({HEALTH})

    # Other plugins

    @precondition(lambda self: len(self.rivals.live) < 2)
    @accident(
        where=st.sampled_from(("beside", "in our place", "in our place", "other driver")),
        speaks=st.booleans(),
        ours=st.booleans(),
        seen=st.booleans(),
    )
    def another_plugin(self, where: str, speaks: bool, ours: bool, seen: bool = False) -> None:
        """Another plugin serves this driver or another one, on its own socket or in place of ours. It may not answer at first."""
        fired[f"another plugin, {where}"] += 1
        registry, driver = self.rivals.registry, "fpga.example.com" if where == "other driver" else DRIVER
        name = f"{driver}-{self.rivals.born}" if where == "beside" else driver
        names = [registry / f"{name}-reg.sock", self.rivals.services / f"{name}.sock"]
        if where == "in our place":
            names[1] = self.rivals.services / "dra.sock"
        since_s = self.clock.monotonic() + 0.001 if ours and driver == DRIVER else None
        self.rivals.come(names, driver=driver, speaks=speaks, since_s=since_s)
        self.gave_way = False
        self._time_passes(seen)

    @precondition(lambda self: bool(self.rivals.live))
    @rule(pick=NUMBERS, what=st.sampled_from(("speaks", "speaks", "ends", "is killed")), seen=st.booleans())
    def of_another_plugin(self, pick: int, what: str, seen: bool = False) -> None:
        """The other plugin starts to answer, ends or is killed."""
        fired[f"another plugin {what}"] += 1
        rival = self.rivals.live[pick % len(self.rivals.live)]
        if what == "speaks":
            rival.speaks = True
        else:
            self.rivals.go(rival, cleanly=what == "ends")
            self.gave_way = False
        self._time_passes(seen)

    def _all_is_well(self) -> None:
        """Repair everything that can be repaired, except hanging calls."""
        self.disk.free = None
        self.source.gone = False
        node = state.load(self.path)
        for gpu in [*node.missing, *(gpu for gpu in node.gpus if gpu.error)]:
            self._happens("reseat", lambda uuid=gpu.uuid: hotplug.reseat(self.path, uuid), moves=True)
            self.sickness.repaired(gpu.uuid)
        self._stop_failing(but="hang")


def _place(gpu: Mapping[str, Any], instance: Mapping[str, Any]) -> tuple[object, ...]:
    """Everything by which NVML identifies a GPU instance without a compute instance."""
    return gpu["uuid"], instance["id"], instance["profile_id"], instance["start"]


def _profile(board: str, number: int) -> str:
    """The profile's name, such as 1g.10gb."""
    table = BOARDS[board].mig
    return next(one.name for one in table.profiles if one.id == number) if table else ""
