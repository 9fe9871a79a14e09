"""The documents are correct as far as a machine can check: generated pages are current, and links lead somewhere."""

import re
from itertools import chain
from pathlib import Path

import click
import pytest

from draco.cli import root
from draco.explanation.model import PendingReason
from draco.resources.api.health import FaultFamily
from scripts import check_links, messages, reference

ROOT = Path(__file__).parents[2]
ODD_WORDS = re.compile(
    r"\b(anew|whoever|whomever|whatsoever|as ever|told of|has it that|divided so|kept no more|(is|not) a matter of|goes on so|"
    r"is no (matter|name|value|key|kind|number|object|manifest|scenario|request|entry|field) of|stays so|can(not)? be had|"
    r"is told|(?<!there )is no (time|taint|effect|text|event|label)|(write it|are) such as|"
    r"by (itself|themselves)|what makes (it|them)|as many .* as may|such as it is)\b",
    re.IGNORECASE,
)
"""Phrases that users of kubectl, cert-manager or rustc never read there: "again", "anyone" or a plain verb says the same."""
COMMAND = re.compile(r"(?:`|\$ |venv/bin/|^ {2,})(?:kubectl )?draco ([a-z][^`\n]*)", re.MULTILINE)
MODULE = re.compile(r"`([\w./-]+/(?:[\w-]+\.(?:py|lark))?|[\w-]+\.(?:py|lark))`")
"""A folder or a module, or a module's name alone: beside the one before it on its line, or in a folder that the page names."""


def test_the_reference_is_what_the_source_says() -> None:
    stale = [
        name
        for name, text in reference.pages().items()
        if not (reference.REFERENCE / name).exists() or (reference.REFERENCE / name).read_text("utf-8") != text
    ]
    assert stale == [], "run make docs"


def test_the_charts_readme_is_what_the_chart_says() -> None:
    assert (reference.CHART / "README.md").read_text("utf-8") == reference.readme_of_chart(), "run make docs"


def test_every_link_leads_somewhere() -> None:
    assert check_links.broken_links() == []


def test_pages_and_messages_are_plain_english() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = [
        f"{page.relative_to(ROOT)}:{number}: {odd[0]}"
        for page in pages
        for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1)
        for odd in ODD_WORDS.finditer(line)
    ]
    assert found == [], "say it as kubectl would; what a message says is in the source"


def test_the_texts_of_every_package_are_among_the_messages_or_left_out_for_a_reason() -> None:
    listed = {ROOT / each for each in (*chain.from_iterable(messages.PARTS.values()), *messages.NOT_LISTED)}
    assert [str(each) for each in listed if not each.exists()] == []
    modules = [each for each in (ROOT / "operator" / "draco").rglob("*.py") if each.name != "__init__.py"]
    assert [str(each) for each in modules if listed.isdisjoint((each, *each.parents))] == []


def test_every_module_that_a_page_for_contributors_names_is_there() -> None:
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "contributing.md", *(ROOT / "docs" / "design").glob("*.md")]
    texts = {page.name: page.read_text("utf-8") for page in pages}
    assert sum(len(MODULE.findall(text)) for text in texts.values()) > 20
    assert [(name, path) for name, text in texts.items() for path in missing_modules(text)] == []


def missing_modules(page: str) -> list[str]:
    homes = [ROOT, *(ROOT / home for home in ("operator", "operator/draco", "local", "local/draco_local"))]
    folders = [path.rpartition("/")[0] for path in MODULE.findall(page) if "/" in path]
    missing: list[str] = []
    for line in page.splitlines():
        here = folders
        for path in MODULE.findall(line):
            if "/" in path:
                here = [path.rpartition("/")[0]]
            tried = [path] if "/" in path else [f"{folder}/{path}" for folder in here]
            if not any((home / each).exists() for home in homes for each in tried):
                missing.append(path)
    return missing


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("`kube/queue.py`, `clock.py`; `agent/`", []),
        ("`kube/queue.py`, `journal.py`; `agent/record/journal.py`", ["journal.py"]),
        ("`agent/record/journal.py`\n`journal.py` and `queue.py`", ["queue.py"]),
        ("`kube/gone.py`", ["kube/gone.py"]),
    ],
)
def test_a_module_without_a_folder_is_beside_the_one_named_before_it(page: str, missing: list[str]) -> None:
    assert missing_modules(page) == missing


