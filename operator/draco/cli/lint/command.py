"""`draco lint`: check manifests before they reach a cluster, and correct them. `draco.linting` has the rules."""

import difflib
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, Literal

import click
import msgspec

from draco.cli.input.manifests import STANDARD_INPUT, read_texts
from draco.cli.input.yaml_documents import Document, DocumentError
from draco.cli.lint import text as lint_text
from draco.cli.lint.edits import EditRound, Outcome, below
from draco.cli.lint.text import DocumentText
from draco.cli.options import RELEASES, output_option
from draco.cli.output import echo_lines, print_document
from draco.linting.model import Edit, Finding, Manifest, MoveField, TreePath
from draco.linting.objects import objects_in
from draco.linting.rules import lint
from draco.selectors.complaint import Severity

_CRLF: Final = "\r\n"
_BREAK: Final = re.compile(r"\r\n|\r|\n")
"""A line break in YAML."""
_STRONGEST: Final[tuple[Outcome, ...]] = ("changed", "there")
_ROUNDS: Final = 10
"""Limit on rounds: one correction may uncover another. No known input needs as many."""


class ReportedFinding(msgspec.Struct, frozen=True):
    """One finding as it is shown. `corrected`: the corrected text no longer has it."""

    file: str
    line: int
    severity: Severity
    rule: str
    message: str
    corrected: bool

    def __str__(self) -> str:
        first, *more = self.message.split("\n")
        return "\n".join(
            [f"{self.file}:{self.line}: {self.severity}: {first} ({self.rule})", *(f"    {line}" for line in more)]
        )


class _Part:
    """One document of a file, with its original and its corrected content."""

    def __init__(self, file: str, piece: DocumentText, read: Document | None) -> None:
        self.file = file
        self.piece = piece
        self.read = read
        self._is_editable = True
        self.reset()

    def reset(self) -> None:
        """Discard all corrections."""
        self.text = self.piece.text
        self.value = self.read.value if self.read is not None else None
        self.moves: list[MoveField] = []
        self._round: EditRound | None = None
        self._is_read = True

    @property
    def is_changed(self) -> bool:
        """Whether anything was corrected."""
        return self._round is not None

    def edit(self, edit: Edit) -> Outcome:
        """Apply one edit; `read_again` then updates the value."""
        edits = self._round
        if edits is None and self._is_editable:
            edits = EditRound(lint_text.editable(self.piece))
        outcome = "gone" if edits is None else edits.apply(edit)
        if outcome == "changed":
            self._round, self._is_read = edits, False
            if isinstance(edit, MoveField):
                self.moves.append(edit)
        return outcome

    def read_again(self) -> None:
        """Parse the corrected text as Kubernetes would. Raises DocumentError, and discards the text, if it is broken."""
        if self._round is None or self._is_read:
            return
        self._round, self._is_read = EditRound(self._round.tree), True
        self.text = lint_text.dump(deepcopy(self._round.tree), self.piece)  # dump moves comments in the tree
        try:
            read = lint_text.read(self.piece._replace(text=self.text))
        except DocumentError:
            self._is_editable = False
            raise
        self.value = read.value if read is not None else None


class _Place(msgspec.Struct, frozen=True):
    part: int
    prefix: TreePath


class LintResult(msgspec.Struct, frozen=True):
    """All findings, and each file's text before and after."""

    findings: list[ReportedFinding]
    before: dict[str, str]
    after: dict[str, str]


def check(texts: dict[str, str], *, kubernetes: int) -> LintResult:
    """Check files that are applied together, given by name and text."""
    findings: list[ReportedFinding] = []
    parts: list[_Part] = []
    changed: dict[str, bool] = {}
    for file, text in texts.items():
        sound, remarks = lint_text.repaired(_BREAK.sub("\n", text))
        changed[file] = bool(remarks)
        findings += [ReportedFinding(file, line, "error", rule, said, corrected=True) for line, rule, said in remarks]
        for piece in lint_text.pieces(sound):
            read = None
            try:
                read = lint_text.read(piece)
            except DocumentError as error:
                findings.append(ReportedFinding(file, error.line, "error", error.rule, error.problem, corrected=False))
            if read is not None and not isinstance(read.value, dict):
                line = lint_text.line_of(read, (), piece)
                message = "this is not a manifest: a manifest is a mapping that begins with apiVersion and kind"
                findings.append(ReportedFinding(file, line, "error", "fragment", message, corrected=False))
            parts.append(_Part(file, piece, read))
    findings += _corrected(parts, kubernetes)
    after: dict[str, str] = dict.fromkeys(texts, "")
    for part in parts:
        after[part.file] += part.piece.separator + part.text
        changed[part.file] |= part.is_changed
    for file, text in texts.items():
        if not changed[file]:
            after[file] = text  # an unchanged file keeps its line breaks
        elif set(_BREAK.findall(text)) == {_CRLF}:
            after[file] = after[file].replace("\n", _CRLF)
    order = {file: number for number, file in enumerate(texts)}
    findings.sort(key=lambda one: (order[one.file], one.line))
    return LintResult(findings, texts, after)


def _corrected(parts: Sequence[_Part], kubernetes: int) -> list[ReportedFinding]:
    """Check and correct. If a correction breaks a document (a comment in an odd place can), nothing is corrected."""
    while True:
        try:
            return list(_rounds(parts, kubernetes))
        except DocumentError:
            for part in parts:
                part.reset()


