"""The agent machine: any sequence of claims, deaths, and accidents of hardware, and what must be true after each step.

Owns the steps and when each promise holds. What is there is seen by `observer`; the agent is run by `driven`.

At every moment, whether the agent runs or not:
- of agents side by side only the one whose the node is changes anything;
- what others made is untouched: their GPU instances, their files in the folders that we share, and sockets they listen on;
- instances of a claim that kubelet was told of are not destroyed by the agent (hardware and people may), and its whole GPU is not
  put into MIG mode;
- no two claims that kubelet was told of have hardware in common, by what they were told of, whether or not a spec is there now;
- a name that a claim was allocated does not come to stand for another board;
- no two pods' processes use the same hardware, though kubelet gives claims up under running processes, and objects of claims go
  at any moment; but for those with administrative access.
A claim whose object is gone is given up within a minute in which everything works and no process runs.
When the agent answers a Prepare: the claim's spec is right at that moment, and has nothing in common with that of another claim,
even if hardware has changed and the agent did not have its turn yet.
When hardware has not changed since the agent last had its turn with a driver that answers, also after its death: each spec
tells the UUIDs, and opens the device nodes, of what is there, and names no node that is missing; and no two specs have hardware
or device nodes in common.
In between, specs may be out of date: nobody is there to see it, or it is about to.
A board that NVML says is ill, or of which it has told a fatal XID to an agent that listened and had its turn, is fenced off: each
of its devices carries the taint of a family of faults, and no claim is prepared on it for the first time, until that was healed
as it can be. One that was always well is not.
When the agent had its turn beside another plugin of the driver, who was there first serves it, and GpuNode says so.
A claim that has nothing but whole GPUs is given up whether or not the driver answers, one of partitions when it answers and
nobody uses them; and a full disk or an API server that is away keeps neither from it.
A GPU of which NVML never tells something is well all the same, and every GPU that is well is published, whatever is wrong
with the others; one that has no minor number is said to be there. A whole GPU that has not joined its NVLink fabric is offered
to nobody.
At rest, when everything works again: each claim that kubelet was told of can be given up, and then nothing of ours is left.
Administrative access is exempt where it may be: it shares what others have.
"""

import shutil
import time
from contextlib import suppress

from hypothesis.stateful import invariant

from draco.resources.kinds import CLAIMS
from draco_local.simulator.gpus import state
from tests.adversary.agent import observer
from tests.adversary.agent.accidents import Accidents
from tests.adversary.agent.life import REST_S
from tests.adversary.agent.node import Over, at_once, fired
from tests.adversary.agent.scheduler import Claim, Result
from tests.adversary.agent.sickness import refused
from tests.adversary.agent.surroundings import NODE

__all__ = ["AgentMachine", "at_once", "fired"]


class AgentMachine(Accidents):
    """All steps, and what must be true after each."""

    # What must be true

    @invariant()
    def promises(self) -> None:
        """All that must be true at every moment."""
        fired["steps"] += 1
        self.quiet -= 1
        self.idle -= 1
        self.broken = True
        self._reap()
        self.nobody_acts_on_anothers_node()
        self.nothing_foreign_is_touched()
        self.nothing_in_use_is_taken()
        self.no_two_pods_run_on_the_same()
        self.no_two_claims_were_told_of_the_same()
        self.specs_are_what_is_there()
        if self.until is not None and time.monotonic() > self.until:
            raise Over
        self.broken = False

    def nobody_acts_on_anothers_node(self) -> None:
        for agent in (self.agent, self.next):
            assert agent is None or not agent.process.trespasses, (
                f"an agent acted on a node that was not its own: {agent.process.trespasses}"
            )

    def nothing_foreign_is_touched(self) -> None:
        seen = observer.look(self.folder)
        assert self.foreign <= seen.serials(), "an instance that somebody else made is gone"
        for path, content in self.files.items():
            assert path.exists(), f"{path.name} of another program is gone"
            assert path.read_bytes() == content, f"{path.name} of another program was changed"
        why = self.rivals.harmed()
        assert not why, why

    def nothing_in_use_is_taken(self) -> None:
        seen = observer.look(self.folder)
        assert self.alive <= seen.serials(), "an instance of a claim that kubelet was told of was destroyed"

    def no_two_pods_run_on_the_same(self) -> None:
        why = observer.together(observer.look(self.folder), self.watching)
        assert not why, why

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
            self._bury_all()
        self.rivals.all_go(cleanly=False)
        self.patched.close()
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rest(self) -> None:
        """Everything works again: what kubelet was told of can be given up, and then nothing of ours is left."""
        fired["rest"] += 1
        self.armed = 0
        self.death.disarm()
        self.disk.free = None
        self.source.gone = self.source.mute = False
        self._make_nodes()
        self.rivals.all_go(cleanly=False)
        self.gave_way = False
        if self.hanging and self.agent is not None:
            with self._living("let go"):
                self._let_go(self.agent)
        if self.death.dead:
            self._bury()
        if self.next is not None:
            self.next.death.disarm()
        self._stop_failing()
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
        self.decisions.now.clear()
        assert self.source.gpu_node is not None, "nobody makes the GpuNode again"
        self._decide()
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
        self._every_gpu_is_served()

    def _every_gpu_is_served(self) -> None:
        """What is offered as a whole can be had, and given back."""
        published = self._publish()
        if published is None or not self._served():
            return
        for device in published.devices:
            if "-mig-" in device["name"] or refused(device):
                continue
            fired["served at rest"] += 1
            claim = Claim(name=self._name(), results=[Result(device["name"])])
            self.claims[claim.name] = claim
            self.source.put(CLAIMS, claim.object(NODE))
            error, _ = self._up().prepare(claim.name, claim.uid)
            assert not error, f"{device['name']} is offered, and cannot be had: {error}"
            error = self._give_up(claim)
            assert not error, f"{device['name']} cannot be given back: {error}"
