"""Members of a group with only Draco's scheduling gate count as members without a gate; those with another gate do not count."""

import pytest

from draco.allocation.ownership.losses import standing
from draco.controller.allocation.gang_reading import Gangs
from draco.controller.allocation.reclaiming.useless import UselessAllocations
from draco.resources.api.core import Pod, PodStatus
from tests.builders import a_claim, a_pod
from tests.unit.controller.allocation.test_waiting_groups import GPU, LABELS, SIZE, World
from tests.unit.controller.watching import tell

OWN, OTHERS = "draco.dev/allocation", "example.com/admission"


def member(name: str, *gates: str) -> Pod:
    status = PodStatus(phase="Pending")
    return a_pod(name, claims=[name], labels=LABELS, annotations=SIZE, gates=gates, status=status)


@pytest.mark.parametrize(("gate", "unready"), [(OWN, ""), (OTHERS, "pod b has a scheduling gate")])
def test_a_group_gets_its_devices_unless_another_gate_holds_a_member(gate: str, unready: str) -> None:
    world = World(GPU)
    claims = [a_claim(pod, device_class="gpu", made_for=(pod, "gpu")) for pod in "ab"]
    world.put(member("a", OWN), member("b", gate), *claims)
    found = world.group()
    assert unready in found.unready
    assert bool(found.unready) is bool(unready)


@pytest.mark.parametrize(("gate", "useless"), [(OWN, []), (OTHERS, ["a", "b"])])
def test_what_a_group_has_is_of_no_use_while_another_gate_holds_a_member(gate: str, useless: list[str]) -> None:
    world = World(GPU)
    gangs = Gangs(world.view)
    found = UselessAllocations(world.view, gangs, in_flight=lambda _: False, refused=lambda _: False)
    found.follow()
    claims = [a_claim(name, device_class="gpu", on=[f"node-0/gpu-{name}"], reserved_for=()) for name in "ab"]
    tell(world.view, *claims, member("a", OWN), member("b", gate))
    assert sorted(claim.metadata.name for claim, _ in found.found()) == useless


@pytest.mark.parametrize(("gate", "waiting"), [(OWN, 1), (OTHERS, 0)])
def test_a_running_group_waits_for_a_member_that_no_other_gate_holds(gate: str, waiting: int) -> None:
    claims = {each.metadata.key: each for each in (a_claim("a", on=["node-0/gpu-0"]), a_claim("b"))}
    runs = a_pod("a", claims=["a"], node="node-0", labels=LABELS, annotations=SIZE)
    assert standing(2, [runs, member("b", gate)], claims.get, {}).waiting == waiting
