"""The agent machine's layer of MPS: a keeper beside the agent, accidents to it and its daemons, and what must be true.

Owns these steps and checks. `daemons` has the node's side, `configurations` says what claims ask for.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from draco.agent import parts
from draco.mps import keeper
from tests.adversary.agent.daemons import Keeper, NodeMps
from tests.adversary.agent.node import NUMBERS, accident, fired
from tests.adversary.agent.scheduler import Claim
from tests.adversary.agent.slicing import EXCLUSIVE
from tests.adversary.agent.usage import UsageReports

NEWS_S = 1.0
"""How often the keeper reads its folder; each look costs time here."""
KEPT_S = 61.0
"""How long an agent goes on saying that its node has a keeper."""


class Mps(UsageReports):
    """Steps for the keeper and its daemons, and the checks."""

    def __init__(self) -> None:
        super().__init__()
        self.mps = NodeMps(lambda pid: bool(self._pod_of(pid)), self._may_run)
        self.keeper: Keeper | None = None

    def _pod_of(self, pid: int) -> str:
        """The pod of a process; "" if it has ended."""
        found = [one for gpu in self._hardware()["gpus"] for one in gpu["processes"] if one["pid"] == pid]
        return str(found[0]["hostname"]) if found else ""

    def _may_run(self, pid: int) -> bool:
        """Whether kubelet was told that a process's claim is prepared, and has not asked to unprepare it."""
        claim = self.claims.get(self._pod_of(pid))
        return claim is not None and claim.told and not claim.leaving

    def _patch(self) -> None:
        super()._patch()
        patched: ExitStack = self.patched
        patched.enter_context(mock.patch.object(parts, "MpsControl", return_value=self.mps))
        patched.enter_context(mock.patch.object(keeper, "NEWS_S", NEWS_S))

    def _keep_mps(self) -> None:
        self.mps.installed = True
        self._start_keeper()

    @precondition(lambda self: self.mps.installed and self.keeper is None)
    @accident()
    def keeper_starts(self) -> None:
        """A keeper starts on the node, for the first time or again."""
        self._start_keeper()

    def _start_keeper(self) -> None:
        fired["keeper starts"] += 1
        root = self.folder / "agent" / "mps"

        def version() -> str:
            return str(self._hardware()["driver"]["version"])

        self.keeper = Keeper(root, self.mps, loop=self.loop, clock=self.clock, disk=self.disk, version=version)

    @precondition(lambda self: self.keeper is not None)
    @accident(steps=st.sampled_from((0, 0)) | st.integers(1, 40))
    def keeper_dies(self, steps: int) -> None:
        """The keeper dies, now or after some steps."""
        if self.keeper is None:
            return
        fired["keeper dies" if not steps else "keeper will die"] += 1
        if steps:
            self.keeper.process.death.arm(steps)
        else:
            self._bury_keeper()

    def _mps_boots(self) -> None:
        """No process survives a boot; a keeper starts again with the node."""
        self.mps.running.clear()
        self._bury_keeper()
        if self.mps.installed:
            self._start_keeper()

    def _bury_keeper(self) -> None:
        if self.keeper is not None:
            self.keeper.end()
        self.keeper = None

    def _reap_keeper(self) -> None:
        if self.keeper is not None:
            self.keeper.check()
            if self.keeper.ended:
                fired["keeper died"] += 1
                self._bury_keeper()

    @precondition(lambda self: bool(self.mps.running))
    @accident(pick=NUMBERS, what=st.sampled_from(("dies", "hangs", "answers", "has a fault")))
    def daemon(self, pick: int, what: str) -> None:
        """A daemon dies or hangs, or its server has a fault."""
        pipes = sorted(self.mps.running)
        if not pipes:
            return
        fired[f"daemon {what}"] += 1
        pipe = pipes[pick % len(pipes)]
        match what:
            case "dies":
                del self.mps.running[pipe]
            case "hangs" | "answers":
                self.mps.running[pipe].hangs = what == "hangs"
            case _:
                self.mps.running[pipe].faulty = True
                self.mps.leave(self.mps.running[pipe])

    @precondition(lambda self: self.mps.installed)
    @accident(broken=st.booleans())
    def daemons_start(self, broken: bool) -> None:
        """Daemons start no more, or again."""
        fired[f"daemons {'do not start' if broken else 'start'}"] += 1
        self.mps.broken = broken

    def _connects(self, claim: Claim, pid: int) -> None:
        """A program of a claim becomes a client of the daemon whose pipe its container has."""
        for each in self._spec(claim):
            daemon = self.mps.running.get(_pipe(each["containerEdits"]) or Path())
            if daemon is not None and not daemon.hangs and not daemon.faulty:
                fired["client of MPS"] += 1
                daemon.clients.add(pid)

    def no_daemon_ends_under_clients(self) -> None:
        """Whoever ends a daemon waits for its last client; only accidents do not."""
        assert not self.mps.ended, self.mps.ended
        self._reap_keeper()

    def _check_daemons(self, claim: Claim) -> None:
        """A Prepare was just answered: each MPS claim has its daemon, and each other one a GPU that is not exclusive."""
        modes = {gpu["uuid"]: gpu["compute_mode"] for gpu in self._hardware()["gpus"]}
        specs = {each["name"]: each["containerEdits"] for each in self._spec(claim)}
        for one in claim.results:
            if "-mig-" in one.device or one.admin:
                continue
            edits = next(edits for name, edits in specs.items() if name.startswith(f"{one.device}-{claim.uid}"))
            pipe, gpu = _pipe(edits), claim.parts[one.device].gpu
            is_asked = claim.percentage is not None
            assert (pipe is not None) is is_asked, f"{claim.name} asks for {claim.said}, and has pipe {pipe}"
            if self.hanging:
                continue
            if pipe is not None:
                fired["prepare: MPS"] += 1
                why = self._lacking(claim, gpu, pipe)
                assert not why, f"just answered, {claim.name} asks for MPS on {gpu}: {why}"
            assert (modes[gpu] == EXCLUSIVE) is is_asked or gpu in self.by_hand, (
                f"just answered, {claim.name} asks for {claim.said}, and {gpu} has compute mode {modes[gpu]}"
            )

    def _lacking(self, claim: Claim, gpu: str, pipe: Path) -> str:
        daemon = self.mps.running.get(pipe)
        if daemon is None or daemon.hangs:
            return "its daemon does not answer"
        if gpu not in daemon.devices:
            return f"its daemon serves {daemon.devices}"
        return "" if daemon.percentage == claim.percentage else f"clients have {daemon.percentage} % of the threads"

    def _laws_at_rest(self) -> list[Callable[[], None]]:
        keeps = self._works() and self.keeper is not None and not self.keeper.ended and not self.mps.broken
        return [*super()._laws_at_rest(), *([self.check_mps] if keeps else [])]

    def check_mps(self) -> None:
        """At rest each MPS claim has its daemon and its GPU alone, or it is said why not."""
        modes = {gpu["uuid"]: gpu["compute_mode"] for gpu in self._hardware()["gpus"] if not gpu["error"]}
        said = {uuid for uuid, one in self._up().agent.parts.state.facts.mps.items() if one.problem}
        for claim in self.claims.values():
            if claim.percentage is None or claim.leaving or not claim.told:
                continue
            specs = {each["name"]: each["containerEdits"] for each in self._spec(claim)}
            for device, part in claim.parts.items():
                edits = next((edits for name, edits in specs.items() if name.startswith(f"{device}-{claim.uid}")), None)
                pipe, gpu = None if edits is None else _pipe(edits), part.gpu
                if pipe is None or gpu in said or gpu not in modes:
                    continue
                fired["MPS at rest"] += 1
                why = self._lacking(claim, gpu, pipe)
                assert not why, f"{claim.name} asks for MPS on {gpu}: {why}"
                assert modes[gpu] == EXCLUSIVE, f"{claim.name} asks for MPS, and {gpu} has compute mode {modes[gpu]}"

    def _mps_rests(self) -> None:
        """Daemons start and answer, and a keeper runs."""
        self.mps.broken = False
        for each in self.mps.running.values():
            each.hangs = False
        if self.keeper is not None:
            self.keeper.process.death.disarm()
        self._reap_keeper()
        if self.mps.installed and self.keeper is None:
            self._start_keeper()

    def no_daemon_is_left(self) -> None:
        """When no claim is left, no daemon is, nor anything that it had."""
        assert not self.mps.running, f"MPS daemons are left: {self.mps.running}"
        left = [each.name for each in (self.folder / "agent" / "mps").glob("*/")]
        assert not left, f"folders of MPS daemons are left: {left}"
        exclusive = [
            gpu["uuid"] for gpu in self._hardware()["gpus"] if gpu["compute_mode"] == EXCLUSIVE and not gpu["error"]
        ]
        strange = set(exclusive) - self.by_hand
        assert not strange, f"GPUs stay exclusive: {strange}"
        there = {gpu["uuid"] for gpu in self._hardware()["gpus"] if not gpu["error"]}
        modes = {gpu: mode for gpu, mode in self._up().agent.parts.checkpoint.modes.items() if gpu in there}
        assert not modes, f"compute modes are on record: {modes}"


def _pipe(edits: Any) -> Path | None:
    """The node's folder of the pipe that a container has."""
    if not any(one.startswith("CUDA_MPS_PIPE_DIRECTORY=") for one in edits["env"]):
        return None
    return next(Path(one["hostPath"]) for one in edits["mounts"] if one["hostPath"].endswith("/pipe"))
