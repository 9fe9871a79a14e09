"""Base of API structs: camelCase on the wire, immutable in memory, defaults omitted when written.

A struct has only the fields that Draco uses; others are dropped on reading. Never write a struct back over a whole object: use
server-side apply or a patch.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

OPAQUE: Final = frozenset({"parameters", "data"})
"""Fields with a driver's own content, passed on unchanged."""


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of API structs, compared by value. They are trees, so `gc=False` is safe: it halves the time to decode many."""


def set_fields(value: Any, is_unset: Callable[[object, object], bool] = lambda _, inner: inner is None) -> Any:
    """Return an object in JSON's types without unset fields (null); `is_unset` is called with name and value."""
    if isinstance(value, Mapping):
        return {
            name: inner if name in OPAQUE else set_fields(inner, is_unset)
            for name, inner in value.items()
            if not is_unset(name, inner)
        }
    return [set_fields(each, is_unset) for each in value] if isinstance(value, list) else value


class OutputStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of `-o json` documents: camelCase, with every field present."""
