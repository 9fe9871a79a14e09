"""What an operator reports about itself."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from draco.controller.metrics import OperatorMetrics
from draco.controller.self_report import SelfReport
from draco.controller.settings import OperatorSettings
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from tests.doubles.clock import ManualClock


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ("PodDisruptionBudget", "the operator list and watch poddisruptionbudgets"),
        ("Job", "the operator list and watch jobs"),
    ],
)
def test_what_may_not_be_watched_is_a_trouble_until_something_is_heard_of_it(kind: str, right: str) -> None:
    view = ClusterView(cast("Client", None), None, clock=ManualClock(), allocates=True)
    made: Any = SimpleNamespace(fences=SimpleNamespace(troubles=list), allocation=None)
    report = SelfReport(OperatorSettings(identity="a"), view, made, OperatorMetrics(), election=cast("Any", None))
    assert report.troubles() == []
    view.collections[kind].forbidden = True
    (trouble,) = report.troubles()
    assert right in trouble
    view.collections[kind].heard()
    assert report.troubles() == []
