"""Fixtures for every test: a real API server, a client, a namespace, Draco's CRDs; and the check for lost tasks.

If a test also requests `control_plane`, its `client`, `namespace` and `crds` are there; otherwise they are on
`api_server`, where only the test acts on objects.
"""

import asyncio
import functools
import gc
import inspect
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from draco_local.cluster.controlplane import ALL, STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries, download
from draco_local.cluster.programs.versions import Features
from tests.requests import call
from tests.side_by_side import (  # noqa: F401 - pytest finds hooks here
    pytest_collection_modifyitems,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

if TYPE_CHECKING:
    from draco.kube.connect.client import Client

settings.register_profile(
    "repeatable",
    settings(),
    deadline=None,  # a slow machine is no failure
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="DRACO_SEED" not in os.environ,
)
settings.load_profile("repeatable")

os.environ[binaries.MIRROR] = download.NONE  # no test downloads missing programs

# Tests run in parallel, so servers need no second processor: seeking work for it takes a quarter of an idle server's time.
os.environ.setdefault("GOMAXPROCS", "1")
# Servers live for minutes, so memory is cheaper than garbage collection, which takes a tenth of an API server's time.
os.environ.setdefault("GOGC", "400")

A_COLLECTION_AFTER = 10_000
"""New objects that trigger a garbage collection: Python's default of 700 suits smaller programs."""

CRDS = Path(__file__).parent.parent / "crds"
DIES_WITH_THE_TESTS = ("setpriv", "--pdeathsig", "KILL")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage only after the tests are collected, and never again among the objects that exist by then."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(A_COLLECTION_AFTER)
        gc.enable()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Suspend garbage collection: with all that a test run loads, it takes longer than most of what is measured."""
    gc.disable()
    yield
    gc.enable()


def start_control_plane(
    folder: Path,
    programs: tuple[str, ...],
    flags: Mapping[str, Sequence[str]] = MappingProxyType({}),
    features: Features = "all",
) -> Iterator[ControlPlane]:
    version = binaries.kubernetes_version()
    found = binaries.find(*programs, kubernetes=version)
    settings = Settings(
        programs=found, kubernetes=version, enter=DIES_WITH_THE_TESTS, extra_flags=flags, features=features
    )
    plane = ControlPlane(folder, settings)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(folder / "etcd", ignore_errors=True)  # 64 MB each; the logs stay


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Only etcd and kube-apiserver: objects are validated, stored and watched, but nothing acts on them."""
    yield from start_control_plane(tmp_path_factory.mktemp("api-server") / "state", STORE)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The API server with kube-controller-manager and kube-scheduler."""
    yield from start_control_plane(tmp_path_factory.mktemp("control-plane") / "state", ALL)


@pytest.fixture
def served(request: pytest.FixtureRequest) -> ControlPlane:
    """The control plane if the test requests it, else the API server alone."""
    name = "control_plane" if "control_plane" in request.fixturenames else "api_server"
    plane: ControlPlane = request.getfixturevalue(name)
    return plane


@pytest.fixture
async def client(served: ControlPlane) -> AsyncIterator["Client"]:
    """An administrator's client of `served`. Cluster-scoped objects that it creates are deleted with the test."""
    from draco.kube.connect.kubeconfig import connect  # noqa: PLC0415 - unit tests do not load the network stack
    from tests.tidy import TidyClient  # noqa: PLC0415 - the same

    connection = await connect(served.kubeconfig)
    made = TidyClient(connection)
    try:
        yield made
        await made.tidy()
    finally:
        await connection.close()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, served: ControlPlane) -> Iterator[str]:
    """A new namespace in which pods can be created; deleted afterwards."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    call(served, "POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    if "control_plane" in request.fixturenames:  # pods there need an account that kube-controller-manager makes
        deadline = time.monotonic() + 60
        while not call(served, "GET", f"/api/v1/namespaces/{name}/serviceaccounts")["items"]:
            assert time.monotonic() < deadline, f"no service account in {name}"
            time.sleep(0.02)
    yield name
    # Nothing empties a namespace here: its pods would keep waiting and its claims hold devices in later tests.
    call(served, "DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
    if "control_plane" in request.fixturenames:  # kube-controller-manager deallocates deleted claims
        call(served, "DELETE", f"/apis/resource.k8s.io/v1/namespaces/{name}/resourceclaims")
    call(served, "DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def _served_as() -> dict[tuple[str, str], str]:
    """Version of each definition applied to each server."""
    return {}


@pytest.fixture
def crds(served: ControlPlane, _served_as: dict[tuple[str, str], str]) -> None:
    """Draco's own kinds, served. Applied only if they changed since they were last applied."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    found = {each["metadata"]["name"]: each for each in call(served, "GET", path)["items"]}
    deadline = time.monotonic() + 60
    for definition in _definitions():
        name = definition["metadata"]["name"]
        known = _served_as.get((served.server, name))
        if known and name in found and found[name]["metadata"]["resourceVersion"] == known:
            continue
        call(served, "PATCH", f"{path}/{name}?fieldManager=tests&force=true", definition)
        while not _established(current := call(served, "GET", f"{path}/{name}")):
            assert time.monotonic() < deadline, f"{name} is not served"
            time.sleep(0.05)
        _served_as[served.server, name] = current["metadata"]["resourceVersion"]


@functools.cache
def _definitions() -> list[dict[str, Any]]:
    texts = [file.read_text() for file in sorted(CRDS.glob("*.yaml"))]
    found = [document for text in texts for document in yaml.load_all(text, yaml.CSafeLoader)]
    assert found, f"no definitions in {CRDS}"
    return found


def _established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []  # null when just created
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@pytest.fixture(autouse=True)
def no_task_left_behind(request: pytest.FixtureRequest) -> None:
    """Fails an asynchronous test if it or its fixtures leave a task running."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_tasks_are_checked")


def _running_since(before: set["asyncio.Task[Any]"]) -> set["asyncio.Task[Any]"]:
    return {task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()}


@pytest.fixture
async def _tasks_are_checked() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    for _ in range(10):  # a cancelled task needs a few turns to end
        await asyncio.sleep(0)
    left = _running_since(before)
    deadline = time.monotonic() + 5.0
    while any("_cython_" in str(task.get_coro()) for task in left) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)  # gRPC ends its own tasks in another thread
        left = _running_since(before)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    if left:
        pytest.fail("tasks left running: " + ", ".join(sorted(str(task.get_coro()) for task in left)))
