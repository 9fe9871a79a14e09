"""The chart, rendered by the real helm and installed into a real API server."""

import base64
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from cryptography import x509

from draco import __version__
from draco.agent.settings import AgentSettings
from draco.cli import agent, mps, operator
from draco.controller.webhook.server import OWN_PATH, PATH, PODS_PATH
from draco.resources.kinds import ALLOCATION_REGISTERS, GPU_NODES, GPU_USAGES, OWN_KINDS
from scripts import image, render_manifests
from tests.component.chart.rendering import CHART, NAMESPACE, helm, kinds, only, pod_of, refusal, render

REPOSITORY = Path(__file__).parents[3]


def test_the_defaults_install_operator_agents_crds_and_class() -> None:
    assert kinds(render()) >= {
        "Deployment",
        "DaemonSet",
        "CustomResourceDefinition",
        "DeviceClass",
        "PodDisruptionBudget",
        "ValidatingAdmissionPolicy",
    }


def test_the_charts_crds_are_the_repositorys() -> None:
    truth = {path.name: path.read_text() for path in (REPOSITORY / "crds").glob("*.yaml")}
    assert {path.name: path.read_text() for path in (CHART / "files" / "crds").glob("*.yaml")} == truth


def test_where_charts_are_offered_all_of_its_kinds_are_named() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]["artifacthub.io/crds"]
    assert {each["kind"] for each in yaml.safe_load(about)} == {kind.kind for kind in OWN_KINDS}


