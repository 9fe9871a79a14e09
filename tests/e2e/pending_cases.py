"""Cases of pods that wait for devices: one file each in `pending/`, with the scheduler's message and Draco's explanation.

Owns how a case is read and set up. A file's first document has the expectations; the others are manifests that can be applied as
they are. The cases run side by side in one cluster: each has a number, a namespace `case-07`, and a driver and class
`c07.example.com` in place of `gpu.example.com`, so that no case sees the devices of another. The new names are as long as the
originals, so messages are cut at the same places, and output is translated back before it is compared.

The first document of a file has the expectations, all optional:
- `scheduler`: part of the message of the pod's condition PodScheduled, with `{nodes}` for the number of nodes; without it
  there is no such condition.
- `event`: part of another Event of Kubernetes on the pod. `refused`: the API server's message when it refuses the claim.
- `reason`, `says`, `nearest`: Draco's reason, parts of its explanation, part of a change it suggests. `pod_only`: its claims are
  allocated or missing and get no Event. `passing`: the explanation keeps changing, because the scheduler retries.
- `before`, `after`: kubectl commands before the waiting pod is created, and commands that undo them. `alone`: the case would
  disturb others. `status`: statuses of claims, as a driver or another scheduler writes them. `since`: the first minor version of
  Kubernetes to which the case applies. `until`: by minor version, what was expected instead up to that one.
- `fix`: what lets the pod run: kubectl commands, or a `change` of the text of its claims and pod.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e import provider
from tests.e2e.kubectl import Kubectl, eventually

FOLDER = Path(__file__).parent / "pending"
POD = "train"
"""Name of the waiting pod in every case."""
_SAID = ("scheduler", "event", "refused", "says", "nearest")
"""Expectations that are compared with messages, in the names of the case's file."""
_DOMAINS = ("example.com", "exmaple.com")
_NAMESPACED = frozenset({"Pod", "ResourceClaim", "ResourceClaimTemplate"})

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One case. Its manifests have the names of the cluster, its expectations those of its file."""

    name: str
    number: int
    given: tuple[Manifest, ...]
    """What exists before: devices, classes, rules, claims, and pods that hold devices."""
    waiting: tuple[Manifest, ...]
    """The waiting pod, and its claims unless others hold them already."""
    changed: tuple[Manifest, ...]
    """The same after the change that lets the pod run; empty if the fix does not change them."""
    scheduler: tuple[str, ...] = ()
    event: str = ""
    refused: str = ""
    reason: str = ""
    says: tuple[str, ...] = ()
    nearest: str = ""
    pod_only: bool = False
    passing: bool = False
    alone: bool = False
    since: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    status: tuple[tuple[str, Manifest], ...] = ()
    fix_commands: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace of its pods and claims."""
        return _namespace_of(self.number)

    @property
    def claims(self) -> list[str]:
        """The claims that the waiting pod names."""
        (pod,) = (each for each in self.waiting if each["kind"] == "Pod")
        return [each["resourceClaimName"] for each in pod["spec"]["resourceClaims"] if "resourceClaimName" in each]

    @property
    def fixable(self) -> bool:
        """Whether the case says what lets the pod run."""
        return bool(self.fix_commands or self.changed)

    def translated(self, text: str) -> str:
        """A text about the case, translated to the names of its file."""
        for domain in _DOMAINS:
            text = text.replace(f"c{self.number:02}.{domain}", f"gpu.{domain}")
        return text.replace(self.namespace, "default")


def load_all() -> list[Case]:
    """Every case that applies to this Kubernetes, by name."""
    cases = [_load(path, number) for number, path in enumerate(sorted(FOLDER.glob("*.yaml")))]
    return [case for case in cases if case.since <= provider.MINOR]


def _load(path: Path, number: int) -> Case:
    original = text = provider.suited(path.read_text(encoding="utf-8"))
    for domain in _DOMAINS:
        text = text.replace(f"gpu.{domain}", f"c{number:02}.{domain}")
    namespace = _namespace_of(number)
    head, given, waiting = _parse(text, namespace=namespace)
    expected = next(yaml.load_all(original, yaml.CSafeLoader))
    for minor, otherwise in sorted(head.pop("until", {}).items(), reverse=True):
        if minor >= provider.MINOR:
            expected |= otherwise
    head |= {key: expected[key] for key in _SAID if key in expected}
    fix = head.pop("fix", {})
    changed: list[Manifest] = []
    if change := fix.get("change", {}):
        for old, new in change.items():
            before, separator, after = text.partition("\n---\n")
            assert old in after, f"{path.name}: nothing to change, there is no {old!r}"
            text = before + separator + after.replace(old, new)
        changed = _parse(text, namespace=namespace)[2]
    for key in ("scheduler", "says", "before", "after"):
        said = head.get(key, [])
        head[key] = (said,) if isinstance(said, str) else tuple(said)
    head["status"] = tuple(head.get("status", {}).items())
    return Case(
        name=path.stem,
        number=number,
        given=tuple(given),
        waiting=tuple(waiting),
        changed=tuple(changed),
        fix_commands=tuple(fix.get("kubectl", ())),
        **head,
    )


def _namespace_of(number: int) -> str:
    return f"case-{number:02}"


