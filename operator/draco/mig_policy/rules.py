"""A policy made ready to be asked about many GPUs.

Owns the compiled selectors of a policy, what is wrong with them, and the order of policies.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from draco.cel import CompileError, Selector, compile_selector
from draco.mig_policy.windows import unknown_zones
from draco.resources.api.draco import MigPolicy

_LAST = datetime.max.replace(tzinfo=UTC)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """A policy and its selectors. `problem` says what of it cannot be understood: then it takes no further GPU."""

    policy: MigPolicy
    selectors: tuple[Selector, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """The policy's."""
        return self.policy.metadata.name


def rules_of(policy: MigPolicy) -> Rules:
    """The policy made ready."""
    selectors = []
    for index, selector in enumerate(policy.spec.device_selectors):
        expression = selector.cel.expression if selector.cel else ""
        compiled = _compiled(expression)
        if isinstance(compiled, str):
            return Rules(policy=policy, problem=f"spec.deviceSelectors[{index}] is not a selector: {compiled}.")
        selectors.append(compiled)
    if zones := unknown_zones(policy.spec.reset):
        named = f"{zones[0]} is not a time zone; names are such as UTC or Europe/Berlin"
        return Rules(policy=policy, selectors=tuple(selectors), problem=f"spec.reset.windows: {named}.")
    return Rules(policy=policy, selectors=tuple(selectors))


def oldest_first(policies: Iterable[MigPolicy]) -> list[MigPolicy]:
    """Policies in the order in which they choose their GPUs: by creation, then by name. Those being deleted have no say."""
    return sorted(
        (policy for policy in policies if policy.metadata.deletion_timestamp is None),
        key=lambda policy: (policy.metadata.creation_timestamp or _LAST, policy.metadata.name),
    )


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> Selector | str:
    try:
        return compile_selector(expression)
    except CompileError as error:
        return _one_line(str(error))


def _one_line(text: str) -> str:
    # The compiler draws an arrow below the expression, which says nothing on one line; where it points is said in numbers, too.
    told = (line for line in text.splitlines() if not line.startswith(" | "))
    return " ".join(" ".join(told).split()).rstrip(".")
