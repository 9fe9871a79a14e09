"""The agent machine's third layer: claims that are allocated, prepared, prepared again and unprepared, and their pods.

Owns these steps, and what must be true of an answer at the moment kubelet gets it.
"""

import re

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from draco.resources.kinds import CLAIMS
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.gpu_state import GpuProcess
from tests.adversary.agent import observer
from tests.adversary.agent.configurations import CONFIGURED, Said
from tests.adversary.agent.driven import NoAnswer
from tests.adversary.agent.mps import Mps
from tests.adversary.agent.node import NUMBERS, fired
from tests.adversary.agent.scheduler import Claim, Result
from tests.adversary.agent.sharing import sharers
from tests.adversary.agent.surroundings import NODE

KINDS = st.sampled_from(("whole", "part", "part"))
OTHERS = ("3g.40gb-9-0", "3g.40gb-9-4", "1g.10gb-19-0", "1g.10gb-19-3", "1g.10gb-19-4", "2g.20gb-14-2", "7g.80gb-0-0")
"""Valid partition names that the node need not have published."""


class LifeOfClaims(Mps):
    """Claims and pods of one node."""

    @precondition(lambda self: bool(self.past) and len(self.claims) < 8)
    @rule(
        picks=st.lists(st.tuples(st.sampled_from(("whole", "part")), st.integers(0, 40)), min_size=1, max_size=3),
        age=st.sampled_from((0, 0, 0, 1, 2)),
        tolerant=st.booleans(),
        admin=st.sampled_from((False, False, False, True)),
        asked=st.sampled_from((True, True, False)),
        said=CONFIGURED,
    )
    def allocate(
        self, picks: list[tuple[str, int]], age: int, tolerant: bool, admin: bool, asked: bool, said: Said = ()
    ) -> None:
        """The scheduler allocates a claim from the published slices or from outdated ones."""
        published = self.past[max(0, len(self.past) - 1 - age)]
        claim = self._new(said)
        for kind, pick in picks:
            others = [] if admin else [*self.claims.values(), claim]
            free = published.free(others, tolerant=tolerant)
            fitting = [name for name in free if ("-mig-" in name) is (kind == "part")] or free
            if fitting:
                device = fitting[pick % len(fitting)]
                self._give(claim, published, device, tolerant=tolerant, admin=admin)
        if claim.results:
            self._add(claim, "allocate admin" if admin else "allocate", asked=asked)

    @precondition(lambda self: self._served() and bool(self.past) and len(self.claims) < 8)
    @rule(
        kind=KINDS, pick=st.integers(0, 40), admin=st.sampled_from((False, False, False, False, True)), said=CONFIGURED
    )
    def pod(self, kind: str, pick: int, admin: bool = False, said: Said = ()) -> None:
        """A typical pod: its claim is for one device and is prepared right after allocation."""
        if self._served():
            self.allocate([(kind, pick)], age=0, tolerant=False, admin=admin, asked=True, said=said)

    @precondition(lambda self: self._served() and bool(self.past) and len(self.claims) < 8)
    @rule(pick=st.integers(0, 40), interval=st.sampled_from(("Long", "Short")), ends=st.booleans())
    def pod_with_time_slice(self, pick: int, interval: str, ends: bool) -> None:
        """A typical pod that shares a GPU between its programs; it may end soon."""
        self.pod("whole", pick, said=(("FromClaim", interval),))
        if ends and self._served() and self.claims:
            self.unprepare(len(self.claims) - 1)

    @precondition(lambda self: self._served() and bool(self.past) and len(self.claims) < 8 and bool(self._sick()))
    @rule(pick=st.integers(0, 40))
    def pod_for_the_sick(self, pick: int) -> None:
        """A pod whose claim tolerates the fault of its device."""
        sick = self._sick()
        if sick:
            device = sick[pick % len(sick)]
            claim = Claim(name=self._name(), results=[])
            self._give(claim, self.past[-1], device, tolerant=True)
            if claim.results:
                self._add(claim, "allocate what is sick", asked=True)

    def _sick(self) -> list[str]:
        """Free devices that have a fault."""
        if not self.past or not (self.sickness.known or self.sickness.seen):
            return []
        hardware, published = self._hardware(), self.past[-1]
        free = published.free(self.claims.values(), tolerant=True)
        return [name for name in free if self.sickness.why(published.board(name), hardware)]

    @precondition(lambda self: self._served() and bool(self.past) and len(self.claims) < 6)
    @rule(several=st.lists(st.tuples(KINDS, st.integers(0, 40)), min_size=2, max_size=4))
    def pods(self, several: list[tuple[str, int]]) -> None:
        """Several typical pods."""
        for kind, pick in several:
            self.pod(kind, pick)

    @precondition(lambda self: self.agent is not None and len(self.claims) < 8)
    @rule(
        devices=st.lists(st.tuples(NUMBERS, st.integers(0, 40), st.booleans()), min_size=1, max_size=3),
        share=st.booleans(),
        asked=st.booleans(),
    )
    def allocate_blindly(self, devices: list[tuple[int, int, bool]], share: bool, asked: bool) -> None:
        """Somebody writes an allocation without checking what is free."""
        known = sorted({name for published in self.past for name in published.names()})
        names = [*known, *(f"gpu-{gpu}-mig-{other.replace('.', '')}" for gpu in range(3) for other in OTHERS)]
        names += [one.device for claim in self.claims.values() for one in claim.results] * 4
        results = [
            Result(
                names[(8 * pick + far) % len(names)], admin=admin and far % 2 == 0, share=f"s{pick}" if share else ""
            )
            for pick, far, admin in devices
        ]
        boards = {one.device: board for one in results if (board := self._board_of(one.device))}
        self._add(Claim(name=self._name(), results=results, boards=boards, blind=True), "allocate blindly", asked=asked)

    def _new(self, said: Said = ()) -> Claim:
        return Claim(name=self._name(), results=[], said=said, kept=self.mps.installed)

    def _name(self) -> str:
        self.number += 1
        return f"c{self.number}"

    def _add(self, claim: Claim, what: str, *, asked: bool) -> None:
        """Add an allocated claim; with `asked`, kubelet prepares it at once."""
        fired[what] += 1
        self.claims[claim.name] = claim
        self.source.put(CLAIMS, claim.object(NODE))
        self._operator_looks()
        if asked and self._served():
            self._ask(claim)

    @precondition(lambda self: self._served() and bool(self.claims))
    @rule(pick=NUMBERS)
    def prepare(self, pick: int) -> None:
        """Kubelet asks to prepare a claim, for the first time or again."""
        claim = self._pick(pick)
        if not claim.leaving:
            self._ask(claim)

    def _ask(self, claim: Claim) -> None:
        again, before, shared, calm = claim.told, claim.unsure, self._shared(), self._answers()
        claim.unsure = not again
        self._kubelet_records()
        with self._living("prepare again" if again else "prepare"):
            error, devices = self._up().prepare(claim.name, claim.uid)
            assert error or not self.gave_way, "prepared, though another plugin was there first"
            fired[f"prepare{' again' if again else ''}: {'refused' if error else 'done'}"] += 1
            if error:
                claim.unsure = before  # this attempt was answered, but an earlier unanswered one may still be running
                self._kubelet_records()
                if not again and not before:
                    given = observer.look(self.folder).given
                    assert all(one.claim != claim.uid for one in given), "refused, and there is a spec of it"
                    self._check_refusal(claim, error)
                    self._check_left_alone(claim, error, shared, calm=calm)
                    self._check_share_refusal(claim, error)
                return
            self._check_sharers(claim)
            assert again or before or not claim.must_be_refused, (
                f"{claim.name} is prepared, and was to be refused: {claim.said}"
            )
            assert {(one.device_name, one.share_id) for one in devices} == {
                (one.device, one.share) for one in claim.results
            }
            names = [name for one in devices for name in one.cdi_device_ids]
            assert not claim.shared or len(set(names)) == len(claim.results), f"shares have {names} together"
            claim.told, claim.unsure = True, False
            self._check_answer(claim)
            for part in () if again or before else claim.exclusive.values():
                why = self.sickness.why(part.gpu, self._hardware())
                assert not why, f"{claim.name} was given {part}, which has had {why}"

    def _check_answer(self, claim: Claim) -> None:
        """Check that the answer kubelet just got is true."""
        seen = observer.look(self.folder)
        mine = [one for one in seen.given if one.claim == claim.uid]
        assert {one.device for one in mine} == {one.device for one in claim.results}, (
            "the spec is not what was asked for"
        )
        for one in mine:
            why = observer.wrong(one, seen)
            # If the hardware changed while the driver hangs, the agent cannot know.
            assert not why or (self.hanging and not self.current), f"just answered, {why}"
        others = {one.claim for one in seen.given} - {claim.uid}
        for other in others:
            pair = tuple(one for one in seen.given if one.claim in (claim.uid, other))
            why = observer.twice(seen._replace(given=pair), self._admin(), sharers(self.claims.values()))
            assert not why, f"just answered, {why}"
        self._check_boards(claim, mine, seen)
        self._take_up(claim)
        self._check_slices(claim)
        self._check_daemons(claim)
        for part in claim.exclusive.values():
            gpu = next(each for each in seen.gpus if each["uuid"] == part.gpu)
            if self.hanging and self.modes.get(part.gpu) != gpu["mig_current"]:
                continue  # it was switched before the driver hung, so the agent cannot know
            assert bool(gpu["mig_current"]) is not part.whole, "just answered, the GPU's MIG mode makes it useless"

    def _take_up(self, claim: Claim) -> None:
        """Record what the starting pod has: from now on it must stay."""
        seen = observer.look(self.folder)
        mine = [one for one in seen.given if one.claim == claim.uid]
        claim.parts = {one.device: part for one in mine if (part := seen.part(one.uuid)) is not None}
        self.alive |= {serial for one in mine if (serial := seen.serial(one.uuid)) is not None}

    def _check_refusal(self, claim: Claim, error: str) -> None:
        """If only the fault can be the cause, the refusal must name it."""
        device = claim.results[0]
        hardware = self._hardware()
        why = self.sickness.why(claim.boards.get(device.device, ""), hardware)
        names = {
            one.device.partition("-mig-")[0]
            for other in self.claims.values()
            if other is not claim
            for one in other.results
        }
        calm = self.current and self._answers() and not self.source.gone and self.disk.free is None
        if (
            why
            and calm
            and len(claim.results) == 1
            and not device.admin
            and not claim.must_be_refused
            and "time slices" not in error
            and device.device.partition("-mig-")[0] not in names
        ):
            fired["prepare: refused for a fault"] += 1
            assert re.search(r"Xid\d+|Lost|Absent|NotFound|Needs[A-Z]|RemapFailed|FabricFailed", error), (
                f"the refusal does not name the fault: {error}"
            )

    def _check_boards(self, claim: Claim, mine: list[observer.Given], seen: observer.Seen) -> None:
        """A device name must stand for the same board as when the scheduler chose it."""
        for one in mine:
            part, board = seen.part(one.uuid), claim.boards.get(one.device)
            assert part is None or board is None or part.gpu == board, f"{one.device} was {board} and is now {part.gpu}"

    @precondition(lambda self: self._served() and bool(self.claims))
    @rule(pick=NUMBERS)
    def unprepare(self, pick: int) -> None:
        """The pod is gone: kubelet unprepares the claim, and the claim is deallocated."""
        claim = self._pick(pick)
        if not (claim.told or claim.unsure):
            return
        must = self._can_be_given_up(claim)
        with self._living("unprepare"):
            try:
                error = self._give_up(claim)
            except NoAnswer:
                assert not must, f"{claim.name} is not given up, and nothing is in its way"
                raise
            assert not must or not error, f"{claim.name} is not given up, and nothing is in its way: {error}"

    def _can_be_given_up(self, claim: Claim) -> bool:
        """Whether unpreparing must succeed.

        Whole GPUs need no driver; instances need one that answers, and must not be in use.
        Neither needs disk space or the API server.
        """
        if not claim.told or not claim.parts:
            return False
        whole = all(part.whole for part in claim.parts.values())
        fired["unprepare: must work"] += 1
        if whole:
            return True
        hardware = self._hardware()
        used = any(gpu["processes"] or gpu["error"] for gpu in hardware["gpus"])
        return self.current and self._answers() and not used and not hardware["missing"]

    def _give_up(self, claim: Claim) -> str:
        claim.leaving = True
        self._forget_alive(claim)
        error = self._up().unprepare(claim.name, claim.uid)
        fired[f"unprepare: {'refused' if error else 'done'}"] += 1
        if not error:
            self._delete(claim)
            seen = observer.look(self.folder)
            assert all(one.claim != claim.uid for one in seen.given), "given up, but its spec is still there"
        return error

    @precondition(lambda self: any(claim.told and not claim.leaving for claim in self.claims.values()))
    @rule(pick=NUMBERS)
    def object_goes(self, pick: int) -> None:
        """A pod and its claim are deleted by force; kubelet unprepares the claim much later or never."""
        told = [claim for claim in self.claims.values() if claim.told and not claim.leaving]
        claim = told[pick % len(told)]
        fired["object goes"] += 1
        claim.gone = claim.leaving = True
        self._forget_alive(claim)
        self.source.drop(CLAIMS, f"default/{claim.name}")

    @precondition(lambda self: self._served() and any(claim.told for claim in self.claims.values()))
    @rule(pick=NUMBERS)
    def give_up_too_early(self, pick: int) -> None:
        """Kubelet unprepares a claim that its pod still uses, and may prepare it again."""
        told = [claim for claim in self.claims.values() if claim.told and not claim.leaving]
        if not told:
            return
        claim = told[pick % len(told)]
        with self._living("give up too early"):
            self._forget_alive(claim)
            claim.leaving = True
            error = self._up().unprepare(claim.name, claim.uid)
            fired[f"give up too early: {'refused' if error else 'done'}"] += 1
            if not error:
                claim.told = claim.unsure = claim.leaving = False
                claim.parts = {}
                self._kubelet_records()

    def _forget_alive(self, claim: Claim) -> None:
        seen = observer.look(self.folder)
        others = {one.uid for one in self.claims.values() if one.told and not one.leaving and one is not claim}
        needed = {seen.serial(one.uuid) for one in seen.given if one.claim in others}
        self.alive &= frozenset(one for one in needed if one is not None)

    @precondition(lambda self: bool(self.claims))
    @rule(pick=NUMBERS)
    def deallocate(self, pick: int) -> None:
        """A claim that kubelet never asked to prepare is deleted."""
        claim = self._pick(pick)
        if not (claim.told or claim.unsure or claim.leaving):
            fired["deallocate"] += 1
            self._delete(claim)

    def _delete(self, claim: Claim) -> None:
        del self.claims[claim.name]
        self.source.drop(CLAIMS, f"default/{claim.name}")
        self._kubelet_records()
        self._operator_looks()

    def _pick(self, pick: int) -> Claim:
        return list(self.claims.values())[pick % len(self.claims)]

    def _admin(self) -> frozenset[tuple[str, str]]:
        return frozenset(
            (claim.uid, one.device) for claim in self.claims.values() for one in claim.results if one.admin
        )

    # Pods

    @precondition(lambda self: any(claim.told for claim in self.claims.values()))
    @rule(pick=NUMBERS, listed=st.booleans(), ends=st.booleans())
    def run_pod(self, pick: int, listed: bool, ends: bool) -> None:
        """A container starts to use its claim's devices, or every container ends."""
        if ends:
            self._pods_end()
            return
        told = [claim for claim in self.claims.values() if claim.told and not claim.leaving]
        if not told:
            return
        claim = told[pick % len(told)]
        seen = observer.look(self.folder)
        uuids = [one.uuid for one in seen.given if one.claim == claim.uid]
        if any(one.admin for one in claim.results):
            self.watching |= {claim.name}
        self.sharing |= {(claim.name, part.gpu) for device, part in claim.parts.items() if device in claim.shared}
        for gpu in seen.gpus:
            if gpu["uuid"] in uuids:
                self._hold(claim, gpu["uuid"], gpu["uuid"], None, None, listed=listed)
            for instance in gpu["instances"]:
                for compute in instance["compute"]:
                    if compute["uuid"] in uuids:
                        self._hold(claim, gpu["uuid"], compute["uuid"], instance["id"], compute["id"], listed=listed)

    def _hold(self, claim: Claim, gpu: str, device: str, gi: int | None, ci: int | None, *, listed: bool) -> None:
        self.pid += 1
        cgroup = f"/kubepods/besteffort/pod{claim.pod_uid}/{self.pid:064x}"
        if not self._started(claim, cgroup):
            return
        fired["run pod"] += 1
        process = GpuProcess(
            self.pid,
            gpu_instance=gi,
            compute_instance=ci,
            listed=listed,
            cgroup=cgroup,
            memory_mib=1024,
            hostname=claim.name,
            variables={"DRACO_DEVICE_0": device},
        )
        faults.hold(self.path, gpu, process)
        self._connects(claim, self.pid)

    def _pods_end(self) -> None:
        fired["pods end"] += 1
        with state.mutate(self.path) as node:
            for gpu in node.gpus:
                gpu.processes.clear()
        self._containers_end()
