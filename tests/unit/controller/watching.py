"""Gives a view objects as its watches would."""

from typing import Any

from draco.controller.view import ClusterView
from draco.kube.watch.collection import Collection


def collection_of(view: ClusterView, kind: str) -> Collection[Any]:
    """The view's collection of a kind."""
    return view.collections[kind]


def tell(view: ClusterView, *objects: Any) -> None:
    """As if the watch had reported them."""
    for item in objects:
        collection = collection_of(view, type(item).__name__)
        for change in collection.store.put(item):
            for subscriber in collection._subscribers:
                subscriber(change)


def forget(view: ClusterView, item: Any) -> None:
    """As if the watch had reported that it is gone."""
    collection = collection_of(view, type(item).__name__)
    for change in collection.store.remove(item.metadata.key):
        for subscriber in collection._subscribers:
            subscriber(change)
