"""Which GPUs keep idle instances ahead of claims, judged by what the operator sees of the cluster."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from draco.controller.mig.warm_ahead import KEY, WarmAheadReconciler
from draco.resources.api.draco import (
    GpuMig,
    GpuNode,
    InstanceUse,
    IsolatedGpu,
    MigMode,
    MigPolicy,
    MigReset,
    MigState,
    ProfileCount,
    ResetPermit,
    WantedGpu,
    WarmAhead,
)
from draco.resources.api.meta import Condition, ObjectKey, OwnerReference, TimeWindow
from draco.resources.api.taints import DeviceTaint
from tests.builders import (
    a_claim,
    a_device,
    a_gpu_uuid,
    a_mig_instance,
    a_mig_node,
    a_mig_policy,
    a_node,
    a_rule,
    a_slice,
)
from tests.unit.controller.mig.test_mig_decisions import H100, World

SMALL, LARGE = "1g.10gb", "3g.40gb"
ON = GpuMig(capable=True, enabled=True)
OFF = GpuMig(capable=True)
WINDOW_S = 60
EVENING = TimeWindow(start="22:00", duration="1h")
FIRST, SECOND = a_gpu_uuid("node-0", 0), a_gpu_uuid("node-0", 1)


def a_policy(limit: int = 4, **spec: Any) -> MigPolicy:
    """A policy that wants one idle instance for every two taken in the last minute."""
    ahead = WarmAhead(window="1m", lead_time_seconds=30, limits=[ProfileCount(profile=SMALL, count=limit)])
    return a_mig_policy(**{"warm_ahead": ahead, **spec})


class Lab(World):
    """A node with two H100s, whose GpuNode is written as by the operator."""

    def __init__(self, *gpus: GpuMig, policy: MigPolicy | None = None) -> None:
        super().__init__()
        self.put(a_mig_node(board=H100, gpus=gpus or (ON, ON)), a_node(), policy or a_policy())
        self.reconciler = WarmAheadReconciler(self.view, self.decisions)
        self.writes = 0
        self._claims = 0

    def restart(self) -> None:
        """Start a new process, without memory."""
        fresh = World(self.clock.now())
        fresh.put(*self.view.gpu_nodes.store.values(), *self.view.nodes.store.values())
        fresh.put(*self.view.mig_policies.store.values(), *self.view.claims.store.values())
        self.view, self.decisions, self.clock = fresh.view, fresh.decisions, fresh.clock
        self.reconciler = WarmAheadReconciler(self.view, self.decisions)

    def node(self) -> GpuNode:
        found = self.view.gpu_nodes.store.get(ObjectKey("", "node-0"))
        assert found is not None
        return found

    def report(self, **gpu_0: Any) -> None:
        """Set the agent's report about the first GPU."""
        node = self.node()
        first, *others = node.status.gpus
        assert first.mig is not None
        changed = msgspec.structs.replace(first, mig=msgspec.structs.replace(first.mig, **gpu_0))
        status = msgspec.structs.replace(node.status, gpus=[changed, *others])
        self.put(msgspec.structs.replace(node, status=status))

    def take(self, *devices: str) -> list[str]:
        """Allocate these devices of the node to claims."""
        names = []
        for device in devices:
            self._claims += 1
            names.append(f"claim-{self._claims}")
            claim = a_claim(names[-1], on=[f"node-0/{device}"])
            made = msgspec.structs.replace(claim.metadata, creation_timestamp=self.clock.now())
            self.put(msgspec.structs.replace(claim, metadata=made))
        return names

    def end(self, *names: str) -> None:
        for name in names:
            for change in self.view.claims.store.remove(ObjectKey("default", name)):
                for subscriber in self.view.claims._subscribers:
                    subscriber(change)

    async def kept(self, *, for_s: float = 0, looks: int = 2) -> dict[str, int]:
        """The instances that each GPU is to keep, by device, after they are written.

        The second look corrects what would be too much beside existing instances.
        """
        await self.clock.advance(for_s)
        for _ in range(looks):
            await self.reconciler.reconcile(KEY)
            self.write()
        return self.standing()

    def write(self) -> None:
        decision = self.decisions.of("node-0")
        assert decision is not None
        node = self.node()
        if node.spec.gpus != decision.wanted:
            self.writes += 1
            spec = msgspec.structs.replace(node.spec, gpus=decision.wanted)
            self.put(msgspec.structs.replace(node, spec=spec))

    def standing(self, profile: str = SMALL) -> dict[str, int]:
        devices = {each.uuid: each.device for each in self.node().status.gpus}
        found = {
            devices[gpu.uuid]: each.count
            for gpu in self.node().spec.gpus
            for each in gpu.warm
            if each.profile == profile
        }
        return dict(sorted(found.items()))