def test_every_command_that_a_page_names_is_there_with_its_options() -> None:
    pages = {path: path.read_text("utf-8") for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))}
    named = [(path.name, line) for path, text in pages.items() for line in COMMAND.findall(text)]
    assert len(named) > 200
    assert [(page, line, wrong) for page, line in named if (wrong := unknown_in(line.split("  #")[0].split()))] == []


def unknown_in(words: list[str]) -> str:
    """The first word of a draco command line that is neither a command nor an option at its place; "" if there is none."""
    command: click.Command = root
    context = click.Context(root)
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        name, *words = words
        found = command.get_command(context, name)
        if found is None:
            return name
        command, context = found, click.Context(found, parent=context)
    known = {"--help", "--version", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
    options = (option[0] for word in words if (option := re.match(r"--[a-z][a-z-]*", word)))
    return next((each for each in options if each not in known), "")


def test_every_test_that_a_page_names_is_there() -> None:
    named = {
        name for page in (ROOT / "docs").rglob("*.md") for name in re.findall(r"`(test_\w+)`", page.read_text("utf-8"))
    }
    files = (ROOT / "tests").rglob("test_*.py")
    there = {
        name
        for file in files
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
    }
    assert len(named) > 20
    assert named - there == set()


@pytest.mark.parametrize(
    ("target", "leads"),
    [
        ("other.md", True),
        ("other.md#a-heading-with-code", True),
        ("other.md#a-heading-with-code-1", True),
        ("#here", True),
        ("gone.md", False),
        ("other.md#gone", False),
        ("#inside-a-fence", False),
        ("../../../../../../../etc", False),
    ],
)
def test_a_link_is_broken_if_its_file_or_heading_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, leads: bool
) -> None:
    monkeypatch.setattr(check_links, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# Here\n\n```\n# Inside a fence\n```\n", encoding="utf-8")
    (tmp_path / "other.md").write_text("## A heading, with `code`\n\n## A heading with code\n", encoding="utf-8")
    assert check_links.leads(page, target) is leads


def test_links_are_found_in_text_and_not_in_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[a](one.md) ![b](two.png) `[c](three.md)` [d](https://example.com)\n```\n[e](four.md)\n```\n", encoding="utf-8"
    )
    assert list(check_links.links(page)) == ["one.md", "two.png"]


@pytest.mark.parametrize("family", list(FaultFamily))
def test_each_family_of_faults_has_a_page_that_leads_to_its_end(family: FaultFamily) -> None:
    page = (ROOT / "docs" / "runbooks" / f"{family}.md").read_text("utf-8")
    parts = ("What it means", "How to see it", "What Draco has done automatically", "What to do", "How it ends")
    assert [part for part in parts if f"**{part}.**" not in page] == []
    for index in ("docs/README.md", "docs/runbooks/alerts.md"):
        assert f"{family}.md)" in (ROOT / index).read_text("utf-8"), index


def test_every_reason_why_a_claim_waits_is_described() -> None:
    page = (ROOT / "docs" / "concepts" / "explanations.md").read_text("utf-8")
    assert [reason for reason in PendingReason if f"| `{reason}` |" not in page] == []


@pytest.mark.parametrize(("page", "words"), [("README.md", 900), ("CONTRIBUTING.md", 1200)])
def test_what_strangers_read_first_is_short(page: str, words: int) -> None:
    assert len((ROOT / page).read_text("utf-8").split()) <= words
