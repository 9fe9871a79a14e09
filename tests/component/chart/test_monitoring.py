"""The chart's objects for Prometheus and Grafana: only if these are installed, and only with existing metrics."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.component.chart import audit
from tests.component.chart.rendering import MONITORING, NAMESPACE, kinds, only, pod_of, render

REPOSITORY = Path(__file__).parents[3]
OBJECTS = {"ServiceMonitor": "serviceMonitor", "PrometheusRule": "rules", "ConfigMap": "dashboards"}


def alerts(*arguments: str) -> list[dict[str, Any]]:
    rules = only(render(*MONITORING, *arguments), "PrometheusRule")
    return [rule for group in rules["spec"]["groups"] for rule in group["rules"]]


def documented() -> set[str]:
    """Every series of a documented metric."""
    rows = re.findall(r"\| `(draco_\w+)` \| (\w+) ", (REPOSITORY / "docs" / "reference" / "metrics.md").read_text())
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return {name + suffix for name, kind in rows for suffix in ("", *suffixes.get(kind, ()))}


def test_nothing_is_made_for_a_cluster_without_the_prometheus_operator() -> None:
    assert not kinds(render()) & set(OBJECTS)


@pytest.mark.parametrize(("kind", "value"), OBJECTS.items())
def test_each_is_made_where_its_api_exists_unless_told_otherwise(kind: str, value: str) -> None:
    assert kind in kinds(render(*MONITORING))
    assert kind not in kinds(render(*MONITORING, "--set", f"metrics.{value}.enabled=false"))
    assert kind in kinds(render("--set", f"metrics.{value}.enabled=true"))


@pytest.mark.parametrize(("kind", "value"), OBJECTS.items())
def test_each_can_be_labelled_for_whoever_selects_it(kind: str, value: str) -> None:
    documents = render(*MONITORING, "--set", f"metrics.{value}.labels.release=prometheus")
    made = [each["metadata"]["labels"] for each in documents if each["kind"] == kind]
    assert {(each["release"], each["app.kubernetes.io/name"]) for each in made} == {("prometheus", "draco")}


def test_grafanas_sidecar_finds_the_dashboards() -> None:
    assert only(render(*MONITORING), "ConfigMap")["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_alerts_and_dashboards_ask_only_for_metrics_that_exist() -> None:
    boards = only(render(*MONITORING), "ConfigMap")["data"]
    panels = [panel for board in boards.values() for panel in json.loads(board)["panels"]]
    shown = {target["expr"] for panel in panels for target in panel.get("targets", [])}
    asked = {name for text in (*(rule["expr"] for rule in alerts()), *shown) for name in re.findall(r"draco_\w+", text)}
    assert len(asked) > 15
    assert asked <= documented()


def test_each_panel_says_what_it_shows_and_stands_beside_the_others() -> None:
    [board] = only(render(*MONITORING), "ConfigMap")["data"].values()
    panels = json.loads(board)["panels"]
    assert [panel["title"] for panel in panels if panel["type"] != "row" and not panel["description"]] == []
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_each_alert_links_to_a_page_of_its_own_that_leads_to_its_end() -> None:
    index = (REPOSITORY / "docs" / "runbooks" / "alerts.md").read_text("utf-8")
    parts = ("What it means", "What is affected", "How to find the cause", "What to do", "How it ends")
    for rule in alerts():
        url, severity = rule["annotations"]["runbook_url"], rule["labels"]["severity"]
        assert url == f"docs/runbooks/alerts/{rule['alert']}.md"
        page = (REPOSITORY / url).read_text("utf-8")
        assert [part for part in parts if f"**{part}.**" not in page] == [], url
        waits = rule["for"].replace("m", " minutes") if rule["for"] != "1m" else "1 minute"
        assert f"Severity: {severity}, after {waits}." in page, url
        assert f"](alerts/{rule['alert']}.md) | {severity} |" in index
    [first, *_] = alerts("--set", "metrics.rules.runbookURL=https://git.example.com/draco/docs/runbooks/")
    assert first["annotations"]["runbook_url"].startswith("https://git.example.com/draco/docs/runbooks/alerts/Draco")


def test_there_is_no_page_of_an_alert_that_there_is_not() -> None:
    pages = {page.stem for page in (REPOSITORY / "docs" / "runbooks" / "alerts").glob("*.md")}
    assert pages == {rule["alert"] for rule in alerts()}


def test_there_are_no_alerts_of_what_is_not_installed() -> None:
    names = {rule["alert"] for rule in alerts("--set", "profile=operator-only")}
    assert "DracoHasNoLeader" in names
    assert not {name for name in names if "Agent" in name or "Prepare" in name}
    assert "DracoHasNoLeader" not in {rule["alert"] for rule in alerts("--set", "operator.enabled=false")}


SECURE, PLAIN = (), ("--set", "metrics.secure.enabled=false")
COMPONENTS = [("operator", "Deployment"), ("agent", "DaemonSet")]


def made_for(documents: list[dict[str, Any]], kind: str, component: str) -> dict[str, Any]:
    (found,) = [
        each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, f"draco-{component}-metrics")
    ]
    return found


def port_of(container: dict[str, Any], name: str) -> int:
    (found,) = [each["containerPort"] for each in container["ports"] if each["name"] == name]
    return int(found)


@pytest.mark.parametrize("values", [SECURE, PLAIN], ids=["secure", "plain"])
@pytest.mark.parametrize(("component", "workload"), COMPONENTS)
def test_a_monitor_scrapes_the_port_on_which_pods_serve_metrics(
    component: str, workload: str, values: tuple[str, ...]
) -> None:
    documents = render(*MONITORING, *values, "--set", "metrics.port=9100,metrics.secure.port=9200")
    (container,) = pod_of(documents, workload)["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    service, monitor = (made_for(documents, kind, component) for kind in ("Service", "ServiceMonitor"))
    labels = only(documents, workload)["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (port,), (endpoint,) = service["spec"]["ports"], monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics")
    assert endpoint["honorLabels"], "usage has the labels namespace and pod of those who use a GPU"
    listens = environment["DRACO_METRICS_LISTEN" if values == SECURE else "DRACO_LISTEN"]
    assert listens == f"0.0.0.0:{port_of(container, port['targetPort'])}"
    assert port_of(container, "probes") == 9100
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {"probes"}
    assert (endpoint.get("scheme"), "DRACO_METRICS_LISTEN" in environment) == (
        ("https", True) if values == SECURE else (None, False)
    )


@pytest.mark.parametrize(("component", "workload"), COMPONENTS)
def test_a_scraper_trusts_the_certificate_that_pods_show_and_shows_its_token(component: str, workload: str) -> None:
    documents = render(*MONITORING)
    secret = made_for(documents, "Secret", component)
    (endpoint,) = made_for(documents, "ServiceMonitor", component)["spec"]["endpoints"]
    assert endpoint["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": secret["metadata"]["name"], "key": "ca.crt"}
    authority, certificate = (
        x509.load_pem_x509_certificate(base64.b64decode(secret["data"][name])) for name in ("ca.crt", "tls.crt")
    )
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [endpoint["tlsConfig"]["serverName"]]
    pod = pod_of(documents, workload)
    (volume,) = [each for each in pod["volumes"] if each["name"] == "metrics"]
    assert (volume["secret"]["secretName"], volume["secret"]["optional"]) == (secret["metadata"]["name"], True)
    (container,) = pod["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "metrics"]
    assert {"name": "DRACO_METRICS_CERTIFICATES", "value": mount["mountPath"]} in container["env"]
    assert {"name": "DRACO_METRICS_NAME", "value": endpoint["tlsConfig"]["serverName"]} in container["env"]


def test_a_scraper_that_may_not_read_files_is_given_a_token_by_a_secret() -> None:
    token = "metrics.serviceMonitor.tokenSecret.name=prometheus-token"
    for component, _ in COMPONENTS:
        (endpoint,) = made_for(render(*MONITORING, "--set", token), "ServiceMonitor", component)["spec"]["endpoints"]
        assert endpoint["authorization"]["credentials"] == {"name": "prometheus-token", "key": "token"}
        assert "bearerTokenFile" not in endpoint


def test_certificates_can_be_cert_managers_or_ones_own() -> None:
    documents = render("--set", "metrics.secure.certificates=CertManager")
    for component, workload in COMPONENTS:
        certificate = made_for(documents, "Certificate", component)["spec"]
        (volume,) = [each for each in pod_of(documents, workload)["volumes"] if each["name"] == "metrics"]
        assert certificate["secretName"] == volume["secret"]["secretName"]
        assert certificate["dnsNames"] == [f"draco-{component}-metrics.{NAMESPACE}.svc"]
        assert made_for(documents, "Issuer", component)["metadata"]["name"] == certificate["issuerRef"]["name"]
    assert "Secret" not in kinds(documents)
    assert not kinds(render("--set", "metrics.secure.certificates=Existing")) & {"Secret", "Certificate", "Issuer"}


@pytest.mark.parametrize(("component", "_workload"), COMPONENTS)
def test_only_where_metrics_are_secure_may_a_program_ask_who_somebody_is(component: str, _workload: str) -> None:
    def reviews(*values: str) -> set[audit.Right]:
        found = audit.granted(render(*values), f"draco-{component}")
        return {right for right in found if right.resource.endswith("reviews")}

    assert reviews() == {
        audit.Right("authentication.k8s.io", "tokenreviews", "create"),
        audit.Right("authorization.k8s.io", "subjectaccessreviews", "create"),
    }
    assert reviews(*PLAIN) == set()
