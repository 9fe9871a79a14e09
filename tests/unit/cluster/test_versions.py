"""Flags per Kubernetes version."""

import pytest

from draco.resources.kinds import POD_GROUPS
from draco_local.cluster.errors import MissingRequirement
from draco_local.cluster.programs import build, versions


@pytest.mark.parametrize("version", versions.KUBERNETES_VERSIONS)
def test_every_version_named_has_flags_and_a_pinned_module(version: str) -> None:
    assert versions.minor_of(version).runtime_config
    assert f"k8s.io/kubernetes v{version}" in (build.MODULES / f"kubernetes-{version}" / "go.mod").read_text()
    assert (build.MODULES / f"kubernetes-{version}" / "go.sum").exists()


def test_taint_rules_have_their_own_gate_only_where_it_exists() -> None:
    assert "DRADeviceTaintRules" not in versions.minor_of("1.34.4").gates
    assert versions.minor_of("1.35.4").gates["DRADeviceTaintRules"]
    assert versions.minor_of("1.36.3").gates_flags[1].startswith("DRAConsumableCapacity=true,")


@pytest.mark.parametrize("version", versions.KUBERNETES_VERSIONS)
def test_kubernetes_own_features_need_no_flags(version: str) -> None:
    minor = versions.minor_of(version, "default")
    assert (minor.gates_flags, minor.api_flags) == ([], [])


def test_gangs_are_added_to_all_that_dra_has_where_they_are_known() -> None:
    with_gangs, without = versions.minor_of("1.36.3", "gangs"), versions.minor_of("1.36.3")
    assert with_gangs.gates.items() - without.gates.items() == {
        ("GenericWorkload", True),
        ("GangScheduling", True),
        ("DRAWorkloadResourceClaims", True),
    }
    assert with_gangs.runtime_config == (*without.runtime_config, "scheduling.k8s.io/v1alpha2=true")
    with pytest.raises(MissingRequirement, match=r"^Kubernetes 1\.35\.4 has no PodGroups: use 1\.36\.3 or newer"):
        versions.minor_of("1.35.4", "gangs")


@pytest.mark.parametrize(("version", "served"), [("1.36.3", "v1alpha2"), ("1.37.2", "v1beta1")])
def test_pod_groups_are_in_a_version_that_draco_knows(version: str, served: str) -> None:
    assert versions.pod_groups_version(version) == served
    assert served in {kind.version for kind in POD_GROUPS}


def test_a_patch_release_takes_its_minors_flags() -> None:
    assert versions.minor_of("v1.36.1") == versions.minor_of("1.36.3")
    assert versions.minor_of("1.35.9-alpha.1+abc") == versions.minor_of("1.35.4")


@pytest.mark.parametrize("version", ["1.33.2", "1.99.0", "2.36.3"])
def test_an_unknown_minor_is_one_sentence_with_the_known_ones(version: str) -> None:
    with pytest.raises(MissingRequirement, match=rf"^Kubernetes {version} cannot be started here: .*1\.36\.3.*\.$"):
        versions.minor_of(version)


@pytest.mark.parametrize("version", ["latest", "1.36", "1.36.x", ""])
def test_what_is_no_version_is_told_how_to_write_one(version: str) -> None:
    with pytest.raises(MissingRequirement, match=r"is not a Kubernetes version: write it like 1\.36\.3\.$"):
        versions.parse(version)
