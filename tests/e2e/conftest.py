"""One local cluster for all scenarios, created by the command that users type, and a namespace for each test."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from draco_local.cluster.attach import OPERATOR_PROCESS
from draco_local.cluster.process import Processes
from draco_local.cluster.programs import binaries
from draco_local.cluster.state import Record
from tests.e2e import provider
from tests.e2e.configured import refused_at_prepare
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.reading import reader

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that do not apply to the clusters that these tests run on."""
    left_out = [item for item in items if _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


_NEXT: Final = pytest.StashKey[pytest.Item | None]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let fixtures know the next test."""
    item.stash[_NEXT] = nextitem


def _is_left_out(item: pytest.Item) -> bool:
    if provider.ON_KIND and item.get_closest_marker("local_provider"):
        return True
    if item.get_closest_marker("simulated_nodes" if provider.FROM_IMAGE else "from_image"):
        return True
    before, after = item.iter_markers("since"), item.iter_markers("until")
    return any(mark.args[0] > provider.MINOR for mark in before) or any(mark.args[0] < provider.MINOR for mark in after)


def draco(*arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line and return the result. The timeout suffices for creating a cluster."""
    environment = dict(os.environ)
    if kubeconfig:
        environment["KUBECONFIG"] = str(kubeconfig)
    return subprocess.run(
        [str(Path(sys.executable).with_name("draco")), *arguments],
        capture_output=True,
        text=True,
        timeout=provider.UP_S,
        check=False,
        env=environment,
    )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Two nodes with eight H100s each, an operator, and kubectl. At the end, no decision of the operator may have been late."""
    name = provider.CLUSTER
    try:
        up = draco("cluster", "up", "--name", name, *provider.scenarios())
        assert up.returncode == 0, up.stdout + up.stderr
        kubeconfig = tmp_path_factory.mktemp("cluster") / "kubeconfig"
        kubeconfig.write_text(draco("cluster", "kubeconfig", "--name", name).stdout)
        kubeconfig.chmod(0o600)
        yield Kubectl(binary=binaries.find("kubectl")["kubectl"], kubeconfig=kubeconfig)
    finally:
        late = _decided_late(name)
        down = draco("cluster", "down", "--name", name)
    assert down.returncode == 0, down.stdout + down.stderr
    assert not late, "the operator was not woken for something that it had to allocate"


def _decided_late(cluster: str) -> list[str]:
    """The operator's log lines about late decisions, if it runs on this machine."""
    log = Processes(Record(cluster).folder).log(OPERATOR_PROCESS)
    said = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in said if '"allocation.late"' in line or '"allocation.not_woken"' in line]


@pytest.fixture(scope="session")
def ending() -> list[str]:
    """Namespaces of ended tests that may still have pods and claims."""
    return []


@pytest.fixture
def kube(cluster: Kubectl, ending: list[str], request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kubectl]:
    """Kubectl in the test's own namespace. The next test finds every GPU free, unless it needs only some.

    No claim of the test may have held a GPU with a configuration that Prepare refuses.
    """
    name = request.node.name.replace("_", "-").lower().split("[")[0][:50].strip("-")
    reading = reader(cluster.kubeconfig)
    reading.make_namespace(name)
    own = cluster.in_namespace(name, tmp_path)
    yield own
    refused = refused_at_prepare(own)
    reading.end_namespace(name)
    ending.append(name)
    following = request.node.stash[_NEXT]
    if following is not None and not following.get_closest_marker("any_gpu"):
        eventually(
            lambda: (
                not any(cluster.objects(kind, namespace=each) for each in ending for kind in ("pods", "resourceclaims"))
            ),
            what=f"all pods and claims of {', '.join(ending)} are gone",
            within_s=90,
        )
        ending.clear()
    assert not refused, "a configuration was refused only at Prepare"


def namespaces(cluster: Kubectl) -> set[str]:
    """Names of all namespaces."""
    return {namespace["metadata"]["name"] for namespace in cluster.objects("namespaces")}


@pytest.fixture
def example(kube: Kubectl) -> Iterator[Callable[..., None]]:
    """Apply files of one example, in order. Their objects are deleted after the test, cluster-scoped ones, too."""
    applied: list[str] = []

    def apply(folder: str, *files: str) -> None:
        paths = [EXAMPLES / folder / file for file in files] or sorted((EXAMPLES / folder).glob("*.yaml"))
        texts = [provider.suited(path.read_text(encoding="utf-8")) for path in paths]
        applied.extend(texts)
        kube.run_with_input("\n---\n".join(texts), "apply", "-f", "-")

    yield apply
    if applied:
        taken_back = "\n---\n".join(reversed(applied))
        kube.run_with_input(taken_back, "delete", "--ignore-not-found", "--wait=false", "-f", "-")