def small(gpu: int, start: int) -> str:
    return f"gpu-{gpu}-mig-1g10gb-19-{start}"


async def test_claims_that_come_have_instances_kept_up_to_the_limit() -> None:
    lab = Lab()
    assert await lab.kept() == {}
    lab.take(small(0, 6), small(0, 5))
    assert await lab.kept() == {"gpu-0": 1}
    lab.take(*(small(0, start) for start in range(5)))
    lab.take(*(small(1, start) for start in (6, 5, 4, 3)))
    assert sum((await lab.kept()).values()) == 4


async def test_when_demand_ends_they_go_after_the_window() -> None:
    lab = Lab()
    assert await lab.kept() == {}
    lab.end(*lab.take(small(0, 6), small(0, 5)))
    assert sum((await lab.kept()).values()) == 1
    assert sum((await lab.kept(for_s=WINDOW_S - 1)).values()) == 1
    await lab.kept(for_s=WINDOW_S)
    assert await lab.kept(for_s=WINDOW_S + 5) == {}


async def test_claims_of_other_profiles_and_whole_gpus_do_not_count() -> None:
    lab = Lab()
    assert await lab.kept() == {}
    lab.take("gpu-0-mig-3g40gb-9-0", "gpu-1")
    assert await lab.kept() == {}
    assert dict(lab.decisions.ahead.rates) == {("policy", SMALL): 0}


async def test_claims_of_reservations_do_not_count() -> None:
    lab = Lab()
    assert await lab.kept() == {}
    owner = OwnerReference(
        api_version="draco.dev/v1alpha1", kind="DeviceReservation", name="train", uid="1", controller=True
    )
    claim = a_claim(on=[f"node-0/{small(0, 6)}"])
    owned = msgspec.structs.replace(claim.metadata, owner_references=[owner], creation_timestamp=lab.clock.now())
    lab.put(msgspec.structs.replace(claim, metadata=owned))
    assert await lab.kept() == {}
    assert dict(lab.decisions.ahead.rates) == {("policy", SMALL): 0}
    lab.restart()
    assert await lab.kept() == {}


async def test_a_restart_keeps_what_stands_for_a_window() -> None:
    lab = Lab()
    assert await lab.kept() == {}
    lab.end(*lab.take(small(0, 6), small(0, 5)))
    before = await lab.kept()
    assert sum(before.values()) == 1
    lab.restart()
    lab.write()  # before anything is measured
    assert lab.standing() == before
    assert await lab.kept(for_s=1) == before
    await lab.kept(for_s=WINDOW_S)
    assert await lab.kept(for_s=WINDOW_S + 5) == {}


async def test_a_restart_recalls_the_claims_that_are_there() -> None:
    lab = Lab()
    lab.take(*(small(0, start) for start in (6, 5, 4, 3)))
    lab.restart()
    assert sum((await lab.kept()).values()) == 2


