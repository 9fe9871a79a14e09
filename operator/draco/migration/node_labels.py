"""Which GPUs an expression over labels of NVIDIA's GPU feature discovery means, as a CEL selector of devices.

A label says of a node what is true of each of its GPUs, if they are alike. Owns the labels that devices have an attribute for.
Labels about the node as a whole (how many GPUs, how they are shared) have none.

Source: the labellers of NVIDIA's k8s-device-plugin (internal/lm).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from draco.resources.names import NVIDIA_DRIVER
from draco.selectors.known_names import ARCHITECTURES

PRODUCT: Final = "nvidia.com/gpu.product"
MEMORY: Final = "nvidia.com/gpu.memory"
CHOSEN_BY_ADMINS: Final = ("nvidia.com/mig.config", "nvidia.com/device-plugin.config", "nvidia.com/gpu.deploy.")
"""Labels, or their beginnings, that people set on nodes, and that stay."""
PREFIXES: Final = ("nvidia.com/gpu.", "nvidia.com/mig", "nvidia.com/cuda.", "nvidia.com/mps.", "nvidia.com/sharing.")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_ATTRIBUTES: Final = f'device.attributes["{NVIDIA_DRIVER}"]'
_SIZE: Final = f'device.capacity["{NVIDIA_DRIVER}"].memory'
_FAMILIES: Final = {each.lower().replace(" ", "-"): each for each in ARCHITECTURES}


def selector(label: str, operator: str, values: Sequence[str]) -> str | None:
    """True of a device exactly where the expression is true of its node; "" if it is true of every GPU; None without an equal."""
    if label == "nvidia.com/gpu.present":
        return "" if operator == "Exists" or (operator, values) == ("In", ["true"]) else None
    if label == MEMORY:
        return _size(values).get(operator)
    value, literal = _COMPARED.get(label, ("", _text))
    return _compared(value, values, literal).get(operator) if value else None


def _compared(value: str, values: Sequence[str], literal: Callable[[str], str | None]) -> dict[str, str]:
    """The selector for each operator; of some there is none."""
    literals = [each for each in map(literal, values) if each is not None]
    if not values or len(literals) < len(values):
        return {} if values else {"Exists": ""}
    joined = ", ".join(literals)
    if len(literals) > 1:
        return {"In": f"{value} in [{joined}]", "NotIn": f"!({value} in [{joined}])"}
    ordered = {"Gt": f"{value} > {joined}", "Lt": f"{value} < {joined}"} if literal is _number else {}
    return {"In": f"{value} == {joined}", "NotIn": f"{value} != {joined}"} | ordered


def _size(values: Sequence[str]) -> dict[str, str]:
    """The label is the memory in whole MiB, rounded down."""
    sizes = [int(each) for each in values if _number(each) is not None]
    if not values or len(sizes) < len(values):
        return {} if values else {"Exists": ""}
    equal = [f"{_at_least(each)} && {_below(each + 1)}" for each in sizes]
    if len(equal) > 1:
        either = " || ".join(f"({each})" for each in equal)
        return {"In": either, "NotIn": f"!({either})"}
    (one,) = sizes
    return {"In": equal[0], "NotIn": f"!({equal[0]})", "Gt": _at_least(one + 1), "Lt": _below(one)}


def _at_least(mebibytes: int) -> str:
    return f'{_SIZE}.compareTo(quantity("{mebibytes}Mi")) >= 0'


def _below(mebibytes: int) -> str:
    return f'{_SIZE}.compareTo(quantity("{mebibytes}Mi")) < 0'


def _text(value: str) -> str | None:
    return f'"{value}"' if _LABEL_VALUE.fullmatch(value) else None


def _family(value: str) -> str | None:
    return f'"{_FAMILIES[value]}"' if value in _FAMILIES else None


def _number(value: str) -> str | None:
    """The number as text; None if no label has this value."""
    return value if value.isascii() and value.isdecimal() and len(value) <= 9 and str(int(value)) == value else None


_COMPARED: Final[Mapping[str, tuple[str, Callable[[str], str | None]]]] = MappingProxyType(
    {
        PRODUCT: (f'{_ATTRIBUTES}.productName.replace(" ", "-")', _text),
        "nvidia.com/gpu.family": (f"{_ATTRIBUTES}.architecture", _family),
        **{
            f"nvidia.com/{label}.{part}": (f"{_ATTRIBUTES}.{attribute}.{part}()", _number)
            for label, attribute in (
                ("gpu.compute", "cudaComputeCapability"),
                ("cuda.driver", "driverVersion"),
                ("cuda.driver-version", "driverVersion"),
                ("cuda.runtime", "cudaDriverVersion"),
                ("cuda.runtime-version", "cudaDriverVersion"),
            )
            for part in ("major", "minor")
        },
    }
)
"""By label: what a selector compares with its value, and how the value is written there."""