def _parse(text: str, *, namespace: str) -> tuple[dict[str, Any], list[Manifest], list[Manifest]]:
    head, *manifests = yaml.load_all(text, yaml.CSafeLoader)
    for each in manifests:
        if each["kind"] in _NAMESPACED:
            each["metadata"]["namespace"] = namespace
    (pod,) = (each for each in manifests if each["kind"] == "Pod" and each["metadata"]["name"] == POD)
    held = {name for each in manifests if each["kind"] == "Pod" and each is not pod for name in _claims_of(each)}
    new = _claims_of(pod) - held
    waiting = [each for each in manifests if each is pod or (_is_claim(each) and each["metadata"]["name"] in new)]
    return head, [each for each in manifests if each not in waiting], waiting


def _claims_of(pod: Manifest) -> set[str]:
    return {each.get("resourceClaimName", "") for each in pod["spec"]["resourceClaims"]}


def _is_claim(manifest: Manifest) -> bool:
    return bool(manifest["kind"] == "ResourceClaim")


def bring_about(kube: Kubectl, cases: Iterable[Case]) -> None:
    """Create the cases in the cluster together; returns when every pod that must hold devices has them."""
    cases = list(cases)
    _apply(kube, [_namespace(case) for case in cases] + [each for case in cases for each in case.given])
    eventually(lambda: _all_bound(kube, cases), what="the pods have devices that are to hold them")
    for case in cases:
        for claim, status in case.status:
            if claim not in case.claims:
                set_status(kube, case, claim, status)
        for command in case.before:
            kube.run(*command.split(), "-n", case.namespace)
    _apply(kube, [each for case in cases if not case.refused for each in case.waiting])


def refuse(kube: Kubectl, case: Case) -> str:
    """Apply a claim that the API server must refuse; returns its message."""
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": case.waiting})
    return case.translated(kube.run_with_input(listed, "create", "-f", "-", check=False).stderr)


def report(kube: Kubectl, case: Case) -> None:
    """Write the device statuses of the waiting claim, once it is allocated and after each new allocation."""
    for claim, status in case.status:
        if claim in case.claims:
            there = kube.get("resourceclaim", claim, namespace=case.namespace)
            if "allocation" in there.get("status", {}) and "devices" not in there["status"]:
                set_status(kube, case, claim, status)


def fix(kube: Kubectl, case: Case) -> None:
    """Do what lets the pod run."""
    for command in case.fix_commands:
        kube.run(*command.split(), "-n", case.namespace)
    if case.changed:
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": case.changed})
        kube.run_with_input(listed, "replace", "--force", "--grace-period=0", "-f", "-")


def take_back(kube: Kubectl, cases: Iterable[Case]) -> None:
    """Remove the cases from the cluster; returns when their pods are gone."""
    cases = list(cases)
    if not cases:
        return
    for case in cases:
        for command in case.after:
            kube.run(*command.split(), "-n", case.namespace, check=False)  # a fixed case has undone it already
    # Delete the pods explicitly, too: the deletion of a namespace is slow.
    manifests = [each for case in cases for each in (*case.given, *case.waiting)]
    gone = [each for each in manifests if each["kind"] == "Pod" or each["kind"] not in _NAMESPACED]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": gone})
    kube.run_with_input(listed, "delete", "--ignore-not-found", "--wait=false", "-f", "-")
    kube.run("delete", "namespace", "--wait=false", *(case.namespace for case in cases))
    eventually(lambda: not _pods_of(kube, cases), what="the pods are gone", within_s=90)


def set_status(kube: Kubectl, case: Case, claim: str, status: Manifest) -> None:
    """Write a claim's status, as its driver or another allocator would."""
    patch = json.dumps({"status": status})
    kube.run(
        *("patch", "resourceclaim", claim, "-n", case.namespace),
        *("--subresource=status", "--type=merge", "-p", patch),
    )


def scheduled_condition(kube: Kubectl, case: Case) -> dict[str, Any]:
    """The condition PodScheduled of the waiting pod; empty if there is none."""
    pod = json.loads(case.translated(json.dumps(kube.get("pod", POD, namespace=case.namespace))))
    conditions = pod["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == "PodScheduled"), {})


def events(kube: Kubectl, case: Case) -> list[dict[str, Any]]:
    """The Events of the case, translated to the names of its file."""
    listed = kube.objects("events.events.k8s.io", namespace=case.namespace)
    found: list[dict[str, Any]] = json.loads(case.translated(json.dumps(listed)))
    return found


def _apply(kube: Kubectl, manifests: list[Manifest]) -> None:
    if not manifests:
        return
    kube.run_with_input(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}), "apply", "-f", "-")


def _namespace(case: Case) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": case.namespace}}


def _all_bound(kube: Kubectl, cases: list[Case]) -> bool:
    """Whether all pods are bound. They need not run: no kubelet has the drivers of these devices."""
    pods = _pods_of(kube, cases)
    wanted = sum(each["kind"] == "Pod" for case in cases for each in case.given)
    return len(pods) == wanted and all(each["spec"].get("nodeName") for each in pods)


def _pods_of(kube: Kubectl, cases: list[Case]) -> list[Manifest]:
    namespaces = {case.namespace for case in cases}
    return [each for each in kube.objects("pods", namespace="") if each["metadata"]["namespace"] in namespaces]
