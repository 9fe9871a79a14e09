"""What each profile installs, where it runs, and who may write its kinds."""

from typing import Any

import pytest
import yaml

from draco.resources.names import OPERATOR_LEASE
from tests.component.chart.rendering import CHART, IMAGE, helm, kinds, only, pod_of, refusal, render

OPERATOR_ONLY = ("--set", "profile=operator-only")
OF_AGENTS = {"DaemonSet", "DeviceClass"}


def test_beside_another_driver_there_is_the_operator_and_nothing_on_nodes() -> None:
    documents = render(*OPERATOR_ONLY)
    assert not kinds(documents) & OF_AGENTS
    assert not [each["metadata"]["name"] for each in documents if "-agent" in each["metadata"]["name"]]
    assert {"Deployment", "CustomResourceDefinition"} <= kinds(documents)


def test_a_profile_without_an_operator_and_agents_is_refused() -> None:
    assert "nothing would be installed; set operator.enabled=true" in refusal(
        *OPERATOR_ONLY, "--set", "operator.enabled=false"
    )
    neither = "operator.enabled=false,agent.enabled=false"
    assert "both false: nothing would be installed" in refusal("--set", neither)


def test_replicas_prefer_different_zones_and_nodes() -> None:
    pod = pod_of(render(), "Deployment")
    labels = only(render(), "Deployment")["spec"]["selector"]["matchLabels"]
    [spread] = pod["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("topology.kubernetes.io/zone", "ScheduleAnyway")
    assert spread["labelSelector"]["matchLabels"] == labels
    [apart] = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    mine = "operator.topologySpreadConstraints[0].topologyKey=rack,operator.topologySpreadConstraints[0].maxSkew=1"
    [spread] = pod_of(render("--set", mine), "Deployment")["topologySpreadConstraints"]
    assert spread == {"topologyKey": "rack", "maxSkew": 1}


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1), (3, 1)])
def test_a_drain_takes_one_replica_at_a_time_where_there_are_several(replicas: int, budgets: int) -> None:
    documents = render("--set", f"operator.replicas={replicas}")
    found = [each for each in documents if each["kind"] == "PodDisruptionBudget"]
    assert [each["spec"]["maxUnavailable"] for each in found] == [1] * budgets


@pytest.mark.parametrize(
    ("kind", "value", "usual"),
    [
        ("Deployment", "operator", "system-cluster-critical"),
        ("DaemonSet", "agent", "system-node-critical"),
    ],
)
def test_a_priority_class_can_be_chosen_or_left_out(kind: str, value: str, usual: str) -> None:
    assert pod_of(render(), kind)["priorityClassName"] == usual
    assert "priorityClassName" not in pod_of(render("--set", f"{value}.priorityClassName="), kind)


def test_an_upgrade_starts_the_next_agent_before_it_ends_the_one_that_serves_unless_told_otherwise() -> None:
    def strategy(*arguments: str) -> tuple[dict[str, Any], str]:
        documents = render("--set", "agent.maxUnavailable=3", *arguments)
        [container] = pod_of(documents, "DaemonSet")["containers"]
        [takes_over] = [each["value"] for each in container["env"] if each["name"] == "DRACO_TAKE_OVER"]
        return only(documents, "DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"], takes_over

    assert strategy() == ({"maxSurge": 3, "maxUnavailable": 0}, "true")
    assert strategy("--set", "agent.seamlessUpgrades=false") == ({"maxUnavailable": 3}, "false")


def policies(*arguments: str) -> dict[str, dict[str, Any]]:
    documents = render("--set", "networkPolicy.enabled=true", *arguments)
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]
        for each in documents
        if each["kind"] == "NetworkPolicy"
    }


def test_each_component_has_a_network_policy_for_its_own_pods() -> None:
    for component, spec in policies().items():
        kind = {"operator": "Deployment", "agent": "DaemonSet"}[component]
        assert spec["podSelector"]["matchLabels"] == only(render(), kind)["spec"]["selector"]["matchLabels"]
        assert spec["ingress"] == [{"ports": [{"port": 8443}]}]
        assert {"port": 6443} in spec["egress"][0]["ports"]
    assert set(policies()) == {"operator", "agent"}
    assert set(policies(*OPERATOR_ONLY)) == {"operator"}
    plain = policies("--set", "metrics.secure.enabled=false")
    assert [spec["ingress"] for spec in plain.values()] == [[{"ports": [{"port": 8080}]}]] * 2


