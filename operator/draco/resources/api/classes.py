"""DeviceClass: a named kind of device that claims ask for.

Owns its structs (resource.k8s.io/v1).
"""

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import DeviceSelector, OpaqueConfiguration
from draco.resources.api.meta import ObjectMeta


class DeviceClassConfiguration(ApiStruct, frozen=True, kw_only=True):
    """Configuration for every device of the class."""

    opaque: OpaqueConfiguration | None = None


class DeviceClassSpec(ApiStruct, frozen=True, kw_only=True):
    """Selectors are ANDed with the request's own."""

    selectors: list[DeviceSelector] = []
    config: list[DeviceClassConfiguration] = []
    extended_resource_name: str | None = None


class DeviceClass(ApiStruct, frozen=True, kw_only=True):
    """Mutable; what counts is what it said when a claim was allocated."""

    spec: DeviceClassSpec = DeviceClassSpec()
    metadata: ObjectMeta = ObjectMeta()