async def test_what_is_kept_leaves_tainted_gpus_alone() -> None:
    lab = Lab()
    names = [small(gpu, start) for gpu in (0, 1) for start in range(7)]
    lab.put(a_slice(devices=[a_device(each) for each in names]))
    lab.take(small(0, 6), small(0, 5))
    assert await lab.kept() == {"gpu-0": 1}
    rules = [a_rule(each, driver="gpu.nvidia.com", pool="node-0", device=each) for each in names[:7]]
    for each in rules[:6]:
        lab.view.rules.store.put(each)
    assert await lab.kept() == {"gpu-0": 1}
    lab.view.rules.store.put(rules[6])
    assert await lab.kept() == {"gpu-1": 1}


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
@pytest.mark.parametrize("whole_pool", [True, False])
async def test_a_rule_about_all_of_a_node_leaves_nothing_there(effect: str, whole_pool: bool) -> None:
    lab = Lab()
    lab.put(a_slice(devices=[a_device(small(0, 0)), a_device(small(1, 0))]))
    lab.take(small(0, 6), small(0, 5))
    lab.view.rules.store.put(a_rule(effect=effect, **({"pool": "node-0"} if whole_pool else {})))
    assert await lab.kept() == {}


async def test_taints_of_slices_count_except_that_draco_allocates() -> None:
    lab = Lab()
    lab.take(small(0, 6), small(0, 5))
    ours = DeviceTaint(key="draco.dev/operator-allocated", effect="NoSchedule")
    lab.put(a_slice(devices=[a_device(small(0, 0), taints=[ours]), a_device(small(1, 0))]))
    assert await lab.kept() == {"gpu-0": 1}
    broken = DeviceTaint(key="draco.dev/unhealthy", effect="NoSchedule")
    lab.put(a_slice(devices=[a_device(small(0, 0), taints=[broken]), a_device(small(1, 0))]))
    assert await lab.kept() == {"gpu-1": 1}


async def test_gpus_under_maintenance_and_cordoned_nodes_keep_none() -> None:
    lab = Lab()
    lab.take(small(0, 6), small(0, 5))
    node = lab.node()
    isolated = [IsolatedGpu(uuid=FIRST, request="swap", key="k", effect="NoExecute")]
    lab.put(msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, isolated=isolated)))
    assert await lab.kept() == {"gpu-1": 1}
    lab.put(a_node(unschedulable=True))
    assert await lab.kept() == {}


async def test_a_gpu_whose_mig_mode_is_off_counts_where_it_may_be_turned_on() -> None:
    lab = Lab(ON, OFF)
    lab.take(small(0, 6), small(0, 5), "gpu-0-mig-4g40gb-5-0", small(0, 4))
    assert await lab.kept() == {"gpu-1": 2}
    node = lab.node()
    ampere = [msgspec.structs.replace(each, architecture="Ampere") for each in node.status.gpus]
    lab.put(msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=ampere)))
    assert await lab.kept() == {}
    lab.put(a_policy(reset=MigReset(permit=ResetPermit.IN_WINDOWS, windows=[EVENING])))
    assert await lab.kept() == {}
    await lab.clock.advance(timedelta(hours=10).total_seconds())
    lab.take(small(0, 6), small(0, 5))
    assert await lab.kept() == {"gpu-1": 1}


async def test_fixed_warm_instances_take_their_room() -> None:
    lab = Lab(ON, policy=a_policy(warm=[ProfileCount(profile=LARGE, count=1)]))
    lab.report(instances=[a_mig_instance("3g.40gb@4", size=4, use=InstanceUse.WARM)])
    lab.take(*(small(0, start) for start in range(2)))
    assert await lab.kept() == {"gpu-0": 1}
    assert lab.standing(LARGE) == {"gpu-0": 1}
    lab = Lab(ON, policy=a_policy(warm=[ProfileCount(profile=LARGE, count=1)]))
    lab.take(*(small(0, start) for start in range(4)))
    assert await lab.kept() == {}
    assert "but there is room for 0" in lab.decisions.ahead.said["policy"]


