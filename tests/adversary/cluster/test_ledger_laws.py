"""The laws of faults: faults without taints, taints without faults, and unreported XIDs."""

from typing import Any

import pytest

from tests.adversary.cluster.observer.ledger import DEAF_S, HEARD_WITHIN_S, Accidents, disagreements, still_tainted
from tests.adversary.cluster.observer.world import World
from tests.adversary.cluster.test_observer import GPU, OTHER, a_slice, a_world, partition, whole

Document = dict[str, Any]


def a_gpu_node(*faults: Document, uuid: str = GPU) -> tuple[str, Document]:
    metadata = {"name": "node", "uid": "gpu-node", "resourceVersion": "1"}
    return "gpunode", {
        "metadata": metadata,
        "status": {"gpus": [{"uuid": uuid, "device": "gpu-0", "faults": list(faults)}]},
    }


def a_fault(effect: str = "NoSchedule", family: str = "xid", *, code: int = 48, **more: Any) -> Document:
    return {"family": family, "name": f"Xid{code}", "code": code, "effect": effect, **more}


def of(family: str, device: Document, effect: str = "NoSchedule") -> Document:
    return {**device, "taints": [{"key": f"draco.dev/{family}", "effect": effect}]}


@pytest.mark.parametrize(
    ("fault", "device", "law"),
    [
        (a_fault(), whole(), "fault not tainted"),
        (a_fault("Evict"), whole(), "fault not tainted"),
        (a_fault("NoExecute"), of("ecc", whole()), "fault not tainted"),
        (a_fault("Announce"), whole(), ""),
        (a_fault("Record"), whole(), ""),
        (a_fault(), of("xid", whole()), ""),
        (a_fault("Evict"), of("xid", whole()), ""),
        (a_fault("Record"), of("xid", whole()), "taint without fault"),
        (a_fault("Announce"), of("xid", whole(), "None"), ""),
        (a_fault(), of("xid", partition("a", 0, 3)), ""),
        (a_fault(), partition("a", 0, 3), "fault not tainted"),
        (a_fault(instance=3), partition("a", 0, 3), ""),
        (a_fault(instance=3), whole(), "fault not tainted"),
    ],
)
def test_what_is_said_of_a_gpu_and_what_is_published_of_it_agree(fault: Document, device: Document, law: str) -> None:
    world = a_world(("slice", a_slice(device)), a_gpu_node(fault))
    found = {each.law for each in disagreements(world)}
    assert law in found if law else not found


def test_a_taint_of_another_gpu_is_its_own() -> None:
    published = a_slice(of("xid", whole()), whole("gpu-1", OTHER))
    assert not list(disagreements(a_world(("slice", published), a_gpu_node(a_fault()))))
    assert {each.law for each in disagreements(a_world(("slice", published), a_gpu_node()))} == {"taint without fault"}


@pytest.mark.parametrize("key", ["xid", "maintenance", "agent-lost", "thermal"])
def test_where_all_is_given_back_nothing_is_tainted(key: str) -> None:
    assert list(still_tainted(a_world(("slice", a_slice(of(key, whole()))))))
    assert not list(still_tainted(a_world(("slice", a_slice(of("unsettled", whole()))))))


class Told:
    """A board that reports XID 48, and its agent's report."""

    def __init__(self, world: World | None = None) -> None:
        self.law = Accidents(world or a_world(a_gpu_node()))
        self.law.happened("node", GPU, 48, 0.0)

    def after(self, seconds: float, *, up: bool = True) -> list[str]:
        return [each.law for each in self.law.look(seconds, lambda _: up)]


def test_an_agent_that_listens_hears_of_every_fault() -> None:
    told = Told()
    assert not told.after(HEARD_WITHIN_S - 1.0)
    assert told.after(1.0) == ["fault not heard"]
    assert not Told(a_world(a_gpu_node(a_fault()))).after(HEARD_WITHIN_S)
    assert Told(a_world(a_gpu_node(a_fault(code=79)))).after(HEARD_WITHIN_S), "that is another one"


def test_an_agent_that_is_away_or_a_board_that_was_reset_meanwhile_owes_nothing() -> None:
    assert not Told().after(HEARD_WITHIN_S, up=False)
    reset = Told()
    reset.law.disturbed("node")
    assert not reset.after(HEARD_WITHIN_S)
    deaf = Told()
    deaf.law.disturbed("node")
    deaf.law.reloaded("node", 5.0)
    deaf.law.happened("node", GPU, 48, 4.0 + DEAF_S)
    assert not deaf.after(HEARD_WITHIN_S)
    deaf.law.happened("node", GPU, 48, 5.0 + DEAF_S)
    assert deaf.after(HEARD_WITHIN_S)
    another = Told()
    another.law.disturbed("another")
    assert another.after(HEARD_WITHIN_S)
