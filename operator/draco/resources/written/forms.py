"""Formats of names, labels and taints in resource.k8s.io, and the shape of the errors: a place and a text."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from draco.resources.api.taints import EFFECTS, DeviceTaint
from draco.resources.names import LABEL_HOSTNAME

LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
TAINT_KEY: Final = re.compile(rf"(?:{SUBDOMAIN.pattern}/)?{_LABEL_VALUE.pattern}")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_MAX_DOMAIN: Final = 63
MAX_NAME: Final = 253
_QUALIFIED: Final = (
    "letters, digits and _, not a digit first, at most 32; a domain may stand before it, as in gpu.example.com/model"
)

Place: TypeAlias = tuple[str | int, ...]
"""Fields, keys and indexes from the top of an object to a value."""


class ValueRefusal(NamedTuple):
    """The error of a value at a place; `text` continues after the place's name."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{_written(self.place) or 'the object'} {self.text}"

    def within(self, outer: Place) -> "ValueRefusal":
        """The error, if the object is part of another."""
        return self._replace(place=(*outer, *self.place))


class ChosenKey(str):
    """A user-chosen key, as opposed to a field."""

    __slots__ = ()


def _written(place: Place) -> str:
    """A place as people write it: spec.devices[0].attributes[model]."""
    steps = (f"[{short(str(step))}]" if isinstance(step, int | ChosenKey) else f".{step}" for step in place)
    return "".join(steps).removeprefix(".")


def check_driver(name: str, at: Place) -> Iterator[ValueRefusal]:
    """Check the name of a driver."""
    if not SUBDOMAIN.fullmatch(name.lower()) or len(name) > _MAX_DOMAIN:  # capitals are allowed
        yield ValueRefusal(at, f'"{short(name)}" is not a driver name: write a domain such as gpu.example.com')


def check_pool(name: str, at: Place) -> Iterator[ValueRefusal]:
    """Check the name of a pool."""
    if len(name) > MAX_NAME or not all(SUBDOMAIN.fullmatch(part) for part in name.split("/")):
        text = "is not the name of a pool: write parts of lower-case letters, digits, - and ., with / between them"
        yield ValueRefusal(at, f'"{short(name)}" {text}')


def check_label(name: str, at: Place, what: str) -> Iterator[ValueRefusal]:
    """Check a DNS label (names of devices, requests and counters); `what` says what it names."""
    if not LABEL.fullmatch(name):
        yield ValueRefusal(at, f'"{short(name)}" is not {what}: use at most 63 lower-case letters, digits and dashes')


def check_qualified(name: str, at: Place, what: str, *, full: bool = False) -> Iterator[ValueRefusal]:
    """Check an attribute or capacity name; `full` requires the domain."""
    domain, slash, identifier = name.rpartition("/")
    if not _IDENTIFIER.fullmatch(identifier):
        yield ValueRefusal(at, f'"{short(identifier)}" cannot name {what}: use {_QUALIFIED}')
    elif (slash or full) and (not SUBDOMAIN.fullmatch(domain) or len(domain) > _MAX_DOMAIN):
        said = f'has "{short(domain)}" for its domain' if domain else "has no domain"
        yield ValueRefusal(at, f"{said}: write the driver's name before it, as in gpu.example.com/{identifier}")


def check_taint(taint: DeviceTaint, at: Place) -> Iterator[ValueRefusal]:
    """Check a taint of a device or rule."""
    if not taint.key:
        yield ValueRefusal((*at, "key"), "is empty: name the taint")
    elif not TAINT_KEY.fullmatch(taint.key):
        yield ValueRefusal(
            (*at, "key"), f'"{short(taint.key)}" is not a label key: write a name such as example.com/broken'
        )
    yield from check_label_value(taint.value, (*at, "value"))
    if taint.effect not in EFFECTS:
        yield ValueRefusal((*at, "effect"), f'"{short(taint.effect)}" is unknown: write None, NoSchedule or NoExecute')


def check_label_value(value: str, at: Place) -> Iterator[ValueRefusal]:
    """Check the value of a label, or one that is compared with labels; "" is valid."""
    if value and not _LABEL_VALUE.fullmatch(value):
        yield ValueRefusal(
            at, f'"{short(value)}" is not a label value: use at most 63 letters, digits, -, _ and .{_of_node(at)}'
        )


def _of_node(at: Place) -> str:
    """What to write instead where a node's name was written for its label, which has at most 63 characters."""
    return "; to name a node, use a node affinity with matchFields metadata.name" if LABEL_HOSTNAME in at else ""


def check_count(at: Place, items: Sequence[object], most: int) -> Iterator[ValueRefusal]:
    """Check that a list has at most `most` items."""
    if len(items) > most:
        yield ValueRefusal(at, f"has {len(items)} items, and at most {most} are allowed")


def check_distinct(at: Place, what: str, names: Iterable[str]) -> Iterator[ValueRefusal]:
    """Check that no name occurs twice."""
    for name, count in Counter(names).items():
        if count > 1:
            yield ValueRefusal(at, f'has {count} {what} of the name "{short(name)}": names must differ')
            return


def short(text: str) -> str:
    """A user's text, shortened for a sentence."""
    return text if len(text) <= 80 else f"{text[:80]}…"
