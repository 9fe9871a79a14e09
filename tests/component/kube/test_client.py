"""Typed calls against a real API server."""

import pytest

from draco.kube import errors
from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaimConsumerReference, ResourceClaimStatus
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import CLAIMS, PODS, SLICES, Kind
from tests.builders import a_claim, a_slice
from tests.component.kube.support import CONFIG_MAPS, ConfigMap, a_config_map
from tests.doubles.faultproxy import FaultProxy, answer, continued_lists, lists


async def test_what_is_created_is_returned_as_stored_and_can_be_read(client: Client, namespace: str) -> None:
    made = await client.create(CONFIG_MAPS, a_config_map(namespace, "a", text="hello"))
    assert made.metadata.uid
    assert made.data == {"text": "hello"}
    assert await client.get(CONFIG_MAPS, ObjectKey(namespace, "a")) == made


async def test_errors_are_typed_and_carry_the_servers_words(client: Client, namespace: str) -> None:
    key = ObjectKey(namespace, "a")
    with pytest.raises(errors.NotFound, match='configmaps "a" not found'):
        await client.get(CONFIG_MAPS, key)
    with pytest.raises(errors.NotFound):
        await client.delete(CONFIG_MAPS, key)
    made = await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    with pytest.raises(errors.AlreadyExists):
        await client.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    with pytest.raises(errors.Invalid):
        await client.create(CONFIG_MAPS, a_config_map(namespace, "Not A Name"))
    await client.patch(CONFIG_MAPS, key, {"data": {"a": "1"}})
    with pytest.raises(errors.Conflict, match="has been modified"):
        await client.replace(CONFIG_MAPS, key, made)
    with pytest.raises(errors.Conflict, match="UID"):
        await client.delete(CONFIG_MAPS, key, uid="another")
    await client.delete(CONFIG_MAPS, key, uid=made.metadata.uid)


async def test_a_namespaced_object_needs_a_namespace(client: Client) -> None:
    with pytest.raises(ValueError, match=r"ConfigMap needs metadata\.namespace"):
        await client.create(CONFIG_MAPS, ConfigMap(metadata=ObjectMeta(name="a")))


async def test_a_merge_patch_changes_and_removes_fields(client: Client, namespace: str) -> None:
    key = ObjectKey(namespace, "a")
    await client.create(CONFIG_MAPS, a_config_map(namespace, "a", keep="1", drop="2"))
    patched = await client.patch(CONFIG_MAPS, key, {"data": {"drop": None, "new": "3"}})
    assert patched.data == {"keep": "1", "new": "3"}


async def test_a_json_patch_is_refused_when_its_test_fails(client: Client, namespace: str) -> None:
    key = ObjectKey(namespace, "a")
    await client.create(CONFIG_MAPS, a_config_map(namespace, "a", value="1"))
    operations = [
        {"op": "test", "path": "/data/value", "value": "1"},
        {"op": "replace", "path": "/data/value", "value": "2"},
    ]
    assert (await client.patch(CONFIG_MAPS, key, operations)).data == {"value": "2"}
    with pytest.raises(errors.Invalid):
        await client.patch(CONFIG_MAPS, key, operations)


async def test_apply_creates_then_changes_and_gives_up_what_is_no_longer_applied(
    client: Client, namespace: str
) -> None:
    key = ObjectKey(namespace, "a")
    await client.apply(CONFIG_MAPS, key, {"data": {"a": "1", "b": "2"}}, manager="one")
    await client.apply(CONFIG_MAPS, key, {"data": {"c": "3"}}, manager="two")
    assert (await client.apply(CONFIG_MAPS, key, {"data": {"a": "4"}}, manager="one")).data == {"a": "4", "c": "3"}


async def test_apply_takes_a_field_of_another(client: Client, namespace: str) -> None:
    key = ObjectKey(namespace, "a")
    await client.apply(CONFIG_MAPS, key, {"data": {"a": "1"}}, manager="one")
    assert (await client.apply(CONFIG_MAPS, key, {"data": {"a": "2"}}, manager="two")).data == {"a": "2"}


