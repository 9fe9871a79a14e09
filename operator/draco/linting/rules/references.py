"""Rules about pods and their claims: every name must refer to something.

Owns `resourceClaims` entries, their use by containers, and the requests that containers name. A claim or template outside of the
manifests may exist in the cluster, so it is not reported.
"""

from collections.abc import Iterator, Sequence

from draco.linting import objects
from draco.linting.model import DropField, Edit, Finding, Manifest, SetField, TreePath, finding
from draco.resources.texts import ALIKE, are, most_like, slip_of

_KINDS = {False: "ResourceClaim", True: "ResourceClaimTemplate"}


def _field_for(claim: objects.WrittenClaim) -> str:
    return "resourceClaimTemplateName" if claim.is_template else "resourceClaimName"


def check_pod_claims(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Every entry names one claim or one template, and some container uses it."""
    known = objects.WrittenClaims(manifests)
    for pod in objects.pods(manifests):
        entries = list(objects.pod_claims(pod))
        used = {use.name for use in objects.uses(pod)}
        for entry in entries:
            name = objects.text(entry.fields.get("name"))
            if not name:
                yield finding("pod-claim", "an entry of resourceClaims has no name", pod.manifest, entry.path)
                continue
            if "source" not in entry.fields:
                yield from _target(pod, entry, known)
            if name not in used:
                yield from _unused(pod, entry, name)


def _target(
    pod: objects.WrittenPodSpec, entry: objects.WrittenRequest, known: objects.WrittenClaims
) -> Iterator[Finding]:
    name = objects.text(entry.fields.get("name"))
    given = [field for field in objects.NAMING if entry.fields.get(field)]
    if len(given) > 1:
        message = (
            f"{name} has resourceClaimName and resourceClaimTemplateName: name the claim that pods share, or the template that "
            "makes one for each, not both"
        )
        yield finding("claim-or-template", message, pod.manifest, entry.path)
        return
    mine = known.within(pod.namespace)
    if not given:
        if entry.fields.keys() - {"name", *objects.NAMING}:
            return  # reported as an unknown field
        edits = [SetField((*entry.path, _field_for(claim)), claim.name) for claim in mine] if len(mine) == 1 else []
        message = f"{name} names no claim: add resourceClaimName or resourceClaimTemplateName"
        yield finding("claim-or-template", message, pod.manifest, entry.path, *edits)
        return
    target = objects.text(entry.fields[given[0]])
    wants_template = objects.NAMING[given[0]]
    if known.find(pod.namespace, target, is_template=wants_template) is not None:
        return
    path = (*entry.path, given[0])
    other = known.find(pod.namespace, target, is_template=not wants_template)
    if other is not None:
        right = _field_for(other)
        kind, wrong = _KINDS[other.is_template], _KINDS[wants_template]
        message = f"{target} is a {kind} here and not a {wrong}: name it in {right}"
        yield finding(
            "claim-or-template", message, pod.manifest, path, SetField((*entry.path, right), target), DropField(path)
        )
        return
    elsewhere = next((claim for claim in known.all if claim.name == target), None)
    if elsewhere is not None:
        message = (
            f"{target} is in namespace {elsewhere.namespace}, but this {pod.kind} is in {pod.namespace}: a pod uses only claims "
            "of its own namespace"
        )
        yield finding("claim-namespace", message, pod.manifest, path)
        return
    likely = most_like(target, [claim.name for claim in mine if claim.is_template == wants_template], at_least=ALIKE)
    if likely:
        message = f"there is no {target} among these manifests; the nearest is {likely}"
        yield finding("claim-unknown", message, pod.manifest, path, severity="warning")


def _unused(pod: objects.WrittenPodSpec, entry: objects.WrittenRequest, name: str) -> Iterator[Finding]:
    every = list(objects.containers(pod))
    edits: list[Edit] = []
    if len(every) == 1 and not any(objects.container_claims(every[0])):
        edits = [SetField((*every[0].path, "resources", "claims"), [{"name": name}])]
    message = f"no container takes {name} in resources.claims: the pod holds the device, but no container can see it"
    if "domain" in pod.spec:
        message = (
            f"no device of the virtual machine has claimName: {name}: name it in domain.devices.gpus or hostDevices"
        )
    yield finding("claim-unused", message, pod.manifest, entry.path, *edits, severity="warning")


def check_container_claims(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Every claim of a container is an entry of its pod, and every request it names is one of that claim."""
    known = objects.WrittenClaims(manifests)
    for pod in objects.pods(manifests):
        entries = {objects.text(entry.fields.get("name")): entry for entry in objects.pod_claims(pod)}
        reported: set[str] = set()
        for use in objects.uses(pod):
            name, request = use.name, use.fields.get(use.request_field)
            if isinstance(request, dict):
                message = (
                    "request is the name of one request; what it asks for belongs to the claim's spec.devices.requests"
                )
                yield finding("request-unknown", message, pod.manifest, (*use.path, use.request_field))
            if name not in entries:
                if name not in reported:
                    yield _without_entry(pod, use, list(entries), known)
                reported.add(name)
            elif isinstance(request, str):
                yield from _request(pod, use, request, entries[name], known)


def check_repeated_claims(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """A container names each entry once, or several requests of it."""
    for pod in objects.pods(manifests):
        for container in objects.containers(pod):
            seen: set[tuple[str, str]] = set()
            for use in objects.container_claims(container):
                name, request = (objects.text(use.fields.get(field)) for field in ("name", "request"))
                if name and (
                    {(name, request), (name, "")} & seen or (not request and name in {one for one, _ in seen})
                ):
                    message = (
                        f"the container takes {name} already: name an entry once, or one request of it in each item"
                    )
                    yield finding("container-claim", message, pod.manifest, use.path)
                seen.add((name, request))


def _without_entry(
    pod: objects.WrittenPodSpec,
    use: objects.WrittenUse,
    entries: Sequence[str],
    known: objects.WrittenClaims,
) -> Finding:
    path, name = (*use.path, use.name_field), use.name
    if not name:
        return finding("container-claim", "an entry of resources.claims has no name", pod.manifest, use.path)
    slip = slip_of(name, entries)
    if likely := slip or most_like(name, entries, at_least=ALIKE):
        message = f"{name} is not an entry of the pod's resourceClaims; the nearest is {likely}"
        return finding("container-claim", message, pod.manifest, path, *([SetField(path, slip)] if slip else []))
    named = [entry for entry in entries if entry]
    if set(named) - {
        each.name for each in objects.uses(pod)
    }:  # another entry would be one more device, and the unused one is probably meant
        message = f"{name} is not an entry of the pod's resourceClaims: there {are(len(named))} {', '.join(named)}"
        return finding("container-claim", message, pod.manifest, path)
    mine = known.within(pod.namespace)
    meant = [claim for claim in mine if claim.name == name] or mine
    edits: list[Edit] = []
    if len(meant) == 1:
        place: TreePath = (*pod.path, "resourceClaims")
        entry = {"name": name, _field_for(meant[0]): meant[0].name}
        edits = [SetField((*place, len(entries)), entry) if entries else SetField(place, [entry])]
    message = (
        f"{'a device' if 'domain' in pod.spec else 'the container'} takes {name}, but the pod has no such entry: add it to "
        f"resourceClaims beside {'domain' if 'domain' in pod.spec else 'containers'}, with resourceClaimName or "
        "resourceClaimTemplateName"
    )
    return finding("container-claim", message, pod.manifest, path, *edits)


def _request(
    pod: objects.WrittenPodSpec,
    use: objects.WrittenUse,
    request: str,
    entry: objects.WrittenRequest,
    known: objects.WrittenClaims,
) -> Iterator[Finding]:
    claim = known.named_by(entry, pod.namespace)
    if claim is None or not (names := objects.request_names(claim)) or request in names:
        return
    path = (*use.path, use.request_field)
    slip = slip_of(request, names)
    message = f"{claim.name} has no request {request}: it has {', '.join(names)}"
    yield finding("request-unknown", message, pod.manifest, path, *([SetField(path, slip)] if slip else []))
