"""What each Kubernetes minor version knows: feature gates and API versions that DRA with GPUs needs.

Owns the table. A component that is given a gate it does not know exits, so the gates are listed minor by minor.
Source: `kube-apiserver --help` of each version, KEP-4381 and the KEPs that build on it.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from draco_local.cluster.errors import MissingRequirement

DEFAULT_KUBERNETES = "1.36.3"
KUBERNETES_VERSIONS = ("1.36.3", "1.37.2", "1.35.4", "1.34.4")
"""The reference version first, then the others that modules are pinned for, the newest first."""


Features = Literal["all", "default", "gangs"]
"""Which feature gates and API versions: all of DRA, those that Kubernetes has on by default, or all of DRA and PodGroups."""


class MinorVersion(NamedTuple):
    """Flags of one minor version. `gates` go to every component."""

    gates: Mapping[str, bool] = {}
    runtime_config: tuple[str, ...] = ()

    @property
    def gates_flags(self) -> list[str]:
        """The command-line flags of every component."""
        gates = ",".join(f"{name}={str(on).lower()}" for name, on in sorted(self.gates.items()))
        return ["--feature-gates", gates] if gates else []

    @property
    def api_flags(self) -> list[str]:
        """The further flags of the API server."""
        return ["--runtime-config", ",".join(self.runtime_config)] if self.runtime_config else []


_SINCE_1_34 = {
    "DRADeviceTaints": True,
    "DRAPartitionableDevices": True,
    "DRAConsumableCapacity": True,
    "DRADeviceBindingConditions": True,
    "DRAExtendedResource": True,
    "DRAResourceClaimDeviceStatus": True,
    "ResourceHealthStatus": True,
}
_MINORS: Mapping[tuple[int, int], MinorVersion] = {
    (1, 34): MinorVersion(gates=_SINCE_1_34, runtime_config=("resource.k8s.io/v1alpha3=true",)),
    (1, 35): MinorVersion(
        gates={**_SINCE_1_34, "DRADeviceTaintRules": True}, runtime_config=("resource.k8s.io/v1alpha3=true",)
    ),
    (1, 36): MinorVersion(
        gates={**_SINCE_1_34, "DRADeviceTaintRules": True},
        runtime_config=("resource.k8s.io/v1beta2=true", "resource.k8s.io/v1alpha3=true"),
    ),
    # DeviceTaintRule is in v1 and on by default. EvictionRequest is not a feature of DRA, but Draco uses it.
    (1, 37): MinorVersion(
        gates={**_SINCE_1_34, "DRADeviceTaintRules": True, "EvictionRequestAPI": True},
        runtime_config=("resource.k8s.io/v1alpha3=true", "lifecycle.k8s.io/v1alpha1=true"),
    ),
}

_GANGS: Mapping[tuple[int, int], MinorVersion] = {
    (1, 36): MinorVersion(
        gates={"GenericWorkload": True, "GangScheduling": True, "DRAWorkloadResourceClaims": True},
        runtime_config=("scheduling.k8s.io/v1alpha2=true",),
    ),
    (1, 37): MinorVersion(
        gates={"GenericWorkload": True, "DRAWorkloadResourceClaims": True},
        runtime_config=("scheduling.k8s.io/v1beta1=true",),
    ),
}
"""What `gangs` adds."""


def parse(version: str) -> tuple[int, int, int]:
    """Parse the three numbers of "1.36.3" or "v1.36.3"; raises MissingRequirement for anything else."""
    parts = version.removeprefix("v").split("-")[0].split("+")[0].split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise MissingRequirement(f'"{version}" is not a Kubernetes version: write it like {DEFAULT_KUBERNETES}.')
    return int(parts[0]), int(parts[1]), int(parts[2])


def minor_of(version: str, features: Features = "all") -> MinorVersion:
    """Return the flags for `version`; raises MissingRequirement for a minor version that is not in the table."""
    major, minor, _ = parse(version)
    if (known := _MINORS.get((major, minor))) is not None:
        match features:
            case "all":
                return known
            case "default":
                return MinorVersion()
            case "gangs":
                return _with_gangs(version, known)
    raise MissingRequirement(
        f"Kubernetes {version} cannot be started here: the versions known are {', '.join(KUBERNETES_VERSIONS)} "
        f"and other patch releases of these."
    )


def pod_groups_version(version: str) -> str:
    """The version of scheduling.k8s.io that has PodGroups with the features `gangs`; raises MissingRequirement."""
    (served,) = [each for each in minor_of(version, "gangs").runtime_config if each.startswith("scheduling.k8s.io/")]
    return served.removeprefix("scheduling.k8s.io/").removesuffix("=true")


def _with_gangs(version: str, known: MinorVersion) -> MinorVersion:
    added = _GANGS.get(parse(version)[:2])
    if added is None:
        raise MissingRequirement(
            f"Kubernetes {version} has no PodGroups: use {DEFAULT_KUBERNETES} or newer, or leave out --features gangs."
        )
    return MinorVersion({**known.gates, **added.gates}, (*known.runtime_config, *added.runtime_config))
