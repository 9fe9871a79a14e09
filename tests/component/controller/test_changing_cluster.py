"""The cluster changes under a running operator: a kind disappears and returns, a served version disappears for good."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web

from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import Process, an_operator, settings_for_test, until
from tests.doubles.faultproxy import FaultProxy, answer

pytestmark = pytest.mark.usefixtures("crds")

ALWAYS = 10**9
GONE = answer(404, "NotFound", message="the server could not find the requested resource")


@pytest.fixture
async def operator(api_server: ControlPlane, proxied: Path, namespace: str, tmp_path: Path) -> AsyncIterator[Process]:
    """An operator process behind the proxy that re-checks cluster features three times a second."""
    options = ("--kubeconfig", str(proxied), "--namespace", namespace, "--log-level", "debug")
    timing = ("--rediscover", "0.3", "--retry-period", "0.3")
    process = await Process.start(api_server, tmp_path, *options, *timing)
    try:
        await until(process.leads, within_s=60, what="leading")
        yield process
    finally:
        await process.kill()


async def test_a_version_that_goes_away_makes_the_operator_start_anew_and_say_why(
    operator: Process, proxy: FaultProxy
) -> None:
    def newest(request: web.Request) -> bool:
        return request.path.startswith("/apis/resource.k8s.io/v1beta2")

    async def starts() -> int:
        return sum(event["event"] == "operator.starting" for event in operator.events())

    async def started_anew() -> bool:
        return await starts() == 2

    proxy.fault(newest, GONE, times=ALWAYS)
    await until(started_anew, within_s=60, what="the new start")
    (told,) = [event["changes"] for event in operator.events() if event["event"] == "cluster.changed"]
    assert "DeviceTaintRule is now served in" in told
    assert told.endswith(" instead of resource.k8s.io/v1beta2")

    async def without_it() -> bool:
        missing = [event for event in operator.events() if event["event"] == "feature.missing"]
        return any(event["feature"] == "DeviceTaintRule" for event in missing) or "v1alpha3" in told

    await until(without_it, what="what is missing now")
    assert await operator.end() == 0


class Proxied(NamedTuple):
    """The part of a control plane's interface that operators need."""

    kubeconfig: Path


async def test_a_kind_that_is_not_served_makes_the_replica_unready_until_it_is(
    proxy: FaultProxy, proxied: Path
) -> None:
    settings = settings_for_test(unserved_after_s=0.3)
    async with an_operator(Proxied(proxied), settings) as (operator, running):

        async def ready() -> bool:
            return not operator.report.not_ready()

        async def unready() -> bool:
            told = operator.report.not_ready()
            return any(each.startswith("MigPolicy: the cluster has not served this kind for") for each in told)

        await until(ready, what="readiness")
        policies = len(operator.view.mig_policies.store)
        proxy.fault(lambda request: "/migpolicies" in request.path, GONE, times=ALWAYS)
        for stream in proxy.open_streams:
            stream.cut()
        await until(unready, what="the reason")
        (told,) = operator.report.not_ready()
        assert told.endswith("apply Draco's CustomResourceDefinitions (crds/)")
        assert len(operator.view.mig_policies.store) == policies
        proxy.heal()
        await until(ready, within_s=60, what="readiness again")
        assert not running.done()
