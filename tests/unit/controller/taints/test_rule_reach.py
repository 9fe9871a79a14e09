"""The reach of rules: counted pool by pool as things change, equal to a full count, and never computed during a scrape."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draco.controller.loop_watch import TURN_S
from draco.controller.metrics import OperatorMetrics
from draco.controller.taints import reach as rule_reach
from draco.controller.taints.reach import NAMED_RULES, OTHERS, RuleReach, register_reach
from draco.controller.view import ClusterView
from draco.kube.watch.collection import Collection
from draco.maintenance.taint_impact import TaintAmounts
from draco.maintenance.taint_rules import extension_for, plan_extensions, rule_for
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import TAINT_RULES
from draco.resources.names import NVIDIA_DRIVER, PoolKey
from tests.builders import a_claim, a_device_key, a_maintenance, a_pod, a_rule, a_slice
from tests.doubles.clock import ManualClock
from tests.doubles.views import ClockedView
from tests.unit.controller.test_view import a_view

OTHER = "gpu.example.com"
PARTS = [f"gpu-0-mig-1g10gb-19-{start}" for start in range(7)]


def put(informer: Collection[Any], *objects: Any) -> None:
    for obj in objects:
        informer._publish(informer.store.put(obj))


def drop(informer: Collection[Any], obj: Any) -> None:
    informer._publish(informer.store.remove(obj.metadata.key))


async def rows(reach: RuleReach) -> dict[str, TaintAmounts]:
    await reach.catch_up()
    return {rule: amounts for (rule, _), amounts in reach.rows.items()}


async def test_the_reach_of_a_rule_is_its_devices_their_claims_and_their_pods() -> None:
    view = a_view()
    reach = RuleReach(view)
    put(view.slices, a_slice("node-0", ["gpu-0", "gpu-1"]), a_slice("node-1", ["gpu-0"], driver=OTHER))
    put(view.claims, a_claim("train", on=["node-0/gpu-0"]), a_claim("look", on=["node-0/gpu-0"], admin_access=True))
    put(view.pods, *(a_pod(name, claims=["train"], node="node-0") for name in ("one", "two")))
    nothing = a_rule("nothing")
    nothing = msgspec.structs.replace(nothing, spec=msgspec.structs.replace(nothing.spec, device_selector=None))
    put(
        view.rules,
        a_rule("pool", driver=NVIDIA_DRIVER, pool="node-0"),
        a_rule("all"),
        a_rule("name", device="gpu-0"),
        nothing,
    )
    assert await rows(reach) == {"pool": (2, 1, 2), "all": (3, 1, 2), "name": (2, 1, 2)}


async def test_a_rule_on_a_gpu_reaches_the_claims_on_its_partitions_and_its_extensions_are_no_rules_of_their_own() -> (
    None
):
    view = a_view()
    reach = RuleReach(view)
    put(view.slices, a_slice("node-0", ["gpu-0", "gpu-1", *PARTS[:4]]))
    put(view.claims, *(a_claim(f"on-{number}", on=[f"node-0/{PARTS[number]}"]) for number in range(7)))
    rule = a_rule("broken", driver=NVIDIA_DRIVER, pool="node-0", device="gpu-0")
    made = plan_extensions(rule, (), view.hardware(PoolKey(NVIDIA_DRIVER, "node-0")), kind=TAINT_RULES[0]).apply
    put(view.rules, rule, *made)
    assert await rows(reach) == {"broken": (5, 7, 0)}  # includes claims on devices that are no longer published


async def test_a_rule_on_a_partition_that_is_gone_reaches_what_its_extensions_taint() -> None:
    view = a_view()
    reach = RuleReach(view)
    larger = a_device_key("node-0/gpu-0-mig-3g40gb-9-0")
    put(view.slices, a_slice("node-0", [larger.device]))
    put(view.claims, a_claim("on-it", on=[str(larger)]))
    rule = a_rule("bad-slice", driver=NVIDIA_DRIVER, pool="node-0", device=PARTS[0])
    put(view.rules, rule)
    assert await rows(reach) == {"bad-slice": (0, 0, 0)}
    extension = extension_for(rule, larger, kind=TAINT_RULES[0])
    put(view.rules, extension)
    assert await rows(reach) == {"bad-slice": (1, 1, 0)}
    drop(view.rules, extension)
    assert await rows(reach) == {"bad-slice": (0, 0, 0)}


async def test_what_reaches_over_two_pools_is_counted_once() -> None:
    view = a_view()
    reach = RuleReach(view)
    put(view.rules, a_rule("all"))
    both, more = a_claim("both", on=["node-0/gpu-0", f"{OTHER}/node-0/nic-0"]), a_claim("more", on=["node-1/gpu-0"])
    put(view.claims, both, more)
    put(view.pods, a_pod("pod", claims=["both", "more"]))
    assert await rows(reach) == {"all": (0, 2, 1)}
    drop(view.claims, both)
    assert await rows(reach) == {"all": (0, 1, 1)}


async def test_what_an_agent_has_not_replaced_yet_is_still_reached() -> None:
    view = a_view()
    reach = RuleReach(view)
    put(view.slices, *(a_slice(devices=[each], name=each, of=2) for each in ("gpu-0", "gpu-1")))
    put(view.rules, a_rule("pool", driver=NVIDIA_DRIVER, pool="node-0"), a_rule("all"))
    assert await rows(reach) == {"pool": (2, 0, 0), "all": (2, 0, 0)}
    put(view.slices, a_slice(devices=["gpu-0"], name="gpu-0", of=2, generation=2))
    assert await rows(reach) == {"pool": (2, 0, 0), "all": (2, 0, 0)}
    put(view.slices, a_slice(devices=[], name="gpu-1", of=2, generation=2))
    assert await rows(reach) == {"pool": (1, 0, 0), "all": (1, 0, 0)}


async def test_a_change_costs_its_own_pool_only(monkeypatch: pytest.MonkeyPatch) -> None:
    view = a_view()
    reach = RuleReach(view)
    put(view.slices, *(a_slice(f"node-{number}") for number in range(50)))
    put(view.rules, a_rule("all"))
    await reach.catch_up()
    counted: list[PoolKey] = []
    amounts = RuleReach._amounts

    def counting(self: RuleReach, selection: Any, pool: PoolKey) -> TaintAmounts:
        counted.append(pool)
        return amounts(self, selection, pool)

    monkeypatch.setattr(RuleReach, "_amounts", counting)
    put(view.claims, a_claim("new", on=["node-7/gpu-0"]))
    assert await rows(reach) == {"all": (100, 1, 0)}
    assert counted == [PoolKey(NVIDIA_DRIVER, "node-7")]


async def test_a_scrape_reads_what_is_known_and_counts_nothing() -> None:
    view, metrics = a_view(), OperatorMetrics()
    reach = RuleReach(view)
    register_reach(metrics, reach)
    put(view.slices, a_slice("node-0"))
    put(view.rules, a_rule("broken", driver=NVIDIA_DRIVER))
    labels = {"rule": "broken", "effect": "NoSchedule"}
    assert metrics.registry.get_sample_value("draco_taint_rule_devices", labels) is None
    await reach.catch_up()
    assert metrics.registry.get_sample_value("draco_taint_rule_devices", labels) == 2
    assert metrics.registry.get_sample_value("draco_taint_rule_pods", labels) == 0


async def test_labels_are_bounded_and_peoples_rules_come_first() -> None:
    view = a_view()
    reach = RuleReach(view)
    put(view.slices, a_slice("node-0"))
    put(view.rules, rule_for(a_maintenance(), a_device_key("node-0/gpu-1")))
    put(view.rules, *(a_rule(f"rule-{number:03}", pool="node-0") for number in range(NAMED_RULES + 10)))
    found = await rows(reach)
    assert set(found) == {*(f"rule-{number:03}" for number in range(NAMED_RULES)), OTHERS}
    assert found[OTHERS].devices == 10 * 2 + 1


async def test_it_follows_by_itself_and_rests_after_hard_work() -> None:
    view, clock = a_view(), ManualClock()
    reach = RuleReach(ClockedView(view, clock))
    task = asyncio.create_task(reach.run())
    try:
        await clock.advance(0)
        put(view.slices, a_slice("node-0"))
        put(view.rules, a_rule("all"))
        await clock.advance(0)
        assert reach.rows["all", "NoSchedule"].devices == 2
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class CountedWork(ManualClock):
    """Time passes with the work done, so that how long the loop is held does not depend on the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.worked_s = 0.0
        for owner, name in ((RuleReach, "_amounts"), (rule_reach, "_selection")):
            monkeypatch.setattr(owner, name, self._taking_time(getattr(owner, name)))

    def _taking_time(self, function: Callable[..., object]) -> Callable[..., object]:
        def slow(*args: object) -> object:
            self.worked_s += 0.001
            return function(*args)

        return slow

    def monotonic(self) -> float:
        return self.worked_s