def test_metrics_can_be_kept_to_some_and_the_webhook_cannot() -> None:
    peer = "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring"
    found = policies("--set", peer, "--set", "webhook.enabled=true")
    scraped, asked = found["operator"]["ingress"]
    assert scraped["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert asked == {"ports": [{"port": 9443}]}


def roles(*arguments: str) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each
        for each in render(*arguments)
        if each["kind"] == "ClusterRole" and each["metadata"]["labels"]["app.kubernetes.io/component"] == "roles"
    }


def test_each_kind_has_a_role_to_read_it_and_those_that_people_write_one_to_write_it() -> None:
    defined = {each["spec"]["names"]["plural"] for each in render() if each["kind"] == "CustomResourceDefinition"}
    found = roles()
    for kind in defined:
        role = found.pop(f"draco-{kind}-view")
        aggregated = {f"rbac.authorization.k8s.io/aggregate-to-{name}" for name in ("view", "edit", "admin")}
        assert aggregated <= set(role["metadata"]["labels"])
        lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [OPERATOR_LEASE]}
        assert role["rules"] == [
            {"apiGroups": ["draco.dev"], "resources": [kind], "verbs": ["get", "list", "watch"]},
            *([{**lease, "verbs": ["get", "list"]}] if kind == "gpunodes" else []),
        ]
    maintainer = found.pop("draco-maintainer")
    assert found.pop("draco-metrics-reader")["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    assert set(found) == {f"draco-{kind}-edit" for kind in defined - {"gpunodes", "gpuusages", "allocationregisters"}}
    [selector] = maintainer["aggregationRule"]["clusterRoleSelectors"]
    assert all(selector["matchLabels"].items() <= role["metadata"]["labels"].items() for role in found.values())


def test_administrators_of_namespaces_may_not_take_gpus_out_of_service_unless_told_so() -> None:
    label = "rbac.authorization.k8s.io/aggregate-to-admin"

    def writers(*arguments: str) -> set[str]:
        return {
            name
            for name, each in roles(*arguments).items()
            if name.endswith("-edit") and label in each["metadata"]["labels"]
        }

    assert writers() == set()
    assert writers("--set", "roles.aggregateToAdmin=true") == {
        "draco-devicelimits-edit",
        "draco-sharingpolicies-edit",
        "draco-devicemaintenances-edit",
        "draco-healthpolicies-edit",
        "draco-maintenancebudgets-edit",
        "draco-migpolicies-edit",
    }


def test_those_who_edit_a_namespace_may_reserve_in_it_only_if_the_chart_says_so() -> None:
    for arguments, expected in ((), False), (("--set", "roles.aggregateReservationsToEdit=true"), True):
        labels = roles(*arguments)["draco-devicereservations-edit"]["metadata"]["labels"]
        for role in "edit", "admin":
            assert (f"rbac.authorization.k8s.io/aggregate-to-{role}" in labels) is expected


def notes(*arguments: str) -> str:
    done = helm("install", "draco", CHART, "--dry-run=client", "--namespace", "gpu-system", *IMAGE, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("NOTES:", 1)[1]


def test_the_notes_say_what_to_do_next() -> None:
    said = notes()
    for sentence in (
        "as release draco in namespace gpu-system",
        "nvidia.com/gpu.present=true",
        "helm test draco -n gpu-system",
        "draco status",
        "--clusterrole=draco-maintainer",
        "no Prometheus operator",
        "--clusterrole=draco-metrics-reader",
    ):
        assert sentence in said
    assert "WARNING" not in said
    assert "No agents are installed" in notes(*OPERATOR_ONLY)


def test_the_notes_warn_of_what_is_dangerous() -> None:
    assert "the token of any agent" in notes("--set", "agent.restrictToOwnNode=false")
    assert "deletes all objects of Draco's kinds" in notes("--set", "crds.keep=false")
    assert "to anyone who reaches it" in notes("--set", "metrics.secure.enabled=false")


def test_helm_test_runs_the_check_as_nobody_and_removes_its_rights() -> None:
    done = helm("template", "draco", CHART, *IMAGE, "--show-only", "templates/tests/check.yaml")
    documents = [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in documents} == {"test"}
    policy = {each["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for each in documents}
    assert policy == {"before-hook-creation,hook-succeeded"}
    pod = only(documents, "Pod")["spec"]
    assert pod["containers"][0]["args"][0] == "check"
    assert pod["securityContext"]["runAsNonRoot"]
    assert {verb for rule in only(documents, "ClusterRole")["rules"] for verb in rule["verbs"]} == {"list"}
