"""Conditions of health policies: what they may contain, what is refused when they are written, and their results."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import reduce

import pytest

from draco.cel import CompileError
from draco.health.conditions import ConditionError, FaultCondition, SickGpu, condition_of, one_line
from draco.resources.api.draco import GpuMig, GpuStatus
from draco.resources.api.health import FaultFamily, FaultScope, GpuFaultStatus


def a_fault(name: str = "Xid63", **fields: object) -> GpuFaultStatus:
    given = {"family": FaultFamily.XID, "code": 63, "latched": True, **fields}
    return GpuFaultStatus(name=name, **given)  # type: ignore[arg-type] # fields by name


def a_sick_gpu(*faults: GpuFaultStatus, **fields: object) -> SickGpu:
    given = {
        "uuid": "GPU-1",
        "product_name": "NVIDIA A100-SXM4-80GB",
        "architecture": "Ampere",
        "memory": "80Gi",
    } | fields
    given["faults"] = list(faults)
    gpu = GpuStatus(device="gpu-0", **given)  # type: ignore[arg-type] # fields by name
    return SickGpu(gpu=gpu, node="node-0", driver="gpu.nvidia.com", driver_version="580.65.06")


def made(expression: str) -> FaultCondition:
    condition = condition_of(expression)
    assert isinstance(condition, FaultCondition), one_line(condition)
    return condition


def refused(expression: str) -> str:
    error = condition_of(expression)
    assert isinstance(error, CompileError), f"{expression} is accepted"
    return one_line(error)


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ('fault.xid in [63, 64] && gpu.product.startsWith("NVIDIA A100")', True),
        ("fault.xid == 79", False),
        ('fault.family == "xid" && fault.scope != "Node"', True),
        ("fault.latched && fault.count >= 1 && fault.instance == -1", True),
        ("gpu.memory >= 80000000000 && !gpu.mig", True),
        ('gpu.faults.exists(f, f == "RowRemapFailed")', False),
        ('"Xid63" in gpu.faults && gpu.faults.size() < 2', True),
        ("has(fault.xid)", True),
        ('fault.message.matches("^a+$") ? true : gpu.numaNode < 0', True),
        ('gpu.driverVersion.startsWith("580.") && gpu.node == "node-0"', True),
        ("1.5 < fault.count || double(fault.count) > 0", True),
    ],
)
def test_a_condition_is_answered(expression: str, answer: bool) -> None:
    fault = a_fault()

    assert made(expression).holds(fault, a_sick_gpu(fault)) is answer


def test_what_a_fault_lacks_has_a_value_too() -> None:
    thermal = GpuFaultStatus(
        family=FaultFamily.THERMAL, name="ThermalSlowdown", instance=3, scope=FaultScope.GPU_INSTANCE
    )
    sick = SickGpu(gpu=GpuStatus(device="gpu-0", uuid="GPU-1", mig=GpuMig(enabled=True)), node="node-0")

    assert made("fault.xid == 0 && fault.instance == 3 && gpu.memory == 0 && gpu.mig").holds(thermal, sick)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("fault.xidd == 63", "at 1:6: undefined field 'xidd' (did you mean xid?)"),
        ('fault.xid == "63"', "at 1:11: found no matching overload for '_==_' applied to '(int, string)'"),
        ("fault.xid", "a condition must be bool, not int"),
        ("fault.xid ==", "at 1:13: Syntax error"),
        ('device.driver == "x"', "at 1:1: undeclared reference to 'device'"),
        ('fault.family == "XID"', "fault.family is never 'XID'; it is one of driver, ecc"),
        ('fault.scope in ["GPU"]', "fault.scope is never 'GPU'"),
        ('gpu.product.lowerAscii() == "x"', "a condition cannot call 'lowerAscii'"),
        ("fault.effect == 'Record'", "undefined field 'effect'"),
        ("fault.?xid.orValue(1) == 1", "a condition"),
        ("[1, 2].map(i, i * 2) == [2, 4]", "can loop only with all, exists and exists_one"),
        ("[1].exists(i, [2].exists(j, i == j))", "cannot have a loop inside another"),
        ("[[1].exists(i, true)].exists(j, j)", "cannot have a loop inside another"),
        ("(" * 60 + "true" + ")" * 60, "nested too deeply"),
        ("fault == gpu", "overload"),
        (
            "fault.count < 1.5",
            "at 1:13: a condition cannot compare int with double; convert one with double() or int()",
        ),
        ("fault.count >= 1u", "a condition cannot compare int with uint"),
    ],
)
def test_a_mistake_is_found_when_the_condition_is_written(expression: str, said: str) -> None:
    assert said in refused(expression)


def test_what_is_wrong_with_all_of_it_has_no_place() -> None:
    assert refused("fault.xid") == "a condition must be bool, not int"


def test_what_has_no_answer_for_a_fault_says_so() -> None:
    with pytest.raises(ConditionError, match="divide"):
        made("1 / fault.xid == 1").holds(a_fault(code=None), a_sick_gpu())


def test_an_error_beside_what_decides_is_absorbed() -> None:
    assert made("1 / fault.xid == 1 || fault.latched").holds(a_fault(code=None), a_sick_gpu())


def test_a_costly_condition_is_refused_and_the_costliest_that_is_not_takes_a_moment() -> None:
    many = ", ".join(str(number) for number in range(700))
    assert "takes up to" in refused(f"[{many}].all(i, i != fault.xid || i + 1 != fault.xid || i + 2 != 7)")

    some = ", ".join(str(number) for number in range(100, 500))
    costly = made(f"[{some}].all(i, i * 2 + 1 != fault.xid)")
    began = time.process_time()  # of this process only
    assert costly.holds(a_fault(), a_sick_gpu())
    assert time.process_time() - began < 2  # normally 0.1 s


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "grow",
    [
        lambda inner: f"!({inner})",
        lambda inner: f"[{inner}] == [true]",
        lambda inner: f"false || {inner}",
        lambda inner: f"{inner} && true",
        lambda inner: f"true ? true : {inner}",
        lambda inner: f"true == ({inner})",
    ],
)
def test_the_deepest_condition_that_is_accepted_is_answered(grow: Callable[[str], str]) -> None:
    deepest = expression = "fault.latched"
    for _ in range(60):
        if not isinstance(condition_of.__wrapped__(expression), FaultCondition):
            break
        deepest, expression = expression, reduce(lambda inner, _: grow(inner), range(8), expression)

    assert 80 < len(deepest) < 4096
    made(deepest).holds(a_fault(), a_sick_gpu())


def test_an_answer_is_remembered_by_what_the_condition_reads() -> None:
    condition = made('fault.xid == 63 && gpu.architecture == "Ampere"')
    assert condition.reads == {("fault", "xid"), ("gpu", "architecture")}
    assert condition.holds(a_fault(count=1), a_sick_gpu())

    condition._runner = None  # evaluating it again would fail

    assert condition.holds(a_fault(count=2), a_sick_gpu(uuid="GPU-2"))
    with pytest.raises(ConditionError):
        condition.holds(a_fault(code=64), a_sick_gpu())


def test_nobody_imports_cel_python_who_has_no_condition() -> None:
    code = "import sys, draco.health.conditions; sys.exit('celpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_any_text_is_refused_in_words_or_answered() -> None:
    source = random.Random(13)
    words = [
        "fault", "gpu", ".", "xid", "family", "(", ")", "[", "]", "==", "in", "&&", "||", "!", "?", ":", "1", '"a"', ",",
        "exists", "all", "x", "has", "matches", "-", "{", "}", "\n", "\\", "é", "size", "faults", "true",
    ]  # fmt: skip
    for _ in range(3000):
        text = " ".join(source.choices(words, k=source.randint(1, 9)))
        condition = condition_of(text)
        if isinstance(condition, CompileError):
            assert one_line(condition)
            continue
        with suppress(ConditionError):
            condition.holds(a_fault(), a_sick_gpu())
