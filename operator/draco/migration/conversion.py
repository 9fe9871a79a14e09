"""What a conversion gives: objects of Draco's kinds, and what of the foreign configuration has no equal."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from draco.resources.api.claims import DeviceClass
from draco.resources.api.draco import MigPolicy
from draco.resources.api.sharing import SharingPolicy
from draco.resources.errors import DracoError

T = TypeVar("T")
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
    """The document as the tool's struct. Raises FormatError."""
    try:
        return msgspec.convert(document, into)
    except msgspec.ValidationError as error:
        raise FormatError(f"this is no configuration of {tool}: {str(error)[:1].lower()}{str(error)[1:]}") from error


def object_name(text: str) -> str:
    """The text as the name of an object in Kubernetes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