@pytest.mark.parametrize("rules", [1, 2000])
async def test_others_have_the_loop_while_many_rules_are_counted_on_many_devices(
    rules: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, work = a_view(), CountedWork(monkeypatch)
    reach = RuleReach(ClockedView(view, work))
    put(view.slices, *(a_slice(f"node-{number}", [f"gpu-{n}" for n in range(8)]) for number in range(400)))
    exact = [{"driver": NVIDIA_DRIVER, "pool": f"node-{number % 400}", "device": "gpu-3"} for number in range(rules)]
    put(view.rules, *(a_rule(f"rule-{number}", **each) for number, each in enumerate(exact)), a_rule("all"))
    longest_s, done = 0.0, asyncio.create_task(reach.catch_up())
    while not done.done():
        before_s = work.worked_s
        await asyncio.sleep(0)
        longest_s = max(longest_s, work.worked_s - before_s)
    await done
    assert work.worked_s >= 0.4, "each pool was counted"
    assert longest_s <= TURN_S + 0.002, "a turn of the loop ends when its time is over"


DEVICES = ["node-0/gpu-0", "node-0/gpu-1", f"node-0/{PARTS[0]}", f"{OTHER}/node-0/gpu-0", "node-1/gpu-0"]
SELECTORS: list[dict[str, str]] = [
    {},
    {"driver": NVIDIA_DRIVER},
    {"device": "gpu-0"},
    {"driver": NVIDIA_DRIVER, "pool": "node-0"},
    {"driver": NVIDIA_DRIVER, "pool": "node-0", "device": "gpu-0"},
    {"driver": NVIDIA_DRIVER, "pool": "node-0", "device": PARTS[0]},
]
NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(
        st.just("slice"),
        st.sampled_from(["node-0", "node-1"]),
        st.sets(st.sampled_from(["gpu-0", "gpu-1", *PARTS[:2]])),
    ),
    st.tuples(st.just("claim"), NAMES, st.sets(st.sampled_from(DEVICES))),
    st.tuples(st.just("pod"), NAMES, st.sets(NAMES)),
    st.tuples(st.just("rule"), NAMES, st.sampled_from(SELECTORS)),
    st.tuples(st.sampled_from(["no slice", "no claim", "no pod", "no rule"]), NAMES, st.none()),
    st.tuples(st.just("count"), st.just(""), st.none()),
)


