"""The lint rules, one module per subject, and their order: misplaced fields, old versions, cross-references, other values."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from draco.linting.model import Finding, Manifest
from draco.linting.objects import is_near
from draco.linting.rules.classes import check_allocators
from draco.linting.rules.configurations import check_configurations
from draco.linting.rules.extended import check_extended_resources
from draco.linting.rules.fields import check_fields, check_names, check_nesting
from draco.linting.rules.health_policies import check_health_policies
from draco.linting.rules.references import check_container_claims, check_pod_claims, check_repeated_claims
from draco.linting.rules.requests import check_admin_access, check_references_to_requests, check_requests
from draco.linting.rules.selectors import check_constraints, check_selectors
from draco.linting.rules.shares import check_shares
from draco.linting.rules.sharing import check_sharing
from draco.linting.rules.taints import check_taint_rules
from draco.linting.rules.values import check_pools, check_values
from draco.linting.rules.versions import (
    check_classic_claims,
    check_fragments,
    check_pod_claims_of_v1alpha,
    check_requests_of_v1beta1,
    check_slices_of_v1beta1,
    check_versions,
)

ManifestRule = Callable[[Sequence[Manifest], int], Iterator[Finding]]
NEWEST: Final = 36
"""Minor version of Kubernetes that manifests are checked against by default."""
_OF_PLACE: Final[tuple[ManifestRule, ...]] = (check_fragments, check_nesting, check_fields)
_OF_MEANING: Final[tuple[ManifestRule, ...]] = (
    check_versions,
    check_names,
    check_selectors,
    check_allocators,
    check_constraints,
    check_classic_claims,
    check_requests_of_v1beta1,
    check_slices_of_v1beta1,
    check_pod_claims_of_v1alpha,
    check_requests,
    check_references_to_requests,
    check_admin_access,
    check_pod_claims,
    check_container_claims,
    check_repeated_claims,
    check_sharing,
    check_pools,
    check_extended_resources,
    check_configurations,
    check_shares,
    check_taint_rules,
    check_health_policies,
)


def lint(manifests: Sequence[Manifest], *, kubernetes: int = NEWEST) -> list[Finding]:
    """Find the mistakes in manifests that are applied together, each once, in the order of the manifests.

    Misplaced fields hide their content: while some can be corrected, only these are reported. Apply the edits and lint again.
    """
    found = _findings(_OF_PLACE, manifests, kubernetes)
    if not any(finding.edits for finding in found):
        found += _findings(_OF_MEANING, manifests, kubernetes)
        known = _by_manifest(found)
        found += [
            each
            for each in check_values(manifests, kubernetes)
            if not any(map(partial(_is_same, each), known[each.manifest]))
        ]
    return sorted(found, key=lambda finding: finding.manifest)


def _is_same(value: Finding, other: Finding) -> bool:
    """Whether a more specific rule has reported this place, or one around or inside it, in the same manifest."""
    return other.severity == "error" and is_near(value.path, other.path)


def _findings(rules: Sequence[ManifestRule], manifests: Sequence[Manifest], kubernetes: int) -> list[Finding]:
    """What the rules find, without duplicates."""
    found: list[Finding] = []
    for rule in rules:
        known = _by_manifest(found)
        found += [each for each in rule(manifests, kubernetes) if each not in known[each.manifest]]
    return found


def _by_manifest(found: Sequence[Finding]) -> Mapping[int, Sequence[Finding]]:
    known: dict[int, list[Finding]] = defaultdict(list)
    for each in found:
        known[each.manifest].append(each)
    return known