def _rounds(parts: Sequence[_Part], kubernetes: int) -> Iterator[ReportedFinding]:
    """Check, correct and check again, until nothing is left to correct.

    Reports what was corrected and what is left in the end. A finding that vanished otherwise was a consequence of another.
    """
    findings: dict[ReportedFinding, None] = {}
    for _ in range(_ROUNDS):
        manifests, places = _manifests(parts)
        found = lint(manifests, kubernetes=kubernetes)
        lines = [_line(parts, places, finding) for finding in found]
        done = [_apply(parts, places, finding) for finding in found]
        is_last = "changed" not in done
        for finding, (file, line), outcome in zip(found, lines, done, strict=True):
            corrected = outcome == "changed" or (outcome == "there" and not is_last)
            if corrected or is_last:
                findings[ReportedFinding(file, line, finding.severity, finding.rule, finding.message, corrected)] = None
        if is_last:
            break
        for part in parts:
            part.read_again()
    yield from findings


def _manifests(parts: Sequence[_Part]) -> tuple[list[Manifest], list[_Place]]:
    manifests, places = [], []
    for number, part in enumerate(parts):
        tree = part.value
        if not isinstance(tree, dict):
            continue
        comments = lint_text.comments_of(part.piece)
        for prefix, item in objects_in(tree):
            manifests.append(Manifest(tree=item, comments=comments))
            places.append(_Place(number, prefix))
    return manifests, places


def _line(parts: Sequence[_Part], places: Sequence[_Place], finding: Finding) -> tuple[str, int]:
    """The file, and the finding's line in the original text."""
    place = places[finding.manifest]
    part = parts[place.part]
    path: TreePath = (*place.prefix, *finding.path)
    for move in reversed(part.moves):
        if path[: len(move.to)] == move.to:
            path = (*move.path, *path[len(move.to) :])
    return part.file, lint_text.line_of(part.read, path, part.piece) if part.read is not None else 1


def _apply(parts: Sequence[_Part], places: Sequence[_Place], finding: Finding) -> Outcome:
    """Apply the edits of a finding; return the strongest outcome."""
    outcomes: set[Outcome] = set()
    for manifest, edit in finding.edits:
        place = places[manifest]
        outcomes.add(parts[place.part].edit(below(place.prefix, edit)))
    return next((outcome for outcome in _STRONGEST if outcome in outcomes), "gone")


@click.command()
@click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Manifests: a file, a folder with all below it, or - for standard input. May be given several times.",
)
@click.option("--fix", is_flag=True, help="Write the corrected text back; of standard input, to standard output.")
@output_option(
    *("text", "diff", "yaml", "json"),
    text="text: findings and a diff. diff: what to change, for patch. yaml: the corrected text. json: everything.",
)
@click.option(
    "--kubernetes",
    type=click.Choice([f"1.{minor}" for minor in RELEASES]),
    default="1.36",
    show_default=True,
    help="Release of Kubernetes that the manifests are for.",
)
def command(
    *, filenames: Sequence[str], fix: bool, output: Literal["text", "diff", "yaml", "json"], kubernetes: str
) -> None:
    """Check manifests before they reach a cluster, and correct them.

    Finds what articles and older versions get wrong: quantities compared with >=, attributes without their domain, forms of
    alpha and beta versions, claims and requests that do not fit together. All files are checked as one application. Nothing is
    written without --fix. The status is 1 when an error is left.
    """
    texts = dict(read_texts(filenames, within=lambda folder: folder.rglob("*")))
    checked = check(texts, kubernetes=int(kubernetes.partition(".")[2]))
    changed = [file for file in texts if checked.after[file] != texts[file]]
    if fix:
        _write(checked, changed)
    match output:
        case "json":
            print_document(_document(checked, changed))
        case "diff":
            click.echo("".join(_diff(checked, changed)), nl=False)
        case "yaml":
            click.echo("---\n".join(checked.after[file].removeprefix("---\n") for file in texts), nl=False)
        case _ if not (fix and STANDARD_INPUT in changed):
            echo_lines(_text(checked, changed, is_written=fix))
    if any(each.severity == "error" and not (fix and each.corrected) for each in checked.findings):
        raise click.exceptions.Exit(1)


def _write(checked: LintResult, changed: Sequence[str]) -> None:
    for file in changed:
        if file == STANDARD_INPUT:
            click.echo(checked.after[file], nl=False)
        else:
            Path(file).write_bytes(checked.after[file].encode())


def _diff(checked: LintResult, changed: Sequence[str]) -> Iterator[str]:
    for file in changed:
        before, after = (text.splitlines(keepends=True) for text in (checked.before[file], checked.after[file]))
        for line in difflib.unified_diff(before, after, file, file):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _text(checked: LintResult, changed: Sequence[str], *, is_written: bool) -> Iterator[str]:
    yield from map(str, checked.findings)
    left = sum(not each.corrected for each in checked.findings)
    if not any(text.strip() for text in checked.before.values()):
        yield "There is nothing to check."
    elif not checked.findings:
        yield "Nothing to correct."
    elif is_written:
        yield f"Corrected {len(checked.findings) - left} of {len(checked.findings)}; {left} left to you."
    elif changed:
        yield ""
        yield from (line.rstrip("\n") for line in _diff(checked, changed))
        yield ""
        yield f"--fix corrects {len(checked.findings) - left} of {len(checked.findings)}" + (
            f"; {left} left to you." if left else "."
        )


def _document(checked: LintResult, changed: Sequence[str]) -> dict[str, Any]:
    return {
        "findings": checked.findings,
        "files": [
            {"file": file, "corrected": checked.after[file] if file in changed else None} for file in checked.before
        ],
    }
