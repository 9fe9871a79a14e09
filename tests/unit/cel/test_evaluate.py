"""Whole expressions on a device: Kubernetes' verdicts, error texts and costs.

`evaluations.jsonl` holds the answers of Kubernetes' own selector language (dynamic-resource-allocation v0.37.2) to each
expression on the device of `devices.py`.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from draco.cel import CompileError, DeviceVariable, EvaluationAborted, EvaluationError, compile_selector, device_view
from draco.cel.checking.cost import is_surely_cheap
from draco.cel.syntax.parse import parse
from draco.resources.api.slices import Device, DeviceAttribute
from tests.unit.cel.devices import DRIVER, a_device

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "evaluations.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["expression"][:80])
def test_an_expression_answers_as_kubernetes_does(recorded: dict[str, Any]) -> None:
    if "compileError" in recorded:
        with pytest.raises(CompileError) as refused:
            compile_selector(recorded["expression"])
        assert str(refused.value) == recorded["compileError"]
        return
    selector = compile_selector(recorded["expression"])
    if "error" in recorded:
        with pytest.raises(EvaluationError) as failed:
            selector.matches(a_device())
        assert str(failed.value) == recorded["error"]
        return
    assert selector.matches(a_device()) is recorded["match"]
    if "cost" in recorded:
        assert selector.cost(a_device()) == recorded["cost"]


def test_ten_million_steps_are_stopped() -> None:
    ten = "[0,1,2,3,4,5,6,7,8,9]"
    expression = "true"
    for name in "abcdefg":
        expression = f"{ten}.all({name}, {expression})"
    with pytest.raises(EvaluationAborted, match=r"^operation cancelled: actual cost limit exceeded$"):
        compile_selector(expression).matches(a_device())


def test_a_stopped_evaluation_is_not_absorbed() -> None:
    expensive = "lists.range(1000).all(x, lists.range(1000).all(y, true))"
    with pytest.raises(EvaluationAborted):
        compile_selector(f"{expensive} || true").matches(a_device())
    with pytest.raises(EvaluationAborted):
        compile_selector(f"[1].exists(z, {expensive}) || true").matches(a_device())


def test_values_that_double_again_and_again_are_stopped() -> None:
    expression = "z.size() > 0"
    names = [f"x{number}" for number in range(60)]
    for name, before in zip([*names[1:], "z"][::-1], names[::-1], strict=True):
        expression = f"cel.bind({name}, {before} + {before}, {expression})"
    with pytest.raises(EvaluationAborted):
        compile_selector(f'cel.bind(x0, "0123456789", {expression})').matches(a_device())


@pytest.mark.usefixtures("no_collection")
def test_building_a_long_list_takes_linear_time() -> None:
    def takes(length: int) -> float:
        selector, view = compile_selector(f"lists.range({length}).map(x, x).size() == {length}"), a_device()

        def once() -> float:
            before_s = time.thread_time()
            assert selector.matches(view)
            return time.thread_time() - before_s

        return min(once() for _ in range(3))

    assert takes(60000) < 40 * takes(6000), "ten times as much, not a hundred times"


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["{driver}"].long.matches("^(a*)*(a*)*b$")',
        'cel.bind(p, device.driver == "" ? "" : "^(a|aa)+b$", device.attributes["{driver}"].long.matches(p))',
    ],
    ids=["constant", "computed"],
)
def test_a_pattern_that_makes_backtracking_explode_is_matched_at_once(expression: str) -> None:
    """In a separate process: a backtracking matcher would never finish, and its process could not interrupt it."""
    script = (
        "import sys\n"
        "from draco.cel.selector import compile_selector\n"
        "from draco.resources.api.slices import DeviceAttribute\n"
        "from tests.unit.cel.test_evaluate import a_device\n"
        "view = a_device(long=DeviceAttribute(string='a' * 64))\n"
        "print(compile_selector(sys.argv[1]).matches(view))\n"
    )
    command = [sys.executable, "-c", script, expression.format(driver=DRIVER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_a_format_clause_cannot_exhaust_memory() -> None:
    assert compile_selector('"%.1000000000f".format([1.0]) == "%!(NOVERB)"').matches(a_device())
    assert compile_selector('"%.65535f".format([0.5]).size() == 257').matches(a_device())


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 100 + "true" + ")" * 100,
        "!" * 200 + "true",
        "true" + " && true" * 1000,
        "1" + " + 1" * 150 + " == 151",
        "[" * 60 + "1" + "]" * 60 + ".size() == 1",
    ],
)
def test_deep_expressions_need_no_deep_stack(expression: str) -> None:
    selector = compile_selector(expression)
    limit = sys.getrecursionlimit()
    assert selector.matches(a_device()) in {True, False}
    assert sys.getrecursionlimit() == limit


def test_a_bound_value_is_computed_only_when_it_is_read() -> None:
    assert compile_selector("cel.bind(x, 1 / (size(device.driver) - 13), true)").matches(a_device())
    with pytest.raises(EvaluationError, match="division by zero"):
        compile_selector("cel.bind(x, 1 / (size(device.driver) - 13), x == 1)").matches(a_device())


def test_variables_of_nested_loops_hide_those_outside() -> None:
    assert compile_selector("[1].exists(x, [2].exists(x, x == 2) && x == 1)").matches(a_device())
    assert compile_selector("cel.bind(device, 5, device == 5)").matches(a_device())


def test_threads_share_a_selector() -> None:
    selector = compile_selector(f'[1, 2, 3].exists(x, cel.bind(y, x + device.attributes["{DRIVER}"].i, y == 102))')
    views = [a_device(i=DeviceAttribute(int_=number)) for number in (100, 101, 0, 99)]
    wanted = [True, True, False, True]
    wrong: list[list[bool]] = []

    def work() -> None:
        for _ in range(300):
            got = [selector.matches(view) for view in views]
            if got != wanted:
                wrong.append(got)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_a_selector_knows_what_it_reads() -> None:
    selector = compile_selector(f'device.attributes["{DRIVER}"].s == "abc"')
    assert {(path.kind, path.domain, path.id) for path in selector.paths} == {("attributes", DRIVER, "s")}
    assert not selector.reads_everything
    assert selector.estimated_cost is not None
    assert selector.estimated_cost >= selector.cost(a_device())
    assert compile_selector("device.attributes.all(d, true)").reads_everything


def test_an_unqualified_name_belongs_to_the_driver_and_a_qualified_one_to_its_domain() -> None:
    view = device_view(
        "gpu.example.com", Device(name="x", attributes={"a": an_int(1), "other.example.com/a": an_int(2)})
    )
    assert view.attributes["gpu.example.com"] == {"a": 1}
    assert view.attributes["other.example.com"] == {"a": 2}
    assert view.allow_multiple_allocations is False


def an_int(number: int) -> DeviceAttribute:
    return DeviceAttribute(int_=number)


@pytest.mark.parametrize("attribute", [DeviceAttribute(), DeviceAttribute(version="1.0")])
def test_a_device_that_kubernetes_cannot_read_is_an_error(attribute: DeviceAttribute) -> None:
    with pytest.raises(EvaluationError, match=r"^attribute a: "):
        device_view("d", Device(name="x", attributes={"a": attribute}))


@pytest.mark.parametrize(
    ("expression", "cheap"),
    [
        ('device.driver == "x"', True),
        ("[1, 2].exists(x, x == 2)", True),
        ("[1].exists(x, [2].exists(y, y == x))", False),
        ("[1].filter(x, [2].exists(y, y == x)).size() == 0", False),
        ("[1].map(x, [2].exists(y, y == x), x).size() == 0", False),
        ("[2].filter(y, y > 1).exists(x, x == 2)", True),
        ("lists.range(3).all(x, true)", False),
        ('cel.bind(x, "a", x + x == "aa")', False),
        ("1 + 1 == 2", True),
        ('["a"].join() == "a"', False),
        ("true" + " || true" * 200, False),
    ],
)
def test_only_what_stays_far_below_the_limit_is_surely_cheap(expression: str, cheap: bool) -> None:
    assert is_surely_cheap(parse(expression)) is cheap


def test_a_view_can_be_made_by_hand() -> None:
    view = DeviceVariable("d", {"d": {"a": 5}}, {})
    assert compile_selector('device.attributes["d"].a == 5').matches(view)
    assert not compile_selector("device.allowMultipleAllocations").matches(view)


@pytest.mark.parametrize("expression", ['!has({"a": {"c": 1}}[?"b"].c)', 'has({"a": {"c": 1}}[?"a"].c)'])
def test_nothing_has_no_field(expression: str) -> None:
    assert compile_selector(expression).matches(a_device())


@pytest.mark.parametrize(
    ("expression", "form"),
    [
        ('dyn("a").flatten(dyn("b")) == [1]', "string.flatten(string)"),
        ('[[1]].flatten(dyn("b")) == [1]', "list.flatten(string)"),
        ("[[1]].flatten(dyn(1u)) == [1]", "list.flatten(uint)"),
    ],
)
def test_a_depth_that_is_no_number_is_refused_where_kubernetes_breaks_down(expression: str, form: str) -> None:
    with pytest.raises(EvaluationError) as failed:
        compile_selector(expression).matches(a_device())
    assert str(failed.value) == f"no such overload: {form}"
