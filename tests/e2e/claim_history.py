"""Every version of every claim, as `kubectl get --watch` prints them: what a look now and then would miss.

Owns reading that stream. What the versions must look like is said by the tests.
"""

import json
import subprocess
import threading
from collections import defaultdict
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
        """Follow them, from those that are there."""
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
        """Devices that two claims had at a time, with the two."""
        found = []
        for holders in self.states():
            owners: dict[Device, str] = {}
            for claim, devices in holders.items():
                found += [(each, owners[each], claim) for each in devices if each in owners]
                owners |= dict.fromkeys(devices, claim)
        return found

    def until(self, check: Callable[[dict[str, list[Device]]], bool], *, within_s: float = 60.0, what: str) -> None:
        """Wait until what claims have passes the check, and return at that moment."""

        def passes() -> bool:
            *_, last = [{}, *self.states()]
            return check(last)

        with self._told:
            assert self._told.wait_for(passes, within_s), f"not within {within_s:g} s: {what}"

    def most_held(self, *prefixes: str) -> int:
        """How many devices the claims had at most whose names begin so: where several are given, those of which had fewest."""
        return max((min(held_of(each, prefix) for prefix in prefixes) for each in self.states()), default=0)

    def states(self) -> Iterator[dict[str, list[Device]]]:
        """What each claim has, after each change."""
        holders: dict[str, list[Device]] = defaultdict(list)
        for kind, claim in list(self._versions):
            allocation = claim.get("status", {}).get("allocation") if kind != "DELETED" else None
            results = allocation["devices"]["results"] if allocation else []
            holders[name_of(claim)] = [(each["pool"], each["device"]) for each in results]
            yield holders

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            event = json.loads(line)
            with self._told:
                self._versions.append((event["type"], event["object"]))
                self._told.notify_all()

    def _catch_up(self) -> None:
        """Wait until what is now has been printed."""

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
    """How many devices the claims have whose names begin so."""
    return sum(len(devices) for claim, devices in state.items() if claim.partition("/")[2].startswith(prefix))


def name_of(claim: Json) -> str:
    """Namespace and name."""
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
