"""What YAML text means, as kubectl reads it, and what is said about broken or hostile text."""

import json

import pytest

from draco.cli.input.yaml_documents import MAX_DEPTH, DocumentError, documents, placed_documents
from draco.resources.written.manifests import ManifestError


def values(text: str) -> list[object]:
    return [document.value for document in documents("f.yaml", text)]


def refusal(text: str) -> str:
    with pytest.raises(ManifestError) as caught:
        list(documents("f.yaml", text))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("off", False),
        ("~", None),
        ("0x10", 16),
        ("010", 8),
        ("08", 8),
        ("1_000", 1000),
        ("1e3", 1000),
        ("0.5", 0.5),
        ("1e999", "1e999"),
        ("80Gi", "80Gi"),
        ("1:30", "1:30"),
        ("2026-03-01", "2026-03-01"),
        ("'yes'", "yes"),
        ("!!str 8", "8"),
        ("9" * 50, "9" * 50),
    ],
)
def test_scalars_stand_for_what_kubectl_takes_them_for(text: str, value: object) -> None:
    [read] = values(f"a: {text}")
    assert isinstance(read, dict)
    assert (read["a"], type(read["a"])) == (value, type(value))


def test_documents_are_told_apart_and_numbered_by_line() -> None:
    read = list(documents("f.yaml", "a: 1\n---\n# nothing\n---\nb: 2\n"))
    assert [(document.number, document.line, document.value) for document in read] == [
        (1, 1, {"a": 1}),
        (3, 5, {"b": 2}),
    ]


def test_json_objects_may_follow_one_another() -> None:
    read = list(documents("f.json", '{"a": 1}\n\n{"b": [true, null]}'))
    assert [(document.line, document.value) for document in read] == [(1, {"a": 1}), (3, {"b": [True, None]})]


def test_braces_of_yaml_are_not_taken_for_json() -> None:
    assert values("{a: 1, b: [c, d]}") == [{"a": 1, "b": ["c", "d"]}]


def test_aliases_and_merges_repeat_what_they_name() -> None:
    text = "base: &b {k: 1, l: 2}\nother: {<<: *b, l: 3}\nlist: [*b]"
    assert values(text) == [{"base": {"k": 1, "l": 2}, "other": {"k": 1, "l": 3}, "list": [{"k": 1, "l": 2}]}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a: &a [*a]",
            "f.yaml, document 1, line 1: the alias *a is inside the value that it repeats, which never ends",
        ),
        ("a: *b", "the alias *b refers to nothing"),
        ("a: 1\nb: 2\na: 3", 'line 3: the key "a" is already in line 1; remove one of them.'),
        ('{"a": {"b": 1, "b": 2}}', 'the key "b" appears twice in one object; remove one of them.'),
        ("a:\n\tb: 1", "indent with spaces, because YAML does not allow tabs"),
        ("a: [1", "line 2, column 1: this is not valid YAML"),
        ("a: b: c", "mapping values are not allowed"),
        ("a: \x01", "the character U+0001 is not allowed in YAML; remove it."),
        ("a: !ruby/object x", "the tag !ruby/object means nothing to Kubernetes; remove it."),
        ("? [a]\n: b", "a key must be a string, not a list or an object."),
        ("~: b", "a key must be a string, not empty"),
        ("a: {<<: 3}", "<< merges objects only."),
        ('{"a": "\\ud800"}', "half of a character"),
        ('{"a": NaN}', "NaN is not a JSON number"),
    ],
)
def test_broken_text_is_refused_in_a_sentence(text: str, said: str) -> None:
    assert said in refusal(text)


def test_a_json_file_is_told_what_is_wrong_with_its_json() -> None:
    with pytest.raises(ManifestError, match=r"f\.json, line 2: this is not valid JSON: Expecting"):
        list(documents("f.json", '{\n"a" 1}'))


def test_aliases_that_multiply_are_refused_before_they_do() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    assert "with its aliases expanded it has more than 20,000,000 values" in refusal("\n".join(lines))


@pytest.mark.parametrize("open_", ["{a: ", "- "])
def test_deep_nesting_is_refused(open_: str) -> None:
    assert f"more than {MAX_DEPTH} levels" in refusal(open_ * 5000 + "x")


def test_deep_json_is_refused() -> None:
    assert "nested" in refusal(json.dumps(None).join(['{"a":' * 200, "}" * 200]))
    assert "nested" in refusal('{"a":' * 100_000 + "1" + "}" * 100_000)


PLACED = """# a comment
base: &base
  kept: 1
kind: List
items:
- name: a
  use: {tags: [x,
    y]}
- <<: *base
  name: b
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 2),
        (("kind",), 4),
        (("items", 0, "use"), 7),
        (("items", 0, "use", "tags", 1), 8),
        (("items", 1), 9),
        (("items", 1, "name"), 10),
        (("items", 1, "kept"), 9),
        (("items", 7, "nosuch"), 5),
        (("kind", "nosuch"), 4),
        (("nosuch",), 2),
    ],
)
def test_everything_is_found_on_its_line_or_on_that_of_what_holds_it(path: tuple[str | int, ...], line: int) -> None:
    [document] = placed_documents("f.yaml", PLACED)
    assert document.line_of(path) == line


def test_documents_that_are_only_read_remember_no_places() -> None:
    [document] = documents("f.yaml", PLACED)
    assert not document.places


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("a: 1\na: 2\n", 2, "duplicate-key"),
        ("a:\n- b: *c\n", 2, "yaml"),
        ("[" * 200, 1, "size"),
        ("a: b: c", 1, "yaml"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_rule(text: str, line: int, rule: str) -> None:
    with pytest.raises(DocumentError) as caught:
        list(placed_documents("f.yaml", text))
    assert (caught.value.line, caught.value.rule) == (line, rule)
    assert str(caught.value).endswith(f"{caught.value.problem}.")
