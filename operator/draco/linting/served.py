"""Which versions of resource.k8s.io each release of Kubernetes can serve.

Owns the table. Source: the lifecycle that k8s.io/api states for each type (zz_generated.prerelease-lifecycle.go, 0.37.2 and, for
what is gone there, 0.33); a test compares it with what API servers of each release list.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Served(NamedTuple):
    """From which minor release on a version can be served, and from which not any more; 0 where no end is known."""

    since: int
    until: int = 0

    def by(self, minor: int) -> bool:
        """Whether Kubernetes 1.`minor` can serve it. Beta and alpha versions have to be turned on."""
        return self.since <= minor and (not self.until or minor < self.until)


_OF_CLAIMS: Final = {
    "v1": Served(34),
    "v1beta2": Served(33, 39),
    "v1beta1": Served(32, 38),
    "v1alpha3": Served(31, 34),
    "v1alpha2": Served(27, 31),
    "v1alpha1": Served(26, 27),
}
_BEFORE_SLICES: Final = ("v1alpha1",)
VERSIONS: Final[Mapping[str, Mapping[str, Served]]] = {
    "ResourceClaim": _OF_CLAIMS,
    "ResourceClaimTemplate": _OF_CLAIMS,
    "ResourceSlice": {name: served for name, served in _OF_CLAIMS.items() if name not in _BEFORE_SLICES},
    "DeviceClass": {name: served for name, served in _OF_CLAIMS.items() if served.since >= 31},
    "DeviceTaintRule": {"v1": Served(37), "v1beta2": Served(36, 42), "v1alpha3": Served(33, 39)},
    "ResourcePoolStatusRequest": {"v1alpha3": Served(36, 42)},
}
"""By kind, the newest version first."""


def newest(kind: str, minor: int) -> str:
    """The newest version of a kind that Kubernetes 1.`minor` can serve; "" if there is none."""
    return next((version for version, served in VERSIONS[kind].items() if served.by(minor)), "")
