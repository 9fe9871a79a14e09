"""Limits on what an evaluation may build and traverse where Kubernetes charges no cost."""

import tracemalloc

import pytest

from draco.cel import CompileError, EvaluationError, compile_selector
from draco.cel.values.bounds import MAX_ITEMS, MAX_TEXT, MAX_TOIL
from tests.unit.cel.devices import a_device

LONG = "lists.range(90000)"


def doubled(times: int, operation: str, first: str, asked: str) -> str:
    """An expression that applies an operation repeatedly to its own result, which `@` stands for."""
    expression = f"cel.bind(v0, {first}, "
    for number in range(times):
        expression += f"cel.bind(v{number + 1}, {operation.replace('@', f'v{number}')}, "
    return expression + asked.replace("@", f"v{times}") + ")" * (times + 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        (doubled(30, "@ + @", "[1]", "@.size() > 0"), f"a list of more than {MAX_ITEMS} elements"),
        (doubled(30, "[@, @].flatten()", "[1]", "@.size() > 0"), f"a list of more than {MAX_ITEMS} elements"),
        (doubled(30, "@ + @", "'a'", "@.size() > 0"), "actual cost limit exceeded"),
        (doubled(12, "@.replace('', @)", "'0123456789'", "@ == ''"), f"a text of more than {MAX_TEXT} characters"),
        (doubled(20, "'%s%s%s'.format([@, @, @])", "'0123'", "@ == ''"), f"a text of more than {MAX_TEXT} characters"),
        (doubled(12, "@.split('').join(@)", "'0123456789'", "@ == ''"), "actual cost limit exceeded"),
        (doubled(30, "[@, @]", "[1]", "[dyn('a'), dyn(@)].join() == ''"), "an error message of more than 100000"),
        (f"{LONG}.distinct().size() > 0", "actual cost limit exceeded"),
        (f"sets.contains({LONG}, {LONG})", "actual cost limit exceeded"),
        (f"cel.bind(a, {LONG}, a.all(x, (a + a).size() > 0))", f"more than {MAX_TOIL} characters and elements"),
        (f"cel.bind(a, {LONG}, a.all(x, [a].flatten().size() > 0))", f"more than {MAX_TOIL} characters and elements"),
        (f"{LONG}.all(x, !'b'.matches('(a{{1,500}})' + string(x)))", f"more than {MAX_TOIL} characters and elements"),
        ("lists.range(4100).all(x, !'b'.matches('a' + string(x)))", f"more than {MAX_TOIL} characters and elements"),
        ("lists.range(51).all(x, !'b'.matches('a{1,2}c{3}' + string(x)))", f"more than {MAX_TOIL} characters"),
    ],
)
def test_what_grows_beyond_all_bounds_is_stopped_in_little_memory(expression: str, sentence: str) -> None:
    selector = compile_selector(expression)
    tracemalloc.start()
    try:
        with pytest.raises(EvaluationError, match=sentence):
            selector.matches(a_device())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 60 * 2**20


@pytest.mark.exhaustive
def test_values_that_hold_one_another_many_times_over_are_not_formatted() -> None:
    selector = compile_selector(doubled(30, "[@, @]", "[1]", "'%s'.format([@]) == ''"))
    with pytest.raises(EvaluationError, match=f"a text of more than {MAX_TEXT} characters"):
        selector.matches(a_device())


@pytest.mark.parametrize("wrap", ["[@, @]", "{1: @, 2: @}", "[optional.of(@), optional.of(@)]"])
@pytest.mark.parametrize("asked", ["@ == @", "@ in [@]", "!(@ != @)"])
def test_values_that_hold_one_another_many_times_over_are_compared(wrap: str, asked: str) -> None:
    first = {"[": "[1]", "{": "{1: 1}"}[wrap[0]] if "optional" not in wrap else "[optional.of(1)]"
    assert compile_selector(doubled(40, wrap, first, asked)).matches(a_device())


def test_values_that_hold_one_another_and_differ_at_the_bottom_are_told_apart() -> None:
    inner = doubled(20, "[@, @]", "[2]", "@ == other")
    expression = doubled(20, "[@, @]", "[1]", f"cel.bind(other, @, {inner})")
    assert not compile_selector(expression).matches(a_device())


@pytest.mark.parametrize(
    "expression",
    [
        "lists.range(50000).map(x, x).size() == 50000",
        "lists.range(300).distinct().size() == 300",
        "lists.range(20000).all(x, 'abc'.matches('^(a{1,50})bc$'))",
        "cel.bind(a, lists.range(1000), a.all(x, (a + a).size() == 2000))",
        "lists.range(3900).all(x, !'b'.matches('a' + string(x)))",
        "lists.range(48).all(x, !'b'.matches('a{1,2}c{3}' + string(x)))",
    ],
)
def test_long_work_that_kubernetes_allows_is_done(expression: str) -> None:
    assert compile_selector(expression).matches(a_device())


def test_a_constant_that_stops_kubernetes_evaluator_does_not_compile() -> None:
    with pytest.raises(CompileError, match=r"^compilation failed: .*hash of unhashable type types\.Bytes$"):
        compile_selector('{b"a": 1} == {}')
