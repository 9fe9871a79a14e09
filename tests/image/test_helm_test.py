"""`helm test` of the installed release: its pod, on a real kubelet, checks whether Draco works."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.component.chart.rendering import CHART, helm
from tests.e2e.kubectl import Kubectl
from tests.image.installed import GPUS, NODES, SYSTEM

POLICIES = "migpolicies.draco.dev"


def helm_on(cluster: Kubectl, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return helm(verb, "draco", *arguments, "--kubeconfig", str(cluster.kubeconfig), "--namespace", SYSTEM)


def upgraded(cluster: Kubectl, *arguments: str) -> None:
    done = helm_on(cluster, "upgrade", str(CHART), "--reuse-values", "--wait", "--timeout", "120s", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def impatient(cluster: Kubectl) -> Iterator[None]:
    """The release with a check that does not wait. Afterwards it is complete again, and the failed pod is deleted."""
    upgraded(cluster, "--set", "check.waitSeconds=0")
    yield
    cluster.run("delete", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=check")
    upgraded(cluster, "--set", "check.waitSeconds=60")


def test_it_succeeds_where_draco_is_at_work_and_leaves_nothing(cluster: Kubectl) -> None:
    done = helm_on(cluster, "test", "--logs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{NODES} nodes publish {NODES * GPUS} devices." in done.stdout
    assert "Draco works." in done.stdout
    left = cluster.run(
        "get", "pods,serviceaccounts", "-n", SYSTEM, "-l", "app.kubernetes.io/component=check", "-o", "name"
    )
    assert left.stdout == ""


@pytest.mark.usefixtures("impatient")
def test_it_fails_where_draco_is_not_and_says_what_to_do(cluster: Kubectl) -> None:
    cluster.run("scale", "deployment", "draco-operator", "-n", SYSTEM, "--replicas=0")
    cluster.run("delete", "customresourcedefinition", POLICIES)
    done = helm_on(cluster, "test", "--logs")
    assert done.returncode != 0
    assert "kubectl scale deployment draco-operator -n draco-system --replicas=2" in done.stdout
    assert "The cluster does not know MigPolicy." in done.stdout
    assert "crds.enabled=true" in done.stdout
