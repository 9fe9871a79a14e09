"""The base of every error that a person can act on, and what is in a group of errors.

Owns one class: each package derives its own small hierarchy from it; the command line prints nothing but its sentence.
"""

from collections.abc import Iterator


class DracoError(Exception):
    """Something is wrong that a person can put right: `str()` is one clear sentence saying what, and what to do about it.

    An error that is a defect of ours must not derive from this class: it should reach the log with its traceback.
    """


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors themselves, without the groups in which structured concurrency wraps them."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
