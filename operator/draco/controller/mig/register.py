"""The register of GPUs that only Draco may allocate, as it stands in the cluster: a ConfigMap that the chart's policies read.

Owns its form and its reading and writing. A key is a pool, its value the GPUs of that pool, as "driver/gpu" with spaces between.
What stands there and cannot be read counts as not there. Which GPUs are to stand there is `allocation.ownership.handover`'s.
"""

from collections.abc import Iterable

import msgspec

from draco.allocation.ownership.handover import GpuPlace
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.core import ConfigMap
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError
from draco.resources.kinds import CONFIG_MAPS


class RegisterMissing(DracoError):
    """The ConfigMap is not there, so nothing keeps other writers out: Draco allocates nothing."""


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """The register as it was read, or written."""

    places: frozenset[GpuPlace]
    resource_version: str
    pools: frozenset[str]


class RegisterStore:
    """Reads and writes the one ConfigMap."""

    def __init__(self, client: Client, key: ObjectKey) -> None:
        self._client = client
        self._key = key

    async def read(self) -> Register:
        """Read it. Raises RegisterMissing, or another ApiError."""
        try:
            found = await self._client.get(CONFIG_MAPS, self._key)
        except NotFound as error:
            raise RegisterMissing(
                f"ConfigMap {self._key} is missing, so no GPU is handed over to Draco: "
                "set the chart's value operator.allocate to true."
            ) from error
        return _register(found)

    async def write(self, seen: Register, places: Iterable[GpuPlace]) -> Register:
        """Have it say just `places`, if it is still as seen. Raises Conflict otherwise, or another ApiError."""
        data: dict[str, str | None] = dict.fromkeys(seen.pools)
        for place in sorted(places):
            said = data.get(place.pool)
            data[place.pool] = f"{said} {place.driver}/{place.gpu}" if said else f"{place.driver}/{place.gpu}"
        patch = {"metadata": {"resourceVersion": seen.resource_version}, "data": data}
        written = await self._client.patch(CONFIG_MAPS, self._key, patch)
        return _register(written)


def _register(stored: ConfigMap) -> Register:
    return Register(
        places=frozenset(_places(stored.data)),
        resource_version=stored.metadata.resource_version,
        pools=frozenset(stored.data),
    )


def _places(data: dict[str, str]) -> Iterable[GpuPlace]:
    for pool, said in data.items():
        for each in said.split():
            driver, slash, gpu = each.partition("/")
            if slash:
                yield GpuPlace(driver, pool, gpu)
