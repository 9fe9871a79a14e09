"""The laws of shares: no device is given out beyond its capacities, and its form is that of the claims that hold it."""

from typing import Any

import pytest

from tests.adversary.cluster.observer import laws
from tests.adversary.cluster.observer.hardware import given_twice, spec_of
from tests.adversary.cluster.observer.shares import (
    beyond_what_is_published,
    otherwise_shared,
    over_committed,
    waits_for_nobody,
)
from tests.adversary.cluster.observer.world import amount
from tests.adversary.cluster.test_observer import Document, a_claim, a_slice, a_world, partition, whole


def shareable(memory: str = "80Gi", **more: Any) -> Document:
    return whole(allowMultipleAllocations=True, capacity={"memory": {"value": memory}}, **more)


def a_share(number: int, memory: str = "40Gi", **more: Any) -> tuple[str, Document]:
    consumed = {"memory": memory}
    return "claim", a_claim(number, "gpu-0", shareID=f"s{number}", consumedCapacity=consumed, **more)


@pytest.mark.parametrize(("amounts", "is_wrong"), [(("40Gi", "40Gi"), False), (("40Gi", "40Gi", "1"), True)])
def test_claims_have_no_more_of_a_device_than_there_is(amounts: tuple[str, ...], is_wrong: bool) -> None:
    shares = [a_share(number, memory) for number, memory in enumerate(amounts)]
    world = a_world(("slice", a_slice(shareable())), *shares)
    assert bool(list(over_committed(world))) is is_wrong
    assert bool(list(beyond_what_is_published(world))) is is_wrong
    assert not list(laws.held_twice(world))


def test_a_device_that_shrinks_under_its_claims_is_beyond_what_is_published_and_not_over_committed() -> None:
    world = a_world(("slice", a_slice(shareable())), a_share(1), a_share(2))
    later = a_slice(shareable("79Gi"), generation=2)
    world.slices["slice-node-1"] = later
    world.names.learn(later)
    assert not list(over_committed(world))
    assert "have 85899345920 of memory" in next(beyond_what_is_published(world)).text


def test_a_share_of_a_device_that_another_claim_has_alone_is_held_twice() -> None:
    world = a_world(("slice", a_slice(shareable())), a_share(1), ("claim", a_claim(2, "gpu-0")))
    assert list(laws.held_twice(world))


@pytest.mark.parametrize("is_shareable", [True, False])
def test_the_form_of_a_device_is_that_of_its_claims(is_shareable: bool) -> None:
    device = shareable() if is_shareable else whole()
    claims = [a_share(1), ("claim", a_claim(2, "gpu-0"))]
    for claim, is_wrong in zip(claims, (not is_shareable, is_shareable), strict=True):
        assert bool(list(otherwise_shared(a_world(("slice", a_slice(device)), claim)))) is is_wrong


def test_a_gpu_that_waits_to_be_shared_otherwise_is_in_use() -> None:
    taint = {"key": "draco.dev/unsettled", "value": "Sharing", "effect": "NoSchedule"}
    slices = ("slice", a_slice(shareable(taints=[taint]), partition("gpu-0-mig-1g10gb-19-0", 0, 0)))
    assert list(waits_for_nobody(a_world(slices)))
    assert not list(waits_for_nobody(a_world(slices, a_share(1))))
    assert not list(waits_for_nobody(a_world(slices, ("claim", a_claim(1, "gpu-0-mig-1g10gb-19-0")))))


def a_spec(uid: str, *, share: str = "") -> Document:
    edits = {"env": ["DRACO_DEVICE_GPU_0=GPU-0"], "deviceNodes": [{"path": "/dev/nvidia0"}]}
    return {"devices": [{"name": f"gpu-0-{uid}{share}", "containerEdits": edits}]}


def test_only_claims_of_shares_are_given_the_same_board() -> None:
    one, other, alone = (
        spec_of("node", uid, a_spec(uid, share=share)) for uid, share in (("a", "-s1"), ("b", "-s2"), ("c", ""))
    )
    assert not list(given_twice([one, other], ()))
    assert list(given_twice([one, alone], ()))


def test_amounts_are_read_as_kubernetes_writes_them() -> None:
    assert [amount(each) for each in ("1", "10Gi", "81559Mi", "2k", "1e3")] == [1, 10 << 30, 81559 << 20, 2000, 1000]
