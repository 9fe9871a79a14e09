"""The spec of a GpuNode, planned from what was read."""

from typing import Any

import msgspec

from draco.controller.gpu_nodes.plan import MOST_ISOLATED, overrides_of, plan_spec, promised_devices, sorted_spec
from draco.resources.api.draco import GpuNode, GpuNodeSpec, GpuNodeStatus, IsolatedGpu, MigMode, WantedGpu
from draco.resources.api.health import FaultOverride
from draco.sharing.decide import NodeForms
from tests.builders import a_claim, a_mig_node

NODE = a_mig_node()
UUIDS = sorted(each.uuid for each in NODE.status.gpus)


def planned(node: GpuNode = NODE, **given: Any) -> GpuNodeSpec:
    nothing: dict[str, Any] = {
        "layout": [],
        "promised": [],
        "forms": NodeForms(node="node-0"),
        "isolation": [],
        "overrides": [],
        "repaired": [],
    }
    return plan_spec(node, **{**nothing, "handover": [], **given})


def with_spec(**fields: Any) -> GpuNode:
    return msgspec.structs.replace(NODE, spec=GpuNodeSpec(**fields))


def isolated(request: str) -> IsolatedGpu:
    return IsolatedGpu(request=request, uuid="GPU-1", device="gpu-1", key="k", effect="NoSchedule")


def test_a_spec_is_about_the_gpus_that_the_agent_reports() -> None:
    assert planned().decided == UUIDS
    silent = msgspec.structs.replace(with_spec(decided=["before"]), status=GpuNodeStatus())
    assert planned(silent).decided == ["before"]


def test_the_hand_over_stays_as_it_is_while_it_is_not_known() -> None:
    before = with_spec(operator_allocated=UUIDS[:1], decided=["before"])
    assert planned(before, handover=None) == GpuNodeSpec(operator_allocated=UUIDS[:1], decided=["before"])
    assert planned(before, handover=[]) == GpuNodeSpec(decided=UUIDS)


def test_equal_plans_are_equal_specs_in_whatever_order_they_were_read() -> None:
    gpus = [WantedGpu(uuid=uuid, policy="p", mode=MigMode.DISABLED) for uuid in UUIDS]
    isolation = [isolated(name) for name in ("b", "a")]
    first = planned(layout=gpus, isolation=isolation, handover=UUIDS)
    again = planned(layout=gpus[::-1], isolation=isolation[::-1], handover=UUIDS[::-1])
    assert first == again == sorted_spec(again)


def test_no_more_is_isolated_than_the_schema_takes() -> None:
    isolation = [isolated(f"r-{number:04}") for number in range(MOST_ISOLATED)]
    assert planned(isolation=[isolated("r-last"), *isolation]).isolated == isolation


def test_an_override_stays_where_its_policy_exists_and_has_not_arrived() -> None:
    kept, gone = (FaultOverride(uuid="GPU-1", fault="Xid79", policy=policy) for policy in ("late", "gone"))
    node = with_spec(health=[kept, gone])
    assert overrides_of(node, [], {"late"}) == [kept]
    decided = FaultOverride(uuid="GPU-1", fault="Xid79", policy="first")
    assert overrides_of(node, [decided], {"late"}) == [decided], "a policy that is here decides about the same fault"


def test_devices_of_other_nodes_are_not_promised() -> None:
    claims = [a_claim(on=[f"gpu.nvidia.com/{pool}/gpu-0"]) for pool in ("elsewhere", "node-1")]
    assert promised_devices(NODE, [], claims) == []
