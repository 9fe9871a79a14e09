"""The agent machine: random sequences of claims, agent deaths and hardware accidents, and what must be true after each step.

Owns the steps and when each promise holds. `observer` reads the hardware and specs; `driven` runs the agent.

At every moment, whether the agent runs or not:
- of two agents side by side, only the one that holds the node changes anything;
- the agent leaves foreign GPU instances, other programs' files in shared folders and the sockets they listen on untouched;
- the agent does not destroy an instance of a claim that kubelet was told is prepared (hardware and people may), and does not
  switch its whole GPU to MIG mode;
- no two claims that kubelet was told are prepared share hardware, whether or not a spec exists now;
- a device name that a claim was allocated never comes to stand for another board;
- processes of two pods never use the same hardware, although kubelet may unprepare claims under running processes and claims
  may be deleted at any moment.
A deleted claim is unprepared within a minute in which everything works and no process runs.
When the agent answers a Prepare, the claim's spec is right and shares nothing with another claim's, even if the hardware has
changed and the agent has not had its turn yet.
If the hardware has not changed since the agent last had its turn with a driver that answers, even if the agent has died since:
each spec has the UUIDs and device nodes of existing hardware and names no missing node, and no two specs share hardware or
device nodes. Otherwise specs may be out of date.
A board that NVML reports as faulty, or whose fatal XID reached a listening agent that then had its turn, is fenced off until the
fault ends: each of its devices has a fault taint, and no claim is newly prepared on it. A board that never had a fault is not
fenced off.
When the agent had its turn beside another plugin of the driver, the plugin that came first serves the driver, and the GpuNode
says so.
When the agent answers a Prepare, the claim's time slices are set. A claim that was refused for its configuration left the GPUs'
time slices and compute modes as they were. After a long turn in which everything works, each GPU has the time slice that its
claim asks for, unless something other than a load of the driver ended it, and the record says which.
What is published leaves kube-scheduler no more of a GPU than there is, given all claims that are allocated: a GPU of which claims
have shares is published for several claims and with the same capacities; one that a claim has alone is not. Before such a form
changes, its taint has been published for as long as the scheduler may take to see it. Demanded only while the operator can write
its decision and the agent can read it, and not of GPUs in allocations that no scheduler made.
The record never has two claims of whole GPUs that exclude each other, and keeps each share that kubelet was told is prepared.
Each share has its own CDI device, all shares of a GPU have one time slice, and processes of shares keep no other share away.
At rest, a GPU that no claim has is published as its SharingPolicy asks, and each share that is offered can be had.
The spec of a claim whose shares the driver is to hold to their memory says how much that is, and no other spec does. At rest each
of its containers has that limit, or an Event says why not; no other cgroup has one.
When the agent answers a Prepare, a claim with MPS has a daemon of its own settings and its GPU is exclusive; any other's is not.
No daemon is ended while a claim that kubelet was told is prepared has clients, whether the agent or the keeper dies. At rest each
MPS claim has its daemon, or the agent says why not; without claims no daemon, no folder and no exclusive GPU is left.
Hours that were counted as held or used never decrease. At rest the GpuUsage names no claim that is gone, and no more processes
than there are.
A claim of whole GPUs can be unprepared even if the driver or nvidia-smi does not answer; a claim of partitions if they answer and
nothing uses them. Neither needs disk space or the API server.
A GPU for which NVML does not support some calls counts as healthy. Every healthy GPU is published, whatever is wrong with the
others; the GpuNode reports one without a minor number. A whole GPU that has not joined its NVLink fabric is not offered.
After a turn, a reconcile of what the agent offers, reports or lays out finds nothing to do unless something has woken it.
At rest, when everything works again, each claim can be unprepared, and then nothing of Draco's is left.
Claims with administrative access may share hardware with others.
"""

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hypothesis.stateful import invariant

from draco.resources.kinds import CLAIMS
from draco_local.simulator.gpus import state
from tests.adversary.agent import observer
from tests.adversary.agent.accidents import Accidents
from tests.adversary.agent.configurations import HALF
from tests.adversary.agent.life import REST_S
from tests.adversary.agent.node import Over, at_once, fired
from tests.adversary.agent.scheduler import Published, Result
from tests.adversary.agent.sharing import sharers
from tests.adversary.agent.sickness import refused
from tests.adversary.agent.surroundings import NODE

__all__ = ["AgentMachine", "at_once", "fired"]


