"""What a store reports as changed, and what its indexes find."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.kube.watch.store import Change, Store
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey, ObjectMeta


def a_node(name: str, *, uid: str = "", version: str = "1", zone: str = "") -> Node:
    labels = {"zone": zone} if zone else {}
    return Node(metadata=ObjectMeta(name=name, uid=uid or f"uid-{name}", resource_version=version, labels=labels))


def key(name: str) -> ObjectKey:
    return ObjectKey("", name)


def zones(node: Node) -> Iterable[str]:
    return node.metadata.labels.values()


def test_a_new_object_a_change_and_a_removal_are_one_change_each() -> None:
    store: Store[Node] = Store()
    first, second = a_node("a"), a_node("a", version="2")
    assert store.put(first) == [Change(key("a"), None, first)]
    assert store.put(second) == [Change(key("a"), first, second)]
    assert store.remove(key("a")) == [Change(key("a"), second, None)]
    assert store.remove(key("a")) == []
    assert len(store) == 0


def test_an_object_made_anew_under_an_old_name_is_a_delete_and_an_add() -> None:
    store: Store[Node] = Store()
    old, new = a_node("a", uid="1"), a_node("a", uid="2")
    store.put(old)
    assert store.put(new) == [Change(key("a"), old, None), Change(key("a"), None, new)]


def test_a_swap_says_only_what_differs_and_deletes_first() -> None:
    store: Store[Node] = Store()
    same, gone, old, dead = a_node("same"), a_node("gone"), a_node("changed"), a_node("remade", uid="1")
    for node in (same, gone, old, dead):
        store.put(node)
    new, live, fresh = a_node("changed", version="2"), a_node("remade", uid="2"), a_node("fresh")
    changes = store.swap({node.metadata.key: node for node in (fresh, a_node("same"), new, live)})
    assert changes[0] == Change(key("gone"), gone, None)
    assert sorted(changes[1:], key=str) == sorted(
        [
            Change(key("fresh"), None, fresh),
            Change(key("changed"), old, new),
            Change(key("remade"), dead, None),
            Change(key("remade"), None, live),
        ],
        key=str,
    )
    assert store.get(key("same")) is same


def test_an_index_follows_every_change() -> None:
    store: Store[Node] = Store()
    store.put(a_node("a", zone="east"))
    store.add_index("zone", zones)
    store.put(a_node("b", zone="east"))
    assert [node.metadata.name for node in store.by_index("zone", "east")] == ["a", "b"]
    store.put(a_node("a", version="2", zone="west"))
    assert [node.metadata.name for node in store.by_index("zone", "east")] == ["b"]
    assert [node.metadata.name for node in store.by_index("zone", "west")] == ["a"]
    store.swap({})
    assert store.by_index("zone", "east") == store.by_index("zone", "west") == []


def test_an_index_is_added_once_and_asked_by_its_name() -> None:
    store: Store[Node] = Store()
    store.add_index("zone", zones)
    with pytest.raises(ValueError, match="zone"):
        store.add_index("zone", zones)
    with pytest.raises(KeyError):
        store.by_index("rack", "1")


def test_an_object_that_an_index_cannot_read_is_missing_only_there() -> None:
    def zone_of(node: Node) -> Iterable[str]:
        return [node.metadata.labels["zone"]]

    store: Store[Node] = Store()
    store.add_index("zone", zone_of)
    store.put(a_node("odd"))
    store.put(a_node("fine", zone="east"))
    assert store.get(key("odd")) is not None
    assert [node.metadata.name for node in store.by_index("zone", "east")] == ["fine"]


def test_what_was_read_does_not_change_under_the_reader() -> None:
    store: Store[Node] = Store()
    store.put(a_node("a"))
    values, items = store.values(), store.items()
    for _ in store:
        store.remove(key("a"))
    assert len(values) == len(items) == 1


states = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=6)


@given(states=st.lists(states, max_size=6))
def test_changes_replayed_give_the_store_and_index_agrees_with_a_scan(
    states: list[dict[str, tuple[int, int]]],
) -> None:
    store: Store[Node] = Store()
    store.add_index("zone", zones)
    replay: dict[ObjectKey, Node] = {}
    for state in states:
        nodes = {
            key(name): a_node(name, uid=f"{name}{uid}", version=f"{uid}.{version}", zone=str(version))
            for name, (uid, version) in state.items()
        }
        for change in store.swap(nodes):
            assert replay.get(change.key) == change.before
            if change.after:
                replay[change.key] = change.after
            else:
                del replay[change.key]
            if change.before and change.after:
                assert change.before.metadata.uid == change.after.metadata.uid
        assert replay == nodes == dict(store.items())
        for zone in "012":
            found = {node.metadata.name for node in store.by_index("zone", zone)}
            assert found == {node.metadata.name for node in nodes.values() if node.metadata.labels["zone"] == zone}
