"""The options of `draco operator`."""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from click.testing import CliRunner

from draco.cli import operator
from draco.controller.settings import OperatorSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[OperatorSettings]]:
    """The settings with which the operator would have run."""
    kept: list[OperatorSettings] = []

    async def keep(settings: OperatorSettings, *_: Any, **__: Any) -> None:
        kept.append(settings)

    monkeypatch.setattr(operator, "run_operator", keep)
    yield kept
    structlog.reset_defaults()


def test_the_environment_of_the_chart_is_understood(started: list[OperatorSettings]) -> None:
    environment = {
        "DRACO_NAMESPACE": "gpu-system",
        "DRACO_IDENTITY": "draco-operator-7c9f",
        "DRACO_LISTEN": "0.0.0.0:9090",
        "DRACO_LOG_LEVEL": "warning",
        "DRACO_PENDING_AFTER": "30",
        "DRACO_LEASE_DURATION": "20",
        "DRACO_RENEW_DEADLINE": "12",
        "DRACO_RETRY_PERIOD": "3",
    }
    result = CliRunner().invoke(operator.command, [], env=environment)
    assert result.exit_code == 0, result.output
    (settings,) = started
    assert (settings.namespace, settings.http_host, settings.http_port) == ("gpu-system", "0.0.0.0", 9090)
    assert (settings.lease_duration_s, settings.renew_deadline_s, settings.retry_period_s) == (20, 12.0, 3.0)
    assert settings.pending_after_s == 30.0


def test_two_processes_of_one_name_have_different_identities(started: list[OperatorSettings]) -> None:
    for _ in range(2):
        assert CliRunner().invoke(operator.command, ["--identity", "pod-0"]).exit_code == 0
    first, second = started
    assert first.identity != second.identity
    assert {each.identity.partition("_")[0] for each in started} == {"pod-0"}


def test_a_lease_that_could_have_two_leaders_is_refused(started: list[OperatorSettings]) -> None:
    result = CliRunner().invoke(operator.command, ["--lease-duration", "5"])
    assert result.exit_code == 2
    assert "--lease-duration (5 s) must be longer than --renew-deadline (10 s)" in result.output
    assert started == []
