"""Among nodes that differ only in use, members of a group get those with other members, or with room for them."""

import random
from collections.abc import Collection

import pytest

from draco.placing.scoring.score import ALONE, NodeRanking, PlacementScore, RankedNode, RestOfGroup

NODES = [f"node-{number}" for number in range(6)]


def ranked(left: dict[str, int], *, units_left: int = 0, minus_instances: int = 0) -> NodeRanking:
    """Nodes with this many GPUs left idle, otherwise equal."""
    ranking = NodeRanking()
    for name, crowding in left.items():
        score = PlacementScore(
            loss=1, gpus=1, minus_instances=minus_instances, units_left=units_left, crowding=crowding
        )
        ranking.add(score, name)
    return ranking


def chosen(
    ranking: NodeRanking, rest: RestOfGroup, nodes: Collection[str] = NODES, spread: Collection[str] = ()
) -> str:
    found = ranking.first(nodes, rest, spread.__contains__)
    return "" if found is None else found.name


LEFT = {"node-0": 0, "node-1": 2, "node-2": 4, "node-3": 7, "node-4": 7}


@pytest.mark.parametrize(
    ("devices", "node"),
    [
        (0, "node-0"),
        (1, "node-1"),
        (2, "node-1"),
        (3, "node-2"),
        (5, "node-3"),
        (7, "node-3"),
        (8, "node-3"),
        (63, "node-3"),
    ],
)
def test_a_group_gets_the_fullest_node_with_room_for_the_rest_of_it_or_else_the_emptiest(
    devices: int, node: str
) -> None:
    assert chosen(ranked(LEFT), RestOfGroup(devices=devices)) == node


def test_a_group_stays_where_it_is_as_long_as_there_is_a_place() -> None:
    assert chosen(ranked(LEFT), RestOfGroup({"node-2"}, 1)) == "node-2"
    assert chosen(ranked(LEFT), RestOfGroup({"node-2", "node-3"}, 1)) == "node-2", "the fullest of its own"
    assert chosen(ranked(LEFT), RestOfGroup({"node-5"}, 1)) == "node-1", "one that is full has no place in the order"


def test_only_nodes_that_are_asked_for_count() -> None:
    assert chosen(ranked(LEFT), RestOfGroup({"node-2"}, 3), nodes=["node-0", "node-1"]) == "node-1"
    assert chosen(ranked(LEFT), RestOfGroup(devices=3), nodes=["node-0", "node-4"]) == "node-4"
    assert chosen(ranked(LEFT), RestOfGroup(devices=9), nodes=["node-0", "node-1"]) == "node-1"
    assert chosen(ranked(LEFT), RestOfGroup(devices=9), nodes=[]) == ""


def test_one_that_is_alone_gets_the_fullest_node() -> None:
    assert chosen(ranked(LEFT), ALONE) == "node-0"


def test_nothing_but_use_is_given_up_for_the_company() -> None:
    ranking = ranked(LEFT)
    ranking.add(PlacementScore(loss=2, gpus=1, crowding=1), "node-5")
    assert chosen(ranking, RestOfGroup({"node-5"}, 1)) == "node-1", "it would cost more there"
    ranking.add(PlacementScore(loss=1, gpus=1, misalignment=1, crowding=9), "far")
    assert chosen(ranking, RestOfGroup({"far"}, 9), [*NODES, "far"]) == "node-3"


def test_partitions_go_to_the_fullest_node_whatever_room_the_rest_wants() -> None:
    """The rest of the group is counted in devices, and these partitions leave room on their GPUs."""
    assert chosen(ranked(LEFT, units_left=3), RestOfGroup(devices=3)) == "node-0"
    assert chosen(ranked(LEFT, minus_instances=-2), RestOfGroup(devices=3)) == "node-0"
    assert chosen(ranked(LEFT, units_left=3), RestOfGroup({"node-2"}, 3)) == "node-2"


def test_nodes_that_are_filled_evenly_stay_so() -> None:
    assert chosen(ranked(LEFT), RestOfGroup({"node-2"}, 3), spread=NODES) == "node-0"
    assert chosen(ranked(LEFT), RestOfGroup(devices=3), spread=["node-2"]) == "node-3"


def test_a_node_that_was_removed_is_chosen_no_more() -> None:
    ranking = ranked(LEFT)
    ranking.remove("node-2")
    ranking.remove("node-2")
    assert chosen(ranking, RestOfGroup({"node-2"}, 3)) == "node-3"
    ranking.clear()
    assert chosen(ranking, RestOfGroup({"node-3"}, 3)) == ""


def test_what_is_chosen_is_what_a_look_at_all_nodes_would_choose() -> None:
    chance = random.Random(7)
    for _ in range(2_000):
        found = {
            name: PlacementScore(
                loss=chance.choice([1, 1, 1, 2]), distance=chance.choice([0, 0, 1]),
                crowding=chance.randrange(4), cut_links=chance.randrange(2),
            )
            for name in NODES
        }  # fmt: skip
        ranking = NodeRanking()
        for name, score in found.items():
            ranking.add(score, name)
        nodes = chance.sample(NODES, chance.randrange(1, len(NODES)))
        rest = RestOfGroup(set(chance.sample(NODES, 2)), chance.randrange(5))
        assert chosen(ranking, rest, nodes) == by_looking(found, nodes, rest)


def by_looking(found: dict[str, PlacementScore], nodes: Collection[str], rest: RestOfGroup) -> str:
    places = [RankedNode(found[name], name) for name in nodes]
    cost = min(place.score[:9] for place in places)
    alike = [place for place in places if place.score[:9] == cost]
    wants = rest.devices
    return min(
        alike,
        key=lambda place: (
            place.name not in rest.nodes,
            0 if place.name in rest.nodes else place.score.crowding < wants,
            place.score.crowding
            if place.score.crowding >= wants or place.name in rest.nodes
            else -place.score.crowding,
            place,
        ),
    ).name
