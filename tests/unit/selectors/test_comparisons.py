"""Quantities and versions that authors meant, and how Kubernetes compares them."""

import pytest

from draco.resources.quantity import quantity_meant
from draco.selectors.comparisons import by_function, version_meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("40Gi", "40Gi"),
        ("40GB", "40G"),
        ("40 GiB", "40Gi"),
        ("16kb", "16k"),
        ("1.5tb", "1.5T"),
        ("40", "40"),
        ("40 gi", "40Gi"),
        ("40 G", "40G"),
        ("40g", None),
        ("40 m", "40m"),
        ("40Gb", None),
        ("40Kib", None),
        ("much", None),
    ],
)
def test_a_quantity_is_read_as_it_was_meant(written: str, meant: str | None) -> None:
    assert quantity_meant(written) == meant


@pytest.mark.parametrize(
    ("written", "meant"), [("8.0.0", "8.0.0"), ("8.0", "8.0.0"), ("v12", "12.0.0"), ("newest", None)]
)
def test_a_version_is_read_as_it_was_meant(written: str, meant: str | None) -> None:
    assert version_meant(written) == meant


def test_what_operators_do_not_compare_is_compared_by_a_function() -> None:
    assert by_function("a.b", ">=", 'quantity("1")') == 'a.b.compareTo(quantity("1")) >= 0'
