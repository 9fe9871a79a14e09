"""What a view knows, given to it as its watches would."""

from typing import Any

from draco.controller.view import ClusterView
from draco.kube.watch.collection import Collection


def collection_of(view: ClusterView, kind: str) -> Collection[Any]:
    """What the view knows of a kind."""
    collections: dict[str, Collection[Any] | None] = {
        "GpuNode": view.gpu_nodes,
        "Node": view.nodes,
        "ResourceSlice": view.slices,
        "MigPolicy": view.mig_policies,
        "HealthPolicy": view.health_policies,
        "DeviceMaintenance": view.maintenances,
        "DeviceTaintRule": view.rules,
        "DeviceClass": view.classes,
        "ResourceClaim": view.claims,
        "Pod": view.pods,
        "PodGroup": view.pod_groups,
    }
    found = collections[kind]
    assert found is not None
    return found


def tell(view: ClusterView, *objects: Any) -> None:
    """As if the watch had told of them."""
    for item in objects:
        collection = collection_of(view, type(item).__name__)
        for change in collection.store.put(item):
            for subscriber in collection._subscribers:
                subscriber(change)


def forget(view: ClusterView, item: Any) -> None:
    """As if the watch had told that it is gone."""
    collection = collection_of(view, type(item).__name__)
    for change in collection.store.remove(item.metadata.key):
        for subscriber in collection._subscribers:
            subscriber(change)
