"""Replays: what each policy makes of the same claims, and that the counts are right."""

import random
from collections.abc import Iterator

import pytest

from draco.mig.board import Board, Profile
from draco.mig.geometry import geometry
from draco.mig.ideal_packing import packable
from draco.mig.known_boards import BOARDS
from draco.mig.replay import Policy, Replay, ReplayOutcome, SimulatedFleet, rule_of, used_share
from tests.unit.mig.enumerated import plain

GRID = plain("H100-80GB")
MADE = geometry(GRID)


def profile(name: str, board: Board = GRID) -> Profile:
    [found] = [each for each in board.profiles if each.name == name]
    return found


def replay(policy: Policy, *, gpus: int = 16, per_node: int = 8, moves: int = 0, board: Board = GRID) -> Replay:
    return Replay(SimulatedFleet(geometry(board), gpus, per_node), rule_of(policy, random.Random(1).randrange), moves)


def arrivals(made: Replay, *names: str, movable: bool = False) -> list[ReplayOutcome]:
    return [made.arrive(f"{name}-{index}", profile(name), 0.0, movable=movable) for index, name in enumerate(names)]


def churn(made: Replay, seed: int, number: int = 2_000) -> Iterator[ReplayOutcome]:
    """Claims of all profiles that come and go."""
    chance = random.Random(seed)
    there: list[str] = []
    for index in range(number):
        at = float(index)
        if there and chance.random() < 0.45:
            made.depart(there.pop(chance.randrange(len(there))), at)
        name = str(index)
        movable = chance.random() < 0.3
        outcome = made.arrive(name, chance.choice(made.board.profiles), at, movable=movable)
        if outcome.accepted:
            there.append(name)
        yield outcome


@pytest.mark.parametrize("board", [GRID, BOARDS["H100-80GB"], BOARDS["A30"]])
@pytest.mark.parametrize(
    ("policy", "moves"), [*((policy, 0) for policy in Policy), (Policy.OPERATOR, 2), (Policy.STEERED, 2)]
)
def test_what_is_there_always_fits_and_refusals_are_told_apart(board: Board, policy: Policy, moves: int) -> None:
    made = replay(policy, gpus=4, per_node=2, moves=moves, board=board)
    outcomes = set()
    for outcome in churn(made, 5, 400):
        outcomes.add(outcome)
        assert packable(board, made.counts, 4)
        if policy is not Policy.ORACLE:
            used = sum(p.size * number for p, number in made.counts.items())
            assert used == sum(state.mask.bit_count() for state in made.fleet.pool.states)
    assert ReplayOutcome.FULL in outcomes
    assert (ReplayOutcome.AVOIDABLE in outcomes) is (policy is not Policy.ORACLE)
    assert (ReplayOutcome.REPAIRED in outcomes) is bool(moves)


def test_each_policy_uses_more_than_the_one_before() -> None:
    used = {}
    for policy in Policy:
        made = replay(policy)
        for _ in churn(made, 3):
            pass
        used[policy] = used_share(made)
    assert sorted(used, key=used.__getitem__) == list(Policy)


def test_the_scheduler_of_1_36_takes_the_lowest_start_of_the_emptiest_node() -> None:
    made = replay(Policy.SCHEDULER_1_36, gpus=4, per_node=2)
    assert arrivals(made, "1g.10gb", "3g.40gb", "3g.40gb") == [ReplayOutcome.ACCEPTED] * 3
    assert [made.fleet.pool.states[gpu].mask for gpu in range(4)] == [0b1111_0001, 0, 0b1111, 0]


def test_steering_keeps_the_schedulers_choice_of_node_and_improves_that_within_it() -> None:
    made = replay(Policy.STEERED, gpus=4, per_node=2)
    arrivals(made, "1g.10gb", "3g.40gb", "3g.40gb", "4g.40gb")
    assert [made.fleet.pool.states[gpu].mask for gpu in range(4)] == [0b0100_1111, 0, 0b1111_1111, 0]


