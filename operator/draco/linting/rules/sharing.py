"""Rules about sharing: one claim is one set of devices, and a template makes a claim for each pod.

Infers the intention to share only from evidence: a word for sharing in a name or a comment.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from draco.linting.model import DropField, Edit, Finding, Manifest, MoveField, SetField
from draco.linting.objects import (
    WrittenClaim,
    WrittenClaims,
    WrittenPodSpec,
    asked_of,
    listed,
    mapping,
    pod_claims,
    pods,
    text,
)

_SHARED: Final = re.compile(
    r"\bshar(e|es|ed|ing)\b|\bsame (gpu|device|claim|physical|mig)|\bin common\b", re.IGNORECASE
)
_NOT_SHARED: Final = re.compile(r"\b(own|each|not shared?|exclusive|separate|dedicated)\b", re.IGNORECASE)


def check_sharing(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Several pods with one template that is named as shared; several replicas with one claim for one device."""
    known = WrittenClaims(manifests)
    uses: dict[tuple[str, str], list[tuple[WrittenPodSpec, int, str]]] = defaultdict(list)
    for pod in pods(manifests):
        for number, entry in enumerate(pod_claims(pod)):
            template = text(entry.fields.get("resourceClaimTemplateName"))
            if template:
                uses[pod.namespace, template].append((pod, number, text(entry.fields.get("name"))))
            if target := text(entry.fields.get("resourceClaimName")):
                claim = known.find(pod.namespace, target, is_template=False)
                yield from _replicas(manifests, pod, number, target, claim)
    for (namespace, template), users in uses.items():
        if sum(pod.replicas for pod, _, _ in users) < 2:
            continue
        claim = known.find(namespace, template, is_template=True)
        if _meant_to_share(manifests, template, users, claim):
            yield _template(template, users, claim)


def _meant_to_share(
    manifests: Sequence[Manifest],
    template: str,
    users: Sequence[tuple[WrittenPodSpec, int, str]],
    claim: WrittenClaim | None,
) -> bool:
    # Containers of one pod do share a template's claim, so with several containers the entry's name is no evidence.
    names = [template, *(name for pod, _, name in users if len(listed(pod.spec.get("containers"))) < 2)]
    notes = " ".join(
        manifests[index].comments
        for index in {pod.manifest for pod, _, _ in users} | ({claim.manifest} if claim else set())
    )
    said = " ".join(name.replace("-", " ").replace("_", " ") for name in names)
    return bool(_SHARED.search(said) or (_SHARED.search(notes) and not _NOT_SHARED.search(notes)))


def _template(template: str, users: Sequence[tuple[WrittenPodSpec, int, str]], claim: WrittenClaim | None) -> Finding:
    edits: list[tuple[int, Edit]] = []
    for pod, number, _ in users:
        entry = (*pod.path, "resourceClaims", number)
        edits.append((pod.manifest, MoveField((*entry, "resourceClaimTemplateName"), (*entry, "resourceClaimName"))))
    if claim is not None:
        edits.append((claim.manifest, SetField(("kind",), "ResourceClaim")))
        edits.append((claim.manifest, MoveField(("spec", "spec", "devices"), ("spec", "devices"))))
        edits.append((claim.manifest, DropField(("spec", "spec"))))
        edits.append((claim.manifest, DropField(("spec", "metadata"))))
    count = sum(pod.replicas for pod, _, _ in users)
    pod, number, _ = users[-1]
    return Finding(
        "template-shared",
        "warning",
        f"{template} is a template: each of the {count} pods gets a claim and a device of its own; to share one device, "
        "name one ResourceClaim in resourceClaimName of all pods",
        pod.manifest,
        (*pod.path, "resourceClaims", number, "resourceClaimTemplateName"),
        tuple(edits),
    )


def _replicas(
    manifests: Sequence[Manifest], pod: WrittenPodSpec, number: int, target: str, claim: WrittenClaim | None
) -> Iterator[Finding]:
    if pod.replicas < 2:
        return
    notes = manifests[pod.manifest].comments + (manifests[claim.manifest].comments if claim else "")
    if _SHARED.search(target.replace("-", " ")) or _SHARED.search(notes):
        return
    devices = "devices"
    if claim is not None:
        asked = [one.fields for one in asked_of(claim)]
        if len(asked) == 1 and mapping(asked[0]).get("count", 1) == 1 and asked[0].get("allocationMode") != "All":
            devices = "one device"
    yield Finding(
        "claim-of-replicas",
        "warning",
        f"all {pod.replicas} replicas name the one claim {target}: they run on one node and share its {devices}; for a device "
        "each, name a ResourceClaimTemplate in resourceClaimTemplateName (if sharing is intended, say so in the claim's name or "
        "in a comment)",
        pod.manifest,
        (*pod.path, "resourceClaims", number, "resourceClaimName"),
    )
