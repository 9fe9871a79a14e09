"""Nodes with Draco's claims without a pod are protected from scale-down, under the chart's rights and admission policies."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from draco.allocation.ownership.holds import DO_NOT_DISRUPT, SCALE_DOWN_DISABLED
from draco.controller.allocation.writing import holds
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import Invalid
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, NODES
from draco.resources.names import ANNOTATION_HELD
from tests.component.allocation.lab import ALLOCATING, Guarded, make_claim, until_allocated
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import make_pod, running, until_running

NODE = ObjectKey("", "sim-1")
OURS = {SCALE_DOWN_DISABLED, DO_NOT_DISRUPT, ANNOTATION_HELD}


async def said(client: Client) -> dict[str, str]:
    annotations = (await client.get(NODES, NODE)).metadata.annotations
    return {name: value for name, value in annotations.items() if name in OURS}


async def until_said(client: Client, expected: dict[str, str]) -> None:
    async def look() -> bool:
        return await said(client) == expected

    await until(look, what=f"{expected} on the node")


async def test_a_node_with_a_claim_without_a_pod_is_held_until_a_pod_uses_it_or_it_is_gone(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "RELEASE_AFTER_S", 0.5)
    held = {SCALE_DOWN_DISABLED: "true", ANNOTATION_HELD: SCALE_DOWN_DISABLED, DO_NOT_DISRUPT: "false"}
    async with running(handed_over, folder):
        await handed_over.patch(NODES, NODE, {"metadata": {"annotations": {DO_NOT_DISRUPT: "false"}}})
        async with an_operator(guarded, ALLOCATING):
            for name in ("used", "deleted"):
                await make_claim(handed_over, namespace, name)
                await until_allocated(handed_over, namespace, name)
            await until_said(handed_over, held)
        async with an_operator(guarded, ALLOCATING):  # another operator, which learns only from the Node what was done
            await make_pod(handed_over, namespace, "pod", "used")
            await until_running(handed_over, namespace, "pod")
            assert await said(handed_over) == held
            await handed_over.delete(CLAIMS, ObjectKey(namespace, "deleted"))
            await until_said(handed_over, {DO_NOT_DISRUPT: "false"})


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {"another": "one"}}},
        {"metadata": {"labels": {"another": "one"}}},
        {"metadata": {"annotations": {SCALE_DOWN_DISABLED: "true"}}, "spec": {"unschedulable": True}},
        {"metadata": {"finalizers": ["draco.dev/held"]}},
    ],
)
async def test_the_operators_account_writes_these_annotations_and_nothing_else_of_a_node(
    guarded: Guarded, cluster: Client, folder: Path, change: dict[str, Any]
) -> None:
    await cluster.apply(NODES, NODE, {}, manager="tests")
    async with Client(await connect(guarded.kubeconfig)) as operator:
        tries = map(str, count())

        async def refused() -> bool:
            try:
                await operator.patch(NODES, NODE, {"metadata": {"annotations": {"probe": next(tries)}}})
            except Invalid:
                return True
            return False

        await until(refused, what="the API server goes by the policy")
        with pytest.raises(Invalid, match="the operator may not write"):
            await operator.patch(NODES, NODE, change)
        await operator.patch(NODES, NODE, {"metadata": {"annotations": {SCALE_DOWN_DISABLED: "true"}}})
        await operator.patch(NODES, NODE, {"metadata": {"annotations": {SCALE_DOWN_DISABLED: None}}})
