"""Features that a version of Kubernetes lacks: `draco status` and the agents name exactly these, with the consequences."""

import json

from draco_local.cluster.programs.versions import parse
from tests.e2e import provider
from tests.e2e.conftest import draco
from tests.e2e.kubectl import Kubectl

MISSING = {
    34: {"partitionable devices"},  # counters must be in the same slice as their devices
    35: set[str](),
    36: set[str](),
    37: set[str](),
}
"""By minor version, with all its feature gates on."""


def test_status_names_what_this_kubernetes_lacks_and_what_follows(cluster: Kubectl) -> None:
    said = draco("status", "-o", "json", kubeconfig=cluster.kubeconfig)
    assert said.returncode == 0, said.stderr
    missing = json.loads(said.stdout)["missing"]
    assert {each["name"] for each in missing} == MISSING[parse(provider.KUBERNETES)[1]]
    assert all(each["consequence"] and each["remedy"] for each in missing)


def test_agents_say_whether_gpus_can_be_divided_on_demand(cluster: Kubectl) -> None:
    lacks = "partitionable devices" in MISSING[parse(provider.KUBERNETES)[1]]
    for node in cluster.objects("gpunodes"):
        [said] = [one for one in node["status"]["conditions"] if one["type"] == "Partitionable"]
        assert said["status"] == str(not lacks)
        assert bool(said.get("message")) is lacks
