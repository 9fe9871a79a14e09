"""Events recorded before an operator is told to stop are still posted, and the next leader does not wait for that."""

from draco.kube.connect.client import Client
from draco.kube.events.shares import EventReason
from draco.resources.api.core import ObjectReference
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import EVENTS, LEASES
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import an_operator, settings_for_test, until


async def test_a_leader_that_ends_gives_up_its_lease_and_posts_its_last_events(
    served: ControlPlane, crds: None, client: Client, namespace: str
) -> None:
    settings = settings_for_test()
    lease = ObjectKey(settings.namespace, settings.lease_name)

    async def free() -> bool:
        return not (await client.get(LEASES, lease)).spec.holder_identity

    async def no_event_before(_: str, path: str) -> None:
        if f"/namespaces/{namespace}/events" in path:
            await until(free, what="another's turn to lead")

    async with an_operator(served, settings, before_requests=no_event_before) as (operator, _):

        async def leads() -> bool:
            return operator.election.leading

        await until(leads, what="the lead")
        for number in range(10):
            pod = ObjectReference(
                api_version="v1", kind="Pod", name=f"p-{number}", namespace=namespace, uid=f"{number}"
            )
            operator.reconcilers.events.record(pod, EventReason("PodEvicted", "Draining"), "Evicted.")
    said = await client.list(EVENTS, namespace=namespace)
    assert {each.involved_object.name for each in said if each.involved_object} == {f"p-{n}" for n in range(10)}
