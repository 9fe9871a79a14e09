"""The threat model's table of privileges matches the chart: only the agent's and the keeper's containers have privileges."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from draco_local.cluster.programs import binaries
from tests.component.chart.rendering import IMAGE

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "concepts" / "threat-model.md"
WORKLOADS = {"Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob", "Pod"}
EVERYTHING = (
    "webhook.enabled=true,networkPolicy.enabled=true,operator.releaseIdleClaims=true,operator.runJobs=true,"
    "operator.jobTemplates={reset},operator.evictUnused=true,mps.enabled=true"
)


def pods(*values: str) -> dict[str, dict[str, Any]]:
    """The chart's pod specs by the name of their controller."""
    helm = binaries.find("helm")["helm"]
    command = [
        str(helm),
        "template",
        "draco",
        str(REPOSITORY / "charts" / "draco"),
        "--namespace",
        "draco-system",
        *IMAGE,
        *values,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made = [each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] in WORKLOADS]
    assert {each["kind"] for each in made} <= {"Deployment", "DaemonSet", "Job", "Pod"}, (
        "this test looks into no others"
    )
    return {
        each["metadata"]["name"]: each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"]
        for each in made
    }


def privileges(pod: dict[str, Any]) -> set[str]:
    """A pod's privileges beyond those of an unprivileged container."""
    found = {f"{name}: true" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)}
    folders = {each["name"]: each["hostPath"]["path"] for each in pod.get("volumes", []) if "hostPath" in each}
    mounted: set[str] = set()
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        context = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        if context.get("privileged"):
            found.add("privileged: true")
        elif context.get("allowPrivilegeEscalation") is not False:
            found.add("allowPrivilegeEscalation: true")
        found |= {f"{name}: 0" for name in ("runAsUser", "runAsGroup") if context.get(name) == 0}
        if not context.get("runAsNonRoot") and context.get("runAsUser") != 0:
            found.add("an unknown user")
        found |= {f"capability {each}" for each in context.get("capabilities", {}).get("add", [])}
        for mount in container.get("volumeMounts", []):
            if mount["name"] in folders:
                mounted.add(mount["name"])
                found.add(folders[mount["name"]] + (", read-only" if mount.get("readOnly") else ""))
    return found | {f"{folders[each]}, not mounted" for each in folders.keys() - mounted}


def explained(whose: str) -> set[str]:
    """The rows of a container's table."""
    section = (
        PAGE.read_text(encoding="utf-8").partition(f"## Privileges of the {whose}'s container")[2].partition("\n## ")[0]
    )
    rows = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| `")]
    return {f"{name}{rest}" for row in rows for name, rest in re.findall(r"`([^`]+)`(, read-only)?", row)}


@pytest.mark.parametrize("values", [[], ["--set", EVERYTHING]], ids=["defaults", "everything"])
def test_each_privilege_is_explained_and_no_other_container_has_any(values: list[str]) -> None:
    made = {name: privileges(pod) for name, pod in pods(*values).items()}
    assert made.pop("draco-agent") == explained("agent")
    if "draco-mps" in made:
        assert made.pop("draco-mps") == explained("keeper")
    assert len(made) >= 1
    assert {name: found for name, found in made.items() if found} == {}
