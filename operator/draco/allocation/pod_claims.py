"""The claims of a pod: those it names, and those made for it from templates, now or later; and errors for missing ones."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Protocol

import msgspec

from draco.allocation.extended_resources import claim_for
from draco.resources.api.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate
from draco.resources.api.core import Pod, PodExtendedResourceClaimStatus, PodResourceClaim, PodResourceClaimStatus
from draco.resources.api.meta import ObjectKey, ObjectMeta, OwnerReference
from draco.resources.errors import DracoError
from draco.resources.names import ANNOTATION_POD_CLAIM


class MissingClaimError(DracoError):
    """A pod uses a missing claim or template; the text names it and a likely intended one."""


def held_back(pods: Iterable[Pod]) -> list[Pod]:
    """The pods that will use a claim, if other scheduling gates hold all of them; empty if one may use it now."""
    alive = [pod for pod in pods if not pod.is_over]
    return alive if all(pod.waits and pod.is_gated_by_others for pod in alive) else []


class KnownClaims(Protocol):
    """Claims by key."""

    def get(self, key: ObjectKey, /) -> ResourceClaim | None:
        """The claim, or None."""
        ...


def claims_of(
    pod: Pod,
    claims: Mapping[ObjectKey, ResourceClaim],
    templates: Mapping[ObjectKey, ResourceClaimTemplate],
    classes: Mapping[str, DeviceClass],
) -> list[ResourceClaim]:
    """The claims of a pod in its order, the one for extended resources last. Raises MissingClaimError."""
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    found = [_claim(pod, entry, made.get(entry.name), claims, templates) for entry in pod.spec.resource_claims]
    return found + _for_extended_resources(pod, claims, classes)


def known_claims_of(pod: Pod, claims: KnownClaims, classes: Mapping[str, DeviceClass]) -> list[ResourceClaim]:
    """The existing claims of a pod, and the one for extended resources as it would be made when the pod gets a node."""
    named = msgspec.structs.replace(
        pod, status=msgspec.structs.replace(pod.status, extended_resource_claim_status=None)
    )
    found = [claim for key in named.claims if (claim := claims.get(key)) is not None]
    return found + _for_extended_resources(pod, claims, classes)


def _for_extended_resources(pod: Pod, claims: KnownClaims, classes: Mapping[str, DeviceClass]) -> list[ResourceClaim]:
    status = pod.status.extended_resource_claim_status
    if status is not None and status.resource_claim_name:
        claim = claims.get(ObjectKey(pod.metadata.namespace, status.resource_claim_name))
    else:
        claim = claim_for(pod, classes) if pod.waits else None
    return [] if claim is None else [claim]


def made_for(claim: ResourceClaim) -> OwnerReference | None:
    """The pod for which kube-controller-manager made the claim from a template; None for other claims."""
    owner = claim.metadata.controller
    return owner if owner and owner.kind == "Pod" and ANNOTATION_POD_CLAIM in claim.metadata.annotations else None


def naming_made(pod: Pod, made: Iterable[ResourceClaim]) -> Pod:
    """The pod with a status that names the claims made for it, as it soon will; none if an entry has two claims."""
    said = {status.name for status in pod.status.resource_claim_statuses}
    awaited = {each.name for each in pod.spec.resource_claims if each.resource_claim_template_name} - said
    if not awaited:
        return pod
    found = [
        PodResourceClaimStatus(
            name=claim.metadata.annotations[ANNOTATION_POD_CLAIM], resource_claim_name=claim.metadata.name
        )
        for claim in made
        if claim.metadata.deletion_timestamp is None
    ]
    times = Counter(each.name for each in found)
    known = [each for each in found if each.name in awaited and times[each.name] == 1]
    statuses = [*pod.status.resource_claim_statuses, *known]
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=statuses))


def uses_devices(pod: Pod, classes: Mapping[str, DeviceClass]) -> bool:
    """Whether the pod uses claims, or requests extended resources that have a class."""
    return bool(pod.spec.resource_claims or pod.claims or (pod.waits and claim_for(pod, classes)))


def using(pod: Pod, claims: Sequence[ResourceClaim]) -> Pod:
    """The pod with each entry naming the claim that `claims_of` returned for it, whatever its current name."""
    entries = [
        PodResourceClaim(name=entry.name, resource_claim_name=claim.metadata.name)
        for entry, claim in zip(pod.spec.resource_claims, claims, strict=False)
    ]
    status = pod.status
    if len(claims) > len(entries):
        extended = PodExtendedResourceClaimStatus(resource_claim_name=claims[-1].metadata.name)
        status = msgspec.structs.replace(status, extended_resource_claim_status=extended)
    spec = msgspec.structs.replace(pod.spec, resource_claims=entries)
    return msgspec.structs.replace(pod, spec=spec, status=status)


def _claim(
    pod: Pod,
    entry: PodResourceClaim,
    made: str | None,
    claims: Mapping[ObjectKey, ResourceClaim],
    templates: Mapping[ObjectKey, ResourceClaimTemplate],
) -> ResourceClaim:
    namespace = pod.metadata.namespace
    name = entry.resource_claim_name or made or f"{pod.metadata.name}-{entry.name}"
    claim = claims.get(ObjectKey(namespace, name))
    if claim is not None:
        return claim
    wanted = entry.resource_claim_template_name
    if not wanted:
        raise MissingClaimError(
            f"the claim {namespace}/{name} that the pod uses does not exist{_meant(name, namespace, claims)}"
        )
    template = templates.get(ObjectKey(namespace, wanted))
    if template is None:
        raise MissingClaimError(
            f"the claim template {namespace}/{wanted} that the pod uses does not exist{_meant(wanted, namespace, templates)}"
        )
    return made_from(template, name)


def made_from(template: ResourceClaimTemplate, name: str) -> ResourceClaim:
    """A claim made from a template."""
    metadata = ObjectMeta(name=name, namespace=template.metadata.namespace)
    return ResourceClaim(metadata=metadata, spec=template.spec.spec)


def _meant(name: str, namespace: str, known: Mapping[ObjectKey, object]) -> str:
    """A likely intended name: a similar one in the namespace, or the same in another one."""
    near = get_close_matches(name, [key.name for key in known if key.namespace == namespace], n=1)
    if near:
        return f"; did you mean {near[0]}?"
    elsewhere = sorted(key.namespace for key in known if key.name == name)
    return f"; there is one in the namespace {elsewhere[0]}" if elsewhere else ""
