"""Text that others wrote cannot control a terminal."""

import json
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.cli.output import echo, print_document, visible
from draco.resources.texts import LONGEST_REASON, reason_of, shown, shown_document, shown_lines

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m"
FORGED = "train\r\nlevel=info event=all.well"
REVERSED = "gpu-\u202e0-upg\u2066\u200b"
HOSTILE = [ESCAPES, FORGED, REVERSED, "a\u2028b\u2029c\x85d", "\x00\x7f\ufeff", "\U000e0001tag", "\ud800"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_shown_is_printable_and_on_one_line(text: str) -> None:
    assert shown(text).isprintable()
    assert shown(shown(text)) == shown(text)


def test_what_is_hidden_is_told() -> None:
    assert shown("\x1b[31mred") == "\\u001b[31mred"
    assert shown("a\u202eb") == "a\\u202eb"
    assert shown(FORGED) == "train  level=info event=all.well"


@given(st.text())
def test_no_control_or_format_character_is_left_and_nothing_else_is_touched(text: str) -> None:
    assert not {unicodedata.category(each) for each in shown(text)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    if text.isprintable():
        assert shown(text) == text
    assert shown_lines(text).count("\n") == text.count("\n")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_document_means_the_same(text: str) -> None:
    document = shown_document(json.dumps({"text": text}, ensure_ascii=False, indent=2))
    assert json.loads(document) == {"text": text}
    assert document.replace("\n", "").isprintable()


class Row(msgspec.Struct, frozen=True):
    name: str
    labels: dict[str, str]
    more: list["Row"] = []
    count: int = 0


def test_a_view_is_made_printable_as_a_whole() -> None:
    view = Row(name=ESCAPES, labels={"a\n": FORGED}, more=[Row(name=REVERSED, labels={})], count=3)
    made = visible(view)
    assert (made.count, made.labels) == (3, {"a ": shown(FORGED)})
    assert [made.name, made.more[0].name] == [shown(ESCAPES), shown(REVERSED)]


def test_lines_and_documents_are_printed_without_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    echo(f"first {ESCAPES}\nsecond")
    print_document(Row(name=REVERSED, labels={}))
    printed = capfd.readouterr().out
    assert all(line.isprintable() for line in printed.splitlines())
    assert printed.startswith("first \\u001b")
    assert json.loads(printed.partition("second\n")[2])["name"] == REVERSED


POLICY = (
    'resourceclaims.resource.k8s.io "swap-fan-verification-0123456789" is forbidden: ValidatingAdmissionPolicy '
    "'draco-operator-tolerations' with binding 'draco-operator-tolerations' denied request: "
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            POLICY + "a claim may not tolerate that.",
            "a claim may not tolerate that (ValidatingAdmissionPolicy draco-operator-tolerations)",
        ),
        (
            'admission webhook "kyverno.svc" denied the request: no\nsuch image',
            "no such image (admission webhook kyverno.svc)",
        ),
        ('jobs.batch is forbidden: User "x" cannot create', 'jobs.batch is forbidden: User "x" cannot create'),
    ],
)
def test_a_refusal_begins_with_its_reason(text: str, expected: str) -> None:
    assert reason_of(text) == expected


@pytest.mark.parametrize("length", [1000, LONGEST_REASON + 1, 100_000])
def test_what_is_too_long_loses_its_middle_and_never_why(length: int) -> None:
    text = f"failed to create containerd task: {'x' * length}: exec: no such file"
    found = reason_of(text)
    assert len(found) <= LONGEST_REASON
    assert found.startswith("failed to create containerd task")
    assert found.endswith("exec: no such file")
    assert reason_of(POLICY + "y" * length).endswith("(ValidatingAdmissionPolicy draco-operator-tolerations)")


@given(st.text(max_size=600), st.integers(min_value=12, max_value=300))
def test_a_reason_is_printable_and_no_longer_than_asked_for(text: str, most: int) -> None:
    assert len(reason_of(text, most)) <= most
    assert reason_of(text, most).isprintable()
