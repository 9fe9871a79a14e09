"""What the agent machine sees of memory limits, MPS daemons and usage: each product fault here is found."""

from typing import Any

import pytest

from draco.agent.claims import plan
from draco.agent.claims.mps import MpsDaemons
from draco.agent.hardware.compute_mode import ComputeModes
from draco.agent.usage import limit_keeper, report
from draco.agent.usage.held_hours import HeldHours
from draco.agent.usage.limit_keeper import LimitKeeper
from draco.mps.keeper import MpsKeeper
from tests.adversary.agent.run import play

LIMITED = "state.begin(board='H100-80GB', gpus=1, dynamic=(), shared=('Limited',), driver='615')"
KEPT = "state.begin(board='H100-80GB', gpus=1, dynamic=(), mps=True)"
SHARE = "state.share(picks=[0], memory='10Gi')"
MPS = "state.pod_with_mps(pick=0, asked='MPS of 50 %', runs={runs})"
RUN = "state.run_pod(pick=0, listed=True, ends=False)"
TURN = "state.turn(seconds=61.0)"


def test_a_share_without_its_limit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    play([LIMITED, SHARE, RUN, TURN])
    monkeypatch.setattr(plan, "limited", lambda _, device, *__: device)
    with pytest.raises(AssertionError, match=r"c1 is to have 10240 MiB of gpu-0-.*, and its containers are told of"):
        play([LIMITED, SHARE])


def test_a_limit_that_nobody_sets_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [LIMITED, SHARE, RUN, "state.limit_by_hand(pick=0)", TURN]
    play(steps)

    async def nothing(*_: object) -> None:
        return

    monkeypatch.setattr(LimitKeeper, "_keep", nothing)
    with pytest.raises(AssertionError, match=r"c1 may have 10240 MiB of .*, and its limit is"):
        play(steps)


def test_a_limit_of_a_cgroup_that_is_no_containers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a pod holds too, and stays when the container has ended."""
    as_it_is: Any = limit_keeper._up_to
    monkeypatch.setattr(limit_keeper, "_up_to", lambda *given: [one.parent for one in as_it_is(*given)])
    with pytest.raises(AssertionError, match="cgroups have limits that are no container's"):
        play([LIMITED, SHARE, RUN, "state.limit_by_hand(pick=0)", TURN])


def test_a_prepared_claim_without_its_mps_daemon_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    play([KEPT, MPS.format(runs=True), TURN])
    monkeypatch.setattr(MpsDaemons, "look", lambda *_: "")
    monkeypatch.setattr(MpsDaemons, "given", lambda *_: None)
    with pytest.raises(AssertionError, match=r"just answered, c1 asks for MPS on .*: its daemon does not answer"):
        play([KEPT, "state.keeper_dies(steps=0)", MPS.format(runs=False)])


def test_a_daemon_that_nobody_starts_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [KEPT, MPS.format(runs=False), "state.daemon(pick=0, what='dies')", TURN]
    play(steps)
    as_it_is: Any = MpsKeeper.keep

    def once(keeper: MpsKeeper, name: Any) -> float | None:
        return as_it_is(keeper, name) if not keeper._folder.state(name).starts else None

    monkeypatch.setattr(MpsKeeper, "keep", once)
    monkeypatch.setattr(MpsDaemons, "problem", lambda *_: "")
    with pytest.raises(AssertionError, match=r"c1 asks for MPS on .*: its daemon does not answer"):
        play(steps)


def test_a_daemon_that_is_ended_under_clients_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        KEPT,
        MPS.format(runs=True),
        "state.hardware(pick=0, what='reset')",
        "state.daemon(pick=0, what='has a fault')",
        TURN,
    ]
    play(steps)
    monkeypatch.setattr(MpsKeeper, "_users", lambda *_: [])
    with pytest.raises(AssertionError, match="was told to quit under clients"):
        play(steps)


def test_a_gpu_that_stays_exclusive_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_is: Any = ComputeModes.set
    monkeypatch.setattr(ComputeModes, "set", lambda modes, gpu, mode: as_it_is(modes, gpu, mode) if mode else None)
    with pytest.raises(AssertionError, match="GPUs stay exclusive"):
        play([KEPT, MPS.format(runs=False)])


def test_a_daemon_that_is_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MpsKeeper, "_end", lambda *_: None)
    monkeypatch.setattr(MpsDaemons, "_ended", lambda *_: "")
    with pytest.raises(AssertionError, match="MPS daemons are left"):
        play([KEPT, MPS.format(runs=False)])


def test_a_plain_claim_of_a_gpu_that_is_exclusive_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [KEPT, MPS.format(runs=False), "state.unprepare(pick=0)", "state.pod(kind='whole', pick=0)"]
    play(steps)
    as_it_is: Any = MpsDaemons.look
    monkeypatch.setattr(MpsDaemons, "take_back", lambda *_: "")
    monkeypatch.setattr(MpsDaemons, "look", lambda one, claim: as_it_is(one, claim) if claim.name == "c1" else "")
    monkeypatch.setattr(MpsDaemons, "given", lambda *_: None)
    with pytest.raises(AssertionError, match=r"just answered, c2 asks for .* has compute mode 3"):
        play(steps)


def test_shares_with_different_mps_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = "state.begin(board='H100-80GB', gpus=1, dynamic=(), mps=True, shared=('Memory',))"
    plain, half = SHARE, SHARE.replace(")", ", said=(('FromClaim', 'MPS of 50 %'),))")
    play([begin, half, half, plain])
    monkeypatch.setattr(plan, "DeviceSettings", lambda *_, **__: None)
    with pytest.raises(AssertionError, match=r"c[23] asks for|with different MPS"):
        play([begin, half, plain])


def test_hours_that_an_agent_forgets_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        KEPT,
        "state.pod(kind='whole', pick=0)",
        TURN,
        *["state.turn(seconds=61.0)"] * 6,
        "state.kill()",
        "state.start()",
        TURN,
    ]
    play(steps)
    monkeypatch.setattr(HeldHours, "restore", lambda *_: None)
    with pytest.raises(AssertionError, match="s of them used, and now"):
        play(steps)


def test_a_user_that_is_gone_and_still_reported_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pod, ends = "state.pod(kind='whole', pick=0)", "state.run_pod(pick=0, listed=True, ends=True)"
    steps = [KEPT, pod, RUN, TURN, ends, "state.unprepare(pick=0)", TURN]
    play(steps)
    as_it_is: Any = report.UsageReporter._is_due
    monkeypatch.setattr(
        report.UsageReporter, "_is_due", lambda one, wanted: bool(wanted.users) and as_it_is(one, wanted)
    )
    with pytest.raises(AssertionError, match=r"c1 is reported as a user of|processes are reported"):
        play(steps)
