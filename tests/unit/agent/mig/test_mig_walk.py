"""A long random life of a divided GPU: claims come and go, NVML fails, others divide it by hand, driver and agent restart."""

from pathlib import Path
from random import Random
from typing import Literal

import pynvml
import pytest

from draco.agent.claims import recovery
from draco.agent.errors import PrepareError
from draco.agent.hardware.gpus import Use
from draco.agent.record.contents import InstanceState
from draco.mig.keeping import KeptInstances
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus.state import StateError
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

PLACES = [(19, start) for start in range(7)] + [
    (14, 0),
    (14, 2),
    (14, 4),
    (9, 0),
    (9, 4),
    (5, 0),
    (0, 0),
    (15, 2),
    (15, 6),
]
PROFILES = {19: "1g.10gb", 14: "2g.20gb", 9: "3g.40gb"}
CHANGES = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceGetGpuInstances",
)
ACTS = {"prepare": 40, "unprepare": 40, "fail": 20, "hand": 10, "usurp": 4, "restart": 5, "reload": 3}
CODES = (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_INVALID_STATE, pynvml.NVML_ERROR_IN_USE)


class Life:
    """The life of one node, and what kubelet was told."""

    def __init__(self, folder: Path, seed: int) -> None:
        build(folder)
        self.random = Random(seed)
        self.folder = folder
        self.told: set[str] = set()
        self.foreign: set[str] = set()
        self.claims = {
            name: a_mig_claim(name, *names(self.random.sample(PLACES, self.random.choice((1, 1, 2)))))
            for name in (f"claim-{number}" for number in range(6))
        }
        self.node = MigNode(folder)

    def step(self) -> None:
        name = self.random.choice(sorted(self.claims))
        act = self.random.choices(list(ACTS), list(ACTS.values()))[0]
        try:
            getattr(self, act)(name)
        except PrepareError:
            return

    def prepare(self, name: str) -> None:
        self.node.prepare(self.claims[name])
        self.told.add(name)

    def unprepare(self, name: str) -> None:
        self.told.discard(name)
        self.node.unprepare(self.claims[name])

    def fail(self, _name: str) -> None:
        effects: tuple[Literal["none"], Literal["done"]] = ("none", "done")
        effect = self.random.choice(effects)
        faults.fail(self.node.path, self.random.choice(CHANGES), self.random.choice(CODES), times=1, effect=effect)

    def hand(self, _name: str) -> None:
        faults.stop_failing(self.node.path)
        if self.foreign and self.random.random() < 0.5:
            uuid = self.foreign.pop()
            [one] = [one for one in self.node.hardware().instances if any(part.uuid == uuid for part in one.compute)]
            by_hand.destroy_instance(self.node.path, 0, one.id)
            return
        profile, start = self.random.choice([place for place in PLACES if place[0] in PROFILES])
        try:
            self.foreign.add(by_hand.create_instance(self.node.path, 0, PROFILES[profile], start=start).uuid)
        except StateError:
            return  # taken

    def usurp(self, _name: str) -> None:
        """Somebody destroys an instance of Draco's and creates the same again."""
        faults.stop_failing(self.node.path)
        ours = [one for one in self.node.hardware().instances if one.compute and one.profile_id in PROFILES]
        ours = [one for one in ours if one.compute[0].uuid not in self.foreign]
        if ours:
            one = self.random.choice(ours)
            by_hand.destroy_instance(self.node.path, 0, one.id)
            self.foreign.add(by_hand.create_instance(self.node.path, 0, PROFILES[one.profile_id], start=one.start).uuid)

    def restart(self, _name: str) -> None:
        self.node = MigNode(self.folder)
        self.node.keep = KeptInstances(counts={19: self.random.choice((0, 1))})

    def reload(self, _name: str) -> None:
        faults.stop_failing(self.node.path)
        faults.reload_driver(self.node.path)
        self.foreign.clear()
        self.node = MigNode(self.folder)

    def check(self) -> None:
        """With all failures ended: every instance is explained, prepared claims keep theirs, and others' are untouched."""
        faults.stop_failing(self.node.path)
        self.node.now_s += 600  # the longest backoff of a GPU after failures
        node = self.node
        node.layouts.keep(node.uuid)
        recovery.respec(node.record, node.cdi, node.instances, gpus=node.gpus)  # as the agent does after work on a GPU
        held = {claim.name: claim for claim in node.record.claims.values()}
        assert self.told <= set(held)
        assert all(one.state is InstanceState.MADE for one in node.record.instances.values())
        on_board = {part.uuid for one in node.hardware().instances for part in one.compute}
        assert len(on_board) == len(node.hardware().instances)
        division = node.mig.divisions[node.uuid]
        assert not division.dirty, division.message
        assert {one.instance.uuid for one in division.foreign} == self.foreign
        uuids = [
            device.partition.uuid
            for name in self.told
            for device in held[name].devices
            if device.partition and device.key not in division.missing
        ]
        assert len(uuids) == len(set(uuids))
        assert set(uuids) == {one.instance.uuid for one in division.held if one.use is Use.CLAIM}


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_every_instance_is_explained(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    for _ in range(12):
        for _ in range(10):
            life.step()
        life.check()
