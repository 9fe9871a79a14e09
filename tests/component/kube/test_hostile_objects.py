"""Objects that tenants write to hide others, as a real API server stores them."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.watch.informer import Informer
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS
from tests.component.kube.support import QUICK, eventually, following


@pytest.fixture
async def emptied(client: Client, namespace: str) -> AsyncIterator[str]:
    """A namespace whose claims are deleted afterwards: some tests list all claims with readers that such claims break."""
    yield namespace
    await client.connection.request("DELETE", CLAIMS.path(namespace=namespace))


async def test_a_claim_that_is_nested_as_deep_as_the_server_takes_it_keeps_no_other_from_being_seen(
    client: Client, emptied: str
) -> None:
    namespace = emptied

    def deep(name: str) -> bytes:
        opaque = '{"driver": "x.example.com", "parameters": {"a": %s}}' % ("[" * 5_000 + "]" * 5_000)
        requests = '[{"name": "a", "exactly": {"deviceClassName": "x"}}]'
        return (
            f'{{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {{"name": "{name}"}},'
            f'"spec": {{"devices": {{"requests": {requests}, "config": [{{"opaque": {opaque}}}]}}}}}}'
        ).encode()

    async def create(name: str) -> None:
        await client.connection.request("POST", CLAIMS.path(namespace=namespace), body=deep(name))

    await create("listed")
    informer = Informer(client, CLAIMS, namespace=namespace, clock=SystemClock(), settings=QUICK)
    async with following(informer):
        await eventually(lambda: sorted(key.name for key in informer.store) == ["listed"], "the first claim is listed")
        await create("watched")
        await eventually(
            lambda: sorted(key.name for key in informer.store) == ["listed", "watched"], "the second one is seen"
        )
        assert informer.counts.failures == 0
    read = await client.get(CLAIMS, ObjectKey(namespace, "watched"))
    assert read.spec.devices.requests[0].name == "a"
    assert read == informer.store.get(ObjectKey(namespace, "watched"))
    assert msgspec.json.decode(msgspec.json.encode(read), type=type(read)) == read, "nor does writing it take a stack"
