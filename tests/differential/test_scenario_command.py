"""`draco simulate --scenarios` prints, line by line, what Kubernetes' own allocator would write into the claims."""

import io
import json
import os
import random
from typing import Any

import msgspec
import pytest

from draco.cli.output import lines_of
from draco.cli.simulate.scenarios import LONGEST_LINE, answers
from tests.differential.runs import SEED, Tally, kept
from tests.differential.scenarios import a_scenario
from tests.differential.test_allocator import PATIENCE_MS, same_words
from tests.oracle.programs import Oracle

Json = dict[str, Any]
SCENARIOS = int(os.environ.get("DRACO_EXAMPLES") or 300)

ORACLE = "allocator"
COUNTED = "scenario lines"


def command_says(scenario: Json) -> Json:
    [line] = answers(lines_of(io.BytesIO(msgspec.json.encode(scenario) + b"\n"), LONGEST_LINE))
    said: Json = json.loads(line)
    assert said.keys() == {"name", "results", "error"}
    return said


def comparable(results: list[Json] | None) -> list[Json] | None:
    """Results without their random share ids."""
    for result in results or []:
        for device in result["devices"].get("results", []):
            if "shareID" in device:
                device["shareID"] = "some"
    return results


def telling(error: str) -> str:
    """An error without what Draco adds: which pools are invalid, and why."""
    invalid = "invalid resource pools were encountered"
    return invalid if error.startswith(invalid) else same_words(error)


def compare(go: Oracle, scenario: Json) -> str:
    [theirs] = go.ask(scenario | {"timeoutMilliseconds": PATIENCE_MS})
    if theirs.get("timedOut") or theirs.get("panic"):
        return "left out"
    mine = command_says(scenario)
    assert mine["name"] == theirs["name"]
    if theirs.get("error"):
        assert telling(mine["error"]) == telling(theirs["error"])
        return "errors"
    assert (comparable(mine["results"]), mine["error"]) == (comparable(theirs["results"]), None)
    return "not satisfiable" if mine["results"] is None else "allocated"


def test_random_scenarios_are_answered_alike(go: Oracle, tally: Tally) -> None:
    source = random.Random(SEED)
    for number in range(SCENARIOS):
        tally.answers[compare(go, a_scenario(source, str(number)))] += 1


@pytest.mark.parametrize("scenario", kept("allocator"))
def test_scenarios_that_once_were_decided_differently_are_answered_alike(go: Oracle, scenario: Json) -> None:
    compare(go, scenario)
