"""Laws of the ledger: a fault stays until its end was seen, the worst one wins, and a restart of the agent forgets nothing."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from draco.health.judgement import blocking, judge, taints, whole_blocking
from draco.health.ledger import (
    ENTRIES_PER_GPU,
    FAMILIES,
    DriverLoad,
    FaultLedger,
    GpuReading,
    InstancePlace,
    LinkReading,
    Sign,
    heard,
    loaded,
    looked,
    reloaded,
    repaired,
)
from draco.health.table import CLEAN, KINDS, TABLE, FaultEnd, kind_of, metric_name, severity
from draco.resources.api.health import BLOCKING_FAULTS, FaultFamily, FaultOverride, HealthEffect
from draco.resources.names import GpuUuid
from tests.builders import MOMENT

GPU, OTHER = GpuUuid("GPU-0"), GpuUuid("GPU-1")
LOAD = DriverLoad("boot", "1")
XIDS = (13, 46, 63, 79, 95, 119, 154, 9999)
SEEN = sorted(name for name, kind in KINDS.items() if kind.code is None)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("xid"), st.sampled_from((GPU, OTHER)), st.sampled_from(XIDS), st.sampled_from((None, 1, 2))),
        st.tuples(st.just("look"), st.frozensets(st.sampled_from(SEEN), max_size=3), st.sampled_from(("all", "no"))),
        st.tuples(st.just("reload")),
        st.tuples(st.just("load"), st.sampled_from(("1", "2", ""))),
        st.tuples(st.just("boot"), st.sampled_from(("boot", "next"))),
    ),
    max_size=25,
)


def clean_reading(gpu: GpuUuid = GPU, *signs: str) -> GpuReading:
    return GpuReading(gpu=gpu, signs=tuple(Sign(name) for name in signs))


def after(history: Sequence[Any], *, restart: bool = False) -> FaultLedger:
    """The ledger after these steps. With `restart`, it is written and read again after each step."""
    ledger, load, now = FaultLedger(), LOAD, MOMENT
    for what, *how in history:
        now += timedelta(seconds=10)
        if what == "xid":
            gpu, code, gi = how
            place = None if gi is None else InstancePlace(gi, None, 1 << gi)
            ledger = heard(ledger, gpu, code, place=place, load=load, now=now)
        elif what == "look":
            names, asked = how
            reading = clean_reading(GPU, *names)
            if asked == "no":
                reading = msgspec.structs.replace(reading, unasked=FAMILIES - {kind_of(one).family for one in names})
            ledger = looked(ledger, [reading], now=now, load=load)
        elif what == "reload":
            ledger = reloaded(ledger)
        else:
            load = DriverLoad(how[0], load.driver_load) if what == "boot" else DriverLoad(load.boot_id, how[0])
            ledger = loaded(ledger, load)
        if restart:
            ledger = msgspec.json.decode(msgspec.json.encode(ledger), type=FaultLedger)
    return ledger


@given(steps)
def test_the_ledger_is_the_same_however_often_it_was_written_and_read(history: list[Any]) -> None:
    assert after(history, restart=True) == after(history)


@given(steps)
def test_each_fault_stands_in_the_ledger_once_and_there_are_never_too_many(history: list[Any]) -> None:
    ledger = after(history)
    keys = [one.key for one in ledger.entries]
    assert len(keys) == len(set(keys))
    assert all(len(ledger.of(gpu)) <= ENTRIES_PER_GPU for gpu in (GPU, OTHER))


@given(steps)
def test_the_worst_of_all_faults_wins(history: list[Any]) -> None:
    faults = judge(after(history).of(GPU))
    effects = [severity(one.status.effect) for one in faults]
    assert effects == sorted(effects, reverse=True)
    whole = [one for one in faults if one.mask is None and one.status.effect in BLOCKING_FAULTS]
    assert whole_blocking(faults) == (whole[0] if whole else None)
    by_family = {taint.key: taint for taint in taints(faults)}
    for one in faults:
        if one.blocking:
            assert by_family[f"draco.dev/{one.status.family.value}"].effect == "NoSchedule"


@given(steps, st.integers(min_value=1, max_value=4))
def test_nothing_that_nvml_told_once_ends_before_its_end_was_seen(history: list[Any], more: int) -> None:
    ledger = after(history)
    latched = {one.key for one in ledger.entries if one.kind.ends is not FaultEnd.LOOK and not one.ended}
    # Only readings follow in which NVML asks for no recovery action; for these entries it has not asked for one before.
    waiting = {one.key for one in ledger.entries if one.key in latched and not one.asked}
    for _ in range(more * 4):
        ledger = looked(ledger, [clean_reading()], now=MOMENT, load=LOAD)
    assert waiting <= {one.key for one in ledger.entries}


@given(steps)
def test_a_reading_that_says_nothing_changes_nothing(history: list[Any]) -> None:
    before = after(history)
    silent = GpuReading(gpu=GPU, unasked=FAMILIES)
    assert set(looked(before, [silent], now=MOMENT, load=LOAD).entries) == set(before.entries)


RESETS_ASKED_FOR = {"NeedsReset", "NeedsDrainP2P", "NeedsDrainAndReset"}


@given(st.sampled_from(SEEN), st.booleans())
def test_what_a_divided_gpu_does_not_tell_of_ends_with_a_load_of_the_driver_only_where_that_does_away_with_it(
    name: str, agent_lives: bool
) -> None:
    kind = kind_of(name)
    divided = GpuReading(gpu=GPU, hidden=frozenset({kind.family}))
    ledger = FaultLedger()
    for _ in range(kind.after):
        ledger = looked(ledger, [clean_reading(GPU, name)], now=MOMENT, load=LOAD)

    def divided_for_long(ledger: FaultLedger) -> FaultLedger:
        for _ in range(kind.clean):
            ledger = looked(ledger, [divided], now=MOMENT, load=LOAD)
        return ledger

    assert divided_for_long(ledger).of(GPU)
    again = reloaded(ledger) if agent_lives else loaded(ledger, DriverLoad("next", "2"))
    assert bool(divided_for_long(again).of(GPU)) is (
        name not in {"EccUncorrected", "NvLinkDown", "NvLinkErrors", "RowRemapPending"} | RESETS_ASKED_FOR
    )


@given(steps)
def test_enough_clean_readings_after_a_boot_end_everything_and_one_fewer_does_not(history: list[Any]) -> None:
    load = DriverLoad("another boot", "9")
    ledger = loaded(after(history), load)
    longest = max((kind_of(one.name, one.code).clean - one.clean for one in ledger.of(GPU)), default=0)
    certain = any(one.certain and one.kind.clean - one.clean == longest for one in ledger.of(GPU))
    for turn in range(longest):
        if certain and turn == longest - 1:
            assert ledger.of(GPU)
        ledger = looked(ledger, [clean_reading()], now=MOMENT, load=load)
    assert ledger.of(GPU) == ()
    assert ledger.of(OTHER) == loaded(after(history), load).of(OTHER), "each GPU is for itself"


@given(st.lists(st.booleans(), max_size=40))
def test_what_comes_and_goes_faster_than_its_readings_does_not_flap(hot: list[bool]) -> None:
    ledger = looked(FaultLedger(), [clean_reading(GPU, "ThermalSlowdown")], now=MOMENT, load=LOAD)
    changes, clean = 0, 0
    for one in hot:
        before = bool(ledger.entries)
        ledger = looked(ledger, [clean_reading(GPU, *["ThermalSlowdown"] * one)], now=MOMENT, load=LOAD)
        clean = 0 if one else clean + 1
        changes += before and not ledger.entries
        assert bool(ledger.entries) or clean >= kind_of("ThermalSlowdown").clean
    assert changes <= len(hot) / kind_of("ThermalSlowdown").clean


def test_a_repair_ends_what_a_reset_ends_and_was_seen_by_then() -> None:
    later = MOMENT + timedelta(minutes=1)
    ledger = FaultLedger()
    for gpu, code, now in ((GPU, 95, MOMENT), (GPU, 79, MOMENT), (GPU, 119, later), (OTHER, 95, MOMENT)):
        ledger = heard(ledger, gpu, code, load=LOAD, now=now)
    ledger = repaired(ledger, GPU, MOMENT)
    for _ in range(CLEAN - 1):
        ledger = looked(ledger, [clean_reading(GPU), clean_reading(OTHER)], now=later, load=LOAD)
    assert "Xid95" in {one.name for one in ledger.of(GPU)}, "it takes clean readings, as after any end"
    ledger = looked(ledger, [clean_reading(GPU), clean_reading(OTHER)], now=later, load=LOAD)
    assert {one.name for one in ledger.of(GPU)} == {"Xid79", "Xid119"}
    assert {one.name for one in ledger.of(OTHER)} == {"Xid95"}


def test_a_fault_of_an_instance_concerns_what_overlaps_it_and_the_whole() -> None:
    place = InstancePlace(3, 0, 0b0011)
    ledger = heard(FaultLedger(), GPU, 46, place=place, load=LOAD, now=MOMENT)
    faults = judge(ledger.of(GPU))
    assert [bool(blocking(faults, mask)) for mask in (0b0001, 0b0110, 0b1100, None)] == [True, True, False, True]
    assert whole_blocking(faults) is None
    assert (taints(faults, 0b1100), [one.value for one in taints(faults)]) == ([], ["Xid46"])
    assert faults[0].status.scope == "ComputeInstance"


def test_an_instance_that_nobody_has_seen_may_be_anywhere() -> None:
    ledger = heard(FaultLedger(), GPU, 46, place=InstancePlace(3), load=LOAD, now=MOMENT)
    assert whole_blocking(judge(ledger.of(GPU))) is not None


def test_what_spreads_concerns_the_whole_gpu_wherever_it_was_reported() -> None:
    ledger = heard(FaultLedger(), GPU, 95, place=InstancePlace(3, 0, 0b1), load=LOAD, now=MOMENT)
    [fault] = judge(ledger.of(GPU))
    assert (fault.mask, fault.status.instance, fault.status.scope) == (None, None, "Gpu")


def test_an_instance_that_was_made_again_elsewhere_does_not_take_its_fault_along() -> None:
    ledger = heard(FaultLedger(), GPU, 46, place=InstancePlace(1, None, 0b0001), load=LOAD, now=MOMENT)
    ledger = heard(ledger, GPU, 46, place=InstancePlace(1, None, 0b1000), load=LOAD, now=MOMENT)
    [fault] = judge(ledger.of(GPU))
    assert fault.mask == 0b1001, "both places have met it"


def test_a_policy_speaks_rather_of_one_instance_than_of_all() -> None:
    ledger = FaultLedger()
    for gi in (1, 2):
        ledger = heard(ledger, GPU, 46, place=InstancePlace(gi, None, 1 << gi), load=LOAD, now=MOMENT)

    def said(effect: HealthEffect, instance: int | None) -> FaultOverride:
        return FaultOverride(uuid=GPU, fault="Xid46", effect=effect, policy="p", instance=instance)

    overrides = [said(HealthEffect.EVICT, None), said(HealthEffect.RECORD, 2)]
    found = {one.status.instance: one.status.effect for one in judge(ledger.of(GPU), overrides)}
    assert found == {1: HealthEffect.EVICT, 2: HealthEffect.RECORD}
    assert [one.effect for one in taints(judge(ledger.of(GPU), overrides))] == ["NoSchedule"], "eviction is not ours"
    only = [said(HealthEffect.NO_EXECUTE, 1)]
    assert [one.effect for one in taints(judge(ledger.of(GPU), only), 0b010)] == ["NoExecute"]


def test_links_are_compared_with_how_they_were_and_forgotten_when_none_is_there() -> None:
    def read(ledger: FaultLedger, up: int) -> FaultLedger:
        return looked(ledger, [GpuReading(gpu=GPU, links=LinkReading(up))], now=MOMENT, load=LOAD)

    ledger = read(read(FaultLedger(), 0b0111), 0b1011)
    assert [(one.name, one.count) for one in ledger.entries] == [("NvLinkDown", 1)]
    assert read(read(ledger, 0), 0b0011).links[GPU].up == 0b0011, "the bridge was taken out"


# The table


def test_each_xid_stands_in_one_row_and_rows_in_order() -> None:
    codes = [code for row in TABLE["xids"] for code in row["codes"]]
    assert len(codes) == len(set(codes)) > 70
    assert [row["codes"][0] for row in TABLE["xids"]] == sorted(row["codes"][0] for row in TABLE["xids"])
    assert all(row["codes"] == sorted(row["codes"]) for row in TABLE["xids"])


def test_every_family_has_a_fault_and_nobody_is_evicted_unless_a_policy_says_so() -> None:
    assert {kind.family for kind in KINDS.values()} == set(FaultFamily)
    assert {kind.effect for kind in KINDS.values()} == {
        HealthEffect.RECORD,
        HealthEffect.ANNOUNCE,
        HealthEffect.NO_SCHEDULE,
    }


def test_an_xid_for_which_nvidia_asks_for_a_reset_or_a_reboot_keeps_new_work_away() -> None:
    for code in (46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 158):
        kind = kind_of(f"Xid{code}", code)
        assert (kind.effect, kind.latched) == (HealthEffect.NO_SCHEDULE, True), code


def test_what_a_program_can_cause_is_recorded_and_no_more() -> None:
    for row in TABLE["xids"]:
        if row["action"] in ("application", "record"):
            assert {kind_of(f"Xid{code}", code).effect for code in row["codes"]} == {HealthEffect.RECORD}


def test_every_fault_says_what_happened_and_what_to_do() -> None:
    for kind in KINDS.values():
        assert kind.sentence.endswith(".")
        assert ";" in kind.sentence
        assert len(kind.sentence) <= 300
        assert kind.clean >= 1


def test_a_number_that_nobody_knows_is_not_a_name_of_its_own_in_metrics() -> None:
    assert (metric_name("Xid79"), metric_name("Xid123456")) == ("Xid79", "XidUnknown")
