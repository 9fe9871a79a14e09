"""What the agent machine demands of time slices, each shown by an agent that does not keep to it."""

from typing import Any

import pytest

from draco.agent.claims.time_slices import TimeSliceKeeper, TimeSlices
from draco.agent.claims.work import ClaimWork
from draco.agent.hardware.gpus import Gpu
from draco.agent.hardware.time_slicing import TimeSliceSetter
from draco.allocation import configurations
from draco.allocation.configurations import TimeSlice
from draco.resources.names import GpuUuid
from tests.adversary.agent.run import play

BEGIN = "state.begin(board='H100-80GB', gpus=1, dynamic=())"
POD = "state.pod_with_time_slice(pick=0, interval='Long', ends={ends})"
TURN = "state.turn(seconds=61.0)"


_settle = TimeSliceKeeper._settle


def only_tries(keeper: TimeSliceKeeper, gpu: Gpu) -> str:
    """Finds out whether time slices can be set, and neither takes one back nor sets one again."""
    return _settle(keeper, gpu) if keeper._slices.supported(gpu.uuid) is None else ""


def test_a_time_slice_that_is_not_set_before_the_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [BEGIN, POD.format(ends=False)]
    play(steps)
    monkeypatch.setattr(TimeSliceSetter, "set", lambda *_: None)
    with pytest.raises(AssertionError, match=r"just answered, c1 asks for time slice 3 on .*, which has 0"):
        play(steps)


def test_a_time_slice_that_is_left_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [BEGIN, POD.format(ends=True), TURN]
    play(steps)
    monkeypatch.setattr(TimeSliceKeeper, "_settle", only_tries)
    with pytest.raises(AssertionError, match=r"claims ask for time slice 0 of .*, which has 3"):
        play(steps)


def test_a_time_slice_that_is_not_set_again_after_a_load_of_the_driver_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [BEGIN, POD.format(ends=False), "state.hardware(pick=0, what='reload driver')", TURN]
    play(steps)
    monkeypatch.setattr(TimeSliceKeeper, "_settle", only_tries)
    with pytest.raises(AssertionError, match=r"claims ask for time slice 3 of .*, which has 0"):
        play(steps)


def test_a_record_that_differs_from_the_hardware_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def unrecorded(slices: TimeSlices, gpu: GpuUuid, wanted: TimeSlice) -> None:
        if wanted is TimeSlice.DEFAULT:
            slices._setter.set(gpu, wanted)
        else:
            as_it_is(slices, gpu, wanted)

    as_it_is = TimeSlices.set
    steps = [BEGIN, POD.format(ends=True), TURN]
    monkeypatch.setattr(TimeSlices, "set", unrecorded)
    with pytest.raises(AssertionError, match="nothing is known of the time slice"):
        play(steps)


def test_a_refusal_that_changes_the_compute_mode_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def mode_first(setter: TimeSliceSetter, gpu: GpuUuid, wanted: TimeSlice) -> None:
        setter._let_share(gpu)
        as_it_is(setter, gpu, wanted)

    as_it_is = TimeSliceSetter.set
    steps = [BEGIN, "state.exclusive_by_hand(pick=0)", "state.nvidia_smi(installed=False)", POD.format(ends=False)]
    monkeypatch.setattr(TimeSliceSetter, "set", mode_first)
    with pytest.raises(AssertionError, match=r"was refused, and the compute mode of .* is 0"):
        play(steps)


@pytest.mark.parametrize(
    ("said", "admin"),
    [
        ((("FromClaim", "MPS, too"),), False),
        ((("FromClass", "Long"), ("FromClaim", "no field")), False),
        ((("FromClass", "Forever"),), False),
        ((("FromClaim", "MPS in turns"),), False),
        ((("FromClaim", "MPS"),), False),
        ((("FromClass", "Short"),), True),
    ],
)
def test_a_configuration_that_is_not_refused_is_seen(said: Any, admin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [BEGIN, f"state.pod(kind='whole', pick=0, admin={admin}, said={said})"]
    play(steps)
    monkeypatch.setattr(configurations, "refused", lambda *_: None)
    monkeypatch.setattr(configurations, "_slice", lambda _: TimeSlice.DEFAULT)
    monkeypatch.setattr(configurations, "mps_settings", lambda *_: None)
    with pytest.raises(AssertionError, match="c1 is prepared, and was to be refused"):
        play(steps)


def test_a_reconciler_that_nothing_wakes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeSliceKeeper, "claim_settled", lambda *_: None)
    monkeypatch.setattr(TimeSliceKeeper, "seen", lambda *_: None)
    with pytest.raises(AssertionError, match=r"the time slice of .* was out of date, and nothing woke its reconciler"):
        play([BEGIN, TURN])


def test_an_unprepare_that_waits_for_nvidia_smi_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        "state.begin(board='H100-80GB', gpus=2, dynamic=())",
        POD.format(ends=False),
        "state.hang(function='nvidia-smi', pick=None)",
        POD.format(ends=False),
        "state.unprepare(pick=0)",
    ]
    play(steps)
    monkeypatch.setattr(ClaimWork, "_has_parts", lambda *_: True)
    with pytest.raises(AssertionError, match="c1 is not given up, and nothing is in its way"):
        play(steps)
