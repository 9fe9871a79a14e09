"""Attributes and capacities as they are written, and replacing them."""

import pytest

from draco.cel.paths import AttributePath
from draco.selectors.accesses import accesses, with_path
from draco.selectors.tokens import tokens

GPU = "gpu.example.com"
OLD = AttributePath("attributes", GPU, "modle")
MODEL = AttributePath("attributes", GPU, "model")
MEMORY = AttributePath("capacity", "other.example.com", "memory")


def read(expression: str) -> list[AttributePath]:
    return [access.path for access in accesses(tokens(expression))]


@pytest.mark.parametrize(
    "written",
    [
        f'device.attributes["{GPU}"].modle',
        f"device.attributes[r'{GPU}'][\"modle\"]",
        f'device.attributes[?"{GPU}"].?modle.orValue("")',
        f'x ? device.attributes["{GPU}"].modle : "y"',
        f'device.attributes["{GPU}"].modle == // not yet',
    ],
)
def test_an_access_is_found_however_it_is_spelled(written: str) -> None:
    assert read(written) == [OLD]


@pytest.mark.parametrize(
    "written", [f'a.device.attributes["{GPU}"].modle', f'a.?device.attributes["{GPU}"].modle', "device"]
)
def test_what_only_looks_like_one_is_none(written: str) -> None:
    assert read(written) == []


def test_a_call_is_no_name() -> None:
    assert read(f'device.attributes["{GPU}"].exists(k, true)') == [AttributePath("attributes", GPU)]


@pytest.mark.parametrize(
    ("before", "new", "after"),
    [
        (f'device.attributes["{GPU}"].modle == "A"', MODEL, f'device.attributes["{GPU}"].model == "A"'),
        (f'a || device.attributes["{GPU}"].?modle == b', MODEL, f'a || device.attributes["{GPU}"].?model == b'),
        (f'device.attributes["{GPU}"]["modle"]', MEMORY, 'device.capacity["other.example.com"]["memory"]'),
        (f'[device.attributes["{GPU}"].modle, "device.attributes"]', MEMORY,
         '[device.capacity["other.example.com"].memory, "device.attributes"]'),
        ("device.driver == 'x'", MODEL, None),
        (f'device.attributes["{GPU}"].modle', AttributePath("attributes", GPU, "model-name"), None),
    ],
)  # fmt: skip
def test_another_name_leaves_the_rest_of_the_text_alone(before: str, new: AttributePath, after: str | None) -> None:
    assert with_path(before, OLD, new) == after
