"""The agent machine in each test run: replays of its earlier findings, and a short hunt for new ones.

The hunt draws the same steps in each run, however fast the computer is, so that it does not fail an unrelated change.
ADVERSARY_SEED sets another seed; `make adversary` hunts for longer with a random one.
"""

import os
from pathlib import Path

import pytest
from hypothesis.stateful import invariant

from draco.agent.claims.leftover_claims import LeftoverClaims
from draco.agent.hardware.device_nodes import OPTIONAL, REQUIRED, DeviceNodes
from draco.agent.mig import last_spec
from draco.agent.mig.last_spec import SpecMemory
from draco.agent.mig.users import DeviceUsers
from draco.resources.api.draco import GpuNodeSpec
from tests.adversary.agent import run
from tests.adversary.agent.decisions import HANDED_OVER, KEYS, MAINTENANCE
from tests.adversary.agent.machine import AgentMachine
from tests.adversary.agent.run import Finding, OutOfTurn, hunt, play, shrunk
from tests.adversary.agent.sickness import APPLICATION
from tests.adversary.agent.surroundings import NODE_UID
from tests.side_by_side import REPORTS

KEPT = sorted((Path(__file__).parent / "kept").glob("*.txt"))
SEQUENCES = 15
SEED = int(os.environ.get("ADVERSARY_SEED") or 18)


def steps_of(kept: Path) -> list[str]:
    """The steps of a stored sequence. The text before them says what was wrong."""
    return [line for line in kept.read_text().splitlines() if line.startswith("state.")]


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.stem)
def test_what_was_found_once_is_not_found_again(kept: Path) -> None:
    play(steps_of(kept))


def test_nothing_is_found_in_a_short_hunt() -> None:
    done = hunt(sequences=SEQUENCES, seed=SEED)
    REPORTS.append(f"ADVERSARY_SEED={SEED}: {done.summary}; {done.claims}")
    for needed in ("prepare: done", "unprepare: done", "reboot"):
        assert done.fired.get(needed), f"nothing like {needed!r} happened, so nothing was tried"


class Nervous(AgentMachine):
    """Counts an agent that is not running as a fault."""

    @invariant()
    def promises(self) -> None:
        super().promises()
        assert self.agent is not None, "no agent"


BEGIN = "state.begin(board='H100-80GB', gpus=2, dynamic=())"
WHOLE_POD = "state.pod(kind='whole', pick=0)"
RUN = "state.run_pod(pick=0, listed={listed}, ends=False)"


