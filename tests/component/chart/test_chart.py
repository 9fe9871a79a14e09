"""The chart, rendered by the real helm and installed into a real API server."""

import base64
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from cryptography import x509

from draco.cli import agent, operator
from draco.controller.claims.webhook import PATH
from draco_local.cluster.programs import binaries

REPOSITORY = Path(__file__).parents[3]
CHART = REPOSITORY / "charts" / "draco"
NAMESPACE = "draco-system"


@pytest.fixture(scope="session")
def helm() -> Path:
    return binaries.find("helm")["helm"]


def render(helm: Path, *arguments: str) -> list[dict[str, Any]]:
    """Documents of the chart for these values."""
    done = subprocess.run(
        [str(helm), "template", "draco", str(CHART), "--namespace", NAMESPACE, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def refusal(helm: Path, *arguments: str) -> str:
    """What helm says when it refuses these values."""
    done = subprocess.run(
        [str(helm), "template", "draco", str(CHART), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    return done.stderr


def kinds(documents: list[dict[str, Any]]) -> set[str]:
    return {document["kind"] for document in documents}


def only(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def test_the_defaults_install_operator_agents_crds_and_class(helm: Path) -> None:
    assert kinds(render(helm)) >= {
        "Deployment",
        "DaemonSet",
        "CustomResourceDefinition",
        "DeviceClass",
        "PodDisruptionBudget",
        "ValidatingAdmissionPolicy",
    }


def test_the_charts_crds_are_the_repositorys(helm: Path) -> None:
    truth = {path.name: path.read_text() for path in (REPOSITORY / "crds").glob("*.yaml")}
    assert {path.name: path.read_text() for path in (CHART / "files" / "crds").glob("*.yaml")} == truth


def test_crds_are_kept_on_uninstall_unless_told_otherwise(helm: Path) -> None:
    def policies(*arguments: str) -> set[str | None]:
        crds = [d for d in render(helm, *arguments) if d["kind"] == "CustomResourceDefinition"]
        return {crd["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for crd in crds}

    assert policies() == {"keep"}
    assert policies("--set", "crds.keep=false") == {None}


def test_a_cluster_with_anothers_driver_gets_the_operator_alone(helm: Path) -> None:
    documents = render(helm, "--set", "agent.enabled=false", "--set", "deviceClasses.enabled=false")
    assert not kinds(documents) & {"DaemonSet", "DeviceClass"}
    assert not [each["metadata"]["name"] for each in documents if "-agent" in each["metadata"]["name"]]
    assert "Deployment" in kinds(documents)


def test_agents_stay_on_nodes_with_any_taint(helm: Path) -> None:
    assert only(render(helm), "DaemonSet")["spec"]["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_an_agent_is_root_whatever_user_the_image_has_and_mounts_what_is_asked(helm: Path) -> None:
    values = "agent.extraVolumes[0].name=x,agent.extraVolumes[0].emptyDir.sizeLimit=1Mi"
    mounts = "agent.extraVolumeMounts[0].name=x,agent.extraVolumeMounts[0].mountPath=/x"
    pod = only(render(helm, "--set", f"{values},{mounts}"), "DaemonSet")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["securityContext"] == {"privileged": True, "runAsUser": 0, "runAsGroup": 0}
    assert {"name": "x", "emptyDir": {"sizeLimit": "1Mi"}} in pod["volumes"]
    assert {"name": "x", "mountPath": "/x"} in container["volumeMounts"]


def test_a_digest_wins_over_a_tag(helm: Path) -> None:
    digest = "sha256:" + "a" * 64
    deployment = only(render(helm, "--set", "image.tag=1.2.3", "--set", f"image.digest={digest}"), "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"draco-dra/draco@{digest}"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("operator.replica=2", "additional properties 'replica' not allowed"),
        ("image.digest=latest", "does not match pattern"),
        ("operator.leaderElection.leaseDurationSeconds=10", "must be greater than renewDeadlineSeconds"),
        ("operator.leaderElection.retryPeriodSeconds=10", "must be greater than retryPeriodSeconds"),
        ("agent.kubeletDir=kubelet", "does not match pattern"),
        ("webhook.mode=warn", "value must be one of 'Warn', 'Enforce'"),
        ("webhook.enabled=true,operator.enabled=false", "webhook.enabled needs operator.enabled"),
        ("webhook.enabled=true,webhook.port=8080", "webhook.port and metrics.port are both 8080"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(helm: Path, value: str, sentence: str) -> None:
    assert sentence in refusal(helm, "--set", value)


def test_every_value_is_described_by_schema_and_comment() -> None:
    """Sections need no comment; what a user sets does, except the keys of free-form maps such as resources."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    lines = (CHART / "values.yaml").read_text().splitlines()
    path: list[str] = []
    uncommented, unknown = [], []
    for number, line in enumerate(lines):
        key = re.fullmatch(r"( *)([\w./-]+):.*", line)
        if not key:
            continue
        path[len(key[1]) // 2 :] = [key[2]]
        described = find_schema(schema, path)
        if described is None:
            unknown.append(".".join(path))
        elif "properties" not in described and not lines[number - 1].lstrip().startswith("#"):
            uncommented.append(".".join(path))
    free_form = ("resources.requests", "resources.limits", "nodeSelector.", "tolerations.")
    assert [value for value in uncommented + unknown if not any(part in value for part in free_form)] == []


def find_schema(schema: dict[str, Any], path: list[str]) -> dict[str, Any] | None:
    for key in path:
        schema = schema.get("properties", {}).get(key)
        if schema is None:
            return None
    return schema


def test_no_container_of_the_operator_has_more_rights_than_it_needs(helm: Path) -> None:
    pod = only(render(helm), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]) == {"requests", "limits"}


def test_the_manifests_for_kubectl_are_rendered_from_the_chart(helm: Path) -> None:
    committed = (REPOSITORY / "manifests" / "install" / "draco.yaml").read_text()
    assert [d for d in yaml.safe_load_all(committed) if d][1:] == render(helm)


def test_alerts_ask_only_for_metrics_that_exist(helm: Path) -> None:
    rules = only(render(helm, "--set", "metrics.rules.enabled=true"), "PrometheusRule")
    expressions = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    asked = {name for expression in expressions for name in re.findall(r"draco_\w+", expression)}
    documented = set(re.findall(r"`(draco_\w+)`", (REPOSITORY / "docs" / "reference" / "metrics.md").read_text()))
    assert asked
    assert asked <= documented


def test_pods_are_scraped_where_probes_are_served(helm: Path) -> None:
    documents = render(helm, "--set", "metrics.podMonitor.enabled=true", "--set", "metrics.port=9100")
    (endpoint,) = only(documents, "PodMonitor")["spec"]["podMetricsEndpoints"]
    for kind in ("Deployment", "DaemonSet"):
        (container,) = only(documents, kind)["spec"]["template"]["spec"]["containers"]
        assert {"name": endpoint["port"], "containerPort": 9100} in container["ports"]
        assert {"name": "DRACO_LISTEN", "value": "0.0.0.0:9100"} in container["env"]


@pytest.mark.parametrize(("kind", "program"), [("Deployment", operator), ("DaemonSet", agent)])
def test_each_setting_of_a_container_is_one_its_program_knows(helm: Path, kind: str, program: ModuleType) -> None:
    (container,) = only(render(helm), kind)["spec"]["template"]["spec"]["containers"]
    asked = {variable["name"] for variable in container["env"] if variable["name"].startswith("DRACO_")}
    assert asked <= {parameter.envvar for parameter in program.command.params}


def with_webhook(helm: Path, *arguments: str) -> list[dict[str, Any]]:
    return render(helm, "--set", "webhook.enabled=true", *arguments)


def test_the_webhook_is_off_unless_it_is_asked_for(helm: Path) -> None:
    documents = render(helm)
    assert not kinds(documents) & {"ValidatingWebhookConfiguration", "Secret", "Service"}
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert not [variable for variable in container["env"] if "WEBHOOK" in variable["name"]]


def test_the_webhook_never_blocks_when_the_operator_is_down(helm: Path) -> None:
    (webhook,) = only(with_webhook(helm), "ValidatingWebhookConfiguration")["webhooks"]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == ("Ignore", 2, "None")


def test_the_webhook_is_asked_where_the_operator_answers(helm: Path) -> None:
    documents = with_webhook(helm, "--set", "webhook.port=9999")
    service = only(documents, "Service")
    deployment = only(documents, "Deployment")
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": port["targetPort"], "containerPort": 9999} in container["ports"]
    assert {"name": "DRACO_WEBHOOK_LISTEN", "value": "0.0.0.0:9999"} in container["env"]
    (webhook,) = only(documents, "ValidatingWebhookConfiguration")["webhooks"]
    asked = webhook["clientConfig"]["service"]
    assert (asked["name"], asked["path"], asked["port"]) == (service["metadata"]["name"], PATH, port["port"])
    (volume,) = [each for each in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in each]
    assert volume["secret"]["secretName"] == only(documents, "Secret")["metadata"]["name"]
    asked_for = {variable["name"] for variable in container["env"] if variable["name"].startswith("DRACO_")}
    assert asked_for <= {parameter.envvar for parameter in operator.command.params}


def test_the_webhooks_certificate_is_for_its_service_and_signed_by_the_bundle(helm: Path) -> None:
    documents = with_webhook(helm)
    secret = only(documents, "Secret")["data"]
    (webhook,) = only(documents, "ValidatingWebhookConfiguration")["webhooks"]
    assert webhook["clientConfig"]["caBundle"] == secret["ca.crt"]
    authority, certificate = (
        x509.load_pem_x509_certificate(base64.b64decode(secret[name])) for name in ("ca.crt", "tls.crt")
    )
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"draco-operator-webhook.{NAMESPACE}.svc"]


def test_cert_manager_can_make_the_webhooks_certificate(helm: Path) -> None:
    documents = with_webhook(helm, "--set", "webhook.certManager=true")
    assert "Secret" not in kinds(documents)
    certificate = only(documents, "Certificate")
    (volume,) = [
        each for each in only(documents, "Deployment")["spec"]["template"]["spec"]["volumes"] if "secret" in each
    ]
    assert certificate["spec"]["secretName"] == volume["secret"]["secretName"]
    assert certificate["spec"]["issuerRef"]["name"] == only(documents, "Issuer")["metadata"]["name"]
    configuration = only(documents, "ValidatingWebhookConfiguration")
    assert configuration["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": f"{NAMESPACE}/{certificate['metadata']['name']}"
    }
    assert "caBundle" not in configuration["webhooks"][0]["clientConfig"]


def test_the_network_policy_lets_the_api_server_ask(helm: Path) -> None:
    policy = only(with_webhook(helm, "--set", "networkPolicy.enabled=true"), "NetworkPolicy")
    assert {"port": 9443} in policy["spec"]["ingress"][0]["ports"]


def test_with_an_authority_for_callers_the_operator_is_given_it(helm: Path) -> None:
    authority = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"
    documents = with_webhook(helm, "--set-string", f"webhook.clientCA={authority}")
    (given,) = [
        each for each in documents if each["kind"] == "ConfigMap" and each["metadata"]["name"].endswith("-client")
    ]
    assert given["data"] == {"ca.crt": authority}
    (deployment,) = [each for each in documents if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "webhook-client"]
    assert environment["DRACO_WEBHOOK_CLIENT_CA"] == f"{mount['mountPath']}/ca.crt"
    volumes = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["webhook-client"]["configMap"] == {"name": given["metadata"]["name"]}
    assert "DRACO_WEBHOOK_CLIENT_CA" not in str(with_webhook(helm))