async def test_what_a_gpu_keeps_that_cannot_be_told_anything_now_counts() -> None:
    lab = Lab(policy=a_policy(limit=1))
    lab.take(small(0, 6), small(0, 5))
    assert await lab.kept() == {"gpu-0": 1}
    node = lab.node()
    first, second = node.status.gpus
    unread = msgspec.structs.replace(
        node.status,
        gpus=[msgspec.structs.replace(first, mig=None), second],
        conditions=[Condition(type="Readable", status="False")],
    )
    lab.put(msgspec.structs.replace(node, status=unread))
    assert await lab.kept() == {"gpu-0": 1}


async def test_a_full_cluster_in_which_claims_come_and_go_is_not_written_to() -> None:
    lab = Lab(policy=a_policy(limit=2))
    holders = {device: lab.take(device)[0] for device in (small(gpu, start) for gpu in (0, 1) for start in range(7))}
    last = holders.pop(small(0, 6))
    lab.end(last)
    assert await lab.kept(for_s=5) == await lab.kept(for_s=5) == {"gpu-0": 1}
    lab.take(small(0, 6))
    await lab.kept(for_s=5)
    before = lab.writes
    for device in [*holders] * 3:
        lab.end(holders[device])
        await lab.kept(for_s=1, looks=1)
        (holders[device],) = lab.take(device)
        await lab.kept(for_s=1, looks=1)
    assert lab.writes == before


async def test_a_gpu_in_use_as_a_whole_gives_up_its_share_only_to_one_that_has_room() -> None:
    lab = Lab(ON, GpuMig(capable=True, enabled=True, state=MigState.DIRTY))
    lab.take(small(0, 6), small(0, 5))
    assert await lab.kept() == {"gpu-0": 1}
    before = lab.writes
    (whole,) = lab.take("gpu-0")
    await lab.kept()
    lab.end(whole)
    assert (await lab.kept(), lab.writes) == ({"gpu-0": 1}, before)


async def test_a_gpu_in_use_as_a_whole_keeps_none_where_another_has_room() -> None:
    lab = Lab()
    lab.take(small(0, 6), small(0, 5))
    assert await lab.kept() == {"gpu-0": 1}
    lab.take("gpu-0")
    assert await lab.kept() == {"gpu-1": 1}


async def test_the_policy_s_status_gives_the_numbers() -> None:
    lab = Lab(policy=a_policy(limit=1))
    told: list[None] = []
    lab.decisions.when_told.add(lambda: told.append(None))
    lab.take(small(0, 6), small(0, 5))
    await lab.kept()
    said = "Wants 1 idle 1g.10gb ready (at most 1) as claims take 2 a minute."
    assert (lab.decisions.ahead.said, len(told)) == ({"policy": said}, 1)
    assert dict(lab.decisions.ahead.rates) == {("policy", SMALL): 2}
    assert dict(lab.decisions.ahead.counts) == {("policy", SMALL): 1}
    await lab.clock.advance(55)
    lab.take(small(0, 4))
    await lab.kept(for_s=3)
    assert len(told) == 1  # another rate gives the same result


async def test_a_policy_without_it_keeps_nothing_of_it() -> None:
    lab = Lab()
    lab.take(small(0, 6), small(0, 5))
    assert await lab.kept() == {"gpu-0": 1}
    lab.put(a_mig_policy())
    assert await lab.kept() == {}
    assert await lab.reconciler.reconcile(KEY) is None


def test_gpus_of_another_policy_s_spec_stand_for_nothing() -> None:
    lab = Lab()
    node = lab.node()
    other = WantedGpu(uuid=SECOND, policy="other", mode=MigMode.DYNAMIC, warm=[ProfileCount(profile=SMALL, count=2)])
    lab.put(msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, gpus=[other])))
    lab.write()
    assert lab.standing() == {}