@pytest.mark.parametrize("listed", [True, False])
def test_a_pod_that_runs_where_another_still_does_is_seen(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent once believed kubelet and did not check which processes use a GPU."""
    monkeypatch.setattr(DeviceUsers, "earlier", lambda *_, **__: None)
    one_gpu = ["state.begin(board='H100-80GB', gpus=1, dynamic=())", WHOLE_POD, RUN.format(listed=listed)]
    with pytest.raises(AssertionError, match="processes of pods c1 and c2 both run on"):
        play([*one_gpu, "state.unprepare(pick=0)", WHOLE_POD, RUN.format(listed=listed)])


def test_a_claim_without_an_object_that_stays_prepared_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [BEGIN, WHOLE_POD, "state.object_goes(pick=0)", "state.turn(seconds=61.0)"]
    play(steps)

    async def blind(*_: object) -> str:
        return ""

    monkeypatch.setattr(LeftoverClaims, "_why_not_ours", blind)
    with pytest.raises(AssertionError, match="claims whose objects are gone are prepared for more than a minute"):
        play(steps)


@pytest.mark.parametrize("node", ["nvidia0", "nvidia-uvm", "nvidia-uvm-tools"])
def test_a_spec_that_names_a_node_which_is_not_there_is_seen(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceNodes, "gpu", lambda _, minor: f"/dev/nvidia{minor}")
    monkeypatch.setattr(DeviceNodes, "shared", lambda _: [*REQUIRED, *OPTIONAL])
    gone = f"state.folder.joinpath('root/dev/{node}').unlink()"
    with pytest.raises(AssertionError, match=f"names .*{node}'.*, which is not there"):
        play(["state.begin(board='H100-80GB', gpus=1, dynamic=())", gone, WHOLE_POD])


def in_effect_of_what_is_said(last: GpuNodeSpec, said: GpuNodeSpec, *_: object) -> GpuNodeSpec:
    """What the agent once did: it believed an empty GpuNode."""
    return said


DECIDE = "state.decide(pick=0, key='{key}', seen=True)"
HEAR = ["state.turn(seconds=61.0)", f"state.xid(pick=0, code={APPLICATION}, seen=True)"]
LOST_BY = {
    "deleted": ["state.gpu_node(what='deleted', seen=True)"],
    "emptied": ["state.gpu_node(what='empty', seen=True)"],
    "deleted while no agent runs": ["state.kill()", "state.gpu_node(what='deleted')", "state.start()"],
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("lost", LOST_BY)
def test_a_taint_that_goes_with_the_gpunode_is_seen(lost: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [BEGIN, *HEAR, DECIDE.format(key=key), *LOST_BY[lost]]
    play(steps)
    monkeypatch.setattr(last_spec, "in_effect", in_effect_of_what_is_said)
    with pytest.raises(AssertionError, match=f"had \\['{key}'\\] and is published without"):
        play(steps)


@pytest.mark.parametrize("key", [MAINTENANCE, HANDED_OVER])
def test_a_taint_that_goes_with_the_record_is_seen(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ["state.kill()", "state.gpu_node(what='deleted')", "state.lose_decisions()", "state.start()"]
    steps = [BEGIN, DECIDE.format(key=key), *gone]
    play(steps)
    monkeypatch.setattr(last_spec, "as_published", lambda _: last_spec.NOTHING)
    with pytest.raises(AssertionError, match=f"had \\['{key}'\\] and is published without"):
        play(steps)


def test_an_agent_that_does_not_wait_for_its_gpunode_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot read the GpuNode and publishes the last known spec. Then that record is lost, and only the old slices remain."""
    steps = [
        BEGIN,
        DECIDE.format(key=HANDED_OVER),
        "state.kill()",
        "state.gpu_node(what='unreadable')",
        "state.start()",
    ]
    play([*steps, "state.turn(seconds=61.0)"])
    monkeypatch.setattr(SpecMemory, "_read", lambda _: last_spec.LastSpec(node_uid=NODE_UID, spec=last_spec.NOTHING))
    with pytest.raises(AssertionError, match="is published without"):
        play([*steps, "state.turn(seconds=61.0)"])


def test_a_decision_that_is_never_taken_up_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_spec, "in_effect", lambda last, *_: last)
    with pytest.raises(AssertionError, match="was decided, and the agent publishes it as before"):
        play([BEGIN, DECIDE.format(key=MAINTENANCE)])


LONG = [BEGIN, "state.turn(seconds=1.0)", "state.turn(seconds=1.0)", "state.kill()", "state.start()"]


def test_a_finding_is_shrunk_to_what_it_takes() -> None:
    with pytest.raises(AssertionError) as found:
        play(LONG, Nervous)
    assert shrunk(LONG, found.value, Nervous) == [BEGIN, "state.kill()"]


def test_a_step_out_of_turn_is_played_when_it_was_kept_and_left_out_when_a_finding_is_shrunk() -> None:
    nothing_hangs = [BEGIN, "state.let_go()"]
    play(nothing_hangs)
    with pytest.raises(OutOfTurn, match="let_go"):
        play(nothing_hangs, strictly=True)


def test_a_step_that_only_its_pace_forbids_may_be_played() -> None:
    play([BEGIN, "state.turn(seconds=1.0)", "state.turn(seconds=1.0)", "state.kill()"], strictly=True)


def test_a_hunt_ends_when_its_time_is_over_also_within_a_sequence() -> None:
    done = hunt(seconds=0.0, seed=SEED)
    assert (done.sequences, done.steps) == (1, 1)
    assert done.summary.endswith(": no finding")


def test_a_finding_says_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "shrunk", lambda steps, *_: list(steps))  # shrinking takes minutes and has its own tests
    with pytest.raises(Finding) as found:
        hunt(sequences=10, seed=SEED, machine=Nervous)
    assert found.value.done.findings == 1
    assert found.value.steps[0].startswith("state.begin(")