def test_a_refusal_is_avoidable_only_if_all_would_have_fitted() -> None:
    made = replay(Policy.SCHEDULER_1_36, gpus=2, per_node=2)
    arrivals(made, "3g.40gb", "3g.40gb", "1g.10gb")
    made.depart("3g.40gb-0", 1.0)
    assert made.arrive("big", profile("7g.80gb"), 2.0) is ReplayOutcome.AVOIDABLE
    made.depart("1g.10gb-2", 2.0)
    assert made.arrive("big", profile("7g.80gb"), 3.0) is ReplayOutcome.ACCEPTED
    assert made.arrive("more", profile("7g.80gb"), 3.0) is ReplayOutcome.FULL
    assert (made.results.accepted, made.results.refused, made.results.of(ReplayOutcome.AVOIDABLE)) == (4, 2, 1)


def test_repair_moves_idle_instances_for_a_claim_and_keeps_their_claims() -> None:
    made = replay(Policy.SCHEDULER_1_36, gpus=2, per_node=1, moves=2)
    assert arrivals(made, "1g.10gb", "1g.10gb", movable=True) == [ReplayOutcome.ACCEPTED] * 2
    assert made.arrive("big", profile("7g.80gb"), 0.0) is ReplayOutcome.REPAIRED
    assert all(made.holds(claim) for claim in ("1g.10gb-0", "1g.10gb-1", "big"))
    assert (made.results.moves, made.used_slices) == (1, 9)
    made.depart("1g.10gb-0", 1.0)
    made.depart("1g.10gb-1", 1.0)
    made.depart("big", 1.0)
    assert [made.fleet.pool.states[gpu].mask for gpu in range(2)] == [0, 0]


@pytest.mark.parametrize("policy", [each for each in Policy if each is not Policy.ORACLE])
def test_a_node_with_fewer_gpus_than_the_others_is_used_too(policy: Policy) -> None:
    made = replay(policy, gpus=3, per_node=2)
    assert arrivals(made, *["7g.80gb"] * 4) == [ReplayOutcome.ACCEPTED] * 3 + [ReplayOutcome.FULL]


def test_the_scheduler_goes_to_the_node_from_which_a_claim_went() -> None:
    made = replay(Policy.SCHEDULER_1_36, gpus=2, per_node=1)
    arrivals(made, "1g.10gb", "2g.20gb")
    made.depart("2g.20gb-1", 1.0)
    made.arrive("next", profile("3g.40gb"), 1.0)
    assert [state.mask for state in made.fleet.pool.states] == [0b0000_0001, 0b0000_1111]


def test_the_scheduler_of_1_35_takes_any_gpu_that_has_room() -> None:
    drawn: list[int] = []

    def last(number: int) -> int:
        drawn.append(number)
        return number - 1

    made = Replay(SimulatedFleet(MADE, 3, 3), rule_of(Policy.SCHEDULER_1_35, last))
    arrivals(made, "7g.80gb", "7g.80gb")
    assert drawn == [3, 2]
    assert [state.mask.bit_count() for state in made.fleet.pool.states] == [0, 8, 8]


def test_used_capacity_is_the_mean_over_time() -> None:
    late = replay(Policy.OPERATOR, gpus=1, per_node=1)
    late.arrive("a", profile("4g.40gb"), 6.0)
    late.advance(8.0)
    assert used_share(late) == pytest.approx(2 / 8 * 4 / 7)
    assert late.results.peak_slices == 4
    made = replay(Policy.OPERATOR, gpus=1, per_node=1)
    made.at = 10.0
    made.arrive("a", profile("7g.80gb"), 10.0)
    made.depart("a", 12.0)
    made.advance(18.0)
    assert used_share(made) == pytest.approx(0.25)


def test_headroom_is_what_fits_now_and_what_would_if_all_were_placed_anew() -> None:
    made = replay(Policy.SCHEDULER_1_36, gpus=2, per_node=1)
    arrivals(made, "1g.10gb", "1g.10gb")
    assert (made.headroom(profile("7g.80gb")), made.headroom_repacked(profile("7g.80gb"))) == (0, 1)
    assert (made.headroom(profile("3g.40gb")), made.headroom_repacked(profile("3g.40gb"))) == (2, 3)
    bound = replay(Policy.ORACLE, gpus=2, per_node=1)
    arrivals(bound, "1g.10gb", "1g.10gb")
    assert bound.headroom(profile("7g.80gb")) == 1


def test_a_claim_without_an_instance_leaves_nothing_when_it_departs() -> None:
    made = replay(Policy.OPERATOR, gpus=1, per_node=1)
    arrivals(made, "7g.80gb", "7g.80gb")
    made.depart("7g.80gb-1", 1.0)
    assert made.used_slices == 7
