"""Every version of every claim, as `kubectl get --watch` prints them: polling would miss some.

Owns reading that stream. The tests judge the versions.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tests.e2e.kubectl import Kubectl, eventually

Json = dict[str, Any]
Device = tuple[str, str]


class ClaimHistory:
    """Follows the claims of all namespaces while `followed` lasts."""

    def __init__(self, kube: Kubectl) -> None:
        self._kube = kube
        self._versions: list[tuple[str, Json]] = []
        self._told = threading.Condition()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow claims within the block, starting with the existing ones."""
        what = ["get", "resourceclaims", "--all-namespaces", "--watch", "--output-watch-events", "-o", "json"]
        command = [str(self._kube.binary), "--kubeconfig", str(self._kube.kubeconfig), *what]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            reading = threading.Thread(target=self._read, args=(process.stdout,))
            reading.start()
            try:
                yield
                self._catch_up()
            finally:
                process.kill()
                reading.join()

    def doubles(self) -> list[tuple[Device, str, str]]:
        """Devices that two claims held at the same time, with the two claims."""
        found = []
        for holders in self.states():
            owners: dict[Device, str] = {}
            for claim, devices in holders.items():
                found += [(each, owners[each], claim) for each in devices if each in owners]
                owners |= dict.fromkeys(devices, claim)
        return found

    def until(self, check: Callable[[dict[str, list[Device]]], bool], *, within_s: float = 60.0, what: str) -> None:
        """Wait until the claims' devices pass the check, and return at that moment."""

        def passes() -> bool:
            *_, last = [{}, *self.states()]
            return check(last)

        with self._told:
            assert self._told.wait_for(passes, within_s), f"not within {within_s:g} s: {what}"

    def most_held(self, *prefixes: str) -> int:
        """The most devices that claims with this name prefix held; with several prefixes, the minimum of them counts."""
        return max((min(held_of(each, prefix) for prefix in prefixes) for each in self.states()), default=0)

    def states(self) -> Iterator[dict[str, list[Device]]]:
        """The devices of each claim after each change."""
        for held in self.results():
            yield {claim: [(each["pool"], each["device"]) for each in results] for claim, results in held.items()}

    def results(self) -> Iterator[dict[str, list[Json]]]:
        """The results of each claim's allocation after each change."""
        held: dict[str, list[Json]] = {}
        for kind, claim in list(self._versions):
            allocation = claim.get("status", {}).get("allocation") if kind != "DELETED" else None
            held[name_of(claim)] = allocation["devices"]["results"] if allocation else []
            yield held

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            event = json.loads(line)
            with self._told:
                self._versions.append((event["type"], event["object"]))
                self._told.notify_all()

    def _catch_up(self) -> None:
        """Wait until the current versions have been printed."""

        def is_told() -> bool:
            told = {
                name_of(claim): claim["metadata"]["resourceVersion"]
                for kind, claim in list(self._versions)
                if kind != "DELETED"
            }
            now = self._kube.objects("resourceclaims", namespace="")
            return all(told.get(name_of(each)) == each["metadata"]["resourceVersion"] for each in now)

        eventually(is_told, what="kubectl has printed how all claims are now")


def held_of(state: dict[str, list[Device]], prefix: str) -> int:
    """Number of devices of claims with this name prefix."""
    return sum(len(devices) for claim, devices in state.items() if claim.partition("/")[2].startswith(prefix))


def name_of(claim: Json) -> str:
    """Namespace and name."""
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
