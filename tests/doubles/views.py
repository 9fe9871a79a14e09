"""A view with a clock of its own."""

from draco.controller.view import ClusterView
from draco.kube.clock import Clock


class ClockedView(ClusterView):
    """The same view with another clock."""

    def __init__(self, view: ClusterView, clock: Clock) -> None:
        self.__dict__.update(view.__dict__)
        self.clock = clock
