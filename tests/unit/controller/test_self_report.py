"""What an operator reports about itself."""

from types import SimpleNamespace
from typing import Any, cast

from draco.controller.metrics import OperatorMetrics
from draco.controller.self_report import SelfReport
from draco.controller.settings import OperatorSettings
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from tests.doubles.clock import ManualClock


def test_budgets_that_may_not_be_watched_are_a_trouble_until_something_is_heard_of_them() -> None:
    view = ClusterView(cast("Client", None), None, clock=ManualClock())
    made: Any = SimpleNamespace(fences=SimpleNamespace(troubles=list), allocation=None)
    report = SelfReport(OperatorSettings(identity="a"), view, made, OperatorMetrics(), election=cast("Any", None))
    assert report.troubles() == []
    view.disruption_budgets.forbidden = True
    (trouble,) = report.troubles()
    assert "the operator list and watch poddisruptionbudgets" in trouble
    view.disruption_budgets.heard()
    assert report.troubles() == []