def test_crds_are_kept_on_uninstall_unless_told_otherwise() -> None:
    def policies(*arguments: str) -> set[str | None]:
        crds = [d for d in render(*arguments) if d["kind"] == "CustomResourceDefinition"]
        return {crd["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for crd in crds}

    assert policies() == {"keep"}
    assert policies("--set", "crds.keep=false") == {None}


def test_agents_stay_on_nodes_with_any_taint() -> None:
    assert only(render(), "DaemonSet")["spec"]["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_agents_run_where_one_likes() -> None:
    own = "agent.nodeSelector.gpu=yes"
    default = r"agent.nodeSelector.nvidia\.com/gpu\.present=null"
    both = pod_of(render("--set", own), "DaemonSet")["nodeSelector"]
    assert both == {"gpu": "yes", "nvidia.com/gpu.present": "true"}
    assert pod_of(render("--set", f"{own},{default}"), "DaemonSet")["nodeSelector"] == {"gpu": "yes"}


def test_an_agent_is_root_whatever_user_the_image_has_and_mounts_what_is_asked() -> None:
    values = "agent.extraVolumes[0].name=x,agent.extraVolumes[0].emptyDir.sizeLimit=1Mi"
    mounts = "agent.extraVolumeMounts[0].name=x,agent.extraVolumeMounts[0].mountPath=/x"
    pod = only(render("--set", f"{values},{mounts}"), "DaemonSet")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "privileged": True,
        "runAsUser": 0,
        "runAsGroup": 0,
        "readOnlyRootFilesystem": True,
    }
    assert {"name": "x", "emptyDir": {"sizeLimit": "1Mi"}} in pod["volumes"]
    assert {"name": "x", "mountPath": "/x"} in container["volumeMounts"]


def test_an_agent_sees_the_nodes_driver_read_only_and_on_no_library_path() -> None:
    """The node's C library may differ from the image's."""
    pod = only(render("--set", "agent.driverRoot=/run/nvidia/driver"), "DaemonSet")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert "LD_LIBRARY_PATH" not in environment
    assert environment["DRACO_DRIVER_ROOT"] == "/run/nvidia/driver"
    view = environment["DRACO_DRIVER_ROOT_VIEW"]
    [mount] = [each for each in container["volumeMounts"] if each["mountPath"] == view]
    assert (mount["readOnly"], mount["mountPropagation"]) == (True, "HostToContainer")
    assert {"name": mount["name"], "hostPath": {"path": "/run/nvidia/driver"}} in pod["volumes"]


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "a" * 64
    deployment = only(render("--set", "image.tag=1.2.3", "--set", f"image.digest={digest}"), "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"registry.example.com/draco@{digest}"


@pytest.mark.parametrize("verb", ["template", "install"])
def test_without_an_image_nothing_is_installed_and_helm_says_how_to_name_one(verb: str, tmp_path: Path) -> None:
    """Whoever owned an unclaimed name on a public registry could run programs as root on every GPU node."""
    offline = ("--dry-run=client", "--kubeconfig", tmp_path / "none") if verb == "install" else ()
    done = helm(verb, "draco", CHART, "--namespace", NAMESPACE, *offline)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "image.repository is empty" in done.stderr
    assert "--set image.repository=registry.example.com/draco" in done.stderr
    assert helm("lint", "--strict", CHART).returncode == 0


def test_nothing_that_is_installed_names_an_image_of_somebody_else() -> None:
    """On a node, `localhost/…` can only be an image that was loaded there."""
    committed = (REPOSITORY / "manifests" / "install" / "draco.yaml").read_text()
    named = set(re.findall(r"^ *(?:- )?image: *(\S+)", committed, re.MULTILINE))
    assert named == {f"{image.NAME}:{__version__}"}
    assert image.NAME.startswith("localhost/")
    assert "draco-dra/draco" not in "".join(path.read_text() for path in CHART.rglob("*.*") if path.is_file())


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("operator.replica=2", "additional properties 'replica' not allowed"),
        ("image.digest=latest", "does not match pattern"),
        ("operator.leaderElection.leaseDurationSeconds=10", "must be greater than renewDeadlineSeconds"),
        ("operator.leaderElection.retryPeriodSeconds=10", "must be greater than retryPeriodSeconds"),
        ("agent.kubeletDir=kubelet", "does not match pattern"),
        ("agent.nodeSelector.gpu=true", "got boolean, want string"),
        ("operator.podAnnotations.port=8080", "got number, want string"),
        ("webhook.mode=warn", "value must be one of 'Warn', 'Enforce'"),
        ("webhook.enabled=true,operator.enabled=false", "webhook.enabled needs operator.enabled"),
        ("mps.enabled=true,agent.enabled=false", "mps.enabled needs the agents"),
        ("agent.limitLibrary=libvgpu.so", "does not match pattern"),
        ("agent.limitLibrary=/opt/../etc/libvgpu.so", 'name the file by its path without ".."'),
        (
            "agent.limitLibrary=/opt/libvgpu.so,agent.driverRoot=/run/nvidia/driver",
            "agents see only what is below agent.driverRoot, /run/nvidia/driver: put the library there",
        ),
        ("webhook.enabled=true,webhook.port=8080", "webhook.port and metrics.port are both 8080"),
        ("metrics.secure.port=8080", "metrics.secure.port and metrics.port are both 8080"),
        ("webhook.enabled=true,webhook.port=8443", "metrics.secure.port and webhook.port are both 8443"),
        ("metrics.secure.certificates=None", "value must be one of 'Chart', 'CertManager', 'Existing'"),
        ("operator.runJobs=true", "operator.runJobs needs operator.jobTemplates: name the suspended CronJobs"),
        (
            "operator.runJobs=true,operator.jobTemplates={a},operator.jobNamespace=default",
            "operator.jobNamespace is the namespace of the release",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(value: str, sentence: str) -> None:
    assert sentence in refusal("--set", value)


def test_agents_are_given_a_library_only_if_it_is_named() -> None:
    def given(*values: str) -> list[str]:
        [agent] = pod_of(render(*values), "DaemonSet")["containers"]
        return [each["value"] for each in agent["env"] if each["name"] == "DRACO_LIMIT_LIBRARY"]

    assert given() == []
    assert given("--set", "agent.limitLibrary=/opt/hami/libvgpu.so") == ["/opt/hami/libvgpu.so"]


def test_every_value_is_described_by_schema_and_comment() -> None:
    """Values that users set need a comment; sections and the keys of free-form maps, such as resources, do not."""
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
    free_form = ("resources.requests", "resources.limits", "nodeSelector.", "tolerations.", "labels.")
    assert [value for value in uncommented + unknown if not any(part in value for part in free_form)] == []


def find_schema(schema: dict[str, Any], path: list[str]) -> dict[str, Any] | None:
    for key in path:
        schema = schema.get("properties", {}).get(key)
        if schema is None:
            return None
    return schema


def test_no_container_of_the_operator_has_more_rights_than_it_needs() -> None:
    pod = only(render(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]) == {"requests", "limits"}


def test_the_manifests_for_kubectl_are_rendered_from_the_chart() -> None:
    committed = (REPOSITORY / "manifests" / "install" / "draco.yaml").read_text()
    assert [d for d in yaml.safe_load_all(committed) if d][1:] == render("--set", render_manifests.VALUES)


def test_no_private_key_is_in_the_manifests_for_kubectl() -> None:
    assert "Secret" not in kinds(render("--set", render_manifests.VALUES))


@pytest.mark.parametrize(("kind", "program"), [("Deployment", operator), ("DaemonSet", agent)])
def test_each_setting_of_a_container_is_one_its_program_knows(kind: str, program: ModuleType) -> None:
    (container,) = only(render(), kind)["spec"]["template"]["spec"]["containers"]
    asked = {variable["name"] for variable in container["env"] if variable["name"].startswith("DRACO_")}
    assert asked <= {parameter.envvar for parameter in program.command.params}


def test_the_keeper_of_mps_daemons_is_off_and_knows_its_settings_and_the_agents_folder() -> None:
    assert "mps" not in {
        each["metadata"]["name"].removeprefix("draco-") for each in render() if each["kind"] == "DaemonSet"
    }
    agents, keepers = (
        next(
            each["spec"]["template"]["spec"]
            for each in render("--set", "mps.enabled=true,agent.kubeletDir=/k,driver=gpu.example.com")
            if each["kind"] == "DaemonSet" and each["metadata"]["name"].endswith(name)
        )
        for name in ("-agent", "-mps")
    )
    [container] = keepers["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment.keys() <= {parameter.envvar for parameter in mps.command.params}
    kubelet, driver = Path("/k"), "gpu.example.com"
    folder = AgentSettings(node_name="", kubelet_dir=kubelet, driver=driver).mps_folder
    assert environment["DRACO_MPS_FOLDER"] == str(folder)
    assert {"name": "mps", "mountPath": str(folder)} in container["volumeMounts"]
    assert {"name": "mps", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}} in keepers["volumes"]
    assert keepers["hostPID"] is True
    assert keepers["automountServiceAccountToken"] is False
    assert keepers["nodeSelector"] == agents["nodeSelector"]


def with_webhook(*arguments: str) -> list[dict[str, Any]]:
    """The chart with the webhook and without metrics, so that there is one certificate and one Service."""
    return render("--set", "webhook.enabled=true,metrics.secure.enabled=false", *arguments)


def test_the_webhook_is_off_unless_it_is_asked_for() -> None:
    documents = render("--set", "metrics.secure.enabled=false")
    assert not kinds(documents) & {"ValidatingWebhookConfiguration", "Secret", "Service"}
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert not [variable for variable in container["env"] if "WEBHOOK" in variable["name"]]


def test_the_webhook_never_blocks_when_the_operator_is_down() -> None:
    for webhook in only(with_webhook(), "ValidatingWebhookConfiguration")["webhooks"]:
        assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == ("Ignore", 2, "None")


def test_pods_get_the_gate_where_draco_allocates_and_the_webhook_gives_no_advice_that_nobody_asked_for() -> None:
    documents = render("--set", "operator.allocate=true,metrics.secure.enabled=false")
    (webhook,) = only(documents, "MutatingWebhookConfiguration")["webhooks"]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == ("Ignore", 1, "None")
    service = only(documents, "Service")["metadata"]["name"]
    asked = webhook["clientConfig"]["service"]
    assert (asked["name"], asked["path"]) == (service, PODS_PATH)
    assert webhook["clientConfig"]["caBundle"] == only(documents, "Secret")["data"]["ca.crt"]
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert "DRACO_WEBHOOK_LISTEN" in {variable["name"] for variable in container["env"]}
    assert "ValidatingWebhookConfiguration" not in kinds(documents)
    for values in ("operator.allocate=true,operator.gatePods=false", "webhook.enabled=true"):
        assert "MutatingWebhookConfiguration" not in kinds(render("--set", values))


def test_the_webhook_is_asked_where_the_operator_answers() -> None:
    documents = with_webhook("--set", "webhook.port=9999")
    service = only(documents, "Service")
    deployment = only(documents, "Deployment")
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": port["targetPort"], "containerPort": 9999} in container["ports"]
    assert {"name": "DRACO_WEBHOOK_LISTEN", "value": "0.0.0.0:9999"} in container["env"]
    webhooks = only(documents, "ValidatingWebhookConfiguration")["webhooks"]
    asked = [webhook["clientConfig"]["service"] for webhook in webhooks]
    assert {(each["name"], each["port"]) for each in asked} == {(service["metadata"]["name"], port["port"])}
    assert [each["path"] for each in asked] == [PATH, OWN_PATH]
    of_programs = (GPU_NODES, GPU_USAGES, ALLOCATION_REGISTERS)
    of_own = {(kind.group, kind.version, kind.plural) for kind in OWN_KINDS if kind not in of_programs}
    (rule,) = webhooks[1]["rules"]
    [group], [version] = rule["apiGroups"], rule["apiVersions"]
    assert {(group, version, plural) for plural in rule["resources"]} == of_own
    (volume,) = [each for each in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in each]
    assert volume["secret"]["secretName"] == only(documents, "Secret")["metadata"]["name"]
    asked_for = {variable["name"] for variable in container["env"] if variable["name"].startswith("DRACO_")}
    assert asked_for <= {parameter.envvar for parameter in operator.command.params}


def test_the_webhooks_certificate_is_for_its_service_and_signed_by_the_bundle() -> None:
    documents = with_webhook()
    secret = only(documents, "Secret")["data"]
    webhooks = only(documents, "ValidatingWebhookConfiguration")["webhooks"]
    assert {webhook["clientConfig"]["caBundle"] for webhook in webhooks} == {secret["ca.crt"]}
    authority, certificate = (
        x509.load_pem_x509_certificate(base64.b64decode(secret[name])) for name in ("ca.crt", "tls.crt")
    )
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"draco-operator-webhook.{NAMESPACE}.svc"]
    (container,) = pod_of(documents, "Deployment")["containers"]
    assert {"name": "DRACO_WEBHOOK_NAME", "value": f"draco-operator-webhook.{NAMESPACE}.svc"} in container["env"]


def test_cert_manager_can_make_the_webhooks_certificate() -> None:
    documents = with_webhook("--set", "webhook.certManager=true")
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


def test_with_an_authority_for_callers_the_operator_is_given_it() -> None:
    authority = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"
    documents = with_webhook("--set-string", f"webhook.clientCA={authority}")
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
    assert "DRACO_WEBHOOK_CLIENT_CA" not in str(with_webhook())


def test_another_authority_for_callers_makes_new_pods_which_read_it() -> None:
    def template(authority: str, *arguments: str) -> dict[str, Any]:
        pem = f"-----BEGIN CERTIFICATE-----\n{authority}\n-----END CERTIFICATE-----\n"
        documents = with_webhook("--set-string", f"webhook.clientCA={pem}", *arguments)
        made: dict[str, Any] = only(documents, "Deployment")["spec"]["template"]
        return made

    assert template("abc") == template("abc")
    assert template("abc") != template("xyz")
    annotations = template("abc", "--set", "operator.podAnnotations.team=gpu")["metadata"]["annotations"]
    assert annotations["team"] == "gpu"
    assert annotations.items() > template("abc")["metadata"]["annotations"].items()
