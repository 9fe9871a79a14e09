"""The base of every error that a person can act on, from which packages derive, and the contents of an exception group."""

from collections.abc import Iterator


class DracoError(Exception):
    """An error that a person can fix; `str()` is one sentence with cause and fix. Not for defects, which get a traceback."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
