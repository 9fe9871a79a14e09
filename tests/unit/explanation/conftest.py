"""What holds of every screen: each explanation that a test of this folder makes is printed, briefly and in full, and read."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest

from draco.explanation.model import Explanation
from draco.explanation.note import with_summary
from draco.explanation.wording import BRIEF, brief, report

_CLAUSES = re.compile(r"(?<=[.?])\s|;\s|(?<!Attribute):\s")
"""Where one statement ends and the next begins."""
_ROW = re.compile(r"( +\d+ |Request .* of claim [^ ]+: class |  most on one node|  (\d+ )?nodes? )")
"""A row of the tables that account for every device and every node. The summary has some of their causes."""
_LEAD = re.compile(r"(?:Or|Also in the way|A bug of the scheduler may matter|Waiting does not help): ")
_SUBJECT = re.compile(
    r"(?i:(?:selector|constraint) #\d+ of .*?(?:class|claim)|request|claim|deviceclass) [^ ]+(?: of claim [^ ]+)?"
)
_AMOUNT = re.compile(r"\S+ needed, ")
"""What follows the name of a counter or capacity; two may lack the same amount."""


@pytest.fixture(autouse=True)
def screens(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check all explanations of the test at its end."""
    made: list[Explanation] = []

    def kept(explanation: Explanation) -> Explanation:
        made.append(with_summary(explanation))
        return made[-1]

    monkeypatch.setattr("draco.explanation.explain.with_summary", kept)
    yield
    for each in made:
        is_brief(list(brief(each)))
        says_nothing_twice(list(brief(each)))
        says_nothing_twice([line for line in report(each) if not _ROW.match(line)])


def is_brief(lines: Sequence[str]) -> None:
    """At most five lines say why a pod waits."""
    assert 0 < len(lines) <= BRIEF, lines


def says_nothing_twice(lines: Sequence[str]) -> None:
    """No statement stands twice on one screen, unless each time about another selector, constraint, request, claim or class."""
    said: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        text = _LEAD.sub("", line.strip())
        about = _SUBJECT.match(text)
        for statement in _statements(text):
            said[statement].append("" if about is None else about[0])
    twice = {statement for statement, about in said.items() if len(about) > 1 and ("" in about or len(set(about)) == 1)}
    assert not twice, "\n".join(lines)


def _statements(text: str) -> Iterator[str]:
    for clause in _CLAUSES.split(text):
        statement = clause.strip(" .,()")
        if " " in statement and not _SUBJECT.fullmatch(statement) and not _AMOUNT.match(statement):
            yield statement.lower()
