"""`&&`, `||`, `or` and similar: which errors they absorb, and their order of evaluation."""

from draco.cel.errors import EvaluationError
from draco.cel.evaluation.code import Run, Slots
from draco.cel.values.device import DeviceVariable
from draco.cel.values.values import Optional, Value


def both(left: Run, right: Run) -> Run:
    """`left && right`: false wins over an error on either side."""
    return _absorbing(left, right, decisive=False)


def either(left: Run, right: Run) -> Run:
    """`left || right`: true wins over an error on either side."""
    return _absorbing(left, right, decisive=True)


def _absorbing(left: Run, right: Run, *, decisive: bool) -> Run:
    """A side that equals `decisive` decides, whatever the other side gives."""

    def run(device: DeviceVariable, slots: Slots) -> Value:
        try:
            one = left(device, slots)
        except EvaluationError as error:
            if _outcome(right, device, slots) is decisive:
                return decisive
            raise error from None
        if one is decisive:
            return decisive
        if one is not True and one is not False:
            if _outcome(right, device, slots) is decisive:
                return decisive
            raise EvaluationError("no such overload")
        other = right(device, slots)
        if other is True or other is False:
            return other
        raise EvaluationError("no such overload")

    return run


def _outcome(run: Run, device: DeviceVariable, slots: Slots) -> Value:
    """Return the value of the right side after the left side failed; None if it fails too."""
    try:
        return run(device, slots)
    except EvaluationError:
        return None


def not_strictly_false(operand: Run) -> Run:
    """Everything but false is true: a later iteration may still absorb an error."""

    def run(device: DeviceVariable, slots: Slots) -> bool:
        try:
            return operand(device, slots) is not False
        except EvaluationError:
            return True

    return run


def or_optional(left: Run, right: Run) -> Run:
    """`left.or(right)`: evaluates the right side only if the left one is empty."""

    def run(device: DeviceVariable, slots: Slots) -> Value:
        value = left(device, slots)
        if type(value) is not Optional:
            raise EvaluationError("no such overload")
        return value if value.present else right(device, slots)

    return run


def or_value(left: Run, right: Run) -> Run:
    """`left.orValue(right)`: evaluates the right side only if the left one is empty."""

    def run(device: DeviceVariable, slots: Slots) -> Value:
        value = left(device, slots)
        if type(value) is not Optional:
            raise EvaluationError("no such overload")
        return value.value if value.present else right(device, slots)

    return run
