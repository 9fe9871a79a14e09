"""kubectl, as a user runs it: apply, wait, delete. Failures show kubectl's own output.

Tests read objects from the API server directly.
"""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.reading import reader


class StillFalseError(AssertionError):
    """A condition did not come true before its deadline."""


def eventually(check: Callable[[], Any], *, within_s: float = 60.0, what: str) -> Any:
    """Return the first true value of `check`; its AssertionErrors mean "not yet". Fails with the last state seen."""
    deadline = time.monotonic() + within_s
    last: object = None
    while True:
        try:
            last = check()
            if last:
                return last
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            raise StillFalseError(f"not within {within_s:g} s: {what}; last seen: {last!r}")
        time.sleep(0.2)  # between two checks, never instead of one


@dataclass(frozen=True)
class Kubectl:
    """One cluster, and the namespace that its kubeconfig names."""

    binary: Path
    kubeconfig: Path

    def in_namespace(self, name: str, folder: Path) -> "Kubectl":
        """The same cluster with another default namespace, through a new kubeconfig in `folder`."""
        copy = folder / f"kubeconfig-{name}"
        config = yaml.load(self.kubeconfig.read_text(), yaml.CSafeLoader)
        for each in config["contexts"]:
            each["context"]["namespace"] = name
        copy.touch(mode=0o600)
        copy.write_text(json.dumps(config))
        return replace(self, kubeconfig=copy)

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl; a failure is an AssertionError with its output."""
        return self.run_with_input("", *arguments, check=check)

    def run_with_input(self, text: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl with a text on its standard input."""
        done = subprocess.run(
            [str(self.binary), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}"
        return done

    def apply_objects(self, *manifests: dict[str, Any]) -> None:
        """Apply these objects."""
        self.run_with_input(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}), "apply", "-f", "-")

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """One object, in the namespace or in another."""
        found = reader(self.kubeconfig)
        return found.get(kind, name, namespace=found.namespace if namespace is None else namespace)

    def objects(self, kind: str, *, namespace: str | None = None, labels: str = "") -> list[dict[str, Any]]:
        """Objects of a kind in the namespace or another one; in all if it is empty."""
        found = reader(self.kubeconfig)
        return found.list(kind, namespace=found.namespace if namespace is None else namespace, labels=labels)

    def phase(self, pod: str) -> str:
        """A pod's phase."""
        return str(self.get("pod", pod)["status"].get("phase", ""))

    def running(self, *pods: str, within_s: float = 60.0) -> None:
        """Wait until the pods run."""

        def runs(pod: str) -> bool:
            status = self.get("pod", pod)["status"]
            unmet = [each for each in status.get("conditions", []) if each["status"] != "True"]
            assert status.get("phase") == "Running", [(each["type"], each.get("message")) for each in unmet]
            return True

        for pod in pods:
            eventually(lambda pod=pod: runs(pod), within_s=within_s, what=f"pod {pod} is Running")

    def devices(self, claim: str) -> list[tuple[str, str]]:
        """Pool and device of each allocation result of a claim; empty if there is none."""
        allocation = self.get("resourceclaim", claim).get("status", {}).get("allocation")
        results = allocation["devices"]["results"] if allocation else []
        return [(result["pool"], result["device"]) for result in results]

    def notes(self, name: str, kind: str = "ResourceClaim") -> list[str]:
        """Notes of the Events about an object."""
        events = self.objects("events.events.k8s.io")
        return [
            event.get("note", "")
            for event in events
            if event.get("regarding", {}).get("kind") == kind and event["regarding"].get("name") == name
        ]
