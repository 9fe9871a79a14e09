"""Every function of the environment in one table.

Owns the order in which libraries are asked where they share a name (`isGreaterThan`, `indexOf`).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from draco.cel import (
    functions_format,
    functions_lists,
    functions_named_formats,
    functions_net,
    functions_resources,
    functions_standard,
    functions_strings,
)
from draco.cel.dispatch import Function, merge

FUNCTIONS: Final[Mapping[tuple[str, int], Function]] = MappingProxyType(
    merge(
        (
            functions_standard.FUNCTIONS,
            functions_strings.FUNCTIONS,
            functions_lists.FUNCTIONS,
            functions_resources.FUNCTIONS,
            functions_net.FUNCTIONS,
            functions_format.FUNCTIONS,
            functions_named_formats.FUNCTIONS,
        )
    )
)
"""By full name and number of arguments, the target being the first."""
NAMES: Final = frozenset(name for name, _ in FUNCTIONS)
