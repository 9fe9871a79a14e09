"""The law of bare GPUs: a GPU that is handed over or faulty keeps its taint until an operator decides otherwise."""

from typing import Any

import pytest

from tests.adversary.cluster.observer.bare import MOST_TAINTS, WEIGHED_AFTER_S, Bare
from tests.adversary.cluster.observer.service import OPERATOR_ALLOCATED
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.test_observer import GPU, OTHER, Document, a_slice, a_world, partition, whole

XID = "draco.dev/xid"
FALLEN = {"family": "xid", "name": "Xid79", "effect": "NoSchedule", "firstSeen": "2026-01-01T00:00:00Z"}
ANNOUNCED = FALLEN | {"name": "Xid74", "effect": "Announce"}


def at(revision: int, one: Document) -> Document:
    return one | {"metadata": one["metadata"] | {"resourceVersion": str(revision)}}


def published(revision: int, *devices: Document) -> tuple[str, Document]:
    return "slice", at(revision, a_slice(*devices, generation=revision))


def having(key: str, device: Document | None = None) -> Document:
    return {**(device or whole()), "taints": [{"key": key, "effect": "NoSchedule"}]}


def handed(device: Document | None = None) -> Document:
    return having(OPERATOR_ALLOCATED, device)


def report(revision: int, *faults: Document, decided: tuple[str, ...] = (GPU,), **spec: Any) -> tuple[str, Document]:
    status = {"poolGeneration": revision, "gpus": [{"uuid": GPU, "faults": list(faults)}]}
    written = spec | {"decided": list(decided)}
    metadata = {"name": "node", "uid": f"node-{revision}", "resourceVersion": str(revision)}
    return "gpunode", {"metadata": metadata, "spec": written, "status": status}


def made_anew(revision: int, *faults: Document) -> tuple[str, Document]:
    """The GpuNode was deleted, and its agent created another."""
    return report(revision, *faults, decided=())


def override(effect: str, fault: str = "Xid79") -> Document:
    return {"uuid": GPU, "fault": fault, "policy": "p", "effect": effect}


def judged(*changes: tuple[str, Document]) -> list[str]:
    world = a_world()
    law = Bare(world)
    for kind, one in changes:
        learn(world, kind, one)
        law.slice_changed(one, 0.0) if kind == "slice" else law.report_changed(one)
    assert not list(law.weighed(WEIGHED_AFTER_S - 0.1)), "another watch may be behind"
    return [each.key.rpartition(" ")[0] for each in law.weighed(WEIGHED_AFTER_S)]


OVER = report(1, operatorAllocated=[GPU])
OF_PARTS = (handed(), handed(partition("a", 0, 3)))
HANDED_OVER = {
    "its GpuNode is deleted": ([OVER, published(2, handed()), made_anew(3), published(4, whole())], ["gpu-0"]),
    "another GPU is decided": (
        [OVER, published(2, handed()), made_anew(3), report(4, decided=(OTHER,)), published(5, whole())],
        ["gpu-0"],
    ),
    "a part of it is new": ([OVER, published(2, *OF_PARTS), published(3, *OF_PARTS, partition("b", 4, 7))], ["b"]),
    "its slices are made anew": ([OVER, published(2, handed()), ("slice", at(9, a_slice(whole())))], ["gpu-0"]),
    "it is given back": ([OVER, published(2, handed()), report(3), published(4, whole())], []),
    "the agent is behind": (
        [OVER, published(2, handed()), report(3), report(4, operatorAllocated=[GPU]), published(5, whole())],
        [],
    ),
    "the agent was behind": ([OVER, report(2), published(3, handed()), published(4, whole())], []),
    "it is given back too late": ([OVER, published(2, handed()), published(3, whole()), report(4)], ["gpu-0"]),
    "what was given back before says nothing": (
        [report(1), report(2, operatorAllocated=[GPU]), published(3, handed()), published(4, whole())],
        ["gpu-0"],
    ),
    "its board is another": ([OVER, published(2, handed()), published(3, whole(gpu=OTHER))], []),
    "it was never published so": ([OVER, published(2, whole()), published(3, whole())], []),
}


@pytest.mark.parametrize("case", HANDED_OVER)
def test_what_was_handed_over_is_published_so_until_it_is_decided_otherwise(case: str) -> None:
    changes, bare = HANDED_OVER[case]
    assert judged(*changes, made_anew(10)) == [f"node/{device} {OPERATOR_ALLOCATED}" for device in bare]


def test_nothing_is_wrong_as_long_as_the_watch_of_gpu_nodes_is_behind() -> None:
    assert judged(OVER, published(2, handed()), published(4, whole())) == []
    assert judged(OVER, published(2, handed()), published(4, whole()), report(3), made_anew(5)) == []


BY_POLICY = [report(1, ANNOUNCED | {"effect": "Evict", "policy": "p"}, health=[override("Evict", "Xid74")])]
BY_POLICY.append(published(2, having(XID)))
BY_TABLE = [report(1, FALLEN), published(2, having(XID))]
OTHERS = [{"key": f"example.com/{number}", "effect": "NoSchedule"} for number in range(MOST_TAINTS)]
HARMLESS = ANNOUNCED | {"name": "Xid31"}
SICK = {
    "its GpuNode is deleted": ([*BY_POLICY, published(3, whole()), made_anew(4, ANNOUNCED)], True),
    "nobody says yet how it is": ([*BY_POLICY, published(3, whole())], False),
    "what is said of it is older": ([*BY_POLICY, published(5, whole()), made_anew(4, ANNOUNCED)], False),
    "it is well again": ([*BY_POLICY, published(3, whole()), made_anew(4)], False),
    "its fault is another": (
        [*BY_POLICY, published(3, whole()), made_anew(4, ANNOUNCED | {"firstSeen": "later"})],
        False,
    ),
    "it had nothing but what is announced": (
        [report(1, HARMLESS), published(2, having(XID)), published(3, whole()), made_anew(4, HARMLESS)],
        False,
    ),
    "the policy is gone": ([*BY_POLICY, report(3, ANNOUNCED), published(4, whole()), report(5, ANNOUNCED)], False),
    "another fault keeps claims away": (
        [*BY_POLICY, published(3, having("draco.dev/ecc")), made_anew(4, ANNOUNCED)],
        False,
    ),
    "four others leave it no room": (
        [*BY_TABLE, published(3, {**whole(), "taints": OTHERS}), report(4, FALLEN)],
        False,
    ),
    "three others leave it room": (
        [*BY_TABLE, published(3, {**whole(), "taints": OTHERS[1:]}), report(4, FALLEN)],
        True,
    ),
    "without any policy": ([*BY_TABLE, published(3, whole()), report(4, FALLEN)], True),
    "a policy makes it harmless": (
        [*BY_TABLE, report(3, FALLEN, health=[override("Announce")]), published(4, whole()), report(5, FALLEN)],
        False,
    ),
    "only a part of it is sick": (
        [
            report(1, FALLEN | {"instance": 1}),
            published(2, having(XID), having(XID, partition("a", 0, 3))),
            published(3, having(XID), partition("a", 0, 3)),
            report(4, FALLEN | {"instance": 1}),
        ],
        False,
    ),
}


@pytest.mark.parametrize("case", SICK)
def test_what_is_sick_is_published_so_until_it_is_well_or_decided_otherwise(case: str) -> None:
    changes, bare = SICK[case]
    assert judged(*changes) == ([f"node/gpu-0 {XID}"] if bare else [])
