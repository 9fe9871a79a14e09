"""One cluster with two real nodes for all tests of this folder, created by the command that users type."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draco_local.cluster import clusters
from draco_local.cluster.programs import binaries
from tests.e2e import provider
from tests.e2e.configured import refused_at_prepare
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.reading import reader
from tests.e2e.real_nodes.machines import REAL_CLUSTER, Machines, machines_of
from tests.e2e.real_nodes.pods import DRIVER, WHOLE_GPUS, Bench
from tests.e2e.real_nodes.toolkit import put_hook


def draco(*arguments: str) -> None:
    """Run the command line; a failure is an AssertionError with its output."""
    program = str(Path(sys.executable).with_name("draco"))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=provider.UP_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def real_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Kubectl, Machines]]:
    """Two real nodes: those of all scenarios if they are real; otherwise with agents outside of pods, plus a simulated node."""
    if provider.FROM_IMAGE:
        yield request.getfixturevalue("cluster"), machines_of(provider.CLUSTER)
        return
    try:
        equipment = ("--nodes", "1", "--real-nodes", "2", "--gpus", str(provider.GPUS))
        programs = tmp_path_factory.mktemp("programs")
        put_hook(programs)
        with pytest.MonkeyPatch.context() as environment:  # also for agents that start again with their node
            environment.setenv("PATH", str(programs), prepend=os.pathsep)
            draco("cluster", "up", "--name", REAL_CLUSTER, *equipment)
            kubeconfig = clusters.opened(REAL_CLUSTER).kubeconfig
            yield Kubectl(binary=binaries.find("kubectl")["kubectl"], kubeconfig=kubeconfig), machines_of(REAL_CLUSTER)
    finally:
        draco("cluster", "down", "--name", REAL_CLUSTER)


@contextmanager
def a_bench(kubectl: Kubectl, nodes: Machines, folder: Path) -> Iterator[Bench]:
    """A new namespace, and the first node with all its GPUs published and free.

    No claim in it may have held a GPU with a configuration that Prepare refuses.
    """
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    reading = reader(kubectl.kubeconfig)
    reading.make_namespace(namespace)
    bench = Bench(kubectl.in_namespace(namespace, folder), nodes, nodes.nodes[0])
    eventually(lambda: bench.published() == WHOLE_GPUS, within_s=60, what=f"all GPUs of {DRIVER} are published")
    try:
        yield bench
        assert not refused_at_prepare(bench.kube), "a configuration was refused only at Prepare"
    finally:
        reading.end_namespace(namespace)
        eventually(lambda: not bench.checkpoint(), within_s=60, what="the node holds no claim any more")


@pytest.fixture
def bench(real_cluster: tuple[Kubectl, Machines], tmp_path: Path) -> Iterator[Bench]:
    """A bench for one test."""
    with a_bench(*real_cluster, tmp_path) as bench:
        yield bench
