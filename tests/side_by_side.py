"""Parallel tests: which stay together, in which order, and what workers report to the main process.

Owns the hooks for pytest-xdist, which `tests/conftest.py` imports. Without workers, tests run as collected.
"""

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.provider import FROM_IMAGE

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

WORKERS = "DRACO_TEST_WORKERS"

REPORTS: list[str] = []
"""Lines that tests report, shown below the results of all workers."""

SHARED = () if FROM_IMAGE else ("tests/e2e/real_nodes", "tests/e2e")
"""Folders whose tests share a cluster that is slow to create. Elsewhere the tests of a file stay together.

If Draco is installed from its image, all clusters are alike: each worker creates one and takes file after file.
"""

SECONDS: dict[str, float] = {
    "tests/e2e": 300,
    "tests/e2e/real_nodes": 180,
    "tests/e2e/real_nodes/test_claims.py": 90,
    "tests/e2e/real_nodes/test_partitions.py": 50,
    "tests/e2e/real_nodes/test_power.py": 45,
    "tests/e2e/real_nodes/test_shares.py": 30,
    "tests/e2e/test_examples.py": 80,
    "tests/e2e/test_installed.py": 40,
    "tests/e2e/test_mig.py": 95,
    "tests/e2e/test_mig_maintenance.py": 60,
    "tests/e2e/test_mig_promises.py": 35,
    "tests/adversary/cluster/test_cluster_machine.py": 70,
    "tests/adversary/cluster/test_rivalry.py": 70,
    "tests/component/chart/test_stolen_tokens.py": 55,
    "tests/differential/test_cel_situations.py": 40,
    "tests/adversary/agent/test_agent_machine.py": 45,
    "tests/differential/test_allocator.py": 50,
    "tests/component/cluster/test_lifecycle.py": 40,
    "tests/component/controller/test_replicas.py": 40,
    "tests/component/chart/test_policies_alone.py": 30,
    "tests/component/chart/test_install.py": 30,
    "tests/component/chart/test_rights_used.py": 20,
    "tests/component/chart/test_helm_on_a_cluster.py": 30,
    "tests/fuzz/test_fuzz.py": 30,
    "tests/component/controller/test_pending_claims.py": 30,
    "tests/component/controller/test_repair.py": 25,
    "tests/component/controller/test_maintenance.py": 25,
    "tests/component/controller/test_parts.py": 25,
    "tests/component/agent/test_kubelet_side.py": 25,
    "tests/component/agent/test_partitions.py": 25,
    "tests/component/cluster/test_mirror.py": 25,
    "tests/differential/test_cel.py": 25,
    "tests/component/kube/test_informer.py": 20,
    "tests/component/chart/test_profiles.py": 15,
    "tests/component/chart/test_chart.py": 15,
    "tests/unit/agent/mig/test_mig_crash.py": 15,
    "tests/unit/explanation/test_kept.py": 10,
}
"""Seconds of groups whose number of tests does not tell. The longest start first, so that workers end together."""

A_TEST_S = 0.03

API_SERVERS = 2
"""How many workers run tests on an API server. Each has its own, which costs as much as many tests."""

_ON = " on "


def group_of(test: str) -> str:
    """The group of tests that a test belongs to: they run one after another on one worker."""
    name, _, server = test.rpartition(_ON)
    if name and not test.endswith("]"):  # " on " may be part of a parameter
        return server
    file = test.partition("::")[0]
    return next((folder for folder in SHARED if file.startswith(f"{folder}/")), file)


def _seconds(file: str, tests: int) -> float:
    return SECONDS.get(file, tests * A_TEST_S)


def _servers(items: list[pytest.Item]) -> dict[int, str]:
    """The API server of each test, by index, if it needs one: files are spread evenly and stay whole."""
    on_api_server: dict[str, list[int]] = {}
    found: dict[int, str] = {}
    for number, item in enumerate(items):
        asked = set(getattr(item, "fixturenames", ()))
        if "control_plane" in asked:
            found[number] = "control-plane"
        elif not asked.isdisjoint({"api_server", "served"}):
            on_api_server.setdefault(item.nodeid.partition("::")[0], []).append(number)
    load = dict.fromkeys((f"api-server-{number}" for number in range(1, API_SERVERS + 1)), 0.0)
    for file, numbers in sorted(on_api_server.items(), key=lambda one: (-_seconds(one[0], len(one[1])), one[0])):
        lightest = min(load, key=lambda name: load[name])
        load[lightest] += _seconds(file, len(numbers))
        found |= dict.fromkeys(numbers, lightest)
    return found


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than processors, because some always wait for a server."""
    asked = os.environ.get(WORKERS, "auto")
    return max(2, len(os.sched_getaffinity(0))) + 2 if asked == "auto" else int(asked)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a worker: order the longest groups first. Every worker must get the same order.

    A shared server becomes part of the test's ID, as with xdist's own groups: only IDs reach the scheduler.
    """
    if not hasattr(config, "workerinput"):
        return
    servers = _servers(items)
    groups: dict[str, dict[str, list[pytest.Item]]] = {}
    for number, item in enumerate(items):
        name, file = item.nodeid, item.nodeid.partition("::")[0]
        if server := servers.get(number):
            item._nodeid = name = f"{name}{_ON}{server}"  # type: ignore[attr-defined]
        groups.setdefault(group_of(name), {}).setdefault(file, []).append(item)

    def seconds(group: str) -> float:
        return SECONDS.get(group) or sum(_seconds(file, len(tests)) for file, tests in groups[group].items())

    items[:] = [
        item
        for group in sorted(groups, key=seconds, reverse=True)
        for tests in groups[group].values()
        for item in tests
    ]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadScopeScheduling | None":
    """Give workers whole groups in the order of the collection, unless --dist asks for another way."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only with workers

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """On a worker: send its tests' reports."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["reports"] = REPORTS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: "WorkerController") -> None:
    """A worker ended: take its reports. One that crashed has none."""
    REPORTS.extend(getattr(node, "workeroutput", {}).get("reports", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the reports."""
    if REPORTS:
        terminalreporter.section("what was tried")
        for line in sorted(REPORTS):
            terminalreporter.write_line(line)
