"""The names and values that devices are published with, and the closest ones to a name that is not. Knows no claims."""

from collections.abc import Collection, Iterable
from typing import Final

from draco.allocation.fleet.columns import DRIVER, Columns
from draco.allocation.fleet.rowwise import places
from draco.cel.paths import AttributePath
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from draco.resources.names import MIG_PROFILE, NVIDIA_DRIVER, closest_profile
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.resources.texts import most_like
from draco.selectors import known_names
from draco.selectors.comparisons import Plain
from draco.selectors.known_names import ATTRIBUTES, CAPACITIES, published_twice

_ALIKE: Final = 0.6
_MANY: Final = 2000
"""Most distinct values that are looked at."""
_COMPARED: Final = 200
_TELLING: Final = 3
"""A part of a name at least this long can stand for the name."""


class PublishedNames:
    """The names and values that are published now."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._names: dict[str, dict[str, set[str]]] = {"attributes": {}, "capacity": {}}
        for path in columns.paths:
            column = columns.get(path)
            if path.kind in self._names and (column is None or not column.empty):
                self._names[path.kind].setdefault(path.domain or "", set()).add(path.id or "")

    @property
    def drivers(self) -> list[str]:
        """The drivers that publish devices, sorted."""
        column = self._columns.get(DRIVER)
        return [] if column is None else sorted(str(key) for key, _, _ in column.values())

    def has(self, path: AttributePath) -> bool:
        """Whether any device has it."""
        return path.id in self._names[path.kind].get(path.domain or "", ())

    def is_version(self, path: AttributePath) -> bool:
        """Whether devices have only versions there, and at least one."""
        column = self._columns.get(path)
        if column is None or column.empty:
            return False
        return all(isinstance(each, DeviceAttribute) and each.version is not None for _, each, _ in column.values())

    def smallest(self, path: AttributePath) -> Quantity | None:
        """The smallest published amount of a capacity; None if there is none."""
        column = self._columns.get(path)
        values = [] if column is None else [value for _, value, _ in column.values()]
        amounts = [Quantity.read(each.value) for each in values if isinstance(each, DeviceCapacity)]
        return min((each for each in amounts if each is not None), default=None)

    def domains(self) -> list[str]:
        """All domains of published names, and all drivers, sorted."""
        return sorted({*self._names["attributes"], *self._names["capacity"], *self.drivers})

    def meant(self, path: AttributePath) -> AttributePath | None:
        """The published name that an unpublished one most probably stands for; None if none is close."""
        domain, name = path.domain or "", path.id or ""
        kind, other = path.kind, "capacity" if path.kind == "attributes" else "attributes"
        if name in self._names[other].get(domain, ()):
            return _path(other, domain, name)
        for each in (kind, other):
            near = _closest_in(domain, name, self._names[each].get(domain, ()))
            if near:
                return _path(each, domain, near)
        for wanted in filter(None, (name, known_names.meant(name))):
            for each in (kind, other):
                homes = [home for home, names in sorted(self._names[each].items()) if wanted in names]
                if homes:
                    return _path(each, closest(domain, homes) or homes[0], wanted)
        near = closest(domain, self.domains())
        if near:
            for each in (kind, other):
                near_name = _closest_in(near, name, self._names[each].get(near, ()))
                if near_name:
                    return _path(each, near, near_name)
        return None

    def names(self, kind: str, domain: str) -> list[str]:
        """The attributes or capacities that are published in a domain, sorted."""
        return sorted(self._names[kind].get(domain, ()))

    def is_on(self, path: AttributePath, rows: bytes) -> bool:
        """Whether a marked row has a value there other than a list. Tries one row first, which mostly suffices."""
        return bool(self.values(path, rows, most=1) or self.values(path, rows))

    def doubted(self, path: AttributePath, rows: bytes) -> dict[Plain, int]:
        """Other values that a scheduler may read at the path: those without the domain, beside one with it; each with one row."""
        if not self._columns.twice.get(path):
            return {}
        found: dict[Plain, int] = {}
        for row in places(rows, 1):
            device = self._columns.devices[row]
            if device is not None and path.id in published_twice(self._columns.drivers[row], device):
                value = _value(device, path.kind, path.id or "")
                if value is not None:
                    found.setdefault(value, row)
        return found

    def values(self, path: AttributePath, rows: bytes, *, most: int = _MANY) -> dict[Plain, int]:
        """The distinct values of the marked rows, each with one row; at most `most`, without lists."""
        column = self._columns.get(path)
        if column is None:
            return {}
        found: dict[Plain, int] = {}
        for row in column.examples(rows, most):
            device = self._columns.devices[row]
            value = None if device is None else value_of(device, self._columns.drivers[row], path)
            if value is not None:
                found.setdefault(value, row)
        return found


def value_of(device: Device, driver: str, path: AttributePath) -> Plain | None:
    """The value that Draco reads for a selector at the path; None if there is none or a list."""
    if path.kind == "driver":
        return driver
    if path.kind == "allowMultipleAllocations":
        return bool(device.allow_multiple_allocations)
    names = [f"{path.domain}/{path.id}", *([path.id] if path.domain == driver else [])]
    named = next((name for name in names if name in getattr(device, path.kind, ())), None)
    return None if named is None else _value(device, path.kind, named)


def _value(device: Device, kind: str, name: str) -> Plain | None:
    if kind == "capacity":
        return Quantity.read(device.capacity[name].value)
    attribute = device.attributes[name]
    if attribute.version is not None:
        return SemVer.read(attribute.version)
    return attribute.value if isinstance(attribute.value, bool | int | str) else None


def _closest_in(domain: str, name: str, names: Collection[str]) -> str:
    """The most similar name; of NVIDIA's own names, which are no slips of each other, only the name itself."""
    if domain == NVIDIA_DRIVER and name in ATTRIBUTES | CAPACITIES:
        return name if name in names else ""
    return closest(name, names)


def closest(name: str, names: Iterable[str]) -> str:
    """The most similar name, ignoring case; "" if none is similar."""
    if not name:
        return ""
    known = sorted(names)
    contained = [each for each in known if _is_part(name, each) or _is_part(each, name)]
    return most_like(name, (contained or known)[:_COMPARED], at_least=0 if contained else _ALIKE)


def closest_value(value: Plain, values: Collection[Plain]) -> Plain | None:
    """The published value that is most similar to an unpublished one; None if none is."""
    alike = [each for each in values if type(each) is type(value)]
    if isinstance(value, str):
        texts = [str(each) for each in alike]
        return (closest_profile(value, texts) if MIG_PROFILE.fullmatch(value) else closest(value, texts)) or None
    if isinstance(value, Quantity):
        return min(
            alike, key=lambda each: abs(each.nanos - value.nanos) if isinstance(each, Quantity) else 0, default=None
        )
    if isinstance(value, int | float):
        return min(alike, key=lambda each: abs(each - value) if isinstance(each, int | float) else 0, default=None)
    if isinstance(value, SemVer):
        versions = sorted(each for each in alike if isinstance(each, SemVer))
        return next((each for each in versions if value < each), versions[-1] if versions else None)
    return None


def _is_part(one: str, other: str) -> bool:
    return len(one) >= _TELLING and one.lower() in other.lower()


def _path(kind: str, domain: str, name: str) -> AttributePath:
    return AttributePath("attributes" if kind == "attributes" else "capacity", domain, name)
