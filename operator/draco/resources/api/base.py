"""How every API struct behaves: camelCase on the wire, immutable in memory, defaults left out when written.

Owns the base class, that of our own documents (`-o json`), and what null means. A struct names just the fields Draco uses; what a
server sends beyond them is dropped on reading, so a struct must never be written back over a whole object that others also write:
use server-side apply or a patch.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

OPAQUE: Final = frozenset({"parameters", "data"})
"""Fields whose content belongs to a driver: it is passed on as it is."""


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all API structs. Equality is by value; change one with `msgspec.structs.replace`.

    They are trees and can never form a cycle, so the collector need not visit them: that halves the time to decode many.
    """


def set_fields(value: Any, is_unset: Callable[[object, object], bool] = lambda _, inner: inner is None) -> Any:
    """Return an object in JSON's types without the fields that are not set, which is what null means to Kubernetes.

    `is_unset` is asked with name and value.
    """
    if isinstance(value, Mapping):
        return {
            name: inner if name in OPAQUE else set_fields(inner, is_unset)
            for name, inner in value.items()
            if not is_unset(name, inner)
        }
    return [set_fields(each, is_unset) for each in value] if isinstance(value, list) else value


class OutputStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what `-o json` writes: camelCase, every field always present."""