class AgentMachine(Accidents):
    """All steps and the checks after each."""

    # What must be true

    @invariant()
    def promises(self) -> None:
        """Check everything that must be true at every moment."""
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
        self.shares_are_on_record()
        self._check_limits_told()
        self.hours_never_decrease()
        self.no_daemon_ends_under_clients()
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
        why = observer.together(observer.look(self.folder), self.watching, self.sharing)
        assert not why, why

    def no_two_claims_were_told_of_the_same(self) -> None:
        told = [
            (claim, part, (part.gpu, part.units) if device in claim.shared else None)
            for claim in self.claims.values()
            if claim.told and not claim.leaving
            for device, part in claim.exclusive.items()
        ]
        for index, (claim, part, share) in enumerate(told):
            for other, theirs, their_share in told[index + 1 :]:
                both_shares = share is not None and share == their_share
                assert claim is other or both_shares or not part.meets(theirs), (
                    f"{claim.name} and {other.name} were both told of {part}"
                )

    def shares_are_on_record(self) -> None:
        if self._served():
            self._check_share_record()

    def specs_are_what_is_there(self) -> None:
        seen = observer.look(self.folder)
        assert not seen.unreadable, seen.unreadable
        if not self.current:
            return
        for one in seen.given:
            why = observer.wrong(one, seen)
            assert not why, why
        why = observer.twice(seen, self._admin(), sharers(self.claims.values()))
        assert not why, why

    # At rest

    def teardown(self) -> None:
        try:
            if self.files and not self.broken:
                self._rest()
        finally:
            self.close()

    def close(self) -> None:
        """End the agents and delete the folder."""
        with suppress(Exception):
            self._bury_all()
            self._bury_keeper()
        self.rivals.all_go(cleanly=False)
        self.patched.close()
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rest(self) -> None:
        """Repair everything, unprepare every claim, and check that nothing of Draco's is left."""
        fired["rest"] += 1
        self._repair()
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
            if not any(claim.told or claim.unsure or claim.leaving for claim in self.claims.values()):
                break
        left = [claim.name for claim in self.claims.values() if claim.told or claim.unsure or claim.leaving]
        assert not left, f"claims cannot be given up: {left}: {error}"
        for check in (self.specs_are_what_is_there, self.nothing_foreign_is_touched):
            check()
        assert not observer.look(self.folder).given, "specs are left of claims that were given up"
        if self.policies:
            self._forms_rest()
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
        self._no_time_slice_is_left()
        self.no_daemon_is_left()
        self._every_gpu_is_served()
        self.turn(REST_S)
        self.turn(REST_S)
        self.no_daemon_is_left()

    def _repair(self) -> None:
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
            node.driver.nvidia_smi = True
            for gpu in node.gpus:
                gpu.processes.clear()
                gpu.error = gpu.error if gpu.error == 15 else 0
        self._containers_end()
        self._mps_rests()

    def _forms_rest(self) -> None:
        """Without claims, each GPU comes to be published as its policy asks, and for one claim alone when that is gone."""
        for claim in list(self.claims.values()):
            self._delete(claim)
        for last in (False, True):
            if last:
                self.policies = {}
            assert self.source.gpu_node is not None, "nobody makes the GpuNode again"
            self._decide()
            for _ in range(3):
                self.turn(REST_S)
            published = self._publish()
            if published is not None:
                self._check_settled(published)
                self._every_share_is_served(published)

    def _every_share_is_served(self, published: Published) -> None:
        """Two claims have a share of each device that is offered for several, and give it back."""
        for device in published.devices if self._served() else ():
            if not device.get("allowMultipleAllocations") or refused(device):
                continue
            if "-mig-" in device["name"] and (
                published.board(device["name"]) in self._without_capability() or not self._slices_work()
            ):
                continue  # its mode, or the profiles while that is off, are unknown: the latter with an old driver
            for _ in (1, 2):
                claim = self._new()
                self._give(claim, published, device["name"], tolerant=False, wanted=_least(device))
                if not claim.results:
                    continue
                fired["share served at rest"] += 1
                self.claims[claim.name] = claim
                self.source.put(CLAIMS, claim.object(NODE))
                error, _ = self._up().prepare(claim.name, claim.uid)
                assert not error, f"{device['name']} is offered, and no share of it can be had: {error}"
                claim.told = True
                self._check_answer(claim)
        for claim in list(self.claims.values()):
            error = self._give_up(claim)
            assert not error, f"{claim.name} cannot be given back: {error}"

    def _without_capability(self) -> set[str]:
        """Boards that do not tell their compute capability, perhaps no more."""
        return {uuid for uuid, function, _ in self.sickness.lacks if function == "nvmlDeviceGetCudaComputeCapability"}

    def _no_time_slice_is_left(self) -> None:
        if self._slices_rest():
            self.check_slices()
        lost = {gpu["uuid"] for gpu in self._hardware()["gpus"] if gpu["error"]}
        left = {uuid: found for uuid, (_, found) in self._shared().items() if found and uuid not in lost}
        assert not left, f"time slices are left that nobody asks for: {left}"

    def _every_gpu_is_served(self) -> None:
        """Prepare each whole GPU that is offered, also with a time slice where that can be had, and unprepare it."""
        published = self._publish()
        if published is None or not self._served():
            return
        for device in published.devices:
            if "-mig-" in device["name"] or refused(device):
                continue
            board = published.board(device["name"])
            sliced = self._slices_work() and board not in self._without_slices()
            for said in ((), (("FromClaim", "Long"),), (("FromClaim", HALF),)):
                fired["served at rest"] += 1
                claim = self._new(said)
                claim.results = [Result(device["name"])]
                self.claims[claim.name] = claim
                self.source.put(CLAIMS, claim.object(NODE))
                error, _ = self._up().prepare(claim.name, claim.uid)
                can = self.mps.installed if claim.percentage is not None else sliced
                if said and not can:
                    assert error, f"{device['name']} cannot be had with {said}, and is"
                    self._delete(claim)
                    continue
                assert not error, f"{device['name']} is offered, and cannot be had with {said}: {error}"
                claim.told = True
                self._check_answer(claim)
                error = self._give_up(claim)
                assert not error, f"{device['name']} cannot be given back: {error}"
        self.turn(REST_S)
        self._no_time_slice_is_left()


def _least(device: Mapping[str, Any]) -> dict[str, str]:
    """The smallest share of a device that a claim may ask for."""
    policy = device["capacity"].get("memory", {}).get("requestPolicy", {})
    return {"memory": policy["validRange"]["min"]} if "memory" in device["capacity"] and "validRange" in policy else {}