def take(view: ClusterView, step: tuple[str, str, Any]) -> None:
    what, name, value = step
    match what:
        case "slice":
            put(view.slices, a_slice(name, sorted(value), name=name))
        case "claim":
            put(view.claims, a_claim(name, on=sorted(value)))
        case "pod":
            put(view.pods, a_pod(name, claims=sorted(value)))
        case "rule":
            put(view.rules, a_rule(name, **value))
        case "no slice":
            drop(view.slices, a_slice("node-0", name="node-0"))
        case "no claim":
            drop(view.claims, a_claim(name))
        case "no pod":
            drop(view.pods, a_pod(name))
        case "no rule":
            drop(view.rules, a_rule(name))


def brute_force(view: ClusterView) -> dict[str, TaintAmounts]:
    """The same numbers, computed from everything."""

    def hits(rule: DeviceTaintRule, key: str) -> bool:
        device, selector = a_device_key(key), rule.spec.device_selector
        assert selector is not None
        if selector.matches(device):
            return True
        if not (selector.driver and selector.pool and selector.device) or device[:2] != (
            selector.driver,
            selector.pool,
        ):
            return False
        return view.hardware(PoolKey(*device[:2])).overlap(device.device, selector.device)

    found = {}
    for rule in view.rules.store.values():
        devices = {
            f"{s.spec.driver}/{s.spec.pool.name}/{d.name}" for s in view.slices.store.values() for d in s.spec.devices
        }
        claims = {
            claim.metadata.key
            for claim in view.claims.store.values()
            if any(hits(rule, str(held)) for held in claim.devices_held)
        }
        pods = {pod.metadata.key for pod in view.pods.store.values() if claims & set(pod.claims)}
        found[rule.metadata.name] = TaintAmounts(sum(hits(rule, each) for each in devices), len(claims), len(pods))
    return found


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_counting_change_by_change_is_counting_at_once(steps: list[tuple[str, str, Any]]) -> None:
    async def walk() -> None:
        view = a_view()
        reach = RuleReach(view)
        for step in steps:
            if step[0] == "count":
                await reach.catch_up()
            take(view, step)
        assert await rows(reach) == brute_force(view)

    asyncio.run(walk())
