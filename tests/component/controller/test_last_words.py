"""What an operator has recorded when it is told to stop is posted all the same."""

from draco.kube.connect.client import Client
from draco.resources.api.core import ObjectReference
from draco.resources.kinds import EVENTS
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import an_operator, until


async def test_a_leader_that_ends_posts_its_last_events(
    served: ControlPlane, crds: None, client: Client, namespace: str
) -> None:
    async with an_operator(served) as (operator, _):

        async def leads() -> bool:
            return operator.election.leading

        await until(leads, what="the lead")
        for number in range(10):
            pod = ObjectReference(
                api_version="v1", kind="Pod", name=f"p-{number}", namespace=namespace, uid=f"{number}"
            )
            operator.reconcilers.events.record(
                pod, type="Normal", reason="PodEvicted", action="Draining", note="Evicted."
            )
    said = await client.list(EVENTS, namespace=namespace)
    assert {each.involved_object.name for each in said if each.involved_object} == {f"p-{n}" for n in range(10)}
