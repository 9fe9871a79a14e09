"""What the chart makes for Prometheus and Grafana: only where they are, and only of metrics that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts import check_links
from tests.component.chart.rendering import MONITORING, kinds, only, pod_of, render

REPOSITORY = Path(__file__).parents[3]
OBJECTS = {"PodMonitor": "podMonitor", "PrometheusRule": "rules", "ConfigMap": "dashboards"}


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
    made = only(render(*MONITORING, "--set", f"metrics.{value}.labels.release=prometheus"), kind)
    assert made["metadata"]["labels"]["release"] == "prometheus"
    assert made["metadata"]["labels"]["app.kubernetes.io/name"] == "draco"


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


def test_each_alert_links_to_the_section_that_says_what_to_do() -> None:
    page = REPOSITORY / "docs" / "runbooks" / "README.md"
    for rule in alerts():
        url = rule["annotations"]["runbook_url"]
        assert url == f"docs/runbooks/alerts.md#{rule['alert'].lower()}"
        assert check_links.leads(page, url.removeprefix("docs/runbooks/")), url
    [first, *_] = alerts("--set", "metrics.rules.runbookURL=https://git.example.com/draco/docs/runbooks/")
    assert first["annotations"]["runbook_url"].startswith("https://git.example.com/draco/docs/runbooks/alerts.md#")


def test_there_are_no_alerts_of_what_is_not_installed() -> None:
    names = {rule["alert"] for rule in alerts("--set", "profile=operator-only")}
    assert "DracoHasNoLeader" in names
    assert not {name for name in names if "Agent" in name or "Prepare" in name}
    assert "DracoHasNoLeader" not in {rule["alert"] for rule in alerts("--set", "operator.enabled=false")}


def test_pods_are_scraped_where_probes_are_served() -> None:
    documents = render(*MONITORING, "--set", "metrics.port=9100")
    (endpoint,) = only(documents, "PodMonitor")["spec"]["podMetricsEndpoints"]
    for kind in ("Deployment", "DaemonSet"):
        (container,) = pod_of(documents, kind)["containers"]
        assert {"name": endpoint["port"], "containerPort": 9100} in container["ports"]
        assert {"name": "DRACO_LISTEN", "value": "0.0.0.0:9100"} in container["env"]
