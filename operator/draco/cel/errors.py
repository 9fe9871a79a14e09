"""What can go wrong with a selector: it does not compile, or it fails on a device.

Owns the two errors that callers catch. Their text is what Kubernetes shows for the same selector and device, because people
compare the two.
"""

from draco.resources.errors import DracoError


class CelError(DracoError):
    """A selector does not compile or cannot be evaluated."""


class CompileError(CelError):
    """The expression is refused. The text is Kubernetes' own, with line, column and the line itself where it has them."""


class EvaluationError(CelError):
    """The expression has no value for this device. Inside an expression `&&` and `||` may absorb it, as CEL defines."""


class EvaluationAborted(EvaluationError):
    """The evaluation was stopped as a whole (cost limit, internal error of Kubernetes' evaluator); nothing absorbs this."""
