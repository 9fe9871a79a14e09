"""A complaint about a selector: what a rule found wrong, and the expression without it."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeAlias

from draco.selectors.tokens import Token

Severity: TypeAlias = Literal["error", "warning"]
"""error: a cluster refuses it, or it can never work. warning: it is accepted, but probably not meant."""


class Complaint(NamedTuple):
    """A mistake, and the whole expression without it; None if only the author can correct it."""

    rule: str
    cause: str
    advice: str = ""
    """What to write instead, for those who are not shown the whole corrected expression."""
    corrected: str | None = None
    severity: Severity = "error"
    always_fails: bool = False
    """Whether the expression compiles but fails on every device."""

    @property
    def told(self) -> str:
        """The cause and its consequence."""
        return f"{self.cause}, so the selector fails on every device" if self.always_fails else self.cause

    @property
    def message(self) -> str:
        """The cause, its consequence and the advice."""
        return f"{self.told}: {self.advice}" if self.advice else self.told


ExpressionRule = Callable[[str, list[Token], str | None], Iterator[Complaint]]
