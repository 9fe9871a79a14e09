"""Every example in docs/reference/selectors.md gives the result stated there."""

import re
from pathlib import Path

import pytest
import yaml

from draco.cel import CompileError, DeviceVariable, EvaluationError, compile_selector, device_view, new_expressions
from draco.cel.values.bounds import MAX_COST
from draco.resources.api.slices import ResourceSlice
from draco.resources.written.manifests import decode

PAGE = (Path(__file__).parents[3] / "docs/reference/selectors.md").read_text(encoding="utf-8")
RELEASES = range(34, 38)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


EXAMPLES = [tuple(line.rsplit("  // ", 1)) for block in blocks("cel") for line in block.splitlines()]


@pytest.fixture(scope="module")
def device() -> DeviceVariable:
    [block] = blocks("yaml")
    published = decode(yaml.safe_load(block), source="the page")
    assert isinstance(published, ResourceSlice)
    return device_view(published.spec.driver, published.spec.devices[0])


def answer(expression: str, device: DeviceVariable) -> str:
    try:
        return str(compile_selector(expression).matches(device)).lower()
    except CompileError as error:
        return f"refused: {error}"
    except EvaluationError as error:
        return f"error: {error}"


def is_taken(expression: str, minor: int) -> bool:
    """Whether the API server of this minor release accepts the expression in a new object."""
    try:
        cost = compile_selector(expression, environment=new_expressions(minor)).estimated_cost
    except CompileError:
        return False
    return cost is not None and cost <= MAX_COST


def test_every_example_says_what_to_expect() -> None:
    assert len(EXAMPLES) > 60
    assert all(len(example) == 2 for example in EXAMPLES)


@pytest.mark.parametrize(("expression", "expected"), [one for one in EXAMPLES if not one[1].startswith("new")])
def test_an_example_answers_as_the_page_says(device: DeviceVariable, expression: str, expected: str) -> None:
    told = answer(expression, device)
    kind, colon, words = expected.partition(": ")
    assert told.startswith(f"{kind}{colon}")
    assert words in told


@pytest.mark.parametrize(("expression", "expected"), [one for one in EXAMPLES if one[1].startswith("new")])
def test_an_example_is_taken_by_the_releases_that_the_page_says(expression: str, expected: str) -> None:
    since = re.fullmatch(r"new (?:since 1\.(\d+)|never)", expected)
    assert since is not None
    first = int(since[1]) if since[1] else 99
    assert [minor for minor in RELEASES if is_taken(expression, minor)] == [m for m in RELEASES if m >= first]
