"""`draco selector eval --cases`, with which others compare selectors, answers each line as Kubernetes does."""

import json
import random
import subprocess
import sys

from tests.differential.cel_cases import a_device, an_expression
from tests.differential.runs import Tally, kept
from tests.differential.selector_answers import BREAKDOWN, Json, same_words
from tests.oracle.programs import answers

EXAMPLES = 1500


def test_selectors_given_as_cases_are_answered_as_by_kubernetes() -> None:
    source = random.Random(4)
    cases: list[Json] = [{"expression": an_expression(source), "device": a_device(source)} for _ in range(EXAMPLES)]
    cases += [parameter.values[0] for parameter in kept("cel")]
    asked = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run(
        [sys.executable, "-m", "draco", "selector", "eval", "--cases", "-"],
        input=asked, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(cases)

    tally = Tally("selectors given to the command")
    differing = []
    for case, ours, theirs in zip(cases, told, answers("cel", cases), strict=True):
        wanted: Json = {kind: theirs[kind] for kind in ("match", "compileError", "error") if kind in theirs}
        if BREAKDOWN in wanted.get("error", ""):
            continue
        if with_same_words(ours) != with_same_words(wanted):
            differing.append((case, ours, wanted))
        tally.answers[next(iter(wanted))] += 1
    tally.report()
    assert differing == []
    assert min(tally.answers[kind] for kind in ("match", "compileError", "error")) > EXAMPLES // 20


def with_same_words(answer: Json) -> Json:
    return {kind: same_words(text) if kind == "compileError" else text for kind, text in answer.items()}
