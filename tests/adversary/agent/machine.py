"""The agent machine: any sequence of claims, deaths, and accidents of hardware, and what must be true after each step.

Owns the steps and when each promise holds. What is there is seen by `observer`; the agent is run by `driven`.

At every moment, whether the agent runs or not:
- what others made is untouched: their GPU instances, and their files in the folders that we share;
- instances of a claim that kubelet was told of are not destroyed by the agent (hardware and people may), and its whole GPU is not
  put into MIG mode;
- no two claims that kubelet was told of have hardware in common, by what they were told of, whether or not a spec is there now;
- a name that a claim was allocated does not come to stand for another board.
When the agent answers a Prepare: the claim's spec is right at that moment, and has nothing in common with that of another claim,
even if hardware has changed and the agent did not have its turn yet.
When hardware has not changed since the agent last had its turn with a driver that answers, also after its death: each spec
tells the UUIDs, and opens the device nodes, of what is there; and no two specs have hardware or device nodes in common.
In between, specs may be out of date: nobody is there to see it, or it is about to.
A claim that has nothing but whole GPUs is given up whether or not the driver answers.
At rest, when everything works again: each claim that kubelet was told of can be given up, and then nothing of ours is left.
Administrative access is exempt where it may be: it shares what others have.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.stateful import invariant

from draco.simulator import by_hand, faults, hotplug, state
from draco.simulator.state import StateError
from tests.adversary.agent import observer
from tests.adversary.agent.claims import (
    CODES,
    FAILING,
    NUMBERS,
    PROFILES,
    REFUSALS,
    REST_S,
    XIDS,
    LifeOfClaims,
    accident,
    at_once,
    fired,
)

__all__ = ["AgentMachine", "at_once", "fired"]


class AgentMachine(LifeOfClaims):
    """All steps, and what must be true after each."""

    # Hardware

    def _happens(self, what: str, event: Callable[[], Any], *, moves: bool) -> None:
        """Hardware or a person does something: what that ends is not the agent's fault."""
        before = observer.look(self.folder).gpus
        try:
            event()
        except StateError:  # hardware refuses, as it does when somebody holds it
            if observer.look(self.folder).gpus == before:
                return
        fired[what] += 1
        seen = observer.look(self.folder)
        self.foreign &= seen.serials()
        # One that lost its compute instance to somebody is of no use: it may go.
        self.alive &= frozenset(instance["serial"] for _, instance in seen.instances() if instance["compute"])
        self.current = self.current and not moves

    @accident(
        order=st.permutations((0, 1, 2)), keep_specs=st.booleans(), capabilities=st.sampled_from((None, None, 5, 700))
    )
    def reboot(self, order: list[int], keep_specs: bool, capabilities: int | None) -> None:
        """The node boots: minor numbers are as the kernel likes. The specs' folder may be on a disk."""
        self._bury()
        there = sum(gpu.error != 15 for gpu in state.load(self.path).gpus)
        minors = [number for number in order if number < there]
        self._happens(
            "reboot", partial(faults.reboot, self.path, minors=minors, first_capability=capabilities), moves=True
        )
        if not keep_specs:
            shutil.rmtree(self.folder / "cdi")
            (self.folder / "cdi").mkdir()
        self._others()

    @accident(
        pick=NUMBERS,
        what=st.sampled_from(("reload driver", "lose", "reset", "remove", "unreadable", "stop failing", "xid")),
    )
    def hardware(self, pick: int, what: str) -> None:
        """An accident, or somebody who resets, unplugs or reloads."""
        gpu = self._gpu(pick)
        match what:
            case "reload driver":
                self._happens(what, lambda: faults.reload_driver(self.path), moves=True)
            case "lose":
                self._happens(what, lambda: faults.lose(self.path, gpu), moves=False)
            case "reset":
                self._happens(what, lambda: faults.reset(self.path, gpu), moves=True)
            case "remove":
                self._happens(what, lambda: hotplug.remove(self.path, gpu), moves=True)
            case "xid":
                self._happens(what, lambda: faults.xid(self.path, gpu, XIDS[pick % len(XIDS)]), moves=False)
            case "unreadable":
                self._happens(what, lambda: faults.make_unreadable(self.path, gpu), moves=False)
            case _:
                self._happens(what, lambda: faults.stop_failing(self.path), moves=False)

    @accident(pick=NUMBERS, same=st.booleans())
    def bring_back(self, pick: int, same: bool) -> None:
        """A person comes, for a board that is out or dead."""
        node = state.load(self.path)
        out = [gpu.uuid for gpu in [*node.missing, *node.gpus] if gpu in node.missing or gpu.error]
        if out:
            change = hotplug.reseat if same else hotplug.replace
            what = "reseat" if same else "replace"
            self._happens(what, lambda: change(self.path, out[pick % len(out)]), moves=True)

    @accident(
        pick=NUMBERS,
        profile=st.sampled_from(PROFILES),
        start=st.sampled_from((None, 0, 2, 3, 4, 6)),
        compute=st.sampled_from(("whole", "whole", "none")),
    )
    def make_by_hand(self, pick: int, profile: str, start: int | None, compute: Literal["whole", "none"]) -> None:
        """Somebody else makes an instance."""
        if self.hanging:  # theirs would hang, too
            return
        before = observer.look(self.folder).serials()
        gpu = self._gpu(pick)
        make = partial(by_hand.create_instance, self.path, gpu, profile, start=start, compute=compute)
        self._happens(f"make by hand{'' if compute == 'whole' else ', bare'}", make, moves=False)
        self.foreign |= observer.look(self.folder).serials() - before

    @accident(pick=NUMBERS, mode=st.sampled_from((None, None, 0, 1)))
    def undo_by_hand(self, pick: int, mode: int | None) -> None:
        """Somebody destroys an instance, whoever made it; or switches MIG mode."""
        if self.hanging:
            return
        if mode is not None:
            self._happens("mode by hand", lambda: by_hand.set_mode(self.path, self._gpu(pick), mode), moves=False)
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
        """Calls of NVML fail."""
        gpu = None if pick is None else self._gpu(pick)
        if effect == "done" and code in REFUSALS:
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
        """What the agent lives on comes and goes."""
        fired[what] += 1
        match what:
            case "disk fills":
                self.disk.free = 0
            case "disk has room":
                self.disk.free = None
            case "API goes":
                self.source.gone = True
            case "API comes back":
                self.source.gone = False
            case _:
                self._all_is_well()

    def _all_is_well(self) -> None:
        """Whatever can be repaired is."""
        self.disk.free = None
        self.source.gone = False
        node = state.load(self.path)
        for gpu in [*node.missing, *(gpu for gpu in node.gpus if gpu.error)]:
            self._happens("reseat", lambda uuid=gpu.uuid: hotplug.reseat(self.path, uuid), moves=True)
        with state.mutate(self.path) as node:
            node.failures[:] = [one for one in node.failures if one.effect == "hang"]

    @accident(pick=NUMBERS, mode=st.sampled_from(("none", "dynamic", "dynamic", "dynamic", "static", "disabled")))
    def policy(self, pick: int, mode: str) -> None:
        """What is wanted of a GPU changes."""
        self._policy(pick, mode)

    # What must be true

    @invariant()
    def promises(self) -> None:
        """All that must be true at every moment."""
        fired["steps"] += 1
        self.quiet -= 1
        self.idle -= 1
        self.broken = True
        self.nothing_foreign_is_touched()
        self.nothing_in_use_is_taken()
        self.no_two_claims_were_told_of_the_same()
        self.specs_are_what_is_there()
        self.broken = False

    def nothing_foreign_is_touched(self) -> None:
        seen = observer.look(self.folder)
        assert self.foreign <= seen.serials(), "an instance that somebody else made is gone"
        for path, content in self.files.items():
            assert path.exists(), f"{path.name} of another program is gone"
            assert path.read_bytes() == content, f"{path.name} of another program was changed"

    def nothing_in_use_is_taken(self) -> None:
        seen = observer.look(self.folder)
        assert self.alive <= seen.serials(), "an instance of a claim that kubelet was told of was destroyed"

    def no_two_claims_were_told_of_the_same(self) -> None:
        told = [
            (claim, part)
            for claim in self.claims.values()
            if claim.told and not claim.leaving
            for part in claim.exclusive
        ]
        for index, (claim, part) in enumerate(told):
            for other, theirs in told[index + 1 :]:
                assert claim is other or not part.meets(theirs), (
                    f"{claim.name} and {other.name} were both told of {part}"
                )

    def specs_are_what_is_there(self) -> None:
        seen = observer.look(self.folder)
        assert not seen.unreadable, seen.unreadable
        if not self.current:
            return
        for one in seen.given:
            why = observer.wrong(one, seen)
            assert not why, why
        why = observer.twice(seen, self._admin())
        assert not why, why

    # At rest

    def teardown(self) -> None:
        try:
            if self.files and not self.broken:
                self._rest()
        finally:
            self.close()

    def close(self) -> None:
        """Leave nothing behind."""
        with suppress(Exception):
            self._bury()
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rest(self) -> None:
        """Everything works again: what kubelet was told of can be given up, and then nothing of ours is left."""
        fired["rest"] += 1
        self.armed = 0
        self.death.disarm()
        self.disk.free = None
        self.source.gone = False
        if self.hanging and self.agent is not None:
            with self._living("let go"):
                self._let_go(self.agent)
        if self.death.dead:
            self._bury()
        faults.stop_failing(self.path)
        with state.mutate(self.path) as node:
            node.driver.error = 0
            for gpu in node.gpus:
                gpu.processes.clear()
                gpu.error = gpu.error if gpu.error == 15 else 0
        if self.agent is None:
            self.start()
        self.turn(REST_S)
        self.turn(REST_S)
        assert self._served(), "the agent does not come up, though everything works"
        for _ in range(4):
            for claim in list(self.claims.values()):
                if claim.told or claim.unsure or claim.leaving:
                    error = self._give_up(claim)
            self.turn(REST_S)
        left = [claim.name for claim in self.claims.values() if claim.told or claim.unsure or claim.leaving]
        assert not left, f"claims cannot be given up: {left}: {error}"
        for check in (self.specs_are_what_is_there, self.nothing_foreign_is_touched):
            check()
        assert not observer.look(self.folder).given, "specs are left of claims that were given up"
        self.wanted = {}
        self._up().want({})
        self.turn(REST_S)
        self.turn(REST_S)
        self.nothing_foreign_is_touched()
        lost = {gpu["uuid"] for gpu in observer.look(self.folder).gpus if gpu["error"]}
        ours = [
            (gpu["uuid"], instance)
            for gpu, instance in observer.look(self.folder).instances()
            if instance["serial"] not in self.foreign | self.unclaimed and gpu["uuid"] not in lost
        ]
        assert not ours, f"instances are left that nobody has: {ours}"
