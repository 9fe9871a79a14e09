"""SemVer equals that of Kubernetes' Go library: a table for the rules, and the library itself for everything else."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draco.resources.semver import SemVer, SemVerError
from tests.oracle.programs import Oracle, oracle


@pytest.fixture(scope="module")
def go() -> Iterator[Oracle]:
    with oracle("values") as program:
        yield program


NUMBERS = st.one_of(
    st.integers(0, 12).map(str), st.sampled_from(["00", "01", "", "18446744073709551615", "18446744073709551616"])
)
IDENTIFIERS = st.one_of(NUMBERS, st.text("01aAz-", max_size=3), st.sampled_from(["rc", "alpha", "beta", "é", "_"]))


def dotted(parts: st.SearchStrategy[str], lead: str) -> st.SearchStrategy[str]:
    return st.one_of(st.just(""), st.lists(parts, min_size=1, max_size=3).map(lambda some: lead + ".".join(some)))


VERSIONS = st.builds(
    lambda core, prerelease, build: ".".join(core) + prerelease + build,
    st.lists(NUMBERS, min_size=3, max_size=3),
    dotted(IDENTIFIERS, "-"),
    dotted(IDENTIFIERS, "+"),
)
ALMOST = st.one_of(VERSIONS, st.text("v0123.-+a", max_size=10), VERSIONS.map(lambda text: f"v{text}"))


def parsed(text: str, *, loosely: bool = False) -> str | None:
    try:
        return str(SemVer.parse_loosely(text) if loosely else SemVer.parse(text))
    except SemVerError:
        return None


@settings(max_examples=500, deadline=None)
@given(ALMOST)
@example("")
@example("1.2.3-")
@example("1.2.3+")
@example("1.2.3-rc.1+build.5")
@example("1.2.3\n")
@example("\u0661.2.3")
def test_every_text_is_read_and_printed_as_go_does(go: Oracle, text: str) -> None:
    (answer,) = go.ask({"op": "version", "text": [text]})
    assert parsed(text) == (None if "error" in answer else answer["text"])


@settings(max_examples=300, deadline=None)
@given(ALMOST)
@example("v1")
@example("01.002")
@example("1.2-rc")
@example("1.02.0003-rc.1")
def test_a_loose_version_is_normalised_as_go_does(go: Oracle, text: str) -> None:
    (answer,) = go.ask({"op": "version-loose", "text": [text]})
    assert parsed(text, loosely=True) == (None if "error" in answer else answer["text"])


READABLE = VERSIONS.filter(parsed)


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(READABLE, READABLE)
@example("1.0.0-1", "1.0.0-a")
@example("1.0.0-a", "1.0.0-a.0")
@example("1.0.0+x", "1.0.0+y")
def test_two_versions_compare_as_in_go(go: Oracle, one: str, other: str) -> None:
    (answer,) = go.ask({"op": "version-compare", "text": [one, other]})
    left, right = SemVer.parse(one), SemVer.parse(other)
    assert left.compare(right) == answer["compare"]
    assert (left < right, left == right, left > right) == tuple(answer["compare"] == way for way in (-1, 0, 1))
    assert (hash(left) == hash(right)) or left != right


def test_versions_sort_as_semver_org_says() -> None:
    ordered = [
        "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1",
        "1.0.0", "1.0.1", "1.10.0", "2.0.0",
    ]  # fmt: skip
    assert [str(version) for version in sorted(map(SemVer.parse, reversed(ordered)))] == ordered


def test_build_metadata_is_kept_and_does_not_count() -> None:
    assert str(SemVer.parse("1.2.3+g1")) == "1.2.3+g1"
    assert SemVer.parse("1.2.3+g1") == SemVer.parse("1.2.3+g2")
    assert repr(SemVer.parse("1.2.3")) == "SemVer('1.2.3')"
    assert SemVer.parse("1.2.3") != "1.2.3"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1.2", "it does not have three numbers"),
        ("v1.2.3", "the major part 'v1' is not a number"),
        ("1.02.3", "the minor part '02' has leading zeros"),
        ("1.2.3-01", "the prerelease number '01' has leading zeros"),
        ("1.2.3-a_b", "in its prerelease 'a_b' has characters other than letters, digits and dashes"),
        ("1.2.3+", "in its build metadata a part is empty"),
        ("18446744073709551616.0.0", "the number 18446744073709551616 is too large"),
    ],
)
def test_a_malformed_version_gets_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(SemVerError) as refusal:
        SemVer.parse(text)
    advice = "write major.minor.patch, for example 1.2.3 or 1.2.3-rc.1"
    assert str(refusal.value) == f'"{text}" is not a semantic version: {reason}; {advice}'


def test_a_short_version_with_a_prerelease_is_refused_even_loosely() -> None:
    with pytest.raises(SemVerError, match="a short version cannot carry"):
        SemVer.parse_loosely("1.2-rc")
