"""What a conversion gives: objects of Draco's kinds, and what of the foreign configuration has no equal."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from draco.resources.api.claims import CelSelector, DeviceClass, DeviceSelector
from draco.resources.api.draco import MigPolicy
from draco.resources.api.sharing import SharingPolicy
from draco.resources.errors import DracoError


class Versioned(Protocol):
    """A configuration that says its version."""

    @property
    def version(self) -> str:
        """The version."""


T = TypeVar("T", bound=Versioned)
VERSION: Final = "v1"
"""Of the configurations of mig-parted and of NVIDIA's device plugin."""
Converted = MigPolicy | SharingPolicy | DeviceClass


class FormatError(DracoError):
    """A configuration that the tool itself would refuse; the message says where and why."""


class Rest(NamedTuple):
    """What was not converted, as a sentence with what to do. `of` is the part of the configuration."""

    of: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.of}: {self.sentence}"


class Conversion(NamedTuple):
    """The objects, and what they leave out."""

    objects: Sequence[Converted]
    rests: Sequence[Rest]

    @classmethod
    def of(cls, found: Iterable[Converted | Rest]) -> "Conversion":
        """Both apart, in their order."""
        every = list(found)
        return cls(
            [each for each in every if not isinstance(each, Rest)], [each for each in every if isinstance(each, Rest)]
        )


def decoded(document: object, into: type[T], tool: str) -> T:
    """The document as the tool's struct, of the version that both tools have. Raises FormatError."""
    try:
        found = msgspec.convert(document, into)
    except msgspec.ValidationError as error:
        raise FormatError(f"this is no configuration of {tool}: {str(error)[:1].lower()}{str(error)[1:]}") from error
    if found.version != VERSION:
        raise FormatError(f"its version is {found.version!r}, and only {VERSION} is known")
    return found


def selector(expression: str) -> DeviceSelector:
    """The selector of devices that meet an expression."""
    return DeviceSelector(cel=CelSelector(expression=expression))


def object_name(text: str) -> str:
    """The text as the name of an object in Kubernetes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