async def test_an_applied_struct_with_a_version_is_refused_when_the_object_has_changed(
    client: Client, namespace: str
) -> None:
    key = ObjectKey(namespace, "a")
    made = await client.apply(CONFIG_MAPS, key, a_config_map(namespace, "a", a="1"), manager="one")
    await client.patch(CONFIG_MAPS, key, {"data": {"b": "2"}})
    stale = ConfigMap(
        metadata=ObjectMeta(name="a", namespace=namespace, resource_version=made.metadata.resource_version),
        data={"a": "3"},
    )
    with pytest.raises(errors.Conflict):
        await client.apply(CONFIG_MAPS, key, stale, manager="one")


async def test_a_claims_status_is_written_through_its_subresource(client: Client, namespace: str) -> None:
    made = await client.create(CLAIMS, a_claim("claim", namespace=namespace))
    key = made.metadata.key
    patch = {
        "metadata": {"resourceVersion": made.metadata.resource_version},
        "status": {
            "allocation": {"devices": {"results": []}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "uid-1"}],
        },
    }
    await client.patch(CLAIMS, key, patch, subresource="status")
    stored = await client.get(CLAIMS, key)
    assert stored.status.reserved_for == [ResourceClaimConsumerReference(resource="pods", name="pod", uid="uid-1")]
    assert stored.spec == made.spec
    with pytest.raises(errors.Conflict):
        await client.patch(CLAIMS, key, patch, subresource="status")
    assert made.status == ResourceClaimStatus()


async def test_a_cluster_scoped_object_needs_no_namespace(client: Client) -> None:
    obj = a_slice("node-for-client-test")
    made = await client.create(SLICES, obj)
    try:
        assert made.spec == obj.spec
        assert made in await client.list(SLICES)
    finally:
        await client.delete(SLICES, made.metadata.key)


async def test_lists_are_limited_by_namespace_and_selectors(client: Client, namespace: str) -> None:
    await client.create(
        CONFIG_MAPS, ConfigMap(metadata=ObjectMeta(name="a", namespace=namespace, labels={"app": "draco"}))
    )
    await client.create(CONFIG_MAPS, a_config_map(namespace, "b"))

    async def listed(**selectors: str) -> list[str]:
        return [obj.metadata.name for obj in await client.list(CONFIG_MAPS, namespace=namespace, **selectors)]

    assert await listed(label_selector="app=draco") == ["a"]
    assert await listed(field_selector="metadata.name=b") == ["b"]
    assert set(await listed()) >= {"a", "b"}


async def test_a_list_longer_than_a_page_is_whole_even_when_its_token_expires(
    client: Client, through: Client, proxy: FaultProxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draco.kube.connect.client.PAGE_SIZE", 1)  # then 4, then the rest
    for number in range(10):
        await client.create(CONFIG_MAPS, a_config_map(namespace, f"cm-{number}"))
    selector = "metadata.name!=kube-root-ca.crt"
    assert len(await through.list(CONFIG_MAPS, namespace=namespace, field_selector=selector)) == 10
    assert proxy.count(lambda query: "continue" in query) == 2
    proxy.fault(continued_lists, answer(410, "Expired"))
    assert len(await through.list(CONFIG_MAPS, namespace=namespace, field_selector=selector)) == 10
    proxy.fault(lists, answer(410, "Expired"))
    with pytest.raises(errors.Expired):
        await through.list(CONFIG_MAPS, namespace=namespace)


async def test_an_eviction_is_posted_to_its_subresource(client: Client, namespace: str) -> None:
    body = {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "absent", "namespace": namespace},
    }  # fmt: skip
    with pytest.raises(errors.NotFound, match='pods "absent" not found'):
        await client.create_subresource(PODS, ObjectKey(namespace, "absent"), "eviction", body)


async def test_a_kind_that_is_not_served_is_not_found(client: Client) -> None:
    with pytest.raises(errors.NotFound):
        await client.list(Kind("absent.example", "v1", "things", "Thing", False, ConfigMap))
