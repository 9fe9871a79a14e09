"""What the agent machine demands of shares, each shown by a product that does not keep to it."""

from typing import Any

import pytest

from draco.agent.claims import cdi, plan
from draco.agent.mig.users import DeviceUsers
from draco.agent.publish import offering, withdrawals
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparedClaim
from draco.resources.names import ClaimUid
from draco.sharing import decide
from tests.adversary.agent import observer
from tests.adversary.agent.machine import AgentMachine
from tests.adversary.agent.run import play

BEGIN = "state.begin(board='H100-80GB', gpus=1, dynamic=(), shared=('{shared}',))"
SHARE = "state.share(picks={picks}, memory={memory!r})"
TURN = "state.turn(seconds=61.0)"
WHOLE_POD = "state.pod(kind='whole', pick=0)"


def share(*picks: int, memory: str | None = "10Gi") -> str:
    return SHARE.format(picks=list(picks or (0,)), memory=memory)


def test_a_form_that_changes_under_shares_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the operator and the agent have to forget the claims."""
    end = "state.sharing_policy(pick=0, asked='', seen=True)"
    steps = [BEGIN.format(shared="Memory"), share(), end, TURN]
    play(steps)
    monkeypatch.setattr(decide, "_holds", lambda *_: [])
    play(steps)  # the agent keeps the form for what is prepared
    monkeypatch.setattr(offering, "held_forms", lambda wanted, *_: dict(wanted))
    with pytest.raises(AssertionError, match="gpu-0 is published for one claim, and c1 has a share of it"):
        play(steps)


def test_a_form_that_changes_under_a_claim_that_has_the_gpu_alone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = "state.begin(board='H100-80GB', gpus=1, dynamic=())"
    steps = [begin, WHOLE_POD, "state.sharing_policy(pick=0, asked='Count 2', seen=True)", TURN]
    play(steps)
    monkeypatch.setattr(decide, "_holds", lambda *_: [])
    monkeypatch.setattr(offering, "held_forms", lambda wanted, *_: dict(wanted))
    with pytest.raises(AssertionError, match="gpu-0 is published for several claims, and c1 has it alone"):
        play(steps)


def test_a_form_that_changes_without_notice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    change = "state.sharing_policy(pick=0, asked='Unlimited', seen=True)"
    late = "state.share(picks=[0], memory='10Gi', age=1, asked=False)"
    steps = [BEGIN.format(shared="Memory"), change, TURN]
    play(steps)
    play(
        [BEGIN.format(shared="Memory"), "state.sharing_policy(pick=0, asked='')", "state.turn(seconds=1.0)", late, TURN]
    )
    monkeypatch.setattr(withdrawals, "continues", lambda *_: True)
    with pytest.raises(AssertionError, match="gpu-0 was exclusive and is Memory, and nobody was told before"):
        play(steps)


def test_two_claims_of_which_one_has_the_gpu_alone_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = "state.allocate_blindly(devices=[(0, 0, False)], share=False, asked=True)"
    steps = [BEGIN.format(shared="Memory"), share(), blind]
    play(steps)
    monkeypatch.setattr(plan, "exclusion", lambda *_: None)
    monkeypatch.setattr(DeviceUsers, "earlier", lambda *_, **__: None)
    with pytest.raises(AssertionError, match=r"just answered, claims .* both have"):
        play(steps)
    monkeypatch.setattr(observer, "twice", lambda *_: "")
    with pytest.raises(AssertionError, match="c1 and c2 were both told of"):
        play(steps)
    monkeypatch.setattr(AgentMachine, "no_two_claims_were_told_of_the_same", lambda _: None)
    with pytest.raises(AssertionError, match=r"c1 and c2 are both prepared on .*, and one has it alone"):
        play(steps)


def test_shares_with_one_cdi_device_together_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [BEGIN.format(shared="Count 4"), share(0, 0, memory=None)]
    play(steps)
    monkeypatch.setattr(cdi, "device_name", lambda device, uid, *_: f"{device}-{uid}")
    with pytest.raises(AssertionError, match=r"shares have .* together"):
        play(steps)


def test_shares_with_different_time_slices_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sliced = share().replace(")", ", said=(('FromClaim', 'Long'),))")
    steps = [BEGIN.format(shared="Memory"), sliced, share()]
    play(steps)
    monkeypatch.setattr(plan, "DeviceSettings", lambda *_: None)
    with pytest.raises(AssertionError, match="have shares of gpu-0 with different time slices"):
        play(steps)


def test_a_share_that_is_refused_beside_processes_of_others_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent once took them for those of an earlier user."""
    steps = [BEGIN.format(shared="Memory"), share(), "state.run_pod(pick=0, listed=True, ends=False)", share()]
    play(steps)
    monkeypatch.setattr(DeviceUsers, "_beside", lambda *_: [])
    with pytest.raises(AssertionError, match="c2 gets no share beside others"):
        play(steps)


def test_a_share_that_a_restart_forgets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [BEGIN.format(shared="Memory"), share(), "state.kill()", "state.start()"]
    play(steps)

    def forgetful(record: Checkpoint) -> dict[ClaimUid, PreparedClaim]:
        return {uid: one for uid, one in as_it_is(record).items() if not any(each.share_id for each in one.devices)}

    as_it_is: Any = Checkpoint.claims.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Checkpoint, "claims", property(forgetful))
    with pytest.raises(AssertionError, match="c1 has shares, and is away on record"):
        play(steps)


def test_a_policy_that_is_never_carried_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ["state.begin(board='H100-80GB', gpus=1, dynamic=())", "state.sharing_policy(pick=0, asked='Count 2')"]
    play(steps)
    monkeypatch.setattr(offering, "as_shared", lambda device, _: device)
    with pytest.raises(
        AssertionError, match="is wanted as Count, and is published as exclusive although nobody has it"
    ):
        play(steps)


def test_shares_that_are_not_counted_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of all memory by default is published as if it took none."""
    steps = [
        BEGIN.format(shared="Count 2"),
        share(memory=None),
        "state.sharing_policy(pick=0, asked='Unlimited', seen=True)",
    ]
    play(steps)
    monkeypatch.setattr(decide, "_holds", lambda *_: [])
    monkeypatch.setattr(offering, "held_forms", lambda wanted, *_: dict(wanted))
    with pytest.raises(AssertionError, match="claims have 1 of shares of gpu-0, which has 0"):
        play(steps)
